"""FPFC-l1: FPFC with a convex penalty, the variant that the paper compares itself with.

X. Yu, Z. Liu, Y. Sun, W. Wang: Clustered Federated Learning for Heterogeneous Data, AAAI 2023;
long version https://arxiv.org/abs/2211.04218. Algorithm 1 as in `fpfc.py`, with g(t) = lambda t:

    theta_ij = max(0, 1 - lambda / (rho |delta_ij|)) delta_ij

This penalty pulls devices together however far apart they are, so it biases the models and joins
clusters before it has joined all of their members; the paper shows it to show why SCAD is needed.
It is a reference, and the same algorithm but for one line and two defaults: hence the subclass.

Differences from the paper
- Those of FPFC.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.fpfc import FPFC
from coterie.core.settings import setting
from coterie.core.validate import above, at_least, one_of


@dataclass(frozen=True, kw_only=True)
class FPFCL1(FPFC):
    """FPFC with the convex l1 penalty, which biases the models."""

    penalty: str = setting("l1", "penalty on differences", one_of("scad", "l1"))
    lam: float = setting(0.2, "strength of the fusion lambda; 0: chosen on a path", at_least(0))
    nu: float = setting(4.0, "devices whose models differ by no more are in one cluster", above(0))
