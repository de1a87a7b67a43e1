"""`finetune`: a setting of every run, whatever the method."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from sklearn.metrics import davies_bouldin_score

import coterie
from coterie.cli.main import main
from coterie.cli.progress_bar import outcome_text
from coterie.core.algorithm import Info, Serving
from coterie.core.errors import SettingError
from coterie.core.settings import Settings
from coterie.experiment.plan import make_plan
from coterie.shelves import ALGORITHMS
from tests.evaluation.fedem import FedEM

SMALL = ["rotated-digits", "clients=8", "hidden=8", "rounds=3"]
BY_SAMPLE = ("k-fed", "uifca", "cluster-gan")
TUNED = [name for name in ALGORITHMS if name not in BY_SAMPLE]
SHORT_PATH = ["lambdas=2", "path_rounds=4", "stages=1"]  # of lambda; all of it takes half a minute


def done(*words):
    plan = make_plan([*words])
    return plan.run(plan.config()).complete()


def data(**settings):
    return coterie.load("rotated-digits", **{"clients": 8, "hidden": 8, **settings})


@pytest.mark.parametrize("name", TUNED)
def test_every_method_can_be_fine_tuned_and_its_rounds_stay_the_same(name):
    words = [name, *SMALL, *(SHORT_PATH if name.startswith("fpfc") else [])]
    plain, tuned = done(*words), done(*words, "finetune=2")
    before, after = plain.metrics, tuned.metrics
    for metric in ("accuracy", "accuracy_macro", "f1", "f1_macro", "f1_micro", "loss"):
        assert after[f"untuned_{metric}"] == before[metric]
    assert {n: v for n, v in after.items() if n in before} != before
    assert after["loss"] != before["loss"]
    assert (after["clusters"], after["tuned"]) == (before["clusters"], 1)
    told = ("metrics", "by_cluster", "sizes", "moves", "bytes_down", "bytes_up")
    for one, other in zip(plain.records, tuned.records, strict=True):
        assert {key: one[key] for key in told} == {key: other[key] for key in told}


@pytest.mark.parametrize("name", BY_SAMPLE)
def test_where_samples_are_clustered_there_is_nothing_to_fine_tune(name):
    plan = make_plan([name, "rotated-digits", "clients=8", "finetune=1"])
    with pytest.raises(SettingError, match=r"`finetune` must be 0 for \w+, which clusters samples"):
        plan.run(plan.config())


def test_a_client_descends_from_the_model_that_serves_it():
    federation, task = data()
    method = coterie.FedAvg(lr=0.2, batch=7, weight_decay=0.01, optimizer="adam")
    run = coterie.simulate(method, federation, task, rounds=2, finetune=3, finetune_lr=0.03)
    cohort = run.population.cohort(torch.tensor([5]), 0, (0, "adapt"))
    expected = cohort.descend(
        run.models[:1], lr=0.03, epochs=3, batch=7, weight_decay=0.01, optimizer="adam"
    )
    own = task.layout.flatten(run.model(5))
    torch.testing.assert_close(own, expected[0])
    assert run.personal.moved[5] == pytest.approx(float((own - run.models[0]).norm()), rel=1e-4)
    # What is scored is that model.
    x, y = federation.test.client(5)
    hits = (run.model(5)(task.inputs(x)).argmax(1) == y).float().mean()
    assert run.clients.loc[5, "accuracy"] == pytest.approx(float(hits))
    assert run.clients.loc[5, "model"] == "own"


def test_clusters_are_judged_by_the_models_that_clients_fine_tuned():
    federation, task = data()
    run = coterie.simulate(coterie.FeSEM(k=3), federation, task, rounds=2, finetune=2)
    models = torch.stack([task.layout.flatten(run.model(i)) for i in range(8)])
    expected = davies_bouldin_score(models.numpy(), run.clusters.numpy())
    assert run.metrics["davies_bouldin"] == pytest.approx(expected, rel=1e-4)
    alone = coterie.simulate(coterie.FedAvg(), federation, task, rounds=2, finetune=2)
    assert "davies_bouldin" not in alone.metrics


def test_a_client_that_adapts_its_model_fine_tunes_what_it_adapted():
    federation, task = data()
    options = {"rounds": 2, "seed": 3}
    once = coterie.simulate(coterie.Local(steps=2), federation, task, **options)
    own = task.layout.flatten(once.model(1))
    run = coterie.simulate(coterie.Local(steps=2), federation, task, finetune=1, **options)
    cohort = run.population.cohort(torch.tensor([1]), 0, (3, "adapt"))
    torch.testing.assert_close(
        task.layout.flatten(run.model(1)), cohort.descend(own[None], lr=0.1, epochs=1)[0]
    )


def test_clients_without_an_own_test_part_are_scored_on_one_of_their_cluster():
    federation, task = data()
    unseen = replace(federation, unseen=True, test=federation.test, test_cluster=federation.cluster)
    run = coterie.simulate(coterie.IFCA(k=4), unseen, task, rounds=3, finetune=2)
    alone = coterie.simulate(coterie.IFCA(k=4), unseen, task, rounds=3)
    assert run.metrics["untuned_accuracy"] == alone.metrics["accuracy"]
    assert len(run.personal.moved) == 8
    assert run.metrics["loss"] != alone.metrics["loss"]
    assert (
        run.training.outcome.tables["test_clients"] == alone.training.outcome.tables["test_clients"]
    )


def test_without_a_test_part_names_begin_with_train():
    federation, task = data()
    run = coterie.simulate(
        coterie.FedAvg(), replace(federation, test=None), task, rounds=1, finetune=5
    )
    assert run.metrics["untuned_train_loss"] > run.metrics["train_loss"]
    assert "untuned_loss" not in run.metrics


@pytest.mark.parametrize("name", ["ifca", "hypcluster", "fedavg", "ditto"])
def test_where_clusters_are_withheld_sums_of_fine_tuned_models_are_told(name):
    words = [name, *SMALL, "finetune=2"]
    known, withheld = done(*words), done(*words, "withhold=clusters")
    for metric in ("accuracy", "accuracy_macro", "loss"):
        assert withheld.metrics[metric] == pytest.approx(known.metrics[metric])
    assert withheld.metrics["tuned"] == 1


def test_several_starts_and_values_are_fine_tuned():
    run = done("ifca", *SMALL, "k=2", "lr=0.1,0.2", "starts=2", "finetune=2", "start=random")
    assert run.metrics["loss"] < run.metrics["untuned_loss"]
    assert all("untuned_loss" in copy["metrics"] for copy in run.chosen["copies"])


def test_a_run_that_goes_on_is_fine_tuned_at_its_end(tmp_path):
    federation, task = data()
    settings = dict(finetune=2, finetune_for="outliers", seed=1)
    whole = coterie.simulate(coterie.IFCA(k=2), federation, task, rounds=4, **settings)
    folder = tmp_path / "run"
    parts = coterie.IFCA(k=2), federation, task
    coterie.simulate(*parts, rounds=2, folder=folder, **settings)
    again = coterie.simulate(*parts, rounds=4, folder=folder, resume=True, **settings)
    assert again.metrics == whole.metrics
    saved = json.loads((folder / "result.json").read_text())["metrics"]
    assert saved == whole.metrics
    clients = json.loads((folder / "clients.json").read_text())["clients"]
    assert clients["moved"] == pytest.approx(whole.personal.moved.tolist())
    page = (folder / "report.html").read_text()
    assert "before fine-tuning" in page
    assert "The curves are those of the models before" in page
    with pytest.raises(coterie.CoterieError):
        coterie.simulate(*parts, rounds=5, folder=folder, resume=True, seed=1)


def test_the_end_of_a_run_says_what_was_fine_tuned():
    run = done("fedavg", *SMALL, "finetune=1")
    before = run.metrics["untuned_accuracy"]
    line = f"8 of 8 clients use the model they fine-tuned; {before:.2%} of samples before"
    assert line in outcome_text(run)
    assert "fine-tuned" not in outcome_text(done("fedavg", *SMALL))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["finetune=-1"], "`finetune` of RunSettings must be at least 0, got -1"),
        (["finetune=1.5"], "`finetune` must be a whole number, got 1.5"),
        (["finetune=1", "finetune_lr=-1"], "must be at least 0, got -1"),
        (["finetune=1", "finetune_for=some"], "must be one of all, outliers, got some"),
        (["finetune_for=outliers"], "must be all where `finetune` is 0"),
        (["finetune=1", "finetune_distance=0"], "must be greater than 0, got 0"),
        (
            ["finetune=1", "finetune_for=outliers", "withhold=clusters"],
            "must be all where clusters are withheld",
        ),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(words, sentence, capsys):
    assert main(["run", "ifca", *SMALL, *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_a_method_without_a_step_size_needs_one_to_fine_tune():
    @dataclass(frozen=True, kw_only=True)
    class Frozen(Settings):
        """Serves the first model."""

        def init(self, start):
            return (start.models(1),)

        def round(self, state, clients):
            return state, Info(clients.ids, torch.zeros_like(clients.ids), 1)

        def serve(self, state, clients):
            return Serving(state[0], clients.ids, torch.zeros_like(clients.ids))

    federation, task = data()
    with pytest.raises(SettingError, match="`finetune_lr` must be above 0 for Frozen"):
        coterie.simulate(Frozen(), federation, task, rounds=1, finetune=1)
    run = coterie.simulate(Frozen(), federation, task, rounds=1, finetune=5, finetune_lr=0.5)
    assert run.metrics["loss"] < run.metrics["untuned_loss"]


def test_mixtures_cannot_be_fine_tuned():
    federation, task = data()
    with pytest.raises(SettingError, match="whose clients mix several models"):
        coterie.simulate(FedEM(k=2), federation, task, rounds=1, finetune=1)


@pytest.mark.parametrize("unseen", [False, True])
def test_only_the_honest_are_fine_tuned_and_judged(unseen):
    federation, task = data()
    if unseen:
        federation = replace(federation, unseen=True, test_cluster=federation.cluster)
    attack = {"attack": "labels", "attackers": 0.25, "seed": 2}
    method = coterie.FedAvg()
    run = coterie.simulate(method, federation, task, rounds=2, finetune=2, **attack)
    plain = coterie.simulate(method, federation, task, rounds=2, **attack)
    table = run.training.outcome.tables["clients"]
    bad = table["attacker"]
    assert sum(bad) == 2
    assert [model is None for model in table["model"]] == bad
    assert len(run.personal.moved) == 6
    assert run.metrics["untuned_accuracy"] == plain.metrics["accuracy"]
    if not unseen:
        before = plain.training.outcome.tables["clients"]["accuracy"]
        assert [table["accuracy"][i] for i in range(8) if bad[i]] == [
            before[i] for i in range(8) if bad[i]
        ]
