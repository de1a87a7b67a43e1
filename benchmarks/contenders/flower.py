"""Flower: `FedAvg` on its simulation runtime, one process (a Ray actor) per thread."""

import os
import time
from functools import cache
from itertools import pairwise

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import torch
import work
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn.functional import cross_entropy

client_app = ClientApp()


@cache
def loaded(path):
    """The work and a network for it, once in each process."""
    torch.set_num_threads(1)
    given = work.load(path)
    hidden, features = given.w1.shape
    layers = nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, len(given.b2))
    return given, nn.Sequential(*layers)


@client_app.train()
def train(message, context):
    given, network = loaded(os.environ["BENCH_WORK"])
    i = int(context.node_config["partition-id"])
    x, y = torch.from_numpy(given.x[i]), torch.from_numpy(given.y[i])
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(network.parameters(), lr=given.lr)
    steps = 0
    for _ in range(given.steps):
        optimiser.zero_grad()
        cross_entropy(network(x), y).backward()
        optimiser.step()
        steps += 1
    content = {
        "arrays": ArrayRecord(network.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y), "steps": steps}),
    }
    return Message(RecordDict(content), reply_to=message)


def summed(replies, weighted_by_key):
    """The steps of all clients in a round."""
    return MetricRecord({"steps": sum(int(reply["metrics"]["steps"]) for reply in replies)})


def main():
    given, network = loaded(os.environ["BENCH_WORK"])
    start = map(torch.from_numpy, given.start)
    network.load_state_dict(dict(zip(network.state_dict(), start, strict=True)))
    server_app = ServerApp()

    @server_app.main()
    def serve(grid, context):
        times = []
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_available_nodes=len(given.x),
            min_train_nodes=len(given.x),  # else the first round takes those that are up by then
            train_metrics_aggr_fn=summed,
        )
        result = strategy.start(
            grid,
            ArrayRecord(network.state_dict()),
            num_rounds=given.rounds,
            evaluate_fn=lambda t, arrays: times.append(time.perf_counter()),
        )
        seconds = [after - before for before, after in pairwise(times)]
        steps = sum(int(metrics["steps"]) for metrics in result.train_metrics_clientapp.values())
        state = result.arrays.to_torch_state_dict()
        work.hand_in([state[name].numpy() for name in network.state_dict()], seconds, steps)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(given.x),
        backend_config={
            "client_resources": {"num_cpus": 1},
            "init_args": {"num_cpus": given.threads},
        },
    )


if __name__ == "__main__":
    import sys

    os.environ["BENCH_WORK"] = os.path.abspath(sys.argv[1])
    # Actors find this module by its name, so that what they loaded stays there between rounds.
    import flower

    flower.main()
