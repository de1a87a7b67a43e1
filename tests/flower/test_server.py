"""A run goes on after its server has died."""

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CheckpointError, CoterieError, SettingError
from coterie.flower.wire import decode_packet
from tests.flower.fake import DIGITS, IFCA, FakeGrid, alike, deployed, make_app, simulated, thirds


class Died(Exception):
    """The end of a server."""


@pytest.mark.parametrize("checkpoint", [1, 2])
@pytest.mark.parametrize(
    "words",
    [IFCA, ["fpfc", *DIGITS, "lam=0.5", "fraction=0.5"], ["local", *DIGITS]],
    ids=lambda words: words[0],
)
def test_a_run_goes_on_where_its_server_died(tmp_path, words, checkpoint):
    words = [*[word for word in words if "rounds=" not in word], "rounds=5"]
    words.append(f"checkpoint={checkpoint}")
    app = make_app(*words)
    grid = FakeGrid(app, thirds(tmp_path))
    push = grid.push_messages

    def die_in_the_fourth_round(messages):
        names = push(messages)  # the nodes do their work, but nobody is there to hear of it
        if any(decode_packet(m.content).header.get("round") == 3 for m in messages):
            raise Died
        return names

    grid.push_messages = die_in_the_fourth_round
    with pytest.raises(Died):
        deployed(tmp_path, words, grid=grid)
    grid.push_messages = push
    run = deployed(tmp_path, words, grid=grid, attempt="2", resume=True)
    assert run.rounds == 5
    alike(run, simulated(words))
    with pytest.raises(CoterieError, match="already holds a run; resume=true"):
        deployed(tmp_path, words, grid=grid, attempt="3")
    again = deployed(tmp_path, words, grid=grid, attempt="4", resume=True)
    alike(again, run)


def test_a_run_with_other_settings_is_not_resumed(tmp_path):
    deployed(tmp_path, IFCA)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        deployed(tmp_path, [*IFCA, "lr=0.2"], resume=True)


def test_clusters_cannot_be_withheld_over_a_network(tmp_path):
    with pytest.raises(SettingError, match="`withhold` must be nothing over a network"):
        deployed(tmp_path, [*IFCA, "withhold=clusters"])
