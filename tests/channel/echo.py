"""A client step that returns what it was sent, and clients to run it on."""

from typing import NamedTuple

import torch
from torch import nn

from coterie import Regression
from coterie.core.clients import on_client
from coterie.core.fields import Cluster, Model, Size
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator


class Upload(NamedTuple):
    cluster: Cluster
    model: Model
    size: Size


class Echo:
    @on_client
    def step(self, cohort, model, number=None):
        return Upload(torch.zeros_like(cohort.ids), model.expand(len(cohort), 4), cohort.size)


def clients(m=6, chunk=2, round=0):
    samples = Samples.of([(torch.zeros(2, 1), torch.zeros(2))] * m)
    return Simulator(samples, Regression(nn.Linear(1, 1)), chunk=chunk).at("round", round)
