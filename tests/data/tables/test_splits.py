import numpy as np
import pytest
import torch

from coterie.core import seeds
from coterie.core.errors import CoterieWarning, DataError, SettingError
from coterie.data.federation import Federation, split_cut, split_order
from coterie.data.holdout import hold_out
from coterie.data.tables.client_rows import ClientRows, offsets_of
from coterie.data.tables.splits import TEST, TRAIN, split_at_random, stratified_parts


def rows(n=120, m=4, classes=3, seed=0):
    """A table whose feature tells its rows apart."""
    rng = np.random.default_rng(seed)
    return {
        "client": rng.integers(0, m, n),
        "row": np.arange(n, dtype=np.float64),
        "label": np.array(list("abc"))[rng.choice(classes, n, p=[0.6, 0.3, 0.1])],
    }


def federation(table, **settings):
    return Federation.from_table(table, standardise=False, features="row", **settings)


def rows_of(part, i):
    return part.client(i)[0].flatten().long().numpy()


def test_chance_gives_each_class_its_share_in_both_parts(pyarrow):
    table = rows(n=2000)
    data = federation(table)
    for i in range(4):
        train, test = rows_of(data.train, i), rows_of(data.test, i)
        assert len(train) == int(0.8 * (len(train) + len(test)))
        for name in "abc":
            counts = [int((table["label"][part] == name).sum()) for part in (train, test)]
            assert abs(counts[1] - 0.2 * sum(counts)) < 1.5


def test_without_stratification_the_split_is_that_of_before(pyarrow):
    table = rows()
    whole = federation(table, stratify=False)
    again = federation({**table, "label": np.arange(120.0)}, stratify=False)
    for i in range(4):
        assert rows_of(whole.test, i).tolist() == rows_of(again.test, i).tolist()


def test_a_column_says_which_part_a_row_is_in(pyarrow):
    table = rows()
    table["part"] = np.array(["Train", "validation ", "test", "train"] * 30)
    data = federation(table, split="part")
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    for name, part in parts.items():
        found = np.concatenate([rows_of(part, i) for i in range(4)])
        named = np.char.strip(np.char.lower(table["part"].astype(str))) == name
        assert sorted(found.tolist()) == np.flatnonzero(named).tolist()
    assert hold_out(data, 0.2, seed=0) is data
    assert "part" not in Federation.from_table(table, split="part").features


def test_a_client_may_have_no_rows_in_a_part_but_to_train_on(pyarrow):
    table = rows()
    table["part"] = np.where(table["client"] == 0, "train", np.array(["train", "test"] * 60))
    table["part"] = np.where(table["client"] == 3, "test", table["part"])
    with pytest.warns(CoterieWarning, match="1 of 4 clients are left out, .* no rows to train on"):
        data = federation(table, split="part")
    assert data.clients == ("0", "1", "2")
    assert data.test.sizes.tolist()[0] == 0
    assert data.train.sizes.tolist()[0] == int((table["client"] == 0).sum())


def test_a_file_is_tested_on(pyarrow, tmp_path):
    import pandas

    table, other = rows(), rows(n=30, seed=1)
    other["row"] += 1000
    pandas.DataFrame(other).to_csv(tmp_path / "test.csv", index=False)
    data = federation(table, test=str(tmp_path / "test.csv"))
    found = np.concatenate([rows_of(data.test, i) for i in range(4)])
    assert sorted(found.tolist()) == list(range(1000, 1030))
    assert sorted(np.concatenate([rows_of(data.train, i) for i in range(4)])) == list(range(120))
    pandas.DataFrame(other).drop(columns="row").to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(SettingError, match=r"less\.csv has no column named `row`"):
        federation(table, test=str(tmp_path / "less.csv"))
    with pytest.raises(DataError, match="no file or folder is at"):
        federation(table, test=str(tmp_path / "none.csv"))


def test_rows_of_a_group_are_in_one_part(pyarrow):
    table = rows(n=400)
    table["patient"] = [f"{c}-{i % 9}" for i, c in enumerate(table["client"])]
    data = hold_out(federation(table, group="patient"), 0.2, seed=0)
    names = np.array(table["patient"])
    for i in range(4):
        each = [set(names[rows_of(p, i)]) for p in (data.train, data.validation, data.test)]
        assert sum(map(len, each)) == len(set.union(*each)) == 9
        assert all(each)
    assert not any(
        "patient" in name for name in Federation.from_table(table, group="patient").features
    )


def test_the_last_rows_by_time_are_tested_on(pyarrow):
    table = rows()
    table["day"] = np.random.default_rng(4).permutation(120).astype("datetime64[D]")
    data = hold_out(federation(table, time="day"), 0.2, seed=0)
    for i in range(4):
        days = [table["day"][rows_of(p, i)] for p in (data.train, data.validation, data.test)]
        assert days[0].max() < days[1].min()
        assert days[1].max() < days[2].min()


@pytest.mark.parametrize(
    ("changes", "settings", "error", "sentence"),
    [
        ({"part": ["train", "tset"] * 60}, {"split": "part"}, DataError, "each row, got tset"),
        (
            {"part": [0, 1] * 60},
            {"split": "part"},
            DataError,
            "validation or test of each row, got",
        ),
        ({"part": ["train", None] * 60}, {"split": "part"}, DataError, "to be `split`, got 60 in"),
        ({"part": ["test"] * 120}, {"split": "part"}, DataError, "needs rows to train on"),
        ({"day": [1, None] * 60}, {"time": "day"}, DataError, "to be `time`, got 60 in 120 rows"),
        ({}, {"time": "day"}, SettingError, "no column named `day`"),
        (
            {},
            {"time": "label"},
            SettingError,
            "`time` of Table must not be the client or the label",
        ),
        ({}, {"time": "row", "group": "row"}, SettingError, "one of .* got group and time"),
    ],
)
def test_what_decides_no_split_is_refused(pyarrow, changes, settings, error, sentence):
    with pytest.raises(error, match=sentence):
        Federation.from_table(rows() | changes, **settings)


def each_client_alone(sizes, names, key, share, seed):
    """The rows that each client trains on in order, and their parts by strata, one by one."""
    orders, parts = [], []
    for size, name, own in zip(sizes, names, np.split(key, np.cumsum(sizes)[:-1]), strict=True):
        order, cut = split_order(size, seed, name), split_cut(size, share)
        orders.append(order)
        order = order[torch.from_numpy(own)[order].argsort(stable=True)]
        generator = seeds.generator(seed, "strata", name)
        start = torch.rand((), generator=generator, dtype=torch.float64)
        places = (torch.arange(size - cut) + start) * (size / (size - cut))
        part = np.full(size, TRAIN)
        part[order[places.floor().long()].numpy()] = TEST
        parts.append(part)
    return orders, np.concatenate(parts)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.8, 0.99])
def test_all_clients_together_are_split_as_each_would_be_alone(share):
    rng = np.random.default_rng(int(100 * share))
    for seed in range(5):
        sizes = rng.integers(2, 40, 100)
        names = tuple(f"c{i}" for i in range(100))
        clients = ClientRows(names, rng.permutation(int(sizes.sum())), offsets_of(sizes))
        for key in (rng.integers(0, 3, sizes.sum()), rng.normal(size=sizes.sum())):
            orders, parts = each_client_alone(sizes, names, key, share, seed)
            assert (stratified_parts(clients, key, share, seed) == parts).all()
        split = split_at_random(clients, share, seed)
        for i, order in enumerate(orders):
            rows = clients.rows[clients.offsets[i] : clients.offsets[i + 1]][order]
            cut = split_cut(len(rows), share)
            for part, expected in ((split.train, rows[:cut]), (split.test, rows[cut:])):
                begin, end = part.offsets[i : i + 2]
                assert part.rows[begin:end].tolist() == expected.tolist()
