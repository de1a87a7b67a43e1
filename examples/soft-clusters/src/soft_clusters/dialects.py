"""A federation of one's own: clients who tag the words of sentences, in dialects.

A dialect says which tag a word has. A client speaks all dialects, one sentence in this and the next
in that, in shares of its own: no single cluster is right for it, but a mixture is. Its true cluster
is the dialect that it speaks most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.extend import Federation, Settings, above, at_least, seeds, setting

WORDS = 30  # of the vocabulary, as many as the network `tagger` has by itself


@dataclass(frozen=True, kw_only=True)
class Dialects(Settings):
    """Sentences of their own lengths, a tag for every word; clients mix a few dialects."""

    speakers: int = setting(12, "clients", at_least(1))
    sentences: int = setting(20, "sentences of a client, half as many again to test", at_least(2))
    longest: int = setting(12, "words of the longest sentence", at_least(2))
    tags: int = setting(4, "tags", at_least(2))
    dialects: int = setting(2, "dialects", at_least(1))
    purity: float = setting(0.3, "how evenly dialects are mixed: small is pure", above(0))

    # What a run takes where the user says nothing else.
    suggests: ClassVar[dict[str, object]] = {
        "network": "soft_clusters.tagger:tagger",
        "rounds": 15,
        "k": 2,
        "lr": 0.5,
    }

    def build(self, seed: int) -> Federation:
        generator = seeds.generator(seed, "dialects")
        grammar = torch.randint(self.tags, (self.dialects, WORDS), generator=generator)
        shares = torch.rand(self.speakers, self.dialects, generator=generator) ** (1 / self.purity)
        shares = shares / shares.sum(1, keepdim=True)
        train, test = [], []
        for i in range(self.speakers):
            own = seeds.generator(seed, "speaker", i)
            train.append(self._speak(self.sentences, grammar, shares[i], own))
            test.append(self._speak(-(-self.sentences // 2), grammar, shares[i], own))
        made = Federation.from_clients(train, test=test, cluster=shares.argmax(1), name="dialects")
        return replace(made, class_count=self.tags)

    def _speak(
        self, count: int, grammar: Tensor, shares: Tensor, generator: torch.Generator
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Sentences of a client and the tags of their words."""
        lengths = torch.randint(2, self.longest + 1, (count,), generator=generator).tolist()
        spoken = torch.multinomial(shares, count, replacement=True, generator=generator)
        words = [torch.randint(WORDS, (n,), generator=generator) for n in lengths]
        tags = [grammar[j, each] for j, each in zip(spoken, words, strict=True)]
        return words, tags
