import sys

import pytest

from coterie.cli.main import main
from coterie.core.errors import SettingError
from coterie.experiment.trackers import make_tracker

RUN = ["run", "fedavg", "rotated-digits", "clients=4", "rounds=4", "evaluate=2", "steps=1"]
quiet = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class TestTensorBoard:
    pytestmark = quiet

    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("tensorboard", reason="the extra `track` is not installed")

    def scalars(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(folder))
        found.Reload()
        return {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}

    def test_evaluated_rounds_and_the_outcome_are_written(self, tmp_path):
        assert main([*RUN, "--out", str(tmp_path / "run"), "--track", "tensorboard"]) == 0
        written = self.scalars(tmp_path / "run" / "tensorboard")
        assert [event.step for event in written["accuracy"]] == [2, 4]
        assert [event.step for event in written["bytes_up"]] == [2, 4]
        last = written["accuracy"][-1].value
        assert written["end/accuracy"][0].value == pytest.approx(last, abs=1e-6)

    def test_a_folder_can_be_named_and_nothing_is_written_unasked(self, tmp_path):
        place = tmp_path / "events"
        assert main([*RUN, "--out", str(tmp_path / "a"), "--track", f"tensorboard:{place}"]) == 0
        assert self.scalars(place)["loss"]
        assert main([*RUN, "--out", str(tmp_path / "b")]) == 0
        for run in ("a", "b"):
            assert not (tmp_path / run / "tensorboard").exists()


class TestMLflow:
    pytestmark = quiet

    def test_settings_rounds_and_the_outcome_are_written(self, tmp_path, monkeypatch):
        mlflow = pytest.importorskip("mlflow", reason="the extra `track` is not installed")
        monkeypatch.chdir(tmp_path)
        pytest.importorskip("sqlalchemy", reason="the extra `track` is not installed")
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
        try:
            assert main([*RUN, "--out", str(tmp_path / "run"), "--track", "mlflow"]) == 0
            client = mlflow.MlflowClient()
            experiment = client.get_experiment_by_name("coterie")
            (run,) = client.search_runs([experiment.experiment_id])
            history = client.get_metric_history(run.info.run_id, "accuracy")
        finally:
            mlflow.set_tracking_uri(None)
        assert run.info.status == "FINISHED"
        assert run.info.run_name == "run"
        assert run.data.params["steps"] == "1"
        assert run.data.params["algorithm"] == "fedavg"
        assert sorted(metric.step for metric in history) == [2, 4]
        assert run.data.metrics["end/accuracy"] == pytest.approx(run.data.metrics["accuracy"])


@pytest.mark.parametrize(
    ("word", "module"), [("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_library_that_is_not_there_is_named_in_a_sentence(word, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingError, match=rf"--track {word} needs the package {word}: pip"):
        make_tracker(word, tmp_path)


@pytest.mark.parametrize("word", ["mlflaw", "mlflow:here", "wandb", ""])
def test_another_word_is_refused(word, tmp_path):
    with pytest.raises(SettingError, match="--track must be mlflow, tensorboard or"):
        make_tracker(word, tmp_path)
