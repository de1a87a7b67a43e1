import pytest
import torch

from coterie.engine.kernels import gram_cache
from coterie.engine.kernels.gram_cache import GramCache


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def everything_counts(monkeypatch):
    """Products of any size are kept."""
    monkeypatch.setattr(gram_cache, "GRAM_WORK", 0)


def test_a_product_is_kept_for_its_client(everything_counts):
    grams, x = GramCache(), drawn(3, 4, 6)
    torch.testing.assert_close(grams.of(x, torch.tensor([5, 7, 9])), x @ x.mT)
    # Samples never change: what others claim to be theirs is not looked at.
    kept = grams.of(torch.zeros(2, 4, 6), torch.tensor([9, 5]))
    torch.testing.assert_close(kept, (x @ x.mT)[[2, 0]])
    # Whoever is new has it worked out.
    y = drawn(2, 4, 6, seed=1)
    torch.testing.assert_close(grams.of(y, torch.tensor([9, 8])), y @ y.mT)


def test_what_was_kept_is_not_what_is_handed_out(everything_counts):
    """The bias adds 1 to every product it is given."""
    grams, x, ids = GramCache(), drawn(2, 4, 6), torch.tensor([0, 1])
    for _ in range(3):
        found = grams.of(x, ids)
        torch.testing.assert_close(found, x @ x.mT)
        found += 1


def test_other_padding_is_worked_out_anew(everything_counts):
    grams, x = GramCache(), drawn(1, 4, 6)
    grams.of(x, torch.tensor([0]))
    padded = torch.cat([x, torch.zeros(1, 2, 6)], 1)
    torch.testing.assert_close(grams.of(padded, torch.tensor([0])), padded @ padded.mT)


def test_no_more_is_kept_than_there_is_room_for(everything_counts, monkeypatch):
    monkeypatch.setattr(gram_cache, "GRAM_BYTES", 5 * 4 * 4 * 4)
    grams = GramCache()
    for first in range(0, 100, 10):
        grams.of(drawn(10, 4, 6), torch.arange(first, first + 10))
    assert len(grams.held) == 5
    assert grams.free == 0


def test_small_products_and_parts_of_samples_are_not_kept(monkeypatch):
    grams, x = GramCache(), drawn(2, 4, 6)
    grams.of(x, torch.tensor([0, 1]))
    assert not grams.held
    monkeypatch.setattr(gram_cache, "GRAM_WORK", 4 * 4 * 6)
    grams.of(x, None)
    assert not grams.held
    grams.of(x, torch.tensor([0, 1]))
    assert len(grams.held) == 2
