import numpy as np
import pandas as pd
import pytest

import coterie


def make_table(kind, clients=6, rows=24, seed=0):
    """A table of two hidden groups with opposite relations; numbers, a date, text, gaps."""
    rng = np.random.default_rng(seed)
    parts = []
    for c in range(clients):
        age, dose = rng.normal(50, 10, rows), rng.exponential(2.0, rows)
        city = rng.choice(["Rome", "Oslo", "Bern"], rows, p=[0.5, 0.3, 0.2])
        score = (age - 50) / 10 + (city == "Oslo") - 0.3 * dose
        score = (score if c % 2 else -score) + 0.1 * rng.normal(size=rows)
        outcome = np.where(score > 0, "ill", "well") if kind == "classes" else 5000 + 900 * score
        age[rng.random(rows) < 0.1] = np.nan
        day = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D")
        columns = {"site": f"s{c}", "age": age, "dose": dose, "city": city, "day": day}
        parts.append(pd.DataFrame({**columns, "outcome": outcome}))
    whole = pd.concat(parts, ignore_index=True)
    return whole.sample(frac=1, random_state=seed).reset_index(drop=True)


@pytest.fixture(scope="session")
def tables():
    """A table with classes and one with real targets."""
    return {kind: make_table(kind) for kind in ("classes", "targets")}


@pytest.fixture(scope="session")
def newcomers():
    """Rows of clients that took no part, of each kind, and some of one that did."""
    return {kind: make_table(kind, clients=9, rows=8, seed=1) for kind in ("classes", "targets")}


def trained(algorithm, table, rounds=4, **settings):
    """A run on a table, with the task that a run of the command line has."""
    from coterie.networks import Mlp
    from coterie.tasks.defaults import default_task

    federation = coterie.Federation.from_table(table, client="site", label="outcome")
    task = default_task(federation, Mlp(hidden=8))
    return coterie.simulate(algorithm, federation, task, rounds=rounds, seed=0, **settings)


@pytest.fixture(scope="session")
def run(tables):
    """IFCA on the classes: two groups."""
    return trained(coterie.IFCA(k=2, lr=0.1, epochs=5), tables["classes"], rounds=10)
