"""What is kept says the same as the run, bit for bit, of clients that it knows and of others."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

import coterie
from coterie.core.errors import CoterieError, DataError, SettingError
from coterie.data.tables.known_schema import new_federation
from coterie.prediction.predictor import Predictor, natural_classes
from tests.prediction.conftest import trained


@dataclass(frozen=True, kw_only=True)
class Mixed(coterie.IFCA):
    """Clients mix all models, three quarters being those of their own group."""

    def serve(self, state, clients):
        serving = super().serve(state, clients)
        rest = torch.full((len(serving.ids), self.k), 0.25 / (self.k - 1))
        return serving._replace(mixture=rest.scatter(1, serving.cluster[:, None], 0.75))


METHODS = {
    "ifca": coterie.IFCA(k=2, lr=0.05),
    "fesem": coterie.FeSEM(k=2, lr=0.05),
    "fesem-own": coterie.FeSEM(k=2, lr=0.05, serves="own"),
    "fedavg": coterie.FedAvg(lr=0.05),
    "local": coterie.Local(lr=0.05),
    "ditto": coterie.Ditto(lr=0.05),
    "per-fedavg": coterie.PerFedAvg(lr=0.05),
    "fpfc": coterie.FPFC(lr=0.05),
    "mixture": Mixed(k=3, lr=0.05),
}


@pytest.mark.parametrize("kind", ["classes", "targets"])
@pytest.mark.parametrize("name", METHODS)
def test_a_reloaded_run_says_the_same_as_the_run(name, kind, tables, newcomers, tmp_path):
    run = trained(METHODS[name], tables[kind])
    loaded = coterie.load_run(run.save(tmp_path))
    every = pd.concat([tables[kind], newcomers[kind]], ignore_index=True)
    every.loc[every.site == "s8", "outcome"] = None  # a newcomer without labels
    before, after = run.predictor.predictions(every), loaded.predictions(every)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    known = {"local": "own", "ditto": "own", "per-fedavg": "own", "fesem-own": "own"}
    how = dict(zip(every.site, after.chosen, strict=True))
    assert how["s3"] == known.get(name, "mixture" if name == "mixture" else "training")
    assert (how["s7"], how["s8"]) == ("labels", "average")
    # What the network of a known client gives for its rows is what is predicted for them.
    own = every.site == "s3"
    x = run.federation.schema.encode(every[own])
    with torch.no_grad():
        output = run.model("s3")(x)
    assert torch.equal(output, loaded.model("s3")(x))
    if kind == "targets":
        expected = run.federation.schema.decode(output[:, 0])
        assert 1000 < expected.mean() < 9000  # in the label's units
    else:
        expected = np.array(loaded.classes, dtype=object)[output.argmax(1)]
        np.testing.assert_array_equal(
            run.predict_proba(every)[own], torch.softmax(output, 1).numpy()
        )
    np.testing.assert_array_equal(run.predict(every)[own], expected)


def test_models_that_clients_fine_tuned_are_kept(tables, tmp_path):
    run = trained(coterie.IFCA(k=2, lr=0.05), tables["classes"], finetune=2)
    loaded = coterie.load_run(run.save(tmp_path))
    rows = tables["classes"][tables["classes"].site == "s2"]
    assert set(loaded.predictions(rows).chosen) == {"own"}
    assert set(loaded.predictions(rows, client="new").chosen) == {"labels"}
    x = run.federation.schema.encode(rows)
    assert torch.equal(run.model("s2")(x), loaded.model("s2")(x))
    scores = run.personal.summary.clients["accuracy"]
    x, y = run.federation.test.client(2)
    assert float((loaded.model("s2")(x).argmax(1) == y).double().mean()) == float(scores[2])


def test_clients_of_withheld_clusters_are_new_ones(tables, tmp_path):
    open_run = trained(coterie.IFCA(k=2, lr=0.05), tables["classes"])
    run = trained(coterie.IFCA(k=2, lr=0.05), tables["classes"], withhold="clusters")
    loaded = coterie.load_run(run.save(tmp_path))
    rows = tables["classes"]
    found = loaded.predictions(rows)
    assert set(found.chosen) == {"labels"}
    expected = open_run.predictor.predictions(rows)
    assert (found.group == expected.group).all()
    unlabelled = loaded.predictions(rows.drop(columns="outcome"))
    assert set(unlabelled.chosen) == {"average"}
    with pytest.raises(CoterieError, match="is known to that client alone"):
        loaded.model("s0")


def test_a_newcomer_chooses_as_it_does_in_serve(run, newcomers):
    rows = newcomers["classes"]
    found = run.predictor.predictions(rows, client=[f"new {site}" for site in rows.site])
    groups = dict(zip(rows.site, found.group, strict=True))
    assert [groups[f"s{c}"] for c in range(9)] == run.serve(rows).tolist()
    assert len(set(run.serve(rows).tolist())) == 2
    assert set(found.chosen) == {"labels"}


def test_a_few_labels_among_the_rows_are_enough(run, newcomers):
    rows = newcomers["classes"].copy()
    rows.loc[rows.groupby("site").cumcount() >= 5, "outcome"] = None
    labelled = rows[rows.outcome.notna()]
    found = run.predictor.predictions(rows, client=[f"new {site}" for site in rows.site])
    groups = dict(zip(rows.site, found.group, strict=True))
    assert [groups[f"s{c}"] for c in range(9)] == run.serve(labelled).tolist()


def test_without_labels_groups_count_as_often_as_they_have_clients(run, newcomers):
    rows = newcomers["classes"].drop(columns=["outcome", "site"])
    found = run.predictor.predictions(rows)
    assert set(found.chosen) == {"average"}
    assert set(found.group) == {-1}
    x, members = run.federation.schema.encode(rows), run.clusters.bincount(minlength=2).double()
    models = [run.model(int((run.clusters == j).nonzero()[0])) for j in range(2)]
    with torch.no_grad():
        each = torch.stack([torch.softmax(model(x).double(), 1) for model in models])
    mean = (each * (members / members.sum())[:, None, None]).sum(0)
    np.testing.assert_allclose(found.probabilities, mean, atol=1e-6)
    np.testing.assert_allclose(found.probabilities.sum(1), 1, atol=1e-6)


def test_one_row_only_and_columns_in_another_order(run, newcomers):
    rows = newcomers["classes"]
    whole = run.predict_proba(rows, client="s1")
    turned = rows[list(reversed(rows.columns))].assign(more=1)
    np.testing.assert_array_equal(run.predict_proba(turned, client="s1"), whole)
    for i in (0, 5):
        np.testing.assert_allclose(
            run.predict_proba(rows[i : i + 1], client="s1")[0], whole[i], atol=1e-6
        )


def test_clients_that_are_numbers_are_known_however_they_are_written(tables):
    table = tables["classes"].assign(site=tables["classes"].site.str[1:].astype(int))
    run = trained(coterie.IFCA(k=2, lr=0.05), table)
    expected = run.predictor.predictions(table)
    assert set(expected.chosen) == {"training"}
    for as_written in (float, str, lambda site: f"{site}.0"):
        other = table.assign(site=table.site.map(as_written))
        np.testing.assert_array_equal(run.predictor.predictions(other).group, expected.group)
    assert set(run.predictor.predictions(table, client=4.0).chosen) == {"training"}


def test_classes_come_as_they_were(tables):
    table = tables["classes"]
    for values in ([3, 5], [True, False], ["007", "1"]):
        labels = table.outcome.map(dict(zip(["ill", "well"], values, strict=True)))
        run = trained(coterie.FedAvg(lr=0.05), table.assign(outcome=labels), rounds=2)
        found = run.predict(table)
        assert set(found.tolist()) <= set(values)
        assert (found == labels.to_numpy()).mean() > 0.4
    assert natural_classes(("-1", "2")).tolist() == [-1, 2]


def test_what_cannot_be_predicted_is_refused_in_a_sentence(run, newcomers):
    rows = newcomers["classes"]
    with pytest.raises(CoterieError, match="no column named `dose`"):
        run.predict(rows.drop(columns="dose"))
    with pytest.raises(DataError, match="has no rows"):
        run.predict(rows[:0])
    with pytest.raises(DataError, match="classes that training did not have"):
        run.predict(rows.assign(outcome="?"))
    # Whoever is known by name needs no labels, whatever they are.
    known = rows[rows.site == "s1"]
    assert len(run.predict(known.assign(outcome="?"))) == len(known)
    with pytest.raises(DataError, match="there are 72 rows and 2 names"):
        run.predict(rows, client=["a", "b"])
    with pytest.raises(SettingError, match="no client is named s33; did you mean"):
        run.predictor.model("s33")


def test_a_federation_of_a_schema_of_its_own_is_refused(run, newcomers, tables):
    rows = newcomers["classes"]
    other = coterie.Federation.from_table(rows, client="site", label="outcome")
    with pytest.raises(DataError, match="was read by a schema of its own"):
        run.serve(other)
    schema = run.federation.schema
    read = coterie.Federation.from_table(rows, schema=schema)
    assert torch.equal(run.serve(read), run.serve(rows))
    one = rows[rows.site == "s7"]
    assert run.serve(one).tolist() == run.serve(rows).tolist()[7:8]
    with pytest.raises(SettingError, match="there are no other settings"):
        coterie.Federation.from_table(rows, schema=schema, train_share=0.5)
    with pytest.raises(DataError, match="has no labels, by which clients choose"):
        run.serve(rows.drop(columns="outcome"))
    with pytest.raises(DataError, match="has no rows"):
        run.serve(rows[:0])
    assert len(new_federation(schema, one)) == 1


def test_samples_of_another_run_than_of_a_table_are_arrays(tmp_path):
    federation, task = coterie.load("rotated-digits", clients=8, hidden=8)
    run = coterie.simulate(coterie.IFCA(k=4), federation, task, rounds=2)
    loaded = coterie.load_run(run.save(tmp_path))
    x, y = federation.test.client(3)
    assert torch.equal(loaded.model(3)(task.inputs(x)), run.model(3)(task.inputs(x)))
    hits = loaded.predict(x, client=3) == y.numpy()
    assert hits.mean() == run.evaluation.summary.clients["accuracy"][3]
    assert set(loaded.predictions(x).chosen) == {"average"}
    with pytest.raises(DataError, match="the network cannot take samples of shape"):
        loaded.predict(x[:, :3])
    with pytest.raises(DataError, match="are given as a Federation"):
        run.serve("rows.csv")


def test_a_run_says_what_it_is(run):
    assert repr(run.predictor) == (
        "<Predictor of ifca on own data: 6 clients, groups of 3, 3, after 10 rounds>"
    )
    assert isinstance(run.predictor, Predictor)
    assert run.predictor.clients == tuple(f"s{c}" for c in range(6))
