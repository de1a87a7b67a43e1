"""Runs as pandas frames."""

import pytest

pytest.importorskip("pandas", reason="the extra `frames` is not installed")

from coterie.experiment.frames import clients_frame


@pytest.mark.parametrize("missing", [[], [1], [0, 1, 2]])
def test_clients_of_whom_nothing_is_known_have_a_row_also_where_models_are_mixed(missing):
    columns = {
        "client": [0, 1, 2],
        "name": None,
        "samples": [5, 6, 7],
        "cluster": [1, 0, 1],
        "shares": [[0.1, 0.9], [0.8, 0.2], [0.0, 1.0]],
        "true": None,
        "loss": [0.5, 0.25, 0.125],
    }
    for name in ("cluster", "shares", "loss"):
        columns[name] = [None if i in missing else v for i, v in enumerate(columns[name])]
    frame = clients_frame(columns)
    assert list(frame.columns) == ["samples", "cluster", "shares", "loss"]
    assert frame["shares"].tolist() == columns["shares"]
    assert [i for i in range(3) if frame.loc[i].isna().any()] == missing
