import pytest
import torch
from torch import nn

from coterie import Classification, Regression
from coterie.core.errors import SettingError
from coterie.core.layout import frozen_digest
from coterie.core.samples import Inputs, Ragged, as_batch


def test_a_function_is_called_for_every_draw_under_its_generator_only():
    task = Classification(lambda: nn.Linear(3, 2))
    torch.manual_seed(5)
    one = task.draw(torch.Generator().manual_seed(1))
    torch.manual_seed(6)
    again = task.draw(torch.Generator().manual_seed(1))
    other = task.draw(torch.Generator().manual_seed(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.abs().max() <= 3**-0.5


def test_a_module_brings_its_weights_and_buffers():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[1].running_mean += 3
    task = Classification(module)
    for seed in (1, 2):
        draw = task.layout.unflatten(task.draw(torch.Generator().manual_seed(seed)))
        for name, value in module.state_dict().items():
            assert torch.equal(draw[name], value), name


def test_a_task_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    task = Classification(lambda: nn.Linear(3, 2))
    task.draw(torch.Generator().manual_seed(1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_features_are_cast_to_the_networks_type_except_for_embeddings():
    assert Classification(nn.Linear(2, 2)).inputs(torch.zeros(1, 2).byte()).dtype == torch.float32
    words = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    assert Classification(words).inputs(torch.zeros(1, 2).long()).dtype == torch.long


def with_frozen_layer():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    return module


def test_frozen_weights_that_a_function_draws_are_the_same_in_every_process():
    digests = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        digests.add(frozen_digest(Classification(with_frozen_layer).module))
    assert len(digests) == 1
    assert digests != {""}


@pytest.mark.parametrize("network", ["mlp", None, lambda: 3])
def test_what_is_no_network_is_refused(network):
    with pytest.raises(SettingError, match=r"torch\.nn\.Module"):
        Classification(network)


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32, torch.float64])
def test_samples_are_scaled_and_stay_as_they_are(kind):
    task = Regression(nn.Linear(2, 1), scale=4.0)
    x = torch.tensor([[0, 1], [2, 200]], dtype=kind)
    scaled = task.inputs(x)
    assert scaled.dtype == torch.float32
    assert scaled.tolist() == [[0.0, 0.25], [0.5, 50.0]]
    assert x.tolist() == [[0, 1], [2, 200]]


def test_several_inputs_are_arguments_in_their_order_and_padding_is_told_behind_a_sequence():
    batch = as_batch(
        Inputs({"words": Ragged.of([[1, 2, 3], [4]]), "age": torch.tensor([30.0, 40.0])})
    )
    words = [[1, 2, 3], [4, 0, 0]]
    for padding, told in [
        ("lengths", [[3, 1]]),
        ("mask", [[[False, False, False], [False, True, True]]]),
        ("none", []),
    ]:
        task = Classification(nn.Embedding(5, 2), padding=padding)
        found = [argument.tolist() for argument in task.arguments(batch)]
        assert found == [words, *told, [30.0, 40.0]]
    with pytest.raises(SettingError, match="`padding` of a task must be one of lengths, mask"):
        Classification(nn.Linear(1, 2), padding="zeros")


def test_a_network_sees_no_more_padding_than_its_batch_needs():
    batch = as_batch(Ragged.of([[1, 2, 3], [4], [5, 6]]))
    tokens, lengths = Classification(nn.Embedding(7, 2)).arguments(batch[torch.tensor([1, 2])])
    assert tokens.tolist() == [[4, 0], [5, 6]]
    assert lengths.tolist() == [1, 2]


def test_each_of_several_inputs_is_cast_and_bytes_are_scaled():
    inputs = Inputs(
        {
            "pixels": torch.tensor([[51]], dtype=torch.uint8),
            "vector": torch.tensor([[51.0]], dtype=torch.float64),
            "words": Ragged.of([[51]]),
        }
    )
    plain = Classification(nn.Linear(1, 2), scale=255.0).inputs(inputs)
    assert [plain[name].dtype for name in ("pixels", "vector")] == [torch.float32] * 2
    assert plain["words"].values.dtype == torch.float32
    assert plain["pixels"].flatten().tolist() == pytest.approx([0.2])
    assert plain["vector"].tolist() == [[51.0]]
    looked_up = Classification(nn.EmbeddingBag(60, 2)).inputs(inputs)
    assert looked_up["words"].values.dtype == torch.int64
    assert looked_up["vector"].dtype == torch.float32
    assert inputs["pixels"].tolist() == [[51]]
