from coterie.experiment.plan import make_plan
from coterie.experiment.settings import setting_names
from coterie.flower.settings import App, NetworkSettings


def test_no_setting_of_the_network_has_the_name_of_another():
    from coterie.experiment.settings import RunSettings
    from coterie.registry import ALGORITHMS, FEDERATIONS, NETWORKS

    own = set(setting_names(NetworkSettings))
    for owner in (RunSettings, *ALGORITHMS.values(), *FEDERATIONS.values(), *NETWORKS.values()):
        assert not own & set(setting_names(owner)), owner


def test_an_app_runs_as_planned():
    plan = make_plan(["k-fed", "gaussian-clusters"])
    assert App.from_config(App(plan, NetworkSettings()).config()).plan.algorithm == plan.algorithm
