"""Tasks over any `torch.nn.Module`: classification, regression, densities, centres, codes."""

from coterie.tasks.centre import Centre
from coterie.tasks.classification import Classification
from coterie.tasks.codes import Codes
from coterie.tasks.density import Density
from coterie.tasks.regression import Regression
from coterie.tasks.token_classification import TokenClassification

__all__ = ["Centre", "Classification", "Codes", "Density", "Regression", "TokenClassification"]
