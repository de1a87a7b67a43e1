"""What an author imports for an algorithm, task, network or federation of one's own.

    from coterie.extend import Clients, Cohort, Info, LocalTraining, Serving, Start, on_client

These names are public: they stay, and mean the same, from one version to the next. Where they are
defined inside coterie may change. docs/your-own-algorithm.md says what each is for, and goes from
an empty folder to a method that runs, is checked, compared and deployed.
"""

from coterie import starts
from coterie.algorithms import steps
from coterie.checks import check_algorithm
from coterie.core import seeds
from coterie.core.algorithm import Algorithm, Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, Fold, LinearFold, Stacked, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError, CoterieWarning, DataError, SettingError
from coterie.core.fields import Cluster, Loss, Model, Role, Size, Statistic, Update, roles
from coterie.core.layout import Layout
from coterie.core.local_scores import BestModel
from coterie.core.local_training import GradientSettings, LocalTraining, weighting_setting
from coterie.core.local_work import OptimizerState
from coterie.core.samples import Inputs, Padded, Ragged
from coterie.core.schedules import add_schedule
from coterie.core.settings import Settings, setting
from coterie.core.shared_trunk import SharedTrunk
from coterie.core.task import Task
from coterie.core.validate import (
    above,
    at_least,
    at_least_as_many,
    at_most_clients,
    between,
    fraction,
    in_range,
    one_of,
)
from coterie.data.federation import Federation, Samples
from coterie.tasks import Centre, Classification, Codes, Density, Regression, TokenClassification
from coterie.tasks.network import NetworkTask
from coterie.vectors.folds import ByCluster, NearestCentre, RowSent, WeightedRows
from coterie.vectors.kmeans import kmeans, nearest_centre

__all__ = [
    "Algorithm",
    "BestModel",
    "ByCluster",
    "Centre",
    "Classification",
    "Clients",
    "Cluster",
    "Codes",
    "Cohort",
    "CoterieError",
    "CoterieWarning",
    "DataError",
    "Density",
    "Each",
    "Federation",
    "Fold",
    "GradientSettings",
    "Info",
    "Inputs",
    "Layout",
    "LinearFold",
    "LocalTraining",
    "Loss",
    "Model",
    "NearestCentre",
    "NetworkTask",
    "OptimizerState",
    "Padded",
    "Ragged",
    "Regression",
    "Role",
    "RowSent",
    "Samples",
    "Serving",
    "SettingError",
    "Settings",
    "SharedTrunk",
    "Size",
    "Stacked",
    "Start",
    "Statistic",
    "Task",
    "TokenClassification",
    "Traits",
    "Update",
    "WeightedRows",
    "above",
    "add_schedule",
    "at_least",
    "at_least_as_many",
    "at_most_clients",
    "between",
    "check_algorithm",
    "fraction",
    "in_range",
    "kmeans",
    "nearest_centre",
    "on_client",
    "one_of",
    "roles",
    "seeds",
    "setting",
    "starts",
    "steps",
    "weighting_setting",
]
