import json
import warnings

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.flower import server
from coterie.flower.owners import (
    ClientOwners,
    owners_file,
    owners_table,
    read_owners,
    replace_owner,
)
from coterie.flower.server import run_server
from tests.flower.fake import DIGITS, FAST, FakeGrid, make_app, thirds

WORDS = ["fedavg", *DIGITS, "rounds=1"]
KEYS = {1: "SHA256:one", 2: "SHA256:two", 3: "SHA256:three"}


@pytest.fixture
def run_with(tmp_path, monkeypatch):
    """Runs on one server, each on nodes with these keys and shares of the clients."""

    def run(name, keys, shares=(1, 2, 3), **network):
        monkeypatch.setattr(server, "node_keys", lambda grid: keys)
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        files = thirds(folder)
        grid = FakeGrid(make_app(*WORDS), [files[share - 1] for share in shares])
        owners = str(tmp_path / "clients.json")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            app = make_app(*WORDS, out=str(folder / "run"), owners=owners, **{"nodes": 3} | network)
            grid.config = app.config()
            found = run_server(grid, app.config(), "1", pace=FAST)
        told = [str(each.message) for each in caught if each.category is CoterieWarning]
        return found.population.population, told

    return run


def test_clients_belong_to_the_key_that_came_first_over_runs(run_with, tmp_path):
    run_with("first", KEYS)
    assert set(read_owners(tmp_path / "clients.json").values()) == set(KEYS.values())
    clients, told = run_with("key", {**KEYS, 3: "SHA256:other"}, nodes=2)
    (refusal,) = [text for text in told if "belongs to the node with the key" in text]
    assert "client 4 belongs to the node with the key SHA256:three" in refusal
    assert "and this one has SHA256:other" in refusal
    assert clients == 4, "the other clients go on"


def test_a_node_that_claims_the_clients_of_another_is_refused(run_with):
    run_with("first", KEYS)
    _, told = run_with("claim", KEYS, shares=(1, 2, 2), nodes=2)
    assert any("node 3 is left out: client 2" in text for text in told)
    _, told = run_with("absent", KEYS, shares=(1, 3, 3), nodes=2)
    assert any("node 2 is left out: client 4 belongs" in text for text in told)


def test_an_operator_replaces_a_key_or_frees_its_clients(run_with, tmp_path):
    run_with("first", KEYS)
    path = tmp_path / "clients.json"
    assert replace_owner(path, "SHA256:three", "SHA256:new") == 2
    assert run_with("new", {**KEYS, 3: "SHA256:new"})[0] == 6
    with pytest.raises(CoterieError, match=r"no client of .* belongs to the key SHA256:three"):
        replace_owner(path, "SHA256:three", None)
    assert replace_owner(path, "SHA256:new", None) == 2
    assert "2 clients: 0, 1" in owners_table(path)
    assert "4 clients of 2 keys" in owners_table(path)


def test_without_keys_and_without_a_file_nobody_is_bound(tmp_path):
    for owners in (ClientOwners(tmp_path / "a.json"), ClientOwners(None, lambda: KEYS)):
        owners.look()
        owners.bind(1, ["x"])
        owners.check(2, ["x"])
    assert not (tmp_path / "a.json").exists()
    assert owners_file("none", tmp_path / "runs" / "one") is None
    assert owners_file("", tmp_path / "runs" / "one") == tmp_path / "runs" / "clients.json"


@pytest.mark.parametrize("text", ["[]", "{", json.dumps({"a": 1}), "[" * 100000])
def test_a_damaged_file_is_one_sentence(tmp_path, text):
    (tmp_path / "clients.json").write_text(text)
    with pytest.raises(CoterieError, match=r"clients\.json"):
        read_owners(tmp_path / "clients.json")
