"""Every algorithm, in every shape it can take, passes the conformance suite."""

import pytest

from coterie import (
    CFL,
    FPFC,
    FPFCL1,
    IFCA,
    TKM,
    UIFCA,
    ClusterGAN,
    Ditto,
    FedAvg,
    FedDANE,
    FedDist,
    FedDWS,
    FedPRC,
    FedProx,
    FedRoC,
    FedSGD,
    FeSEM,
    FeSEMMA,
    HypCluster,
    KFed,
    Local,
    OneShot,
    Oracle,
    PerFedAvg,
)
from coterie.checks import CHECKS, applies
from coterie.shelves import ALGORITHMS

CASES = {
    "ifca": IFCA(k=2),
    "ifca-random-start": IFCA(k=3, start="random"),
    "ifca-gradients": IFCA(k=2, average="gradients"),
    "ifca-gradients-by-size": IFCA(k=2, average="gradients", weighting="size", batch=4),
    "ifca-mini-batches": IFCA(k=2, batch=4, epochs=2, decay=0.9, weight_decay=0.01),
    "ifca-by-size": IFCA(k=2, weighting="size", steps=3),
    "ifca-momentum": IFCA(k=2, optimizer="momentum", schedule="cosine", schedule_rounds=9),
    "ifca-joint-trunk": IFCA(k=2, share="joint"),
    "ifca-joint-trunk-gradients": IFCA(k=2, share="joint", average="gradients"),
    "ifca-frozen-trunk": IFCA(k=2, share="frozen", trunk_rounds=3),
    "ifca-stable": IFCA(k=2, stable=1, recheck=1),
    "ifca-resampled": IFCA(k=2, resample=True, resample_rounds=4, weighting="size", batch=1),
    "ifca-resampled-gradients": IFCA(
        k=2, resample=True, resample_rounds=4, average="gradients", stable=1
    ),
    "fesem": FeSEM(k=2),
    "fesem-head-by-size": FeSEM(k=3, part="head", pull=0.5, weighting="size"),
    "fesem-own": FeSEM(k=2, serves="own", decay=0.9, warm_rounds=2, warm_lr=0.2),
    "fesem-mini-batches": FeSEM(k=2, batch=4, epochs=2, pull=0.1, recluster=2),
    "fesem-ma": FeSEMMA(k=2),
    "fesem-ma-permuted": FeSEMMA(k=3, begin="permuted", weighting="size", batch=4),
    "fesem-ma-unmatched": FeSEMMA(k=2, begin="own", match=False),
    "fedprc": FedPRC(k=2),
    "fedprc-printed": FedPRC(k=3, threshold=1.05, lof="models", order="printed", neighbours=3),
    "fedprc-head-by-size": FedPRC(k=2, part="head", weighting="size", batch=4, threshold=1.2),
    "fedroc": FedRoC(k=2, block_count=9),
    "fedroc-author": FedRoC(
        k=2, block=0.4, members=2, part="head", batch=4, epochs=2, serves="nearest"
    ),
    "fedroc-all": FedRoC(k=2, block_count=5, block=6, risk="all", draw="clusters", tries=3),
    "tkm": TKM(k=2, trim=0.2),
    "tkm-head": TKM(k=3, part="head", iterations=1, tries=2, batch=4, epochs=1),
    "one-shot": OneShot(k=2, fits=3),
    "one-shot-trimmed": OneShot(k=3, fits=2, trim=0.2, part="head", weighting="size", batch=4),
    "fpfc": FPFC(lam=0.3),
    "fpfc-pairs-of-participants": FPFC(lam=0.3, pairs="both"),
    "fpfc-head": FPFC(lam=0.3, part="head", batch=4, epochs=1),
    "fpfc-path": FPFC(lambdas=2, path_rounds=2),
    "fpfc-l1": FPFCL1(lam=0.1, nu=1.0),
    "fedavg": FedAvg(steps=5),
    "fedavg-by-size": FedAvg(weighting="size", batch=4, epochs=1),
    "fedavg-adam": FedAvg(optimizer="adam", lr=0.01, clip=1.0, batch=4, epochs=2),
    "cfl": CFL(eps1=10, eps2=0.01, wait=1, contrast=0.1, gamma=0.1),
    "cfl-absolute": CFL(eps1=9, eps2=0.001, thresholds="absolute", wait=1, members=2, contrast=0),
    "cfl-single-linkage": CFL(eps1=10, wait=2, linkage="single", weighting="size", contrast=0),
    "cfl-mini-batches": CFL(eps1=10, wait=1, contrast=0, batch=4, epochs=2, decay=0.9),
    "k-fed": KFed(k=3),
    "k-fed-device": KFed(k=3, k_local=2, server="device", tries=2),
    "k-fed-k-means": KFed(k=2, k_local=5, server="k-means"),
    "uifca": UIFCA(k=3, batch=4, fit_rounds=2, steps=3, restarts=2, restart_rounds=1),
    "uifca-warm-noise": UIFCA(k=2, fresh=False, start="noise", steps=3, fit_rounds=1, batch=0),
    "uifca-exact": UIFCA(k=2, fit="exact", restarts=3, restart_rounds=2),
    "uifca-k-fed": UIFCA(k=2, start="k-fed", optimizer="adam", steps=2, constant="removed"),
    "uifca-k-feds": UIFCA(
        k=2, start="k-fed", restarts=2, restart_rounds=1, components=2, k_local=3, fit="exact"
    ),
    "uifca-soft": UIFCA(k=2, assign="soft", prior=0.3, steps=2, fit_rounds=1, restarts=1),
    "uifca-folds": UIFCA(k=2, folds=2, prior=0.3, fit="exact", restarts=1),
    "cluster-gan": ClusterGAN(k=2, steps=1, critic_steps=1, batch=4, tries=2),
    "cluster-gan-sgd-by-size": ClusterGAN(
        k=3, steps=1, critic_steps=1, batch=0, tries=1, optimizer="sgd", weighting="size", clip=1.0
    ),
    "local": Local(),
    "local-mini-batches": Local(batch=4, steps=7),
    "fedsgd": FedSGD(),
    "fedsgd-mini-batches": FedSGD(batch=4, weighting="size", decay=0.9, weight_decay=0.01),
    "fedsgd-clipped": FedSGD(clip=0.1, schedule="step", schedule_rounds=2, decay=0.5),
    "fedprox": FedProx(steps=5, mu=1.0),
    "fedprox-mini-batches": FedProx(weighting="size", batch=4, epochs=1),
    "feddane": FedDANE(steps=5),
    "feddane-all-by-size": FedDANE(gradients="all", weighting="size", batch=4, mu=1.0),
    "feddist": FedDist(steps=5),
    "feddist-mini-batches": FedDist(server_step=1.2, batch=4, epochs=1, decay=0.9),
    "feddws": FedDWS(steps=5, server_step=0.3),
    "hypcluster": HypCluster(k=2),
    "hypcluster-random-start": HypCluster(k=3, start="random", batch=4, epochs=2, decay=0.9),
    "ditto": Ditto(),
    "ditto-mini-batches": Ditto(batch=4, epochs=1, personal_steps=3, weighting="size", decay=0.9),
    "per-fedavg": PerFedAvg(steps=5),
    "per-fedavg-mini-batches": PerFedAvg(batch=4, steps=3, adapt_steps=2, weighting="size"),
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
