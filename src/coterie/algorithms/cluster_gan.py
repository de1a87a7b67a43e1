"""ClusterGAN with FedAvg: clusters of samples in the codes of one generative adversarial network.

S. Mukherjee, H. Asnani, E. Lin, S. Kannan: ClusterGAN: Latent Space Clustering in Generative
Adversarial Networks, AAAI 2019, https://arxiv.org/abs/1809.03627; with FedAvg it is a baseline of
J. Chung, K. Lee, K. Ramchandran: Federated Unsupervised Clustering with Generative Models, 2022. G
generates, D is the critic, E = (E_n, E_c) encodes; z = (z_n, z_c), z_n ~ N(0, 0.1^2), z_c one-hot:

    for t = 0, ..., T - 1:
        client i: from the server's networks, M times:
                      n_D steps of D:  min mean D(G(z)) - mean D(x) + lambda GP
                      one of G and E:  min - mean D(G(z)) + beta_n mean |z_n - E_n(G(z))|^2
                                                          + beta_c mean H(z_c, E_c(G(z)))
        server:   means of the clients' G, D and E
    GP = mean (|grad D(x')| - 1)^2,  x' = e x + (1 - e) G(z),  e uniform in 0 to 1
    a sample x is in the cluster of the centre nearest to (E_n(x), softmax E_c(x)); the centres are
    those of k-means on the codes of all samples

Differences from the paper
- The centres are found as k-FED does it: each client sends the centres of its own codes, and the
  server runs k-means on those. No code of a sample leaves a client.
- The networks are perceptrons without batch normalisation, which would be of the batches of one
  client; the paper's for images are convolutions, with batch normalisation in G.
- e is drawn for every sample, as in the paper on WGAN-GP; the authors' code draws one per batch.
- Local optimisers begin anew in every round. The default is Adam as in ClusterGAN, with a larger
  step; UIFCA's authors write of SGD with 0.005.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pad_sequence

from coterie.algorithms import k_fed
from coterie.algorithms.steps import Choice, ask_cluster
from coterie.core import seeds
from coterie.core.algorithm import WITHOUT_LABELS, Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.fields import Cluster, Model, Size
from coterie.core.local_training import GradientSettings, weighting_setting
from coterie.core.local_work import OptimizerState
from coterie.core.settings import setting
from coterie.core.task import Task
from coterie.core.validate import above, at_least, between, in_range, one_of
from coterie.data.federation import Federation
from coterie.tasks.codes import Codes
from coterie.tasks.defaults import codes_task
from coterie.vectors.folds import ByCluster
from coterie.vectors.kmeans import nearest_centre

Call = Callable[..., Any]  # of a part of the network, as `Cohort.minimise` hands it on


class State(NamedTuple):
    model: Tensor  # [d] G, D and E
    seed: Tensor  # [] where the draws of k-means begin


class Upload(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one model
    model: Model  # [m, d] G, D and E of each client
    size: Size  # [m] samples


@dataclass(frozen=True, kw_only=True)
class ClusterGAN(GradientSettings):
    """One adversarial network for all, in the codes of whose encoder samples are clustered."""

    k: int = setting(2, "clusters, and classes that the generator is told", at_least(1))
    steps: int = setting(10, "local steps M of generator and encoder", at_least(1))
    critic_steps: int = setting(3, "steps n_D of the critic before each of them", at_least(1))
    batch: int = setting(64, "samples per gradient; 0: all of the client's", at_least(0))
    lr: float = setting(0.0005, "step size", above(0))
    optimizer: str = setting(
        "adam",
        "local optimiser as in torch.optim, begun anew in every round",
        one_of("sgd", "momentum", "adam"),
    )
    momentum: float = setting(
        0.9, "share of the last step in the next, with that optimizer", in_range(0, 1)
    )
    beta_mean: float = setting(0.5, "beta_1 of adam, of the mean of gradients", between(0, 1))
    beta_square: float = setting(0.9, "beta_2 of adam, of their squares", between(0, 1))
    penalty: float = setting(10.0, "weight lambda of the gradient penalty", at_least(0))
    noise_weight: float = setting(10.0, "weight beta_n of the noise that E finds", at_least(0))
    category_weight: float = setting(10.0, "weight beta_c of the class that E finds", at_least(0))
    weighting: str = weighting_setting()
    tries: int = setting(10, "starts of k-means, of which the best is kept", at_least(1))

    traits: ClassVar[Traits] = Traits(clusters="k", clients_draw=True, by_sample=True)
    suggests: ClassVar[dict[str, Any]] = dict(
        rounds=80, network="gan", weighting="equal", **WITHOUT_LABELS
    )

    def task(self, default: Task, federation: Federation) -> Task:
        """Codes of the network, with k classes; those of `gan` where it has none."""
        return codes_task(federation, default).with_classes(self.k)

    def init(self, start: Start) -> State:
        task: Any = start.task
        if not isinstance(task, Codes) or task.classes != self.k:
            found = f" of {task.classes} classes" if isinstance(task, Codes) else ""
            raise SettingError(
                f"ClusterGAN finds {self.k} clusters among codes: its task must be Codes with a "
                f"network of {self.k} classes, got {type(task).__name__}{found}"
            )
        seed = torch.tensor(seeds.derive(start.seed, "cluster-gan"))
        return State(start.models(1)[0], seed)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = ByCluster(1, {"model": "model"}, by_size=self.weighting == "size")
        ids, up = clients.run(self.train, fold=fold, model=state.model)
        return state._replace(model=up.pooled_mean("model")), Info(ids, None, self.k)

    def serve(self, state: State, clients: Clients) -> Serving:
        task: Any = clients.task
        centres = self._centres(state, clients, task)
        asked = ask_cluster(self.choose, clients, model=state.model, centres=centres)
        return Serving(task.with_centres(state.model, centres), *asked, label=self.label)

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        task: Any = cohort.task
        options: dict[str, Any] = {
            "lr": self.rate(cohort.round),
            "batch": self.batch,
            "weight_decay": self.weight_decay,
            "clip": self.clip,
            "optimizer": self.optimizer,
            "momentum": self.momentum,
            "betas": (self.beta_mean, self.beta_square),
        }
        realism = partial(critic_loss, task=task, penalty=self.penalty)
        deceit = partial(
            generator_loss, task=task, noise=self.noise_weight, classes=self.category_weight
        )
        critic, others = OptimizerState(), OptimizerState()
        both = task.layout.part("generator") | task.layout.part("encoder")
        both = both.to(model.device)
        w = model.expand(len(cohort), -1)
        for _ in range(self.steps):
            w = cohort.minimise(
                realism, w, part="critic", steps=self.critic_steps, state=critic, **options
            )
            w = cohort.minimise(deceit, w, part=both, steps=1, state=others, **options)
        return Upload(torch.zeros_like(cohort.ids), w, cohort.size)

    @on_client
    def cluster(self, cohort: Cohort, model: Tensor, seed: Tensor) -> k_fed.Upload:
        task: Any = cohort.task
        codes = [task.encode(model, x) for x, _ in cohort]
        return k_fed.find_centres(codes, self.k, int(seed), self.tries)

    @on_client
    def choose(self, cohort: Cohort, model: Tensor, centres: Tensor) -> Choice:
        found = nearest_of_codes(cohort, model, centres)
        sizes = torch.stack([torch.bincount(label, minlength=self.k) for label in found])
        return Choice(sizes.argmax(1))

    @on_client
    def label(self, cohort: Cohort, models: Tensor) -> Tensor:
        centres = cohort.task.layout.unflatten(models)["centre"]
        return pad_sequence(nearest_of_codes(cohort, models[0], centres), batch_first=True)

    def _centres(self, state: State, clients: Clients, task: Codes) -> Tensor:
        """The k centres of all clients' codes [k, c]; zeros where nobody sends any."""
        ids, up = clients.run(self.cluster, model=state.model, seed=state.seed)
        if len(ids) == 0 or not bool(up.number.any()):
            return state.model.new_zeros(self.k, task.noise + task.classes)
        server = k_fed.KFed(k=self.k, server="k-means", tries=self.tries)
        return server.cluster_centres(up.centres, up.number, int(state.seed))[0]


def nearest_of_codes(cohort: Cohort, model: Tensor, centres: Tensor) -> list[Tensor]:
    """The centre [k, c] nearest to the code of each sample, [n] for one client after another."""
    task: Any = cohort.task
    return [nearest_centre(task.encode(model, x), centres) for x, _ in cohort]


def critic_loss(
    call: Call, x: Tensor, y: Any, generator: torch.Generator, *, task: Codes, penalty: float
) -> Tensor:
    """What the critic minimises on a batch: WGAN-GP."""
    z, _ = task.draw_latent(len(x), generator)
    made = call("generator", z.to(x.device)).detach()
    share = torch.rand(len(x), *(1 for _ in x.shape[1:]), generator=generator, device="cpu")
    between = (made + share.to(x) * (x - made)).requires_grad_()
    (slope,) = torch.autograd.grad(call("critic", between).sum(), between, create_graph=True)
    steepness = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    loss: Tensor = call("critic", made).mean() - call("critic", x).mean() + penalty * steepness
    return loss


def generator_loss(
    call: Call,
    x: Tensor,
    y: Any,
    generator: torch.Generator,
    *,
    task: Codes,
    noise: float,
    classes: float,
) -> Tensor:
    """What generator and encoder minimise: as many made samples as a batch x has."""
    z, label = task.draw_latent(len(x), generator)
    z, label = z.to(x.device), label.to(x.device)
    made = call("generator", z)
    found = call("encoder", made)
    lost = mse_loss(found[:, : task.noise], z[:, : task.noise])
    confused = cross_entropy(found[:, task.noise :], label)
    loss: Tensor = noise * lost + classes * confused - call("critic", made).mean()
    return loss
