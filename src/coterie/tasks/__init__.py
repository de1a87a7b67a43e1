"""Tasks over any `torch.nn.Module`: classification and regression; and centres of samples."""

from coterie.tasks.centre import Centre
from coterie.tasks.classification import Classification
from coterie.tasks.regression import Regression

__all__ = ["Centre", "Classification", "Regression"]
