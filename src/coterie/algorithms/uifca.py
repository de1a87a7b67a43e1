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

from coterie.algorithms import sample_sets, uifca_exact, uifca_mistakes, uifca_scaling, uifca_start
from coterie.algorithms.sample_sets import SetSettings
from coterie.algorithms.steps import Choice, ask_cluster
from coterie.algorithms.uifca_scaling import largest
from coterie.core import seeds
from coterie.core.algorithm import WITHOUT_LABELS, Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Loss, Model, Statistic
from coterie.core.settings import setting
from coterie.core.task import Task
from coterie.core.validate import above, at_least, in_range, one_of
from coterie.data.federation import Federation
from coterie.tasks.defaults import density_task
from coterie.tasks.density import Density
from coterie.vectors.folds import WeightedRows

PER_RESTART = ("models", "judges", "constants", "loss")  # of the state
NOISE = 0.01  # standard deviation of what `start=noise` adds to every parameter


class State(NamedTuple):
    models: Tensor  # [r, k, d] theta of each restart that is still followed
    judges: Tensor  # [r, k, d] the models that make the sets; [r, 0, d]: the start makes them
    constants: Tensor  # [r, k] subtracted from the losses under the judges
    loss: Tensor  # [r] mean loss under the judges; the largest number where it is not known
    rounds: Tensor  # [] rounds so far that somebody answered
    scaling: Tensor  # [f + 1] centre and scale of the samples; [0]: the network does not scale
    chosen: Tensor  # [r, k, q] centres of k-FED, by which the start makes sets; [0, 0, 0]: none
    components: Tensor  # [f + 1, q] what k-FED sees of samples; [0, 0]: the samples themselves
    seed: Tensor  # [] where draws begin that a client repeats in every round

    @property
    def features(self) -> int:
        """How many numbers a sample has, f."""
        return len(self.scaling) - 1

    def keep_best(self) -> State:
        """The restart with the lowest training loss alone."""
        best = int(self.loss.argmin())
        only = {name: getattr(self, name)[best : best + 1] for name in PER_RESTART}
        return self._replace(**only)


class Upload(NamedTuple):
    models: Model  # [m, r k, d] theta_i
    size: Statistic  # [m, r k] |S_{i,k}|
    loss: Loss  # [m, r k, 1] mean loss of a set under its judge, 0 for one without samples


@dataclass(frozen=True, kw_only=True)
class UIFCA(SetSettings):
    """Clients sort their samples by k generative models and train each on its own samples."""

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
    restarts: int = setting(
        0,
        "starts, of which the best by training loss is kept; 0: 1 of k-FED, 4 of others, or with "
        "fit=exact up to 16 of these, fewer where their second moments would be large",
        at_least(0),
    )
    restart_rounds: int = setting(8, "cluster rounds that all restarts are followed", at_least(1))
    shrinkage: float = setting(
        1.0, "share of a sphere in the first covariances of fit=exact", in_range(0, 1)
    )
    annealing: float = setting(0.5, "factor on the shrinkage after a cluster round", in_range(0, 1))
    floor: float = setting(
        1e-6, "least variance of fit=exact, as a share of that of all samples", above(0)
    )

    traits: ClassVar[Traits] = Traits(
        clusters="k", clients_draw=True, by_sample=True, averages=False
    )
    suggests: ClassVar[dict[str, Any]] = dict(
        rounds=60, network="linear-flow", lr=0.03, steps=20, batch=64, **WITHOUT_LABELS
    )

    def task(self, default: Task, federation: Federation) -> Task:
        """The density that the network gives; a linear flow where it gives none."""
        sample_sets.check_start(self, federation)
        return density_task(federation, default)

    measure_samples = uifca_scaling.measure_samples
    measure_losses = uifca_scaling.measure_losses
    measure_products = uifca_start.measure_products
    find_start = uifca_start.find_start
    measure_sets = uifca_exact.measure_sets
    measure_mistakes = uifca_mistakes.measure_mistakes

    def init(self, start: Start) -> State:
        task = uifca_exact.check_density(self.fit, start.task)
        seed = torch.tensor(seeds.derive(start.seed, "uifca"))
        scaling = uifca_scaling.ask_scaling(self.measure_samples, task, start.all_clients())
        components, chosen = scaling.new_zeros(0, 0), scaling.new_zeros(0, 0, 0)
        if self.start == "k-fed":
            components, chosen = uifca_start.ask_k_fed(self, start.all_clients(), seed)
        r = uifca_start.count_starts(self, len(scaling) - 1)
        models = torch.stack([self._begin(task, start.models(1, i)[0], scaling) for i in range(r)])
        judges = models[:, :0]
        if self.start == "noise":
            judges, width = models.clone(), task.layout.trained_size
            noise = torch.randn(r, self.k, width, generator=start.generator("noise"))
            judges[..., :width] += NOISE * noise.to(models.dtype)
        constants, unknown = models.new_zeros(r, self.k), models.new_full((r,), largest(models))
        known = scaling, chosen, components, seed
        return State(models, judges, constants, unknown, torch.tensor(0), *known)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        number, step = divmod(int(state.rounds), 1 if self.fit == "exact" else self.fit_rounds)
        now = self._assign(state, clients) if number and not step else state
        (r, k, _), sets = now.models.shape, self._sets(now, number)
        if self.fit == "exact":
            fold = WeightedRows(r * k, "size", updates=uifca_exact.summed_moments(now.features))
            ids, up = clients.run(self.measure_sets, fold=fold, scaling=now.scaling, **sets)
            share = self.shrinkage * self.annealing**number
            models = uifca_exact.fit_flows(now.models, up, share, self.floor)
        else:
            fold = WeightedRows(r * k, "size", {"models": "models"}, {"loss": 1})
            ids, up = clients.run(self.train, fold=fold, models=now.models.flatten(0, 1), **sets)
            models = up.mean("models").view_as(now.models)
        if len(ids) == 0:
            return state, Info(ids, None, k)
        size, loss = up.weights.view(r, k), now.loss
        if now.judges.shape[1]:
            mean = up.sum("loss").view(r, k).sum(1) / size.sum(1).clamp_min(1)
            loss = mean.to(loss.dtype).nan_to_num(nan=largest(loss), posinf=largest(loss))
        after = now._replace(models=models, loss=loss, rounds=state.rounds + 1)
        told = {"cluster_round": number + 1, **uifca_mistakes.of_start(self, models, clients, sets)}
        info = Info(ids, None, k, told, weights=size[int(loss.argmin())])
        return after.keep_best() if number >= self.restart_rounds else after, info

    def serve(self, state: State, clients: Clients) -> Serving:
        models = state.keep_best().models
        constants = uifca_scaling.ask_constants(self, models, clients)[0]
        asked = ask_cluster(self.choose, clients, models=models[0], constants=constants)
        return Serving(models[0], *asked, label=partial(self.label, constants=constants))

    @on_client(fold=WeightedRows)
    def train(
        self,
        cohort: Cohort,
        models: Tensor,
        judges: Tensor,
        constants: Tensor,
        chosen: Tensor,
        components: Tensor,
        number: Tensor,
        seed: Tensor,
    ) -> Upload:
        cohort = sample_sets.fold_of_turn(self, cohort, number, seed)
        made_by = judges, constants, chosen, components, seed
        weight, loss = sample_sets.make_sets(self, cohort, *made_by)
        size, theta = weight.sum(1).flatten(1), models.expand(len(cohort), *models.shape)
        if self.assign == "hard":
            sets = cohort.by_label(weight.argmax(3), self.k)
            theta = self.local_update(sets, theta.flatten(0, 1)).view_as(theta)
        else:
            share = sample_sets.divide(size, cohort.size[:, None])[:, None]
            theta = self.local_update(
                cohort, theta, weights=sample_sets.divide(weight.flatten(2), share)
            )
        return Upload(theta, size, sample_sets.mean_of_sets(loss, weight, size))

    @on_client
    def choose(self, cohort: Cohort, models: Tensor, constants: Tensor) -> Choice:
        label = self.label(cohort, models, constants)
        return Choice(sample_sets.one_hot(label, self.k, cohort.mask).sum(1).argmax(1))

    @on_client
    def label(self, cohort: Cohort, models: Tensor, constants: Tensor) -> Tensor:
        losses = cohort.losses(models)[:, :, None] - constants
        return sample_sets.nearest(losses, cohort.mask, self.prior)[:, :, 0]

    def _assign(self, state: State, clients: Clients) -> State:
        """The state in which models make the sets of a new cluster round, and others are fitted."""
        constants, models = uifca_scaling.ask_constants(self, state.models, clients), state.models
        if self.fresh and self.fit == "descent":
            draw = clients.task.draw(clients.generator("fresh")).to(models.dtype)
            task = uifca_exact.check_density(self.fit, clients.task)
            models = self._begin(task, draw, state.scaling)
        return state._replace(
            models=models.expand_as(state.models), judges=state.models, constants=constants
        )

    def _begin(self, task: Density, draw: Tensor, scaling: Tensor) -> Tensor:
        """The models [k, d] of a cluster round before they are fitted: k times the same."""
        model = task.with_scaling(draw, scaling[:-1], scaling[-1]) if len(scaling) else draw
        return model.expand(self.k, -1)

    def _sets(self, state: State, number: int) -> dict[str, Tensor]:
        """What clients are sent to make the sets of a cluster round."""
        return {
            "judges": state.judges.flatten(0, 1),
            "constants": state.constants,
            "chosen": state.chosen if number == 0 else state.chosen[:0],
            "components": state.components if number == 0 else state.components[:0],
            "number": torch.tensor(number),
            "seed": state.seed,
        }
