"""Find four hidden groups among 80 clients, beside the two obvious answers that fail.

Every client holds handwritten digits that are all rotated by 0, 90, 180 or 270 degrees; nobody says
who has which. `make demo` runs this file.
"""

from pathlib import Path

import coterie

federation, task = coterie.load("rotated-digits", clients=80, seed=0)
print(
    f"{len(federation)} clients, about {federation.train.sizes.float().mean():.0f} samples each\n"
)

contenders = {
    "local: one model each": coterie.Local(lr=0.1, steps=10),
    "fedavg: one model for all": coterie.FedAvg(lr=0.1, steps=10),
    "ifca: one model per group": coterie.IFCA(k=4, lr=0.1, steps=10),
}
print(f"{'':28}{'accuracy':>10}{'groups found':>15}{'ARI':>8}{'seconds':>10}")
for name, algorithm in contenders.items():
    run = coterie.simulate(algorithm, federation, task, rounds=60, seed=0)
    groups = "-" if name.startswith("local") else f"{run.metrics['clusters']:.0f}"
    accuracy, ari = run.metrics["accuracy"], run.metrics["ari"]
    print(f"{name:28}{accuracy:10.1%}{groups:>15}{ari:8.2f}{run.result['seconds']:10.1f}")

page = run.report(Path("report.html"))
print(f"\nThe groups, client by client: {page.resolve()}")
