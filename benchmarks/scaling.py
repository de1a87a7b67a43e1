"""Seconds and memory against the number of clients: 20 samples of 64 features each, MLP 64-100-10.

Each line is a process of its own, for the peak of its memory is its own then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import alone
import torch

import coterie
from coterie.data.federation import Federation, Samples
from coterie.engine.malloc import tune_malloc
from coterie.networks import mlp
from coterie.report.text_tables import markdown_table

SAMPLES, FEATURES, HIDDEN, CLASSES = 20, 64, 100, 10
METHODS = {
    "FedAvg": coterie.FedAvg(),
    "IFCA, k = 4": coterie.IFCA(k=4, start="random"),
}


def measured(method: str, clients: int, fraction: float, rounds: int) -> dict[str, float]:
    """A whole run, evaluated once at its end; numbers in seconds and MB."""
    tune_malloc()  # as `coterie run` does
    generator = torch.Generator().manual_seed(0)
    # Class by class another mean: something can be learned, and models stay finite.
    y = torch.randint(CLASSES, (clients * SAMPLES,), generator=generator)
    x = torch.empty(clients * SAMPLES, FEATURES).normal_(generator=generator)
    x[:, :CLASSES].scatter_add_(1, y[:, None], torch.ones(len(y), 1))
    data = Federation(Samples(x, y, torch.arange(clients + 1) * SAMPLES))
    task = coterie.Classification(partial(mlp, FEATURES, HIDDEN, CLASSES))
    algorithm = METHODS[method]
    few = Samples(x[: 50 * SAMPLES], y[: 50 * SAMPLES], torch.arange(51) * SAMPLES)
    coterie.simulate(algorithm, Federation(few), task, rounds=1)  # imports and first calls
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    seconds: list[float] = []
    coterie.simulate(
        algorithm,
        data,
        task,
        rounds=rounds,
        fraction=fraction,
        evaluate=rounds,
        on_round=lambda record, run: seconds.append(record["seconds"]),
    )
    peak = memory("VmHWM")
    stored = (x.numel() * x.element_size() + y.numel() * y.element_size()) / 2**20
    return {
        "seconds": statistics.median(seconds[:-1]),  # the last round has the evaluation in it
        "data": stored,
        "beyond": peak - stored,
        "working": max(0.0, peak - before),
    }


def memory(name: str) -> float:
    """Memory of this process in MB: VmRSS is what it holds now, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return int(found[name].split()[0]) / 1024


def table(options: argparse.Namespace) -> str:
    """The table of seconds and memory against the number of clients."""
    sizes = [100, 1000] if options.quick else [100, 1000, 10_000, 100_000]
    counts = {"FedAvg": sizes, "IFCA, k = 4": sizes[-2:]}
    work = [
        (method, m, f)
        for method in METHODS
        for f in (0.01, 1.0)
        for m in counts[method]
        if f * m >= 10
    ]
    rows = []
    for method, clients, fraction in work:
        print(f"{method} with {clients} clients ...", file=sys.stderr, flush=True)
        rounds = 3 if fraction * clients > 20_000 else 11  # of 100,000 clients one takes a while
        began = time.perf_counter()
        found = alone.answer(__file__, [method, clients, fraction, rounds], options)
        whole = time.perf_counter() - began
        asked = max(1, round(fraction * clients))
        rows.append(
            [
                method,
                f"{clients:,}",
                f"{asked:,}",
                f"{1e6 * found['seconds'] / asked:.0f}",
                f"{found['data']:.0f}",
                f"{found['beyond']:.0f}",
                f"{found['working']:.0f}",
                f"{whole:.0f}",
            ]
        )
    head = ["method", "clients", "in a round", "us per client", "data, MB", "all but data, MB"]
    head += ["of it since the start, MB", "whole run, s"]
    shape = f"{SAMPLES} samples x {FEATURES} features, MLP {FEATURES}-{HIDDEN}-{CLASSES}"
    return f"Clients of {shape}, ten full-batch steps:\n\n{markdown_table(head, rows)}"


if __name__ == "__main__":
    name, m, share, count = sys.argv[1:]
    print(json.dumps(measured(name, int(m), float(share), int(count))))
