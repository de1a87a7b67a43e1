import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.flower.claims import claim_factors
from tests.flower.fake import DIGITS, FakeGrid, deployed, edited, make_app, thirds

ROUNDS = ["rounds=2", "lr=0.5"]


def nodes(*clients):
    return [torch.tensor(own) for own in clients]


def test_no_node_counts_for_more_than_its_share():
    sizes = torch.tensor([10, 10**18, 30, 10])
    factors = claim_factors(nodes([0], [1], [2, 3]), sizes, 0.5)
    assert factors[[0, 2, 3]].tolist() == [1, 1, 1]
    assert float(factors[1] * sizes[1]) == pytest.approx(50)
    several = claim_factors(nodes([0], [1, 2], [3]), sizes, 0.5)
    assert several[1] == several[2] < 1, "clients of one node count for less alike"
    assert float((several * sizes)[1:3].sum()) == pytest.approx(20)
    for off in (claim_factors(nodes([0], [1, 2, 3]), sizes, 0.5), claim_factors([], sizes, 0.5)):
        assert off.tolist() == [1, 1, 1, 1], "of two nodes one has always half"
    assert claim_factors(nodes([0], [1], [2, 3]), sizes, 1.0).tolist() == [1, 1, 1, 1]


def test_a_node_with_more_clients_or_somewhat_larger_ones_counts_as_it_is():
    sizes = torch.tensor([20, 25, 30, 200, 150, 20])
    for held in (nodes([0], [1, 2, 3, 4], [5]), nodes([0], [3], [1, 2])):
        assert claim_factors(held, sizes, 0.5).tolist() == [1] * 6


class LyingGrid(FakeGrid):
    """The third node claims so many samples for each client, in all that it says."""

    claims = 0

    def answer(self, node, message):
        reply = super().answer(node, message)
        if node != 3 or not self.claims or reply.has_error():
            return reply

        def lie(header, tensors):
            for name in {"sizes", "size"} & set(tensors):
                tensors[name] = torch.full_like(tensors[name], self.claims)
            if "weight" in tensors:  # a sum over its two clients
                factor = 2 * self.claims / tensors["weight"]
                for name in ("weight", "model"):
                    tensors[name] = tensors[name] * (
                        factor if name == "weight" else factor[:, None]
                    )

        return edited(reply, lie)


def trained(folder, claims, **network):
    words = ["fedavg", *DIGITS, *ROUNDS, "weighting=size"]
    folder.mkdir()
    grid = LyingGrid(make_app(*words), thirds(folder))
    grid.claims = claims
    return deployed(folder, words, grid=grid, **network)


def test_claimed_samples_do_not_own_the_model(tmp_path):
    """Ten million samples among clients with twenty: half of the model is the others'."""
    honest = trained(tmp_path / "honest", 0).models
    liar = trained(tmp_path / "liar", 10**7)
    owned = trained(tmp_path / "owned", 10**7, most_share=1.0).models
    assert any("`most_share`" in text for text in liar.warnings)
    distance = [float((other - honest).norm()) for other in (liar.models, owned)]
    assert 0 < distance[0] < 0.5 * distance[1], distance


def test_more_samples_than_any_client_may_have_are_refused(tmp_path):
    assert trained(tmp_path / "run", 10**18, nodes=2).population.population == 4
