"""What robust means and screens cost: one round of IFCA with and without them.

    python benchmarks/robust_means.py [--samples 200]

1,000 clients choose one of 4 models of 159,010 parameters and make 10 full-batch steps. A plain
mean never forms their models; a median must hold them all. Every setting has a process of its own.
Printed are seconds of a warm round, as multiples of the plain one, and the memory that rounds took,
in multiples of what the models of all clients occupy.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

SETTINGS = {
    "mean": {},
    "median": {"aggregate": "median"},
    "trimmed": {"aggregate": "trimmed"},
    "screen=norm, mean": {"screen": "norm"},
    "screen=norm, median": {"screen": "norm", "aggregate": "median"},
    "clip": {"aggregate": "clip"},
    "krum": {"aggregate": "krum"},
    "geometric-median": {"aggregate": "geometric-median"},
    "screen=lof, mean": {"screen": "lof"},
}
SLOW = ("krum", "geometric-median", "screen=lof, mean")


def measure(name: str, clients: int, samples: int, hidden: int, rounds: int) -> dict[str, float]:
    """Seconds of a warm round, on the clock and of the processor, and bytes that rounds took."""
    import torch

    import coterie
    from coterie.core.task import Task
    from coterie.experiment.settings import RunSettings

    draw = torch.Generator().manual_seed(0)
    x = torch.rand(clients * samples, 784, generator=draw)
    y = torch.randint(10, (clients * samples,), generator=draw)
    pairs = list(zip(x.split(samples), y.split(samples), strict=True))
    federation = coterie.Federation.from_clients(pairs)
    del pairs, x, y

    def network() -> torch.nn.Module:
        layers = torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
        return torch.nn.Sequential(*layers)

    task: Task = coterie.Classification(network)
    settings = RunSettings(rounds=rounds + 1, evaluate=10**6, **SETTINGS[name])
    run = coterie.Run(coterie.IFCA(k=4, start="random"), federation, task, settings)
    training = run.training
    training.begin()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = status_bytes("VmRSS")
    spent: list[tuple[float, float]] = []
    state = training.state
    for t in range(rounds + 1):
        began, used = time.perf_counter(), time.process_time()
        state, _ = training.algorithm.round(state, training.participants.of_round(t))
        spent.append((time.perf_counter() - began, time.process_time() - used))
    after = status_bytes("VmHWM")
    wall, cpu = (min(each[i] for each in spent[1:]) for i in (0, 1))
    models = 4 * clients * task.layout.size
    return {"wall": wall, "cpu": cpu, "memory": (after - before) / models}


def status_bytes(name: str) -> int:
    """A number of this process that Linux tells: VmRSS, its memory now, VmHWM, the most it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=1000)
    options.add_argument("--samples", type=int, default=200)
    options.add_argument("--hidden", type=int, default=200)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--all", action="store_true", help="the slow ones as well")
    options.add_argument("--only", default="", help="one setting, as JSON")
    asked = options.parse_args()
    if asked.only:
        sizes = asked.clients, asked.samples, asked.hidden, asked.rounds
        print(json.dumps(measure(asked.only, *sizes)))
        return
    plain: dict[str, float] = {}
    print("| setting | seconds | x plain | CPU seconds | x plain | memory / (m d) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in SETTINGS:
        if name in SLOW and not asked.all:
            continue
        done = subprocess.run(
            [sys.executable, *sys.argv, "--only", name], check=True, capture_output=True, text=True
        )
        found = json.loads(done.stdout)
        plain = plain or found
        cells = [f"{found['wall']:.2f}", f"{found['wall'] / plain['wall']:.2f}"]
        cells += [f"{found['cpu']:.2f}", f"{found['cpu'] / plain['cpu']:.2f}"]
        print(f"| {name} | {' | '.join(cells)} | {found['memory']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
