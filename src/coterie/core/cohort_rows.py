"""Whose samples a cohort has, and which of them: some clients, or some samples of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coterie.core import seeds
from coterie.core.rows import Rows
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import to_device


@dataclass(frozen=True)
class CohortRows:
    """The samples of the clients `ids`."""

    ids: Tensor  # [m] on the CPU, for memory and randomness
    rows: Rows
    complete: bool  # whether the rows are all samples of these clients

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        device: torch.device = self.rows.y.device
        return device

    @cached_property
    def sizes(self) -> list[int]:
        """How many samples each client has."""
        sizes: list[int] = self.rows.size.tolist()
        return sizes

    @cached_property
    def with_data(self) -> Tensor | None:
        """The places [a] of the clients that have samples; None: all have."""
        return None if all(self.sizes) else torch.nonzero(self.rows.size).flatten()

    def subset(self, places: Tensor) -> CohortRows:
        """The clients at `places` [a] among these."""
        rows = Rows(*(part[places] for part in self.rows))
        return CohortRows(self.ids[to_device(places, CPU)], rows, self.complete)

    def with_samples(self, chosen: list[Tensor]) -> CohortRows:
        """The same clients with the rows `chosen[i]` of each client i only."""
        return CohortRows(self.ids, self.take(self.pad(chosen)), complete=False)

    def pad(self, chosen: list[Tensor]) -> Tensor:
        """Rows `chosen[i]` of each client i side by side, [m, b] with b at least 1; -1 is none."""
        rows = nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=-1)
        rows = rows if rows.shape[1] else rows.new_full((len(rows), 1), -1)
        return rows.to(self.device)

    def take(self, place: Tensor) -> Rows:
        """The rows `place` [m, b] of each client; a -1, always behind the others, is none."""
        return self.rows.take(place.clamp_min(0))._replace(size=(place >= 0).sum(1))

    def rows_in(self, mask: Tensor) -> list[Tensor]:
        """Which rows of each client a mask [m, n] names, padding left out."""
        rows = zip(mask, self.sizes, strict=True)
        return [torch.nonzero(row[:size]).flatten() for row, size in rows]

    def hold_out(self, share: float, seed: int | str) -> tuple[list[Tensor], list[Tensor]]:
        """Which rows of each client are `share` of them, and which are the rest, held out.

        They follow from the seed and how many there are; both are at least one.
        """
        kept, held = [], []
        for size in self.sizes:
            generator = seeds.generator(seed, "hold", size)
            order = torch.randperm(size, generator=generator, device="cpu")
            cut = max(1, min(int(share * size), size - 1))
            kept.append(order[:cut])
            held.append(order[min(cut, size - 1) :])
        return kept, held

    def disjoint(self, which: int, of: int, seed: int | str) -> list[Tensor]:
        """Which rows of each client are in one of `of` disjoint parts, counted from 0."""
        chosen: dict[int, Tensor] = {}
        for size in set(self.sizes):
            generator = seeds.generator(seed, "parts", size)
            order = torch.randperm(size, generator=generator, device="cpu")
            chosen[size] = order.tensor_split(of)[which]
        return [chosen[size] for size in self.sizes]

    def by_label(self, label: Tensor, k: int) -> CohortRows:
        """m k clients in the place of m, by the label [m, n] or r labels [m, n, r] of samples."""
        label = label[:, :, None] if label.dim() == 2 else label
        label = label.masked_fill(~self.rows.mask[:, :, None], k).transpose(1, 2)  # [m, r, n]
        order = label.argsort(dim=2, stable=True)  # rows by label
        size = (label[..., None] == torch.arange(k, device=self.device)).sum(2)  # [m, r, k]
        place = torch.arange(max(1, int(size.max())), device=self.device)  # [b]
        rows = (size.cumsum(2) - size)[..., None] + place  # [m, r, k, b] places in the order
        rows = order.gather(2, rows.clamp_max(order.shape[2] - 1).flatten(2)).flatten(1)
        taken = self.rows.take(rows)
        x, y = (part.reshape(-1, len(place), *part.shape[2:]) for part in taken[:2])
        sets = size[0].numel()
        ids = (self.ids[:, None] * sets + torch.arange(sets, device="cpu")).flatten()
        return CohortRows(ids, Rows(x, y, size.flatten()), complete=False)
