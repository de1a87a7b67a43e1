"""Networks of the papers, as plain PyTorch modules."""

from coterie.models.networks import linear, mlp

__all__ = ["linear", "mlp"]
