import math
from dataclasses import replace

import pytest
import torch

from coterie import UIFCA, Density, Federation, simulate
from coterie.algorithms.uifca_mistakes import ask_mistakes
from coterie.engine.simulator import Simulator
from coterie.networks.flows import LinearFlowModule

HALF_LOG = math.log(2 * math.pi) / 2
SENT = {"chosen": torch.zeros(0, 1), "number": torch.tensor(0), "seed": torch.tensor(3)}
# Standard normal distributions around 0 and around 4: A = 1, c = 0 or -4, no scaling.
MODELS = torch.tensor([[1.0, 0, 0, 1], [1.0, -4, 0, 1]]).double()


def clients(*pairs, ids=None):
    data = [(torch.tensor(x).double()[:, None], torch.tensor(y)) for x, y in pairs]
    federation = Federation.from_clients(data)
    return Simulator(federation.train, Density(LinearFlowModule([1]).double())).at("round", ids=ids)


def ask(algorithm, *pairs):
    return ask_mistakes(algorithm.measure_mistakes, MODELS, clients(*pairs), **SENT)


def test_samples_in_the_right_set_by_hand():
    # Own losses 1/2, 0 and 2, others 25/2, 8 and 2; the sample between both stays where it is.
    found = ask(UIFCA(k=2, start="truth"), ([-1.0, 4.0], [0, 1]), ([2.0], [1]))
    assert found == pytest.approx(
        {
            "given_accuracy": 1.0,
            "right_own_loss": 2.5 / 3 + HALF_LOG,
            "right_other_loss": 22.5 / 3 + HALF_LOG,
            "right_staying": 1.0,
        }
    )


def test_samples_in_a_wrong_set_are_told_from_the_others():
    # Samples at 0 and 4, each of its own cluster: a wrong set is 8 from the right one in loss.
    pairs = [([0.0, 4.0] * 100, [0, 1] * 100), ([4.0] * 50, [1] * 50)]
    found = ask(UIFCA(k=2, start="truth", start_errors=0.5), *pairs)
    assert 0.65 < found["given_accuracy"] < 0.85, "half of those in a random set are right"
    assert found["right_own_loss"] == pytest.approx(HALF_LOG)
    assert found["wrong_other_loss"] == pytest.approx(HALF_LOG)
    assert found["right_other_loss"] == pytest.approx(8 + HALF_LOG)
    assert found["wrong_own_loss"] == pytest.approx(8 + HALF_LOG)
    assert (found["right_staying"], found["wrong_staying"]) == (1.0, 0.0)


def test_nobody_answers():
    nobody = clients(([0.0], [0]), ids=torch.arange(0))
    assert ask_mistakes(UIFCA(k=2, start="truth").measure_mistakes, MODELS, nobody, **SENT) == {}


def mixture(samples=60):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(2, (samples,), generator=generator)
    x = 6.0 * label[:, None] + torch.randn(samples, 2, generator=generator).double()
    data = [(x[: samples // 2], label[: samples // 2]), (x[samples // 2 :], label[samples // 2 :])]
    return replace(Federation.from_clients(data), sample_clusters=True)


@pytest.mark.parametrize("fit", ["descent", "exact"])
def test_a_run_tells_it_in_the_first_cluster_round_alone(fit):
    own = UIFCA(k=2, start="truth", start_errors=0.4, fit=fit, fit_rounds=1, steps=2)
    task = Density(LinearFlowModule([2]).double())
    run = simulate(own, mixture(), task, rounds=2)
    first, second = (record["metrics"] for record in run.records)
    assert first["given_accuracy"] < 1
    assert "wrong_own_loss" in first
    assert not [name for name in second if name.startswith(("given", "right", "wrong"))]


@pytest.mark.parametrize("settings", [{"start": "truth"}, {"start_errors": 0.4}])
def test_without_mistakes_on_purpose_nothing_is_asked(settings):
    task = Density(LinearFlowModule([2]).double())
    run = simulate(UIFCA(k=2, fit_rounds=1, steps=2, **settings), mixture(), task, rounds=1)
    assert set(run.records[0]["metrics"]) & {"given_accuracy", "right_own_loss"} == set()
    assert "UIFCA.measure_mistakes" not in {step for step, _, _ in run.bytes.parts}
