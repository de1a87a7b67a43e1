"""Ways to split a labelled data set among clients: evenly, by Dirichlet shares, or in shards.

Each way gives for every client the rows that it holds; no row is given twice.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import SettingError


def iid(labels: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffled rows in equal parts.

    >>> parts = iid(torch.zeros(10), 3, torch.Generator().manual_seed(0))
    >>> [len(part) for part in parts]
    [4, 3, 3]
    """
    check_enough_rows(len(labels), clients)
    return list(torch.randperm(len(labels), generator=generator).tensor_split(clients))


def dirichlet(
    labels: Tensor, clients: int, alpha: float, generator: torch.Generator, *, at_least: int = 2
) -> list[Tensor]:
    """Every class is split in shares drawn from Dirichlet(alpha): small alpha, uneven clients.

    As in Hsu, Qi, Brown (2019). Draws in which a client has fewer than `at_least` rows are
    repeated, as is usual; a hundred in vain are refused.
    """
    check_enough_rows(len(labels), clients * at_least)
    rng = np.random.default_rng(generator.initial_seed())
    for _ in range(100):
        parts: list[list[Tensor]] = [[] for _ in range(clients)]
        for label in sorted(set(labels.tolist())):
            rows = torch.nonzero(labels == label).flatten()
            rows = rows[torch.randperm(len(rows), generator=generator)]
            cuts = torch.from_numpy(rng.dirichlet([alpha] * clients).cumsum()[:-1] * len(rows))
            for part, piece in zip(parts, rows.tensor_split(cuts.long()), strict=True):
                part.append(piece)
        if min(sum(map(len, part)) for part in parts) >= at_least:
            return [torch.cat(part) for part in parts]
    raise SettingError(
        f"in 100 Dirichlet draws with `alpha` {alpha:g} some client always had fewer than "
        f"{at_least} of {len(labels)} samples; use a larger alpha or fewer clients"
    )


def shards(
    labels: Tensor, clients: int, per_client: int, generator: torch.Generator
) -> list[Tensor]:
    """Rows sorted by label are cut into shards, and each client gets `per_client` of them.

    As in McMahan et al. (2017): with two shards a client knows about two classes.
    """
    count = clients * per_client
    check_enough_rows(len(labels), count)
    pieces = labels.argsort(stable=True).tensor_split(count)
    deal = torch.randperm(count, generator=generator).view(clients, per_client)
    return [torch.cat([pieces[j] for j in hand]) for hand in deal.tolist()]


def check_enough_rows(rows: int, needed: int) -> None:
    if rows < needed:
        raise SettingError(f"{rows} samples are too few for the clients, which need {needed}")
