import pytest
import torch

from coterie.engine.kernels.first_layer_terms import FirstLayerTerms


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize(("pull", "weight_decay"), [(0.0, 0.3), (2.0, 0.0), (2.0, 0.3)])
def test_shares_of_start_and_anchor_are_those_of_a_loop_without_losses(
    pull, weight_decay, momentum
):
    terms = FirstLayerTerms(0.1, True, pull, weight_decay, momentum)
    steps, start, anchor = [0, 1, 2, 5], 3.0, -7.0
    left, came = terms.base_shares(steps, torch.zeros(1).double())
    came = torch.zeros(4) if came is None else came
    for count, found in zip(steps, left * start + came * anchor, strict=True):
        w, velocity = start, 0.0
        for _ in range(count):
            velocity = momentum * velocity + pull * (w - anchor) + weight_decay * w
            w -= 0.1 * velocity
        assert found.item() == pytest.approx(w, rel=1e-12)


def test_first_layers_that_nothing_pulls_or_that_stay_keep_all_of_the_start():
    for terms in (FirstLayerTerms(0.1, True, 0, 0, 0.9), FirstLayerTerms(0.1, False, 2, 0.3)):
        assert terms.base_shares([1, 2], torch.zeros(1)) == (None, None)
