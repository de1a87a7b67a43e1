import json
import re

import pytest

import coterie
from coterie.cli.main import main
from coterie.cli.progress_bar import RunProgressBar
from coterie.core.errors import CheckpointError, SettingError
from coterie.core.settings import identifying_settings
from coterie.experiment.plan import make_plan, plan_again
from coterie.experiment.settings import RunSettings
from coterie.networks import FemnistCnn, Linear, Mlp, RealNvp


def test_the_network_is_that_which_the_federation_suggests():
    plan = make_plan(["ifca", "rotated-digits"])
    assert (plan.network_name, plan.network) == ("mlp", Mlp(hidden=100))
    plan = make_plan(["ifca", "linear-mixture"])
    assert plan.network == Linear(bias=False, weights="bernoulli")
    plan = make_plan(["ifca", "femnist", "hidden=128"])
    assert (plan.network_name, plan.network) == ("cnn", FemnistCnn(hidden=128))


def test_another_network_takes_what_it_understands_of_the_suggestion():
    assert make_plan(["ifca", "femnist", "network=mlp"]).network == Mlp(hidden=2048)
    assert make_plan(["ifca", "rotated-digits", "network=linear"]).network == Linear()
    assert make_plan(["ifca", "rotated-cifar", "network=mlp"]).network == Mlp()


def test_another_network_does_not_take_what_it_does_not_understand(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("site,a,b,c,d\n" + "one,1,2,3,4\ntwo,4,3,2,1\n" * 20)
    words = ["uifca", str(path), "client=site", "k=2"]
    assert make_plan([*words, "network=realnvp"]).network == RealNvp()
    assert make_plan([*words, "network=mlp"]).network == Mlp(hidden="auto")
    with pytest.raises(SettingError, match="`hidden` must be a whole number"):
        make_plan([*words, "network=realnvp", "hidden=auto"])


def test_settings_of_another_network_are_unknown():
    with pytest.raises(SettingError, match="no setting is named hidden"):
        make_plan(["ifca", "rotated-digits", "network=linear", "hidden=5"])
    with pytest.raises(SettingError, match="no network is named mpl; did you mean `mlp`"):
        make_plan(["ifca", "rotated-digits", "network=mpl"])
    with pytest.raises(SettingError, match="`network` is given twice"):
        make_plan(["ifca", "rotated-digits", "network=mlp", "network=linear"])


def test_load_takes_settings_of_the_federation_and_of_the_network():
    _, task = coterie.load("rotated-digits", clients=8, hidden=50)
    assert task.layout.size == 64 * 50 + 50 + 50 * 10 + 10
    _, task = coterie.load("rotated-digits", clients=8, network="linear")
    assert task.layout.size == 64 * 10 + 10
    with pytest.raises(SettingError, match="no network is named lineal; did you mean `linear`"):
        coterie.load("rotated-digits", network="lineal")
    with pytest.raises(SettingError, match="has no setting named hiden; did you mean `hidden`"):
        coterie.load("rotated-digits", hiden=3)


def test_a_network_that_cannot_take_the_samples_is_refused_in_a_sentence(tmp_path, capsys):
    words = ["run", "ifca", "rotated-digits", "network=celeba-cnn", "--out", str(tmp_path / "r")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "cannot take samples of shape [8, 8]" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "uifca gaussian-clusters network=mlp",
            "UIFCA can learn with, such as linear-flow, got ml",
        ),
        ("cluster-gan gaussian-clusters network=realnvp", "ClusterGAN .* such as gan, got realnvp"),
    ],
)
def test_a_network_that_an_algorithm_cannot_learn_with_is_not_replaced(words, says, capsys):
    assert main(["run", *words.split(), "samples=8"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"`network` must be one that {says}", line)


def test_who_names_no_network_or_has_none_is_not_asked_for_one():
    plan = make_plan(["k-fed", "gaussian-clusters", "samples=8", "network=mlp"])
    plan.prepare(plan.build())
    plan = make_plan(["uifca", "gaussian-clusters", "samples=8"])
    before = plan._replace(network_name="mlp", network=Mlp())  # as a folder of before has it
    assert not plan_again(before.config(), []).asks_for_network
    before.prepare(before.build())


def test_an_algorithm_that_must_know_the_rounds_has_them_of_the_run():
    plan = make_plan(["ifca", "linear-mixture", "resample=true", "rounds=7"])
    assert plan.algorithm.resample_rounds == 7
    assert plan_again(plan.config(), []) == plan
    assert plan_again(plan.config(), ["rounds=5"]).algorithm.resample_rounds == 7
    with pytest.raises(SettingError, match=r"must be at least the rounds of the run, 9, .* got 7"):
        plan_again(plan.config(), ["rounds=9"])
    plan = make_plan(["ifca", "linear-mixture", "resample=true", "resample_rounds=9", "rounds=7"])
    assert plan.algorithm.resample_rounds == 9
    assert plan_again(plan.config(), ["rounds=9"]).settings.rounds == 9
    with pytest.raises(SettingError, match=r"must be at least the rounds of the run, 7, .* got 3"):
        make_plan(["ifca", "linear-mixture", "resample=true", "resample_rounds=3", "rounds=7"])


@pytest.mark.parametrize("words", ["rotated-digits clients=8", "linear-mixture features=9 k=2"])
def test_the_plan_of_a_folder_is_the_plan_that_wrote_it(words):
    plan = make_plan(["ifca", *words.split()])
    again = plan_again(plan.config(), [])
    assert again.values() == plan.values()
    assert again.network == plan.network


def config_of_before(plan):
    """What config.json held when networks had no names, and local training one optimiser."""
    config = json.loads(json.dumps(plan.config()))
    for name in ("network", "bias", "weights", *ADDED):
        config["settings"].pop(name, None)
    return config


# Settings that the folders of earlier versions do not know.
ADDED = ["optimizer", "momentum", "clip", "schedule", "schedule_rounds"]
ADDED += ["threads", "sampling", "withhold"]
# Those of every run and of local training that they do know.
FIRST = {
    *("rounds", "seed", "starts", "fraction", "per_round", "lost", "protocol", "evaluate"),
    *("checkpoint", "chunk", "device", "lr", "decay", "batch", "weight_decay", "steps", "epochs"),
}


@pytest.mark.parametrize("missing", [*ADDED, "k", "lr", "rounds", "hidden"])
def test_only_settings_that_were_added_later_may_be_missing(missing):
    config = make_plan(["ifca", "rotated-digits"]).config()
    del config["settings"][missing]
    if missing in ADDED:
        plan = plan_again(config, [])
        assert plan.values() == make_plan(["ifca", "rotated-digits"]).values()
    else:
        with pytest.raises(CheckpointError, match="another version of coterie"):
            plan_again(config, [])


def test_a_run_of_before_is_known_by_its_settings_of_before():
    """The settings that were added later identify a run only where they are not the default."""
    plan = make_plan(["ifca", "rotated-digits"])
    known = identifying_settings(plan.algorithm) | identifying_settings(plan.settings)
    assert not set(ADDED) & set(known)
    assert set(identifying_settings(RunSettings()) | identifying_settings(coterie.Local())) == FIRST
    other = make_plan(["ifca", "rotated-digits", "clip=2", "optimizer=adam"])
    assert set(identifying_settings(other.algorithm)) - set(known) == {"clip", "optimizer"}


@pytest.mark.parametrize("federation", ["rotated-digits", "linear-mixture", "celeba", "digits"])
def test_a_config_without_a_network_means_the_suggested_one(federation):
    plan = make_plan(["fedavg", federation])
    again = plan_again(config_of_before(plan), ["rounds=" + str(plan.settings.rounds)])
    assert again.values() == plan.values()


def test_a_table_without_a_hidden_layer_keeps_its_linear_model():
    config = config_of_before(make_plan(["fedavg", "table", "hidden=0"]))
    assert plan_again(config, []).network == Mlp(hidden=0)


def test_settings_of_another_version_are_refused():
    config = config_of_before(make_plan(["fedavg", "cifar10"]))
    config["settings"]["hidden"] = 100
    with pytest.raises(CheckpointError, match="another version of coterie"):
        plan_again(config, [])
    config = make_plan(["fedavg", "digits"]).config()
    config["settings"]["network"] = "mpl"
    with pytest.raises(SettingError, match="no network is named mpl"):
        plan_again(config, [])


def test_a_folder_of_before_is_resumed_bit_for_bit(tmp_path, capsys):
    words = ["run", "ifca", "rotated-digits", "clients=8", "k=2", "hidden=8"]
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert main([*words, "rounds=4", "--out", str(whole)]) == 0
    stopped = stop_after(2, [*words, "rounds=4", "--out", str(part)])
    config = config_of_before(make_plan([*words[1:], "rounds=4"]))
    (part / "config.json").write_text(json.dumps(config))
    assert stopped == 130
    assert main(["run", "--resume", str(part)]) == 0
    one, two = (json.loads((place / "result.json").read_text()) for place in (whole, part))
    assert one["metrics"] == two["metrics"]


def stop_after(rounds, words):
    """Run a command and interrupt it after so many rounds; the exit code."""

    def interrupt(self, record):
        if record["round"] == rounds:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunProgressBar, "on_round", interrupt)
        return main(words)
