import copy
import math
import warnings
from dataclasses import replace

import pytest
import torch

import coterie
from coterie import UIFCA, Centre, Density, Federation, simulate
from coterie.algorithms import uifca_exact
from coterie.algorithms.uifca import State
from coterie.cli import main as cli
from coterie.core import seeds
from coterie.core.errors import CoterieWarning, SettingError
from coterie.engine.simulator import Simulator
from coterie.experiment.plan import make_plan
from coterie.networks import Linear, Mlp
from coterie.networks.flows import LinearFlow, LinearFlowModule, RealNvp
from coterie.tasks.defaults import default_task, prepare_task

DENSITY = -0.5 * math.log(2 * math.pi)


def blobs(sizes, seed=0, features=2, groups=2, apart=6.0):
    """Clients with samples of several groups, in double precision; labels are the groups."""
    generator = torch.Generator().manual_seed(seed)
    centre = apart * torch.randn(groups, features, generator=generator).double()
    clients = []
    for n in sizes:
        label = torch.randint(groups, (n,), generator=generator)
        noise = torch.randn(n, features, generator=generator).double()
        clients.append((centre[label] + noise, label))
    return replace(Federation.from_clients(clients), sample_clusters=True)


def flow(features=2):
    return Density(LinearFlowModule([features]).double())


def clients_of(federation):
    return [federation.train.x[a:b] for a, b in federation.train.offsets.unfold(0, 2, 1).tolist()]


def naive(clients, labels, k, cluster_rounds, tau, steps, lr):
    """Algorithms 2 to 4 as they are printed, with torch.optim: the models, and the last sets."""
    x = torch.cat(clients)
    fresh = LinearFlowModule([x.shape[1]]).double()
    fresh.inputs.shift = x.mean(0)
    fresh.inputs.scale = (x - x.mean(0)).square().mean().sqrt()
    for _ in range(cluster_rounds):
        models = []
        for j in range(k):  # LearnClusterModel
            theta = copy.deepcopy(fresh)
            for _ in range(tau):
                ends, sizes = [], []
                for own, label in zip(clients, labels, strict=True):  # ClientUpdate
                    some = own[label == j]
                    if not len(some):
                        continue
                    local = copy.deepcopy(theta)
                    optimiser = torch.optim.SGD(local.parameters(), lr=lr)
                    for _ in range(steps):
                        optimiser.zero_grad()
                        (-local(some).mean()).backward()
                        optimiser.step()
                    ends.append(local)
                    sizes.append(len(some))
                with torch.no_grad():
                    for name, weight in theta.named_parameters():
                        parts = [dict(end.named_parameters())[name] for end in ends]
                        total = sum(n * part for n, part in zip(sizes, parts, strict=True))
                        weight.copy_(total / sum(sizes) if sizes else weight)
            models.append(theta)
        with torch.no_grad():
            labels = [torch.stack([m(own) for m in models]).argmax(0) for own in clients]
    return models, labels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", [[6, 9], [1, 2, 30]])
def test_it_is_the_algorithm_of_the_paper_written_naively(seed, sizes):
    k, r = 2, 3
    federation = blobs(sizes, seed)
    algorithm = UIFCA(k=k, restarts=r, batch=0, steps=4, fit_rounds=2, lr=0.05, restart_rounds=9)
    run = simulate(algorithm, federation, flow(), rounds=6, seed=seed)
    clients, first = clients_of(federation), int(run.state.seed)
    for i in range(r):
        labels = [
            torch.randint(k, (len(x), r), generator=seeds.generator(first, "sets", c))[:, i]
            for c, x in enumerate(clients)
        ]
        models, ends = naive(clients, labels, k, 3, 2, 4, 0.05)
        expected = torch.stack([run.task.layout.flatten(model) for model in models])
        torch.testing.assert_close(run.state.models[i], expected, rtol=1e-8, atol=1e-8)
        if i == int(run.state.loss.argmin()):
            torch.testing.assert_close(run.models, expected, rtol=1e-8, atol=1e-8)
            assert run.labels.tolist() == torch.cat(ends).tolist()


def test_one_step_by_hand():
    # Client 0 has x = 1, client 1 three times x = 5: mean 4, variance (9 + 3) / 4 = 3. In units of
    # u = (x - 4) / sqrt 3 they lie at -sqrt 3 and 1/sqrt 3. From A = 1, c = 0 the slopes of
    # (A u + c)^2 / 2 - log A are u^2 - 1 and u: 2 and -sqrt 3, -2/3 and 1/sqrt 3. Weighted 1 : 3
    # the means are 0 and 0, so that nothing moves, as it should at the best fit.
    pairs = [(torch.full((n, 1), float(v)), torch.zeros(n)) for v, n in ((1, 1), (5, 3))]
    federation = Federation.from_clients([(x.double(), y) for x, y in pairs])
    algorithm = UIFCA(k=1, steps=1, fit_rounds=1, lr=0.1, batch=0)
    run = simulate(algorithm, federation, flow(1), rounds=1)
    assert run.models[0].tolist() == pytest.approx([1, 0, 4, math.sqrt(3)])
    assert run.metrics["train_loss"] == pytest.approx(0.5 - DENSITY + math.log(3) / 2)


@pytest.mark.parametrize("fit", ["descent", "exact"])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_set_without_samples_stands_still(fit, fresh):
    federation = blobs([8, 8])
    algorithm = UIFCA(k=3, start="truth", fit=fit, fresh=fresh, fit_rounds=1, batch=0, lr=0.01)
    run = simulate(algorithm, federation, flow(), rounds=1)
    still, moved = run.models[2], run.models[0]
    assert still[:6].tolist() == [1, 0, 0, 1, 0, 0]
    assert torch.equal(still[6:], moved[6:]), "it is scaled as the others are"
    assert not torch.equal(still, moved)


def test_the_restart_with_the_lowest_loss_is_kept():
    number = torch.arange(3.0).view(3, 1, 1)
    nothing = torch.zeros(0)
    state = State(
        number.expand(3, 2, 4),
        number.expand(3, 2, 4) + 10,
        number[:, 0].expand(3, 2),
        torch.tensor([5.0, 1.0, 3.0]),
        torch.tensor(7),
        nothing,
        nothing,
        nothing,
        torch.tensor(1),
    )
    best = state.keep_best()
    assert best.models.unique().tolist() == [1]
    assert best.judges.unique().tolist() == [11]
    assert (best.loss.tolist(), best.rounds) == ([1], 7)


def test_restarts_are_followed_for_as_long_as_was_said_and_the_best_is_served():
    federation = blobs([20, 20], groups=3)
    algorithm = UIFCA(k=3, restarts=4, restart_rounds=2, fit_rounds=2, steps=5, batch=0)
    runs = [simulate(algorithm, federation, flow(), rounds=n) for n in (4, 5, 6)]
    assert [len(run.state.models) for run in runs] == [4, 1, 1]
    followed, kept = (
        runs[0],
        simulate(replace(algorithm, restart_rounds=9), federation, flow(), rounds=5),
    )
    best = int(kept.state.loss.argmin())
    torch.testing.assert_close(runs[1].state.models[0], kept.state.models[best])
    torch.testing.assert_close(followed.models, followed.state.models[followed.state.loss.argmin()])
    ending = kept.state.loss
    assert ending.shape == (4,)
    assert runs[1].state.loss.item() == pytest.approx(ending.min().item())


@pytest.mark.parametrize(
    ("settings", "features", "starts"),
    [
        ({"k": 4, "fit": "exact"}, 32, 16),
        ({"k": 20, "fit": "exact"}, 300, 4),  # of 20 x 300 x 300 numbers
        ({"k": 20, "fit": "exact", "restarts": 1}, 300, 1),
        ({"k": 3}, 300, 4),
        ({"k": 3, "fit": "exact", "start": "k-fed"}, 32, 1),
        ({"k": 3, "fit": "exact", "start": "k-fed", "restarts": 3}, 32, 3),
        ({"k": 2, "fit": "exact", "start": "truth", "restarts": 3}, 32, 1),
    ],
    ids=str,
)
def test_as_many_starts_are_followed_as_was_said_or_as_memory_allows(settings, features, starts):
    federation = blobs([25, 25], features=features)
    run = simulate(UIFCA(steps=1, **settings), federation, flow(features), rounds=1)
    assert len(run.state.models) == starts


def test_a_loss_is_known_only_when_models_have_judged():
    federation = blobs([9, 9])
    algorithm = UIFCA(k=2, restarts=2, fit_rounds=2, batch=0)
    before, after = (simulate(algorithm, federation, flow(), rounds=n).state for n in (2, 3))
    assert bool((before.loss == torch.finfo(torch.float64).max).all())
    mean = [
        torch.stack([-module_of(model)(federation.train.x) for model in models])
        .min(0)
        .values.mean()
        for models in before.models
    ]
    torch.testing.assert_close(after.loss, torch.stack(mean).detach())


def module_of(model):
    task = flow()
    module = copy.deepcopy(task.module)
    module.load_state_dict(task.layout.unflatten(model))
    return module


def label_of(algorithm, federation, models, constants):
    cohort = Simulator(federation.train, flow(1)).cohort(
        torch.arange(len(federation.train)), 0, (0,)
    )
    return algorithm.label(cohort, models, constants), algorithm.choose(cohort, models, constants)


def gaussian(mean, deviation):
    """The 1-D flow A = 1 / deviation, c = -mean / deviation, without scaling."""
    return [1 / deviation, -mean / deviation, 0.0, 1.0]


def test_samples_and_clients_choose_by_hand():
    points = torch.tensor([-2.0, -1.0, 4.0, 3.0, 3.5, 1.4]).double()[:, None]
    federation = Federation.from_clients([(points[:3], [0] * 3), (points[3:], [0] * 3)])
    models = torch.tensor([gaussian(0, 1), gaussian(3, 1)]).double()
    label, choice = label_of(UIFCA(), federation, models, torch.zeros(1, 2).double())
    assert label.tolist() == [[0, 0, 1], [1, 1, 0]], "the border is at 1.5"
    assert choice.cluster.tolist() == [0, 1]
    # A constant of 6 for the second model moves the border to where x^2 / 2 = (x - 3)^2 / 2 - 6,
    # x = -1/2.
    label, _ = label_of(UIFCA(), federation, models, torch.tensor([[0.0, 6.0]]).double())
    assert label.tolist() == [[0, 0, 1], [1, 1, 1]]


def test_the_constant_is_the_mean_loss_of_all_samples():
    federation = blobs([5, 11])
    kept, removed = (
        simulate(
            UIFCA(k=2, constant=c, batch=0, fit_rounds=1, restarts=1), federation, flow(), rounds=2
        )
        for c in ("kept", "removed")
    )
    assert kept.state.constants.tolist() == [[0, 0]]
    before = simulate(
        UIFCA(k=2, batch=0, fit_rounds=1, restarts=1), federation, flow(), rounds=1
    ).state.models[0]
    means = torch.stack([-module_of(model)(federation.train.x).mean() for model in before])
    torch.testing.assert_close(removed.state.constants[0], means.detach())


def test_warm_models_go_on_and_fresh_ones_begin_anew():
    federation, usual = blobs([9, 9]), {"k": 1, "fit_rounds": 1, "steps": 3, "batch": 0}
    fresh = [simulate(UIFCA(**usual), federation, flow(), rounds=n).models for n in (1, 2)]
    warm = [
        simulate(UIFCA(**usual, fresh=False), federation, flow(), rounds=n).models for n in (1, 2)
    ]
    torch.testing.assert_close(fresh[0], fresh[1])
    torch.testing.assert_close(fresh[0], warm[0])
    assert not torch.allclose(warm[0], warm[1])


def test_folds_are_trained_on_in_turns():
    # With one cluster, whose model begins anew, a cluster round fits the samples of its fold alone.
    federation = blobs([40, 40])
    algorithm = UIFCA(k=1, fit="exact", folds=2, shrinkage=0)
    models = [simulate(algorithm, federation, flow(), rounds=n).models for n in (1, 2, 3)]
    torch.testing.assert_close(models[0], models[2])
    assert not torch.allclose(models[0], models[1])


def test_soft_sets_are_weighted_descent():
    # One cluster has weight 1 of every sample: the same as hard sets.
    federation = blobs([7, 12])
    hard, soft = (
        simulate(UIFCA(k=1, assign=a, batch=0, fit_rounds=2), federation, flow(), rounds=3).models
        for a in ("hard", "soft")
    )
    torch.testing.assert_close(hard, soft)


@pytest.mark.parametrize("fit", ["descent", "exact"])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_gaussian_clusters_are_found(fit, p):
    data = {"clients": 4, "samples": 150, "features": 8, "heterogeneity": p}
    federation, _ = coterie.load("gaussian-clusters", **data)
    _, task = prepare_task(UIFCA(k=4), federation, LinearFlow())
    run = simulate(UIFCA(k=4, fit=fit), federation, task, rounds=50 if fit == "descent" else 12)
    assert run.metrics["purity"] == 1


@pytest.mark.parametrize("fit", ["descent", "exact"])
@pytest.mark.parametrize("start", ["random", "noise", "k-fed", "truth"])
@pytest.mark.parametrize("folds", [1, 3])
def test_clients_with_few_or_no_samples_of_a_set_do_no_harm(fit, start, folds):
    # Fewer samples than clusters, single ones, folds that leave a client none; a constant column.
    x = [torch.randn(n, 3, generator=torch.Generator().manual_seed(n)).double() for n in (1, 2, 9)]
    for own in x:
        own[:, 2] = 7.0
    federation = Federation.from_clients([(own, torch.arange(len(own)) % 2) for own in x])
    algorithm = UIFCA(k=4, fit=fit, start=start, folds=folds, fit_rounds=2, steps=2)
    whole, single = (simulate(algorithm, federation, flow(3), rounds=5, chunk=c) for c in (0, 1))
    assert bool(whole.models.isfinite().all())
    torch.testing.assert_close(whole.models, single.models, rtol=1e-6, atol=1e-6)


def test_samples_that_are_all_alike_have_a_scale():
    federation = Federation.from_clients([(torch.full((4, 2), 3.0).double(), [0] * 4)] * 2)
    for fit in ("descent", "exact"):
        run = simulate(UIFCA(k=2, fit=fit, fit_rounds=1, steps=2), federation, flow(), rounds=3)
        assert bool(run.models.isfinite().all())


def test_the_task_is_a_density_whatever_the_network():
    federation = blobs([5, 5])
    for network, kind in ((Mlp(), LinearFlowModule), (Linear(), LinearFlowModule)):
        _, task = prepare_task(UIFCA(), federation, network)
        assert isinstance(task.module, kind)
    own = default_task(blobs([5, 5], features=4), RealNvp(hidden=3))
    assert UIFCA().task(own, federation) is own
    assert UIFCA().task(Centre(2, dtype=torch.float64), federation).layout.dtype == torch.float64


@pytest.mark.parametrize(
    ("algorithm", "task", "says"),
    [
        (
            UIFCA(fit="exact"),
            lambda: Density(RealNvp(hidden=3, masks="checkerboard").module([2], 1).double()),
            "`fit` of UIFCA must be descent for networks that are not linear-flow, got exact",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(algorithm, task, says):
    with pytest.raises(SettingError, match=says):
        simulate(algorithm, blobs([5, 5]), task(), rounds=1)


def test_a_task_that_is_no_density_is_refused():
    with pytest.raises(SettingError, match="its task must be Density, got Centre"):
        uifca_exact.check_density("descent", Centre(2))


@pytest.mark.parametrize(
    ("name", "value"),
    [("k", 0), ("fit", "best"), ("start", "zero"), ("assign", "both"), ("folds", 0), ("prior", -1)],
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(SettingError, match=f"`{name}` of UIFCA must be"):
        UIFCA(**{name: value})


def write_table(path, change):
    """Rows of two clusters at three hospitals, one of them with two rows; `change` makes a row."""
    generator = torch.Generator().manual_seed(0)
    lines = ["hospital,a,b,c,outcome"]
    for i in range(82):
        a, b, c = (6 * (-1) ** i + torch.randn(3, generator=generator)).tolist()
        row = {
            "hospital": "r" if i > 79 else "pq"[i % 3 == 0],
            "a": a,
            "b": b,
            "c": c,
            "outcome": i % 2,
        }
        lines.append(",".join(str(value) for value in change(i, row).values()))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("fit", ["descent", "exact"])
@pytest.mark.parametrize(
    ("change", "k"),
    [
        (lambda i, row: row, 2),
        (lambda i, row: row, 1),
        (lambda i, row: row, 5),  # more clusters than the samples of a hospital
        (lambda i, row: row | {"b": 3}, 2),
        (lambda i, row: row | {"b": row["a"]}, 2),
        (lambda i, row: row | {"b": "" if i % 9 == 0 else row["b"]}, 2),
        (lambda i, row: row | {"a": 1e30 * row["a"]}, 2),
        # Samples of one colour lie in a subspace, so that colours are clusters as well.
        (lambda i, row: row | {"b": ("red", "blue", "green")[i % 3]}, 6),
    ],
)
def test_clusters_of_a_table_are_found_with_and_without_its_label(tmp_path, change, k, fit):
    table = write_table(tmp_path / "visits.csv", change)
    runs = []
    for label in (["label=outcome"], ["label=", "features=a,b,c"]):
        rounds = 20 if fit == "descent" else 8
        settings = [f"k={k}", f"fit={fit}", f"rounds={rounds}", *label]
        plan = make_plan(["uifca", table, "client=hospital", *settings])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CoterieWarning)
            runs.append(plan.run(plan.config()).complete())
    assert k == 1 or runs[0].metrics["purity"] == 1.0
    assert runs[0].metrics["clusters"] <= k
    assert "purity" not in runs[1].metrics
    assert torch.equal(runs[0].labels, runs[1].labels)
    assert bool(runs[1].models.isfinite().all())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda i, row: row | {"hospital": "p"}, "a federation needs two clients or more"),
        (lambda i, row: row | {"a": 1, "b": 2, "c": 3}, "needs a column of features"),
        (lambda i, row: row | {"b": "inf" if i == 3 else row["b"]}, "`b` must hold finite numbers"),
    ],
)
def test_a_table_that_cannot_be_clustered_is_one_sentence(tmp_path, capsys, change, says):
    table = write_table(tmp_path / "visits.csv", change)
    words = [
        "run",
        "uifca",
        table,
        "client=hospital",
        "label=outcome",
        "--out",
        str(tmp_path / "o"),
    ]
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("coterie: ")
    assert says in line
    assert not (tmp_path / "o").exists()
