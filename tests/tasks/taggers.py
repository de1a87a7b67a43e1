"""Federations whose samples are more than one tensor, and networks for them."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from coterie import Classification, Federation, TokenClassification
from coterie.core import seeds

WORDS, TAGS = 7, 3


class LstmTagger(nn.Module):
    """Reads a sequence in both directions, up to its own length."""

    def __init__(self, words: int = WORDS, tags: int = TAGS, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, tags)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        output, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(output)


class NaiveTagger(nn.Module):
    """Reads padding as if it were words, as a careless author's network does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 6)
        self.gru = nn.GRU(6, 6, batch_first=True, bidirectional=True)
        self.out = nn.Linear(12, TAGS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(tokens))[0])


class TransformerClassifier(nn.Module):
    """One label for a sequence, by attention that leaves padding out."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, classes)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        seen = self.layer(self.embed(tokens), src_key_padding_mask=padding)
        seen = seen.masked_fill(padding[..., None], 0)
        return self.out(seen.sum(1) / (~padding).sum(1, keepdim=True))


class TwoInputs(nn.Module):
    """An image, through a convolution, beside a vector."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.out = nn.Linear(4 + 5, classes)

    def forward(self, image: Tensor, vector: Tensor) -> Tensor:
        seen = torch.relu(self.convolution(image[:, None])).mean((2, 3))
        return self.out(torch.cat([seen, vector], 1))


def draw_sentences(count: int, generator: torch.Generator, longest: int = 9) -> list[Tensor]:
    """Sequences of 1 to `longest` words."""
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(WORDS, (length,), generator=generator) for length in lengths]


def tag(sentence: Tensor, group: int) -> Tensor:
    """The tags of a sentence: those of its words, which the groups name differently."""
    return (sentence + group) % TAGS


def tagged_clients(sizes: list[int], seed: int = 0, longest: int = 9):
    """Clients of two groups in turn, with so many sentences each."""
    found = []
    for i, size in enumerate(sizes):
        sentences = draw_sentences(size, seeds.generator(seed, "sentences", i), longest)
        found.append((sentences, [tag(sentence, i % 2) for sentence in sentences]))
    return found


def tagging_federation(sizes: list[int], seed: int = 0, **options) -> Federation:
    """Clients that tag words, in two hidden groups with different maps."""
    test = tagged_clients([4] * len(sizes), seed + 1)
    cluster = [i % 2 for i in range(len(sizes))]
    return Federation.from_clients(
        tagged_clients(sizes, seed), test=test, cluster=cluster, **options
    )


def labelled_federation(sizes: list[int], seed: int = 0) -> Federation:
    """Clients with one label for a sentence: whether its first word is even, or odd."""
    return Federation.from_clients(
        [
            (sentences, [int(sentence[0] + i) % 2 for sentence in sentences])
            for i, (sentences, _) in enumerate(tagged_clients(sizes, seed))
        ],
        cluster=[i % 2 for i in range(len(sizes))],
    )


def tagging_task(dtype: torch.dtype = torch.float32) -> TokenClassification:
    """Tags by an LSTM."""
    return TokenClassification(lambda: LstmTagger().to(dtype))


def two_input_federation(sizes: list[int], seed: int = 0) -> Federation:
    """Clients with an image in bytes and a vector for each sample, in two hidden groups."""
    clients = []
    for i, size in enumerate(sizes):
        generator = seeds.generator(seed, "two inputs", i)
        image = torch.randint(256, (size, 6, 6), generator=generator, dtype=torch.uint8)
        vector = torch.randn(size, 5, generator=generator, dtype=torch.float64)
        label = vector[:, :3].argmax(1) if i % 2 else vector[:, :3].argmin(1)
        clients.append(({"image": image, "vector": vector}, label))
    return Federation.from_clients(clients, cluster=[i % 2 for i in range(len(sizes))])


def soft_federation(sizes: list[int], seed: int = 0) -> Federation:
    """The same with probabilities of the classes in place of labels."""
    data = two_input_federation(sizes, seed)
    return replace(data, train=replace(data.train, y=data.train.x["vector"][:, :3].softmax(1)))


def two_input_task(dtype: torch.dtype = torch.float32) -> Classification:
    """Classes by both inputs."""
    return Classification(partial(build, TwoInputs, dtype), scale=255.0)


def build(kind: type[nn.Module], dtype: torch.dtype) -> nn.Module:
    """A network in a precision."""
    return kind().to(dtype)
