"""A network of one's own: a class for every token of a sequence."""

from __future__ import annotations

from torch import Tensor, nn


class Tagger(nn.Module):
    """Word vectors, a GRU that reads in both directions, and a layer on what it has read.

    Padding is not read: every sentence is packed to its own length.
    """

    def __init__(self, outputs: int, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.read = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(2 * width, outputs)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Tokens [n, L] of which `lengths` [n] count: outputs [n, L, c]."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        read, _ = nn.utils.rnn.pad_packed_sequence(self.read(packed)[0], batch_first=True)
        return self.tag(read)


def tagger(shape: tuple[int, ...], outputs: int, words: int = 30, width: int = 16) -> nn.Module:
    """A GRU that gives a class to every token; `words` is the size of the dictionary."""
    return Tagger(outputs, words, width)
