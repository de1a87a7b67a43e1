"""Networks of the papers, as plain PyTorch modules."""

from coterie.networks.networks import celeba_cnn, cifar_cnn, femnist_cnn, linear, mlp

__all__ = ["celeba_cnn", "cifar_cnn", "femnist_cnn", "linear", "mlp"]
