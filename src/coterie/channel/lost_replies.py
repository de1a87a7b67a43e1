"""Lost replies: clients that do not answer, by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.clients import Call


@dataclass(frozen=True)
class LoseReplies:
    """A filter that loses each reply with probability `rate`, by (seed, round, call, client)."""

    rate: float

    def apply(self, call: Call, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        *address, number = call.address
        draws = [
            torch.rand((), generator=seeds.generator(*address, "lost", number, i)).item()
            for i in ids.tolist()
        ]
        arrives = torch.tensor(draws) >= self.rate
        return ids[arrives], type(upload)(*(value[arrives] for value in upload))
