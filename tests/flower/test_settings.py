from dataclasses import dataclass
from typing import ClassVar

import pytest

from coterie import FedAvg
from coterie.core.algorithm import Traits
from coterie.core.clients import on_client
from coterie.core.errors import SettingError
from coterie.experiment.plan import make_plan
from coterie.experiment.settings import setting_names
from coterie.flower.settings import App, NetworkSettings
from coterie.vectors.folds import ByCluster


def test_no_setting_of_the_network_has_the_name_of_another():
    from coterie.experiment.settings import RunSettings
    from coterie.shelves import ALGORITHMS, FEDERATIONS, NETWORKS

    own = set(setting_names(NetworkSettings))
    for owner in (RunSettings, *ALGORITHMS.values(), *FEDERATIONS.values(), *NETWORKS.values()):
        assert not own & set(setting_names(owner)), owner


def test_an_app_runs_as_planned():
    plan = make_plan(["k-fed", "gaussian-clusters"])
    assert App.from_config(App(plan, NetworkSettings()).config()).plan.algorithm == plan.algorithm


@pytest.mark.parametrize("name", ["fesem", "local", "cfl", "fpfc", "one-shot", "oracle"])
def test_what_cannot_be_withheld_is_refused_when_the_app_is_made(name):
    plan = make_plan([name, "rotated-digits", "withhold=clusters"])
    with pytest.raises(SettingError, match="`withhold` must be nothing for"):
        App(plan, NetworkSettings())
    App(make_plan([name, "rotated-digits"]), NetworkSettings())


@dataclass(frozen=True)
class Median(ByCluster):
    """A fold that nodes do not know."""


@dataclass(frozen=True, kw_only=True)
class OwnFold(FedAvg):
    traits: ClassVar[Traits] = Traits(withholds=True)

    @on_client(fold=Median)
    def mend(self, cohort, model): ...


def test_an_app_whose_uploads_nodes_cannot_add_up_is_refused_when_it_is_made():
    plan = make_plan(["fedavg", "rotated-digits", "withhold=clusters"])
    App(plan, NetworkSettings())
    with pytest.raises(SettingError, match=r"OwnFold, whose uploads of mend .* by Median, got"):
        App(plan._replace(algorithm=OwnFold()), NetworkSettings())


@dataclass(frozen=True, kw_only=True)
class Undeclared(FedAvg):
    @on_client
    def look(self, cohort, model): ...


def test_an_app_whose_steps_do_not_say_what_they_return_is_refused_when_it_is_made():
    plan = make_plan(["fedavg", "rotated-digits"])
    with pytest.raises(SettingError, match=r"`-> Upload`, and Undeclared.look does not"):
        App(plan._replace(algorithm=Undeclared()), NetworkSettings())
