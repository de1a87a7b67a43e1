from dataclasses import replace

import pytest
import torch

from coterie import UIFCA, Centre, Density, Federation, KFed, simulate
from coterie.algorithms import uifca_start
from coterie.core.errors import CoterieError, SettingError
from coterie.engine.simulator import Simulator
from coterie.networks.flows import LinearFlowModule
from tests.tasks.test_density import Laplace

SEED = torch.tensor(5)
NONE = torch.zeros(0, 0).double()


def flow(features=2):
    return Density(LinearFlowModule([features]).double())


def stripes(sizes=(60, 60, 60), seed=0):
    """Two clusters that are apart in the second number, where samples differ little in all."""
    generator = torch.Generator().manual_seed(seed)
    clients = []
    for n in sizes:
        label = torch.arange(n) % 2
        noise = torch.randn(n, 2, generator=generator).double() * torch.tensor([30.0, 0.05])
        clients.append((noise + torch.stack([0 * label, 2.0 * label], 1), label))
    return replace(Federation.from_clients(clients), sample_clusters=True)


def simulator(federation, task=None):
    return Simulator(federation.train, task or flow())


def test_components_by_hand():
    # Means (4, 5), variances 9 and 4, no covariance: (x - 4) / 3 and (y - 5) / 2.
    corners = [[[1.0, 3.0], [1.0, 7.0], [7.0, 3.0]], [[7.0, 7.0]]]
    federation = Federation.from_clients(
        [(torch.tensor(x).double(), [0] * len(x)) for x in corners]
    )
    found = uifca_start.ask_components(
        UIFCA(start="k-fed", components=2), simulator(federation).at("start")
    )
    expected = torch.tensor([[1 / 3, 0], [0, 1 / 2], [4 / 3, 5 / 2]]).double()
    torch.testing.assert_close(found, expected)
    first = uifca_start.ask_components(UIFCA(components=1), simulator(federation).at("start"))
    torch.testing.assert_close(first, expected[:, :1])
    seen = uifca_start.project(torch.tensor([[1.0, 7.0]]).double(), found)
    torch.testing.assert_close(seen, torch.tensor([[-1.0, 1.0]]).double())


def test_a_direction_in_which_nothing_differs_says_nothing():
    x = torch.tensor([[1.0, 7.0], [3.0, 7.0]]).double()
    found = uifca_start.ask_components(
        UIFCA(components=2), simulator(Federation.from_clients([(x, [0, 0])])).at("start")
    )
    torch.testing.assert_close(
        uifca_start.project(x, found), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]).double()
    )


def test_without_components_k_fed_sees_the_samples():
    assert uifca_start.ask_components(UIFCA(), simulator(stripes()).at("start")).shape == (0, 0)
    x = torch.arange(8.0).view(2, 2, 2)
    assert torch.equal(uifca_start.project(x, NONE), x.flatten(1))


def test_components_show_k_fed_clusters_that_differ_in_a_small_number():
    plain = UIFCA(k=2, start="k-fed", fit="exact", shrinkage=0)
    apart = [
        simulate(each, stripes(), flow(), rounds=1)
        for each in (plain, replace(plain, components=2))
    ]
    assert apart[0].metrics["purity"] < 0.7
    assert apart[1].metrics["purity"] == 1


def test_the_first_start_is_k_fed_itself_and_others_are_drawn_anew():
    federation = stripes()
    centre = Centre(2, dtype=torch.float64)
    run = simulate(KFed(k=3, server="k-means"), federation, centre, rounds=1)
    seed = run.state.seed
    algorithm = UIFCA(k=3, start="k-fed", restarts=4)
    clients = simulator(federation)
    components, chosen = uifca_start.ask_k_fed(algorithm, clients.at("start"), seed)
    assert chosen.shape == (4, 3, 2)
    torch.testing.assert_close(chosen[0].float(), run.state.chosen.float())
    cohort = clients.cohort(torch.arange(3), 0, (0,))
    label = uifca_start.k_fed_label(algorithm, cohort, chosen, components, int(seed))
    assert label.shape == (3, 60, 4)
    assert torch.equal(label[:, :, 0].flatten(), run.labels)
    assert len({tuple(each.flatten().tolist()) for each in label.unbind(2)}) > 1


def test_a_client_that_never_took_part_finds_the_centres_that_it_would_have_kept():
    federation = stripes((40, 1, 30))
    algorithm = UIFCA(k=2, start="k-fed", restarts=2, k_local=4, components=2)
    clients = simulator(federation)
    components, chosen = uifca_start.ask_k_fed(algorithm, clients.at("start"), SEED)
    kept, new = (c.cohort(torch.arange(3), 0, (0,)) for c in (clients, simulator(federation)))
    assert bool(kept.remembers("centres").all())
    assert not bool(new.remembers("centres").any())
    labels = [
        uifca_start.k_fed_label(algorithm, each, chosen, components, int(SEED))
        for each in (kept, new)
    ]
    assert torch.equal(*labels)


def test_of_several_starts_the_one_with_the_lowest_loss_goes_on():
    algorithm = UIFCA(
        k=2, start="k-fed", fit="exact", shrinkage=0, restarts=5, restart_rounds=2, k_local=4
    )
    followed = simulate(algorithm, stripes(), flow(), rounds=2)
    assert len(followed.state.models) == len(followed.state.loss) == 5
    kept = simulate(algorithm, stripes(), flow(), rounds=3)
    all_five = simulate(replace(algorithm, restart_rounds=9), stripes(), flow(), rounds=3)
    best = int(all_five.state.loss.argmin())
    torch.testing.assert_close(kept.state.models[0], all_five.state.models[best])


def test_a_network_that_does_not_say_how_many_numbers_samples_have_is_refused():
    with pytest.raises(SettingError, match="`components` of UIFCA must be 0 for a network that"):
        simulate(UIFCA(start="k-fed", components=2), stripes(), Density(Laplace()), rounds=1)


@pytest.mark.parametrize("components", [0, 2])
def test_if_nobody_answers_during_the_start_it_is_said(components):
    nobody = simulator(stripes()).at("start", ids=torch.arange(0))
    with pytest.raises(CoterieError, match="no client answered during the start"):
        uifca_start.ask_k_fed(UIFCA(start="k-fed", components=components), nobody, SEED)
