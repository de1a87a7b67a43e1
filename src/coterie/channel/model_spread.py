"""How far apart the clusters of clients' models are, measured on all models of a round."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from coterie.channel.displacements import client_clusters, displaced_fields, displacement_blocks
from coterie.core.clients import Call
from coterie.vectors.davies_bouldin import davies_bouldin_of_blocks


class ModelSpread:
    """An inspector that changes nothing and keeps the Davies-Bouldin index of the last models.

    Clients are in the clusters whose models they trained.
    """

    def __init__(self) -> None:
        self.index: float | None = None

    def apply(self, call: Call, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        fields = displaced_fields(call, ids, upload)
        if fields:
            clusters = client_clusters(call, ids, upload)
            blocks = displacement_blocks(fields, moved=False)
            self.index = davies_bouldin_of_blocks(blocks, clusters)
        return ids, upload
