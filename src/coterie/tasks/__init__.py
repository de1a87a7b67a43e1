"""Tasks over any `torch.nn.Module`: classification and regression."""

from coterie.tasks.classification import Classification
from coterie.tasks.regression import Regression

__all__ = ["Classification", "Regression"]
