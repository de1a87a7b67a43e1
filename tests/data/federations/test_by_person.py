import pytest

import coterie
from coterie.core.errors import SettingError


def test_a_writers_digits_stay_together_and_series_are_the_clusters(small_sources):
    federation, _ = coterie.load("mnist-writers")
    assert len(federation) == 50
    assert federation.cluster.tolist() == [0, 1] * 25
    assert int(federation.train.sizes.sum() + federation.test.sizes.sum()) == 600


def test_femnist_takes_the_split_of_the_files_when_asked(small_sources):
    federation, _ = coterie.load("femnist", train_share=0.0)
    assert federation.train.sizes.tolist() == [54] * 10
    assert federation.test.sizes.tolist() == [6] * 10


@pytest.mark.parametrize("split", ["iid", "dirichlet"])
def test_femnist_can_be_split_among_as_many_clients_that_are_no_writers(small_sources, split):
    by_writer, mixed = (
        coterie.load("femnist", **settings)[0] for settings in ({}, {"split": split, "alpha": 0.5})
    )
    assert len(mixed) == len(by_writer) == 10
    assert mixed.clients == ()
    totals = [
        sorted([*each.train.y.tolist(), *each.test.y.tolist()]) for each in (by_writer, mixed)
    ]
    assert totals[0] == totals[1]
    sizes = mixed.train.sizes + mixed.test.sizes
    assert (len(set(sizes.tolist())) > 1) == (split == "dirichlet")
    with pytest.raises(SettingError, match="`train_share` of Femnist must lie between 0 and 1"):
        coterie.load("femnist", split=split, train_share=0.0)


def test_celeba_leaves_out_people_with_few_images(small_sources):
    assert len(coterie.load("celeba")[0]) == 5
    assert len(coterie.load("celeba", people=2)[0]) == 2
    with pytest.raises(SettingError, match="nobody in CelebA's files has 9 images"):
        coterie.load("celeba", fewest=9)


@pytest.mark.parametrize(
    ("name", "settings", "names"),
    [
        ("mnist-writers", {}, [str(100 + i) for i in range(50)]),
        ("femnist", {}, [f"f{i:04d}_{i}" for i in range(10)]),
        ("femnist", {"train_share": 0.0}, [f"f{i:04d}_{i}" for i in range(10)]),
        ("celeba", {"people": 3}, ["2", "3", "5"]),
    ],
)
def test_clients_that_are_people_have_their_names(small_sources, name, settings, names):
    federation, _ = coterie.load(name, **settings)
    assert list(federation.clients) == names
