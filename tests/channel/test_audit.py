from dataclasses import dataclass

import pytest
import torch

from coterie.channel.audit import AuditedPopulation, plain_bytes
from coterie.core.clients import Stacked
from coterie.vectors.folds import ByCluster
from tests.channel.echo import Echo, clients


def audited():
    return AuditedPopulation(clients().runner)


def test_what_is_audited_is_what_everybody_gets():
    ids, up = audited().at("round", 0).run(Echo().step, model=torch.ones(4))
    assert ids.tolist() == list(range(6))
    assert up.model.tolist() == [[1.0] * 4] * 6
    fold = ByCluster(1, {"model": "model"})
    _, up = audited().at("round", 0).run(Echo().step, fold=fold, model=torch.ones(4))
    assert up.pooled_mean("model").tolist() == [1.0] * 4


@dataclass(frozen=True)
class Understates(ByCluster):
    def bound(self, limits, largest_weight=1.0):
        return 0.5


@dataclass(frozen=True)
class Misnames(ByCluster):
    def term_shapes(self, sent):
        return {"weights": ((self.k,), torch.float64)}


@dataclass(frozen=True)
class Heavy(ByCluster):
    ballast: str = "x" * 20_000


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Understates, "the fold of Echo.step exceeds its bound"),
        (Misnames, "has other terms than it says"),
        (Heavy, "bytes without its tensors"),
    ],
)
def test_a_fold_that_breaks_its_word_is_named(kind, sentence):
    fold = kind(1, {"model": "model"})
    with pytest.raises(AssertionError, match=sentence):
        audited().at("round", 0).run(Echo().step, fold=fold, model=torch.ones(4))


def test_tensors_do_not_count():
    assert plain_bytes(Stacked()) < 200
    heavy = ByCluster(1, {"model": "model"}, assign=torch.zeros(10_000))
    assert plain_bytes(heavy) < 1_000
