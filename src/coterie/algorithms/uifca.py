"""UIFCA: clusters of samples by generative models, one for each cluster.

J. Chung, K. Lee, K. Ramchandran: Federated Unsupervised Clustering with Generative Models, 2022;
J. Chung: Berkeley report, 2023. theta_k is a distribution, f_theta(x) = -log p_theta(x). Client i
has its samples in sets S_{i,k}, at random at first:

    for t = 1, ..., T:                                               (Algorithm 2)
        for each cluster k: theta_k = LearnClusterModel(S_{*,k})
        client i:   S_{i,k} = {x: k = argmin_k f_{theta_k}(x)}
    LearnClusterModel(S):                                            (Algorithm 3)
        theta at random;  tau times:
            client i:   theta_i = theta after M steps on batches of S_i      (Algorithm 4)
            theta = sum_i |S_i| / |S_*| theta_i
    return theta

A round is one of the tau: T cluster rounds are T tau rounds. Which samples are in which set never
leaves a client; the server sees sums over clients of models and of the sizes of sets.

Differences from the paper
- A client keeps no sets. With the models of the last cluster round, which it is sent again, it
  finds the same ones in each of the tau rounds, also if it was not there before.
- All clusters begin a cluster round with the same model: theirs differ by their sets alone.
- Samples that are vectors are centred and divided by one number, from sums over all clients.
- `restarts` partitions at random are followed side by side for some cluster rounds; the one with
  the lowest training loss is kept. The paper starts once, with `start=noise` in its text.
- `fit=exact`, `assign=soft`, `folds`, `prior` and `constant` are not in the paper: see
  docs/uifca.md for what they are worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import sample_sets
from coterie.algorithms.k_fed import KFed
from coterie.algorithms.steps import Choice, ask_cluster
from coterie.core import seeds
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError, SettingError
from coterie.core.fields import Loss, Model, Statistic
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.task import Task
from coterie.core.validate import above, at_least, in_range, one_of
from coterie.data.federation import Federation
from coterie.networks.flows import LinearFlow, LinearFlowModule
from coterie.tasks.density import Density
from coterie.tasks.defaults import default_task
from coterie.tensors.lazy import Lazy
from coterie.vectors.cluster_sums import ClusterSums
from coterie.vectors.folds import WeightedRows
from coterie.vectors.moments import SecondMoments, whitening

NOISE = 0.01  # standard deviation of what `start=noise` adds to every parameter


class State(NamedTuple):
    models: Tensor  # [r, k, d] theta of each restart that is still followed
    judges: Tensor  # [r, k, d] the models that make the sets; [r, 0, d]: the start makes them
    constants: Tensor  # [r, k] subtracted from the losses under the judges
    loss: Tensor  # [r] mean loss under the judges; the largest number where it is not known
    rounds: Tensor  # [] rounds so far that somebody answered
    scaling: Tensor  # [f + 1] centre and scale of the samples; [0]: the network does not scale
    chosen: Tensor  # [k, f] the centres of k-FED, by which the start makes sets; [0, f]: none
    seed: Tensor  # [] where draws begin that a client repeats in every round


class Upload(NamedTuple):
    models: Model  # [m, r k, d] theta_i
    size: Statistic  # [m, r k] |S_{i,k}|
    loss: Loss  # [m, r k, 1] mean loss of a set under its judge, 0 for one without samples


class Moments(NamedTuple):
    size: Statistic  # [m, r k] |S_{i,k}|
    mean: Statistic  # [m, r k, f] of the samples in a set
    square: Statistic  # [m, r k, f f] mean of x x^T
    loss: Loss  # [m, r k, 1] as above


class Scales(NamedTuple):
    size: Statistic  # [m, 1] samples
    mean: Statistic  # [m, 1, f]
    square: Statistic  # [m, 1, 1] mean of |x|^2


class MeanLosses(NamedTuple):
    size: Statistic  # [m, r k] samples
    loss: Loss  # [m, r k, 1] mean loss of all samples under each model


@dataclass(frozen=True, kw_only=True)
class UIFCA(LocalTraining):
    """Clients sort their samples by k generative models and train each on its own samples."""

    k: int = setting(2, "clusters", at_least(1))
    fit_rounds: int = setting(
        5, "rounds tau of FedAvg that fit the models of a cluster round", at_least(1)
    )
    steps: int = setting(20, "local gradient steps M", at_least(1))
    batch: int = setting(64, "samples per gradient; 0: all of a set", at_least(0))
    lr: float = setting(0.03, "step size eta", above(0))
    fit: str = setting(
        "descent",
        "how models are fitted; exact: from counts, means and second moments, linear-flow only",
        one_of("descent", "exact"),
    )
    fresh: bool = setting(True, "whether models begin anew in every cluster round")
    start: str = setting(
        "random",
        "first sets; random: each sample by itself, noise: by one drawn model and noise, k-fed: by "
        "k-FED, truth: by the labels, for reference",
        one_of(*sample_sets.STARTS),
    )
    start_errors: float = setting(
        0.0, "share of samples in a random set, with start=truth", in_range(0, 1)
    )
    restarts: int = setting(4, "random starts; the best by training loss is kept", at_least(1))
    restart_rounds: int = setting(
        8, "cluster rounds for which all restarts are followed", at_least(1)
    )
    assign: str = setting(
        "hard", "soft: samples count in all sets, by their posterior", one_of("hard", "soft")
    )
    folds: int = setting(1, "parts of the samples that take turns in cluster rounds", at_least(1))
    prior: float = setting(
        0.0,
        "weight of losses against a client's own share of clusters; 0: no such prior",
        at_least(0),
    )
    constant: str = setting(
        "kept",
        "removed: the mean loss of all samples under a model is subtracted before sets are made",
        one_of("kept", "removed"),
    )
    shrinkage: float = setting(
        1.0, "share of a sphere in the first covariances of fit=exact", in_range(0, 1)
    )
    annealing: float = setting(0.5, "factor on the shrinkage after a cluster round", in_range(0, 1))
    floor: float = setting(
        1e-6, "least variance of fit=exact, as a share of the mean one", above(0)
    )

    traits: ClassVar[Traits] = Traits(clusters="k", clients_draw=True)
    suggests: ClassVar[dict[str, Any]] = dict(
        rounds=60, network="linear-flow", lr=0.03, steps=20, batch=64
    )

    def task(self, default: Task, federation: Federation) -> Task:
        """The density that the network gives; a linear flow where it gives none."""
        if isinstance(default, Density):
            return default
        flow = default_task(federation, LinearFlow())
        return flow.double() if default.layout.dtype == torch.float64 else flow

    def init(self, start: Start) -> State:
        task = self._density(start.task)
        r = self.restarts if self.start in ("random", "noise") else 1
        seed = torch.tensor(seeds.derive(start.seed, "uifca"))
        scaling = self._measure_scaling(task, start)
        chosen = torch.zeros(0, 0, dtype=task.layout.dtype)
        if self.start == "k-fed":
            chosen = self._k_fed.cluster_once(start.all_clients(), seed)
        models = torch.stack([self._fresh(task, start.models(1, i)[0], scaling) for i in range(r)])
        judges = models[:, :0]
        if self.start == "noise":
            noise = torch.randn(models.shape, generator=start.generator("noise"))
            judges = self._keep_scaling(task, models + NOISE * noise.to(models.dtype), models)
        constants = models.new_zeros(r, self.k)
        unknown = models.new_full((r,), torch.finfo(models.dtype).max)
        return State(models, judges, constants, unknown, torch.tensor(0), scaling, chosen, seed)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        now, fit_rounds = state, 1 if self.fit == "exact" else self.fit_rounds
        number, step = divmod(int(state.rounds), fit_rounds)
        if step == 0 and number > 0:
            now = self._next_cluster_round(state, clients)
        r, k, _ = now.models.shape
        sent = self._sent(now, number)
        if self.fit == "exact":
            features = len(now.scaling) - 1
            summed = {"mean": features, "square": features * features, "loss": 1}
            fold = WeightedRows(r * k, "size", updates=summed)
            ids, up = clients.run(self.measure_sets, fold=fold, **sent)
            models = self._fit_exactly(clients.task, now, up, number)
        else:
            fold = WeightedRows(r * k, "size", {"models": "models"}, {"loss": 1})
            ids, up = clients.run(self.train, fold=fold, models=now.models.flatten(0, 1), **sent)
            models = up.mean("models").view_as(now.models)
        if len(ids) == 0:
            return state, Info(ids, None, k)
        size, loss = up.weights.view(r, k), now.loss
        if now.judges.shape[1]:
            total = up.sum("loss").view(r, k).sum(1) / size.sum(1).clamp_min(1)
            largest = torch.finfo(loss.dtype).max
            loss = total.to(loss.dtype).nan_to_num(nan=largest, posinf=largest)
        after = now._replace(models=models, loss=loss, rounds=state.rounds + 1)
        best = int(loss.argmin())
        info = Info(ids, None, k, {"cluster_round": number + 1}, weights=size[best])
        if r > 1 and number >= self.restart_rounds:
            kept = [part[best : best + 1] for part in after[:4]]
            after = State(*kept, *after[4:])
        return after, info

    def serve(self, state: State, clients: Clients) -> Serving:
        best = int(state.loss.argmin())
        models = state.models[best]
        constants = self._constants(models[None], clients)[0]
        sent = {"models": models, "constants": constants}
        label = partial(self.label, constants=constants)
        return Serving(models, *ask_cluster(self.choose, clients, **sent), label=label)

    @on_client(fold=WeightedRows)
    def train(
        self,
        cohort: Cohort,
        models: Tensor,
        judges: Tensor,
        constants: Tensor,
        chosen: Tensor,
        number: Tensor,
        seed: Tensor,
    ) -> Upload:
        cohort = self._fold(cohort, number, seed)
        weight, loss = self._sets(cohort, judges, constants, chosen, seed)  # [m, n, r, k]
        theta = models.expand(len(cohort), *models.shape)
        if self.assign == "hard":
            sets = cohort.by_label(weight.argmax(3), self.k)
            trained = self.local_update(sets, theta.flatten(0, 1)).view_as(theta)
        else:
            share = weight.flatten(2)
            mean = share.sum(1, keepdim=True) / cohort.size[:, None, None].clamp_min(1)
            trained = self.local_update(cohort, theta, weights=share / mean.clamp_min(1e-12))
        size = weight.sum(1).flatten(1)
        return Upload(trained, size, mean_of_sets(loss, weight, size))

    @on_client(fold=WeightedRows)
    def measure_sets(
        self,
        cohort: Cohort,
        judges: Tensor,
        constants: Tensor,
        chosen: Tensor,
        number: Tensor,
        seed: Tensor,
    ) -> Moments:
        cohort = self._fold(cohort, number, seed)
        weight, loss = self._sets(cohort, judges, constants, chosen, seed)
        size = weight.sum(1).flatten(1)
        points = [x.flatten(1) for x, _ in cohort]
        weights = [own[: len(x)].flatten(1) for own, x in zip(weight, points, strict=True)]
        mean = torch.stack([w.T @ x for w, x in zip(weights, points, strict=True)])
        mean = mean / size.clamp_min(1e-12)[:, :, None]
        square = Lazy(SecondMoments(points, weights))
        return Moments(size, mean, square, mean_of_sets(loss, weight, size))

    @on_client(fold=WeightedRows)
    def measure_losses(self, cohort: Cohort, models: Tensor) -> MeanLosses:
        losses = cohort.losses(models)
        size = cohort.size[:, None].expand(-1, len(models)).to(losses.dtype)
        return MeanLosses(size, (losses.sum(1) / size.clamp_min(1))[:, :, None])

    @on_client(fold=WeightedRows)
    def measure_samples(self, cohort: Cohort) -> Scales:
        points = [x.flatten(1) for x, _ in cohort]
        size = cohort.size[:, None].to(points[0].dtype)
        mean = torch.stack([x.sum(0) / max(1, len(x)) for x in points])[:, None]
        square = torch.stack([x.square().sum() / max(1, len(x)) for x in points])
        return Scales(size, mean, square[:, None, None])

    @on_client
    def choose(self, cohort: Cohort, models: Tensor, constants: Tensor) -> Choice:
        label = self.label(cohort, models, constants)
        counts = sample_sets.one_hot(label, self.k, cohort.mask).sum(1)
        return Choice(counts.argmax(1))

    @on_client
    def label(self, cohort: Cohort, models: Tensor, constants: Tensor) -> Tensor:
        losses = cohort.losses(models)[:, :, None] - constants
        return sample_sets.nearest(losses, cohort.mask, self.prior)[:, :, 0]

    def _sets(
        self, cohort: Cohort, judges: Tensor, constants: Tensor, chosen: Tensor, seed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """How much each sample counts in each set, and its loss under each judge, [m, n, r, k]."""
        r, k = constants.shape
        if not len(judges):
            label = sample_sets.first_label(self, cohort, chosen, seed, r)
            weight = sample_sets.one_hot(label, k, cohort.mask).to(constants.dtype)
            return weight, torch.zeros_like(weight)
        loss = cohort.losses(judges).view(*cohort.mask.shape, r, k)
        if self.assign == "soft":
            return sample_sets.posterior(loss - constants, cohort.mask, self.prior), loss
        label = sample_sets.nearest(loss - constants, cohort.mask, self.prior)
        return sample_sets.one_hot(label, k, cohort.mask).to(loss.dtype), loss

    def _fold(self, cohort: Cohort, number: Tensor, seed: Tensor) -> Cohort:
        """Clients with the samples whose turn it is in this cluster round."""
        if self.folds == 1:
            return cohort
        fold = sample_sets.draw_label(cohort, self.folds, int(seed), "folds", 1)[:, :, 0]
        return cohort.among(fold == int(number) % self.folds)

    def _sent(self, state: State, number: int) -> dict[str, Tensor]:
        """What clients are sent to make the sets of a cluster round."""
        return {
            "judges": state.judges.flatten(0, 1),
            "constants": state.constants,
            "chosen": state.chosen if number == 0 else state.chosen[:0],
            "number": torch.tensor(number),
            "seed": state.seed,
        }

    def _next_cluster_round(self, state: State, clients: Clients) -> State:
        """The models become judges, and others take their place."""
        constants, models = self._constants(state.models, clients), state.models
        if self.fresh and self.fit == "descent":
            task = self._density(clients.task)
            draw = task.draw(clients.generator("fresh")).to(models.dtype)
            models = self._fresh(task, draw, state.scaling).expand_as(models)
        return state._replace(models=models, judges=state.models, constants=constants)

    def _constants(self, models: Tensor, clients: Clients) -> Tensor:
        """What is subtracted from losses under models [r, k, d]: 0, or their means [r, k]."""
        r, k, _ = models.shape
        if self.constant == "kept":
            return models.new_zeros(r, k)
        fold = WeightedRows(r * k, "size", updates={"loss": 1})
        _, up = clients.run(self.measure_losses, fold=fold, models=models.flatten(0, 1))
        return (up.sum("loss")[:, 0] / up.weights.clamp_min(1)).view(r, k).to(models.dtype)

    def _fresh(self, task: Density, draw: Tensor, scaling: Tensor) -> Tensor:
        """k times the same model [k, d], which scales samples as the others do."""
        model = task.with_scaling(draw, scaling[:-1], scaling[-1]) if len(scaling) else draw
        return model.expand(self.k, -1)

    def _measure_scaling(self, task: Density, start: Start) -> Tensor:
        """Centre [f] and scale of all samples, behind one another; nothing if they do not matter."""
        if not task.scales:
            return torch.zeros(0, dtype=task.layout.dtype)
        features = task.layout.unflatten(task.draw(torch.Generator()))["inputs.shift"].numel()
        fold = WeightedRows(1, "size", updates={"mean": features, "square": 1})
        ids, up = start.all_clients().run(self.measure_samples, fold=fold)
        if len(ids) == 0:
            raise CoterieError("no client answered during the start, so that samples have no scale")
        mean, square = up.sum("mean")[0] / up.weight, up.sum("square")[0] / up.weight
        scale = ((square - mean.square().sum()).clamp_min(0) / features).sqrt()
        scale = torch.where(scale > 0, scale, 1.0)
        return torch.cat([mean, scale]).to(task.layout.dtype)

    def _keep_scaling(self, task: Density, models: Tensor, like: Tensor) -> Tensor:
        """Models [..., d] with the buffers of others."""
        width = task.layout.trained_size
        return torch.cat([models[..., :width], like[..., width:]], -1)

    def _fit_exactly(self, task: Task, state: State, up: ClusterSums, number: int) -> Tensor:
        """The linear flows [r, k, d] of the sets; one without samples keeps its model."""
        weight, features = up.weights[:, None], len(state.scaling) - 1
        shift, scale = state.scaling[:-1].double(), state.scaling[-1].double()
        mean = up.sum("mean") / weight.clamp_min(1e-12)
        square = (up.sum("square") / weight.clamp_min(1e-12)).view(-1, features, features)
        both = mean[:, :, None] * shift
        centred = square - both - both.mT + shift[:, None] * shift
        share = self.shrinkage * self.annealing**number
        A, c = whitening((mean - shift) / scale, centred / scale**2, share, self.floor)
        flat = torch.cat([A.flatten(1), c], 1).view(*state.models.shape[:2], -1)
        models = torch.cat([flat.to(state.models.dtype), state.models[..., flat.shape[-1] :]], -1)
        return torch.where((up.weights > 0).view(*state.models.shape[:2], 1), models, state.models)

    def _density(self, task: Task) -> Density:
        """The task, which must be a density, and for exact fits that of a linear flow."""
        if not isinstance(task, Density):
            raise SettingError(
                f"UIFCA learns distributions: its task must be Density, got {type(task).__name__}"
            )
        if self.fit == "exact" and not isinstance(task.module, LinearFlowModule):
            raise SettingError(
                "`fit` of UIFCA must be descent for networks that are not linear-flow, got exact"
            )
        return task

    @property
    def _k_fed(self) -> KFed:
        return KFed(k=self.k, server="k-means")


def mean_of_sets(loss: Tensor, weight: Tensor, size: Tensor) -> Tensor:
    """The mean loss [m, r k, 1] of each set, from losses and weights [m, n, r, k]."""
    total = torch.where(weight > 0, loss * weight, 0.0).sum(1).flatten(1)
    return (total / size.clamp_min(1e-12))[:, :, None]
