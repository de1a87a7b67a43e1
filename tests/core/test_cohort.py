import pytest
import torch
from torch import nn

from coterie import Classification, Regression
from coterie.core.errors import CoterieError, CoterieWarning, SettingError
from coterie.data.federation import Samples
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.kernels.vmapped import VmappedKernel
from coterie.engine.simulator import Simulator
from tests.engine.kernels.cohorts import cohort as kernel_cohort


class Counting(nn.Module):
    """A linear model that counts how often it is trained on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        self.steps, self.samples = 0, 0

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.samples += len(x)
        return self.layer(x)


def cohort_of(module, sizes, task=Regression, seed=0):
    clients = [(torch.arange(1.0, n + 1)[:, None], torch.ones(n)) for n in sizes]
    simulator = Simulator(Samples.of(clients), task(module), seed=seed)
    return simulator.cohort(torch.arange(len(sizes)), 0, (seed,))


@pytest.mark.parametrize(
    ("work", "steps", "samples"),
    [
        ({"steps": 10}, 10, 50),
        ({"epochs": 3}, 3, 15),
        ({"steps": 10, "batch": 2}, 10, 2 + 2 + 1 + 2 + 2 + 1 + 2 + 2 + 1 + 2),
        ({"epochs": 3, "batch": 2}, 9, 15),
        ({"steps": 4, "batch": 100}, 4, 20),
        ({"epochs": 2, "batch": 5}, 2, 10),
    ],
)
def test_every_gradient_step_that_was_asked_for_is_made(work, steps, samples):
    """A public code stopped at the end of the data and made 1 of 10 steps."""
    module = Counting()
    cohort_of(module, [5]).descend(torch.zeros(1, 1), lr=0.0, **work)
    assert (module.steps, module.samples) == (steps, samples)


def test_gradient_descent_by_hand():
    # One sample x = 1, y = 1: loss (w - 1)^2, gradient 2 (w - 1); from 0 with lr 1/4 half the way
    # is left after every step.
    end = cohort_of(nn.Linear(1, 1, bias=False), [1]).descend(torch.zeros(1, 1), lr=0.25, steps=3)
    assert end.item() == pytest.approx(1 - 0.5**3)


def test_pull_and_weight_decay_by_hand():
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [1])
    start = torch.zeros(1, 1)
    pulled = cohort.descend(start, lr=0.1, steps=1, pull=3.0, anchor=torch.full((1, 1), 2.0))
    assert pulled.item() == pytest.approx(0.1 * (2 + 3 * 2))
    decayed = cohort.descend(torch.ones(1, 1), lr=0.1, steps=1, weight_decay=0.5)
    assert decayed.item() == pytest.approx(1 - 0.1 * 0.5)


def test_only_moves_the_named_coordinates():
    module = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    cohort = cohort_of(module, [4, 2])
    head = cohort.task.layout.part("head")
    start = torch.randn(2, 10, generator=torch.Generator().manual_seed(0))
    end = cohort.descend(start, lr=0.1, steps=5, part=head)
    assert torch.equal(end[:, ~head], start[:, ~head])
    assert not torch.equal(end[:, head], start[:, head])


def test_a_client_draws_the_same_batches_alone_and_in_company():
    module = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1))
    together = cohort_of(module, [5, 9]).descend(torch.ones(2, 7), lr=0.1, epochs=2, batch=2)
    clients = [(torch.arange(1.0, n + 1)[:, None], torch.ones(n)) for n in (5, 9)]
    simulator = Simulator(Samples.of(clients), Regression(module))
    alone = simulator.cohort(torch.tensor([1]), 0, (0,)).descend(
        torch.ones(1, 7), lr=0.1, epochs=2, batch=2
    )
    torch.testing.assert_close(together[1], alone[0])


def test_a_stochastic_gradient_is_of_that_many_samples():
    # Rows x = 1, 2, 3 with y = 1 at w = 0: gradients -2 x, so a batch of one is -2, -4 or -6.
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [3])
    seen = {round(cohort.gradient(torch.zeros(1, 1), batch=1).item(), 4) for _ in range(40)}
    assert seen == {-2.0, -4.0, -6.0}
    assert cohort.gradient(torch.zeros(1, 1)).item() == pytest.approx(-4.0)


def test_a_diverged_model_is_chosen_by_nobody():
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [3])
    loss = cohort.loss(torch.tensor([[float("nan")], [5.0]]))
    assert loss[0, 0] == torch.inf
    assert loss.argmin(1).tolist() == [1]


def test_dropout_is_off_when_losses_are_compared_and_on_when_training():
    module = nn.Sequential(nn.Linear(1, 50), nn.Dropout(0.5), nn.Linear(50, 1))
    cohort = cohort_of(module, [6])
    model = torch.randn(1, 151, generator=torch.Generator().manual_seed(0))
    assert torch.equal(cohort.loss(model), cohort.loss(model))
    one = cohort.descend(model, lr=0.01, steps=1)
    two = cohort.descend(model, lr=0.01, steps=1)
    assert not torch.equal(one, two)


def test_training_neither_uses_nor_moves_the_global_generator():
    module = nn.Sequential(nn.Linear(1, 50), nn.Dropout(0.5), nn.Linear(50, 1))
    model = torch.randn(1, 151, generator=torch.Generator().manual_seed(0))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = torch.rand(3)
        torch.manual_seed(seed)
        cohort = cohort_of(module, [6])
        end = cohort.descend(model, lr=0.01, steps=2, batch=2)
        found.append((end, cohort.gradient(model)))
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_only_a_part_of_a_network_with_buffers_moves():
    module = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    clients = [(torch.randn(8, 1), torch.randint(2, (8,)))]
    simulator = Simulator(Samples.of(clients), Classification(module))
    head = simulator.task.layout.part("head")
    start = simulator.task.layout.flatten(module)[None]
    end = simulator.cohort(torch.arange(1), 0, (0,)).descend(start, lr=0.1, steps=3, part=head)
    assert torch.equal(end[:, ~head], start[:, ~head])
    assert not torch.equal(end[:, head], start[:, head])


def test_running_statistics_move_in_training_and_travel_with_the_model():
    module = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    clients = [(torch.randn(8, 1), torch.randint(2, (8,))) for _ in range(2)]
    simulator = Simulator(Samples.of(clients), Classification(module))
    layout = simulator.task.layout
    start = layout.flatten(module).expand(2, -1)
    end = simulator.cohort(torch.arange(2), 0, (0,)).descend(start, lr=0.1, steps=3)
    after = layout.unflatten(end)
    assert after["1.num_batches_tracked"].tolist() == [3, 3]
    assert not torch.equal(after["1.running_mean"][0], after["1.running_mean"][1])
    assert module[1].num_batches_tracked == 0


def test_memory_is_each_clients_own():
    cohort = cohort_of(nn.Linear(1, 1), [2, 2, 2])
    default = torch.zeros(3, 2)
    assert torch.equal(cohort.recall("model", default), default)
    cohort.keep("model", torch.arange(6.0).view(3, 2))
    assert cohort.recall("model").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert cohort.remembers("model").all()


def test_a_pull_may_have_its_own_strength_for_every_coordinate():
    for module in (
        nn.Linear(2, 1, bias=False),
        nn.Sequential(nn.Unflatten(1, (2,)), nn.Linear(2, 1, bias=False)),
    ):
        clients = [(torch.zeros(1, 2), torch.zeros(1))]  # the loss is flat: only the pull moves
        cohort = Simulator(Samples.of(clients), Regression(module)).cohort(torch.arange(1), 0, (0,))
        anchor, pull = torch.tensor([[1.0, 1.0]]), torch.tensor([0.0, 2.0])
        end = cohort.descend(torch.zeros(1, 2), lr=0.25, steps=1, pull=pull, anchor=anchor)
        assert end.tolist() == [[0.0, 0.5]]


def test_a_split_holds_every_sample_once_and_the_same_ones_every_time():
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [10, 3, 1])
    parts = cohort.split(0.8)
    assert [part.size.tolist() for part in parts] == [[8, 2, 1], [2, 1, 1]]
    kept, held = ([x.flatten().tolist() for x, _ in part] for part in parts)
    for i, size in enumerate([10, 3]):
        assert sorted(kept[i] + held[i]) == list(range(1, size + 1))
    assert kept[2] == held[2] == [1.0]  # the only sample of a client is in both
    assert [x.flatten().tolist() for x, _ in cohort.split(0.8)[1]] == held


def test_disjoint_parts_hold_every_sample_once_and_the_same_ones_every_time():
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [10, 4, 3, 10])
    parts = [cohort.disjoint_part(which, 4) for which in range(4)]
    sizes = [[3, 1, 1, 3], [3, 1, 1, 3], [2, 1, 1, 2], [2, 1, 0, 2]]
    assert [part.size.tolist() for part in parts] == sizes
    held = [[x.flatten().tolist() for x, _ in part] for part in parts]
    for i, size in enumerate([10, 4, 3, 10]):
        assert sorted(x for part in held for x in part[i]) == list(range(1, size + 1))
    again = [x.flatten().tolist() for x, _ in cohort.disjoint_part(2, 4)]
    assert again == held[2]
    other = cohort_of(nn.Linear(1, 1, bias=False), [10, 4, 3, 10], seed=1).disjoint_part(0, 4)
    assert [x.flatten().tolist() for x, _ in other] != held[0]


def test_weights_of_samples_by_hand():
    # Rows x = 1, 2 with y = 1 at w = 0: gradients -2 x, so weights 3 and 1 make -(6 + 4) / 2.
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [2, 1])
    weights = torch.tensor([[3.0, 1.0], [0.5, 7.0]])
    gradient = cohort.gradient(torch.zeros(2, 1), weights=weights)
    assert gradient.flatten().tolist() == pytest.approx([-5, -1])
    end = cohort.descend(torch.zeros(2, 1), lr=0.1, steps=1, weights=weights)
    assert end.flatten().tolist() == pytest.approx([0.5, 0.1])


def test_weights_of_several_models_by_hand():
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [2])
    start, weights = torch.zeros(1, 2, 1), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    end = cohort.descend(start, lr=0.1, steps=1, weights=weights)
    assert end.flatten().tolist() == pytest.approx([0.1, 0.2])  # each on a sample of its own
    both = cohort.descend(start, lr=0.1, steps=1, weights=torch.ones(1, 2))
    assert both.flatten().tolist() == pytest.approx([0.3, 0.3])


@pytest.mark.parametrize(
    ("start", "weights", "sentence"),
    [
        ((2, 1), (2, 2), r"must be \[2, 3\], got \[2, 2\]"),
        ((2, 1), (2, 3, 1), r"must be \[2, 3\], got \[2, 3, 1\]"),
        ((2, 4, 1), (2, 3, 2), r"must be \[2, 3\] or \[2, 3, 4\], got \[2, 3, 2\]"),
    ],
)
def test_weights_of_another_shape_are_refused(start, weights, sentence):
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [3, 2])
    for work in (cohort.gradient, lambda *a, **w: cohort.descend(*a, lr=0.1, steps=1, **w)):
        with pytest.raises(CoterieError, match=f"the weights of samples {sentence}"):
            work(torch.zeros(start), weights=torch.ones(weights))


def test_an_unknown_optimiser_is_refused_in_a_sentence():
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [3])
    sentence = "`optimizer` must be one of sgd, momentum, adam, got adm; did you mean `adam`"
    with pytest.raises(SettingError, match=sentence):
        cohort.descend(torch.zeros(1, 1), lr=0.1, steps=1, optimizer="adm")


def test_losses_of_samples_by_hand():
    cohort = cohort_of(nn.Linear(1, 1, bias=False), [2, 1])
    assert cohort.mask.tolist() == [[True, True], [True, False]]
    losses = cohort.losses(torch.tensor([[0.0], [2.0]]))  # (w x - 1)^2 with x = 1, 2
    assert losses.tolist() == [[[1, 1], [1, 9]], [[1, 1], [0, 0]]]


def test_a_client_draws_the_same_for_a_purpose_in_any_company():
    together = cohort_of(nn.Linear(1, 1), [2, 3, 4])
    alone = together.subset(torch.tensor([1]))
    drawn = [torch.rand(3, generator=g) for g in together.generators("noise")]
    assert torch.equal(torch.rand(3, generator=alone.generators("noise")[0]), drawn[1])
    assert not torch.equal(drawn[0], drawn[1])
    (other,) = alone.generators("crops")
    assert not torch.equal(torch.rand(3, generator=other), drawn[1])
    again = [torch.rand(3, generator=g) for g in together.generators("noise")]
    assert all(torch.equal(one, two) for one, two in zip(drawn, again, strict=True))


def test_generators_are_new_in_every_step():
    simulator = Simulator(
        Samples.of([(torch.ones(2, 1), torch.ones(2))]), Regression(nn.Linear(1, 1))
    )
    drawn = {
        float(
            torch.rand(
                (), generator=simulator.cohort(torch.arange(1), 0, address).generators("a")[0]
            )
        )
        for address in (
            (0, "round", 0, 0),
            (0, "round", 0, 1),
            (0, "round", 1, 0),
            (1, "round", 0, 0),
        )
    }
    assert len(drawn) == 4


@pytest.fixture
def normalised():
    """Two clients, and a network with batch normalisation in double precision."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)).double()
    clients = [(torch.randn(8, 1).double(), torch.randint(2, (8,))) for _ in range(2)]
    simulator = Simulator(Samples.of(clients), Classification(module))
    start = simulator.task.layout.flatten(module).expand(2, -1)
    return simulator.task.layout, start, lambda: simulator.cohort(torch.arange(2), 0, (0,))


def test_a_loop_of_steps_along_gradients_has_the_statistics_of_a_descent(normalised):
    layout, start, cohort = normalised
    work, model = cohort(), start
    for _ in range(5):
        model = layout.step(model, work.gradient(model, statistics=True), 0.1)
    torch.testing.assert_close(model, cohort().descend(start, lr=0.1, steps=5))
    assert layout.unflatten(model)["1.num_batches_tracked"].tolist() == [5, 5]


def test_a_gradient_that_leaves_statistics_behind_says_so(normalised):
    layout, start, cohort = normalised
    with pytest.warns(CoterieWarning, match="leaves the running statistics .*statistics=True"):
        gradient = cohort().gradient(start)
    assert bool((gradient[:, layout.trained_size :] == 0).all())
    silent = cohort().gradient(start, statistics=False)
    assert torch.equal(silent, gradient)
    change = cohort().gradient(start, statistics=True, clip=1e-3, weight_decay=0.1)
    whole = cohort().gradient(start, statistics=True)
    width = layout.trained_size  # neither clipped nor pulled
    assert torch.equal(change[:, width:], whole[:, width:])
    assert torch.equal(whole[:, :width], gradient[:, :width])


def labelled(kernel, seed, sizes=(5, 1, 8)):
    """Clients with two labels for each sample, by a kernel; those of padding are wild."""
    task = Classification(nn.Linear(3, 2).double())
    some = kernel_cohort(task, kernel, sizes, 3, 2, seed)
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(4, (len(sizes), max(sizes), 2), generator=generator)
    return some, torch.where(some.mask[:, :, None], label, 99)


@pytest.mark.parametrize("kernel", [PerClientKernel, VmappedKernel, BatchedKernel])
@pytest.mark.parametrize("seed", range(3))
def test_clients_by_label_are_those_with_some_of_their_samples(kernel, seed):
    some, label = labelled(kernel, seed)
    m, k = len(some), 4
    generator = torch.Generator().manual_seed(seed)
    models = torch.randn(2, 8, generator=generator).double()
    start = torch.randn(m * 2 * k, 8, generator=generator).double()
    sets = some.by_label(label, k)
    assert len(sets) == m * 2 * k
    end, loss = sets.descend(start, lr=0.1, steps=3), sets.loss(models)
    losses, gradient = sets.losses(models).sum(1), sets.gradient(start)
    close = torch.testing.assert_close
    for r in range(2):
        for j in range(k):
            here = torch.arange(m) * 2 * k + r * k + j
            among = some.among(label[:, :, r] == j)
            assert sets.size[here].tolist() == among.size.tolist()
            close(loss[here], among.loss(models))
            close(losses[here], among.losses(models).sum(1))
            close(gradient[here], among.gradient(start[here]))
            close(end[here], among.descend(start[here], lr=0.1, steps=3))
            empty = among.size == 0
            assert torch.equal(end[here][empty], start[here][empty]), "it stands still"
    one, other = some.by_label(label[:, :, 0], k), some.by_label(label[:, :, :1], k)
    assert torch.equal(one.loss(models), other.loss(models))


def test_what_is_drawn_by_label_is_the_same_in_any_company():
    some, label = labelled(VmappedKernel, 0, (9, 12))
    start = torch.ones(2 * 8, 8).double()
    together = some.by_label(label, 4).descend(start, lr=0.1, steps=4, batch=2)
    own = some.subset(torch.tensor([1])).by_label(label[1:], 4)
    alone = own.descend(start[8:], lr=0.1, steps=4, batch=2)
    torch.testing.assert_close(together[8:], alone)


def test_labels_of_clients_without_samples():
    some, label = labelled(PerClientKernel, 0)
    nobody = some.among(torch.zeros_like(some.mask))
    sets = nobody.by_label(label[:, :1], 4)
    assert sets.size.tolist() == [0] * 24
    start = torch.ones(24, 8).double()
    assert torch.equal(sets.descend(start, lr=0.1, steps=2), start)
