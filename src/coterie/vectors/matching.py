"""Hidden units of a network have no order: how they are matched to those of another one.

A network whose hidden units stand in another order, each with its incoming weights, its bias and
its outgoing weights, computes the same. Two models are compared, and averaged, after the units of
one are put into the order that brings it nearest to the other. For one hidden layer that is an
assignment of units to units, solved exactly (scipy's Hungarian algorithm); for several it is done
layer by layer until none changes any more.

This holds for stacks of linear layers and convolutions, whose units are channels, with batch
normalisation, pointwise activations, pooling and dropout between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from coterie.core.errors import SettingError
from coterie.core.layout import Layout

PASSES = 20  # over the layers, at most; few are needed

WithUnits = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Kinds = tuple[type[nn.Module], ...]

CONVOLUTIONS: Kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS: Kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
POOLS: Kinds = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
POINTWISE: Kinds = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Identity),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
)


@dataclass(frozen=True)
class HiddenLayer:
    """Where in the flat vector of a model the parts of each of h units lie."""

    own: Tensor  # [h, a] incoming weights, bias and normalisation
    outgoing: Tensor  # [h, b] what the next layer multiplies it with
    carried: Tensor  # [h, c] buffers, as running statistics: they move along but are not compared

    def reorder(self, models: Tensor, order: Tensor) -> Tensor:
        """Models [..., d] in which unit j is what unit `order[j]` was."""
        after = models.clone()
        for places in (self.own, self.outgoing, self.carried):
            places = places.to(models.device)
            after[..., places] = models[..., places[order.to(models.device)]]
        return after


class WeightedLayer(NamedTuple):
    """A layer with weights, and the normalisation of its units up to the next one."""

    name: str
    module: WithUnits
    norms: list[tuple[str, nn.Module]]


def hidden_layers(module: nn.Module, layout: Layout) -> list[HiddenLayer]:
    """The hidden layers of a stack, from the first to the last; other networks are refused.

    The order of units next to frozen weights is fixed by these; such layers are left out.
    """
    coordinates = torch.arange(layout.size).split(layout.sizes)
    shaped = zip(layout.names, coordinates, layout.shapes, strict=True)
    place = {name: where.view(shape) for name, where, shape in shaped}
    found = []
    for layer, following in pairwise(stacked_layers(module)):
        parts = [(layer.name, layer.module), *layer.norms]
        weights = [
            name_inside(name, each) for name, part in parts for each, _ in part.named_parameters()
        ]
        buffers = [
            name_inside(name, each) for name, part in parts for each, _ in part.named_buffers()
        ]
        outgoing = name_inside(following.name, "weight")
        if not place.keys() >= {*weights, outgoing}:  # some are frozen
            continue

        def rows(names: list[str], layer: WeightedLayer = layer) -> Tensor:
            units = len(layer.module.weight)
            # A count of batches is no unit's.
            some = [place[name] for name in names if name in place and place[name].dim()]
            nothing = torch.zeros(units, 0, dtype=torch.long)
            return torch.cat([nothing, *(by_unit(each, layer.module) for each in some)], 1)

        read = by_unit(place[outgoing].movedim(1, 0), layer.module)
        found.append(HiddenLayer(rows(weights), read, rows(buffers)))
    return found


def name_inside(path: str, name: str) -> str:
    """The name of something inside a module at a path, which is empty for the network itself."""
    return f"{path}.{name}" if path else name


def by_unit(where: Tensor, source: WithUnits) -> Tensor:
    """Coordinates whose first axis are the units of a layer, as [units, numbers of each].

    The axis may be longer: flattened images have all places of a channel side by side, flattened
    vectors all units of a place.
    """
    units = len(source.weight)
    if len(where) == units or isinstance(source, CONVOLUTIONS):
        return where.reshape(units, -1)
    return where.reshape(-1, units, *where.shape[1:]).movedim(1, 0).reshape(units, -1)


def stacked_layers(module: nn.Module) -> Iterator[WeightedLayer]:
    """The layers with weights of a stack, in order."""
    leaves = list(sequence(module))
    for i, (name, leaf) in enumerate(leaves):
        known = isinstance(leaf, (nn.Linear, *CONVOLUTIONS, *BATCH_NORMS))
        twice = any(leaf is other for _, other in leaves[:i])
        if any(True for _ in leaf.parameters()) and (twice or not known):
            refuse(name, leaf)
    places = [i for i, (_, leaf) in enumerate(leaves) if has_units(leaf)]
    for i, end in zip(places, [*places[1:], len(leaves)], strict=True):
        name, leaf = leaves[i]
        between = leaves[i + 1 : end]
        if end < len(leaves):
            check_reads_units(leaf, between, *leaves[end])
        norms = [(path, each) for path, each in between if isinstance(each, BATCH_NORMS)]
        assert isinstance(leaf, WithUnits)
        yield WeightedLayer(name, leaf, norms)


def sequence(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules of nested `nn.Sequential`s in the order in which they are called."""
    if type(module) is nn.Sequential:
        names = {part: name for name, part in module.named_children()}
        for part in module:  # also one that is there twice
            name = names[part]
            yield from sequence(part, name_inside(path, name))
    else:
        yield path, module


def has_units(leaf: nn.Module) -> bool:
    """Whether a module is a layer with weights."""
    return isinstance(leaf, (nn.Linear, *CONVOLUTIONS))


def check_reads_units(
    leaf: nn.Module, between: list[tuple[str, nn.Module]], name: str, following: nn.Module
) -> None:
    """Refuse what does not treat all units of a layer alike, between it and the following one."""
    images, flat = isinstance(leaf, CONVOLUTIONS), False
    for path, each in between:
        flat = flat or isinstance(each, nn.Flatten)
        pools = isinstance(each, POOLS) and images and not flat
        if not pools and not isinstance(each, (nn.Flatten, *BATCH_NORMS, *POINTWISE)):
            refuse(path, each)
    convolves = isinstance(following, CONVOLUTIONS)
    if convolves != (images and not flat) or getattr(following, "groups", 1) != 1:
        refuse(name, following)


def refuse(name: str, module: nn.Module) -> None:
    raise SettingError(
        "hidden units can be matched in stacks (nn.Sequential) of linear layers and convolutions "
        f"with batch normalisation, pointwise activations and pooling only, got "
        f"{type(module).__name__}{f' ({name})' if name else ''}"
    )


def shuffle_units(layers: list[HiddenLayer], model: Tensor, generator: torch.Generator) -> Tensor:
    """A model [d] with its hidden units in a random order: it computes the same."""
    for layer in layers:
        order = torch.randperm(len(layer.own), generator=generator, device="cpu")
        model = layer.reorder(model, order)
    return model


def match_units(layers: list[HiddenLayer], models: Tensor, centre: Tensor) -> Tensor:
    """Models [a, d], each with its hidden units in the order that brings it nearest to a centre.

    For several hidden layers it is an order that no change of a single layer improves, and never
    one that is farther from the centre [d] than the model as it is. A model that is not finite
    stays as it is.
    """
    if not layers or not len(models):
        return models
    target = MatchTarget(layers, centre)
    return torch.stack([target.match(w) if w.isfinite().all() else w for w in models])


class MatchTarget:
    """A centre [d] that models are matched to."""

    def __init__(self, layers: list[HiddenLayer], centre: Tensor) -> None:
        self.layers, self.centre = layers, centre
        self.units = [torch.cat([layer.own, layer.outgoing], 1) for layer in layers]
        # A model whose units are all nearer to theirs than this has them in order already.
        self.gaps = [half_gaps(centre[places]) for places in self.units]

    def match(self, model: Tensor) -> Tensor:
        """One model [d], as `match_units` has it."""
        found = self._until_stable(model)
        if len(self.layers) == 1 or found is model:
            return found
        # If all layers are in disorder, outgoing weights say nothing until the next one is matched.
        begun = model
        for layer in self.layers[:-1]:
            begun = layer.reorder(begun, best_order(begun[layer.own], self.centre[layer.own]))
        other = self._until_stable(begun)
        return found if self._apart(found) <= self._apart(other) else other

    def _until_stable(self, model: Tensor) -> Tensor:
        """A model [d] matched layer by layer, again and again."""
        for _ in range(PASSES):
            before = model
            for layer, places, gap in zip(self.layers, self.units, self.gaps, strict=True):
                own, theirs = model[places], self.centre[places]
                if bool(((own - theirs).double().norm(dim=1) < gap).all()):
                    continue
                order = best_order(own, theirs)
                if not torch.equal(order, torch.arange(len(order))):
                    model = layer.reorder(model, order)
            if model is before or len(self.layers) == 1:
                break
        return model

    def _apart(self, model: Tensor) -> float:
        """The distance of all that is compared; what lies in two layers counts twice."""
        parts = [(model[places] - self.centre[places]).double().norm() for places in self.units]
        return float(torch.stack(parts).norm())


def half_gaps(units: Tensor) -> Tensor:
    """Half the distance of each of units [h, p] to the nearest other one, [h]."""
    products = units.double() @ units.double().T
    squares = products.diagonal()
    apart = (squares[:, None] + squares - 2 * products).clamp_min(0).fill_diagonal_(torch.inf)
    return apart.amin(1).sqrt() / 2


def best_order(units: Tensor, theirs: Tensor) -> Tensor:
    """Which of units [h, p] stands for each of another model's units [h, p], as places [h].

    The sum of the squared distances of units that stand for each other is least.
    """
    likeness = theirs.double() @ units.double().T
    nearest = (2 * likeness - units.double().square().sum(1)).argmax(1)
    if len(nearest.unique()) == len(nearest):  # each has its own nearest one: no conflict to solve
        return nearest
    return torch.from_numpy(linear_sum_assignment(likeness.numpy(), maximize=True)[1])
