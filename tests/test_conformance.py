"""Every algorithm, in every shape it can take, passes the conformance suite."""

import pytest

from coterie import IFCA, FedAvg, Local, Oracle
from coterie.algorithms import ALGORITHMS
from coterie.checks import CHECKS, applies

CASES = {
    "ifca": IFCA(k=2),
    "ifca-random-start": IFCA(k=3, start="random"),
    "ifca-gradients": IFCA(k=2, average="gradients"),
    "ifca-gradients-by-size": IFCA(k=2, average="gradients", weighting="size", batch=4),
    "ifca-mini-batches": IFCA(k=2, batch=4, epochs=2, decay=0.9, weight_decay=0.01),
    "ifca-by-size": IFCA(k=2, weighting="size", steps=3),
    "ifca-joint-trunk": IFCA(k=2, share="joint"),
    "ifca-joint-trunk-gradients": IFCA(k=2, share="joint", average="gradients"),
    "ifca-frozen-trunk": IFCA(k=2, share="frozen", trunk_rounds=3),
    "ifca-stable": IFCA(k=2, stable=1, recheck=1),
    "fedavg": FedAvg(steps=5),
    "fedavg-by-size": FedAvg(weighting="size", batch=4, epochs=1),
    "local": Local(),
    "local-mini-batches": Local(batch=4, steps=7),
    "oracle": Oracle(),
}


def test_every_algorithm_has_a_case():
    assert {type(case) for case in CASES.values()} == set(ALGORITHMS.values())


@pytest.mark.parametrize(
    ("check", "algorithm"),
    [
        pytest.param(check, algorithm, id=f"{name}-{check.__name__}")
        for name, algorithm in CASES.items()
        for check in CHECKS
        if applies(check, algorithm)
    ],
)
def test_conformance(check, algorithm):
    check(algorithm)
