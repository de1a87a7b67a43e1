"""The plain PyTorch loop, as the papers' authors write it: client by client, with torch.optim.

With the word `double` behind its files it works in double precision: the reference that all weights
are compared with.
"""

import sys
import time

import torch
import work
from torch import nn
from torch.nn.functional import cross_entropy

given = work.load()
torch.set_num_threads(given.threads)
hidden, features = given.w1.shape
kind = torch.float64 if sys.argv[3:] == ["double"] else torch.float32
x, y = torch.from_numpy(given.x).to(kind), torch.from_numpy(given.y)
clients = list(zip(x, y, strict=True))
network = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, len(given.b2)))
network.to(kind)
given_start = [torch.from_numpy(weight).to(kind) for weight in given.start]
start = dict(zip(network.state_dict(), given_start, strict=True))
state, seconds, steps = start, [], 0

for _ in range(given.rounds):
    began = time.perf_counter()
    total = {name: torch.zeros_like(value) for name, value in state.items()}
    for x, y in clients:
        network.load_state_dict(state)
        optimiser = torch.optim.SGD(network.parameters(), lr=given.lr)
        for _ in range(given.steps):
            optimiser.zero_grad()
            cross_entropy(network(x), y).backward()
            optimiser.step()
            steps += 1
        for name, value in network.state_dict().items():
            total[name] += value
    state = {name: value / len(clients) for name, value in total.items()}
    seconds.append(time.perf_counter() - began)

work.hand_in([value.numpy() for value in state.values()], seconds, steps)
