import sys

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

import coterie
from coterie.core.errors import DataError, SettingError
from coterie.data.federation import Federation
from coterie.data.tables.table import Table


class Pairs(Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def saved(folder, name, **arrays):
    np.savez(folder / f"{name}.npz", **arrays)


def test_a_folder_of_arrays_needs_no_pyarrow_and_keeps_shapes(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("ward-2", "ward-1"):
        saved(tmp_path, name, x=np.full((4, 2, 3), int(name[-1])), y=np.array(["b", "a"] * 2))
    got = Table().prepare(tmp_path, 0)
    assert got.clients == ("ward-1", "ward-2")
    assert got.classes == ("a", "b")
    assert got.train.x.shape == (6, 2, 3)
    assert got.train.client(1)[0].unique().tolist() == [2]
    assert got.outputs == 2


def test_samples_keep_their_labels_when_they_are_split(tmp_path):
    for i in range(3):
        x = np.arange(10.0)[:, None] + 10 * i
        saved(tmp_path, f"c{i}", x=x, y=2 * x[:, 0])
    got = Federation.from_folder(tmp_path, train_share=0.5)
    assert got.train.x.dtype == torch.float32
    for part in (got.train, got.test):
        assert part.sizes.tolist() == [5, 5, 5]
        assert torch.equal(part.y, 2 * part.x[:, 0])
    assert sorted(torch.cat([got.train.y, got.test.y]).tolist()) == [2 * i for i in range(30)]


def test_datasets_are_taken_whole_or_item_by_item():
    x = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([1, 5, 9, 1, 5, 9])
    whole = [TensorDataset(x[i], y) for i in range(3)]
    items = [Pairs([(x[i, j].numpy(), int(y[j])) for j in range(6)]) for i in range(3)]
    parts = [Subset(dataset, range(6)) for dataset in whole]
    expected = Federation.from_datasets(whole)
    assert set(expected.train.y.tolist()) == {0, 1, 2}
    for other in (items, parts):
        got = Federation.from_datasets(other)
        assert torch.equal(got.train.x, expected.train.x)
        assert torch.equal(got.test.y, expected.test.y)


def test_whole_features_stay_whole():
    mine = [TensorDataset(torch.arange(6)[:, None], torch.tensor([0, 1] * 3)) for _ in range(2)]
    assert Federation.from_datasets(mine).train.x.dtype == torch.int64


@pytest.mark.parametrize(
    ("datasets", "sentence"),
    [
        ([], "two clients or more, got none"),
        ([TensorDataset(torch.ones(2, 1), torch.arange(2))], "every row has client = 0"),
        ([TensorDataset(torch.ones(2, 1))] * 2, "client 0 must have the tensors x and y, got 1"),
        ([Pairs([1, 2])] * 2, r"client 0 must be a dataset of \(x, y\) pairs"),
        ([Pairs([(torch.ones(1), 0), (torch.ones(2), 1)])] * 2, "client 0 must be a dataset of"),
        (
            [TensorDataset(torch.ones(2, 1), torch.ones(2, 2))] * 2,
            "one label per sample, got .2, 2",
        ),
        (
            [TensorDataset(torch.ones(2, 1), torch.arange(2)) for _ in range(2)]
            + [TensorDataset(torch.ones(2, 3), torch.arange(2))],
            "samples of one shape and type",
        ),
        (
            [TensorDataset(torch.full((2, 1), torch.nan), torch.arange(2))] * 2,
            "client 0 has NaN or infinite values in its features",
        ),
    ],
)
def test_datasets_that_are_no_federation_are_refused(datasets, sentence):
    with pytest.raises(DataError, match=sentence):
        Federation.from_datasets(datasets)


def test_files_without_x_and_y_are_refused(tmp_path):
    saved(tmp_path, "a", x=np.zeros((2, 1)), labels=np.zeros(2))
    with pytest.raises(DataError, match=r"a.npz must hold the arrays x and y, .* no y, but labels"):
        Federation.from_folder(tmp_path)


def test_files_of_x_alone_have_no_labels_and_all_must_agree(tmp_path):
    for name in "ab":
        saved(tmp_path, name, x=np.arange(8.0).reshape(4, 2))
    federation = Federation.from_folder(tmp_path)
    assert not federation.labelled
    assert not federation.train.has_labels
    assert federation.train.x.shape == (6, 2)
    run = coterie.simulate(coterie.KFed(k=2), federation, coterie.Centre(2), rounds=1)
    assert run.labels.unique().tolist() == [0, 1]
    assert "ari" not in run.metrics
    saved(tmp_path, "c", x=np.zeros((4, 2)), y=np.zeros(4))
    with pytest.raises(DataError, match=r"a.npz must hold .* or x alone in all files: it has no y"):
        Federation.from_folder(tmp_path)
    saved(tmp_path, "c", y=np.zeros(4))
    with pytest.raises(DataError, match="it has no y"):
        Federation.from_folder(tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: b"broken",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:60] + bytes(40) + whole[100:],
    ],
)
def test_broken_arrays_are_refused(tmp_path, spoil):
    saved(tmp_path, "a", x=np.random.default_rng(0).normal(size=(50, 3)), y=np.arange(50) % 2)
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(spoil(whole))
    with pytest.raises(DataError, match=r"b.npz cannot be read: (?!.*pickle)"):
        Federation.from_folder(tmp_path)


def test_an_empty_folder_and_a_file_are_no_folders_of_clients(tmp_path):
    with pytest.raises(DataError, match=r"must hold a .npz, .csv or .parquet file for each client"):
        Federation.from_folder(tmp_path)
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(SettingError, match="a folder with a file for each client is needed"):
        Federation.from_folder(tmp_path / "a.csv")
