"""coterie: `FedAvg` on its simulator, as `coterie run fedavg` does it."""

import time

import torch
import work

from coterie import Classification, FedAvg
from coterie.algorithms.fedavg import State
from coterie.core.cohort import Cohort
from coterie.data.federation import Samples
from coterie.engine.kernels.large_products import tune_products
from coterie.engine.malloc import tune_malloc
from coterie.engine.simulator import Simulator
from coterie.networks import mlp

tune_malloc()  # as the command line does
tune_products()


given = work.load()
torch.set_num_threads(given.threads)
clients, samples, features = given.x.shape
task = Classification(mlp(features, len(given.b1), len(given.b2)))
data = Samples(
    torch.from_numpy(given.x).flatten(0, 1),
    torch.from_numpy(given.y).flatten(),
    torch.arange(clients + 1) * samples,
)
simulator = Simulator(data, task)
fedavg = FedAvg(lr=given.lr, steps=given.steps)
state = State(torch.cat([torch.from_numpy(weight).flatten() for weight in given.start]))
seconds, steps = [], 0
descend = Cohort.descend


def counted(cohort, start, **how):
    global steps
    steps += len(cohort) * how["steps"]
    return descend(cohort, start, **how)


Cohort.descend = counted
for t in range(given.rounds):
    began = time.perf_counter()
    state, _ = fedavg.round(state, simulator.at("round", t, round=t))
    seconds.append(time.perf_counter() - began)

work.hand_in([state.model.numpy()], seconds, steps)
