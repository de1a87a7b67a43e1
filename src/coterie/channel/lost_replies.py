"""Lost replies: clients that do not answer, by chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.channel.tap import Filter, Tap
from coterie.core import seeds
from coterie.core.clients import Clients


class LostReplies(Tap):
    """Loses each reply with probability `rate`, by (seed, round, client, call)."""

    def __init__(self, inner: Clients, rate: float, address: tuple[int | str, ...]) -> None:
        super().__init__(inner)
        self.rate = rate
        self.address = address
        self._calls = [0]  # shared with the narrowed views, so that no two calls lose the same

    def filter(self, step: Callable[..., Any], message: dict[str, Any]) -> Filter:
        call, rate, address = self._calls[0], self.rate, self.address
        self._calls[0] += 1

        def lose(ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
            draws = [
                torch.rand((), generator=seeds.generator(*address, "lost", call, i)).item()
                for i in ids.tolist()
            ]
            arrives = torch.tensor(draws) >= rate
            return ids[arrives], type(upload)(*(value[arrives] for value in upload))

        return lose
