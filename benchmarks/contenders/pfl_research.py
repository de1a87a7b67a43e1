"""pfl: `FederatedAveraging` on its `SimulatedBackend`, with PyTorch."""

import time

import torch
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn.functional import cross_entropy

given = work.load()
torch.set_num_threads(given.threads)


class Network(nn.Sequential):
    """A network with the loss and the metrics that pfl asks a module for."""

    steps = 0

    def loss(self, x, y, eval=False):
        self.train(not eval)
        if not eval:
            Network.steps += 1
        return cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        return {"loss": Weighted(float(self.loss(x, y, eval=True)) * len(y), len(y))}


class Clock(TrainingProcessCallback):
    """The seconds of each round."""

    def __init__(self):
        self.seconds = []
        self.began = time.perf_counter()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        now = time.perf_counter()
        self.seconds.append(now - self.began)
        self.began = now
        return False, Metrics()


hidden, features = given.w1.shape
network = Network(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, len(given.b2)))
start = map(torch.from_numpy, given.start)
network.load_state_dict(dict(zip(network.state_dict(), start, strict=True)))
model = PyTorchModel(
    network,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
)
users = list(range(len(given.x)))
tensors = [
    (torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(given.x, given.y, strict=True)
]
data = FederatedDataset(
    lambda user: PyTorchTensorDataset(tensors[user], user_id=str(user)),
    get_user_sampler("minimize_reuse", users),
)
clock = Clock()
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=given.rounds,
        evaluation_frequency=given.rounds + 1,
        train_cohort_size=len(users),
        val_cohort_size=None,
    ),
    SimulatedBackend(training_data=data, val_data=data),
    model,
    NNTrainHyperParams(
        local_num_epochs=given.steps,
        local_learning_rate=given.lr,
        local_batch_size=None,
    ),
    NNEvalHyperParams(local_batch_size=None),
    [clock],
)
weights = [value.detach().numpy() for value in network.state_dict().values()]
work.hand_in(weights, clock.seconds, Network.steps)
