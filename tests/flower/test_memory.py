import torch

from coterie.engine.client_memory import ClientMemory
from coterie.flower.memory import MemoryVersions


def memory():
    return ClientMemory(3, lambda ids: ids - 10)


def kept(versions, rounds, attempt, value):
    """Let `attempt` keep a value in a message that leads to so many rounds."""
    mine = memory()
    versions.read(mine, rounds, attempt, training=True)
    mine.keep("x", torch.tensor([10]), torch.tensor([[value]]))
    versions.write(mine, rounds, attempt, saved=0)


def seen(versions, rounds, attempt, *, training=False):
    mine = memory()
    versions.read(mine, rounds, attempt, training=training)
    if not bool(mine.remembers("x", torch.tensor([10]))):
        return None
    return float(mine.recall("x", torch.tensor([10])))


def test_a_message_builds_on_what_was_kept_before(tmp_path):
    versions = MemoryVersions(tmp_path, "run")
    assert seen(versions, 0, "a") is None
    kept(versions, 1, "a", 1.0)
    kept(versions, 1, "a", 2.0)  # a second message of the same round
    kept(versions, 2, "a", 3.0)
    assert seen(versions, 5, "a") == 3.0
    assert seen(MemoryVersions(tmp_path, "run"), 2, "a") == 3.0  # also in a new process


def test_rounds_that_the_server_forgot_did_not_happen(tmp_path):
    versions = MemoryVersions(tmp_path, "run")
    for rounds in range(1, 5):
        kept(versions, rounds, "a", float(rounds))
    # The server goes on from its checkpoint of 2 rounds: the message that leads to 3.
    assert seen(versions, 3, "b", training=True) == 2.0
    assert seen(versions, 9, "b") == 2.0


def test_a_look_at_a_finished_run_takes_nothing_away(tmp_path):
    versions = MemoryVersions(tmp_path, "run")
    kept(versions, 4, "a", 4.0)
    assert seen(versions, 4, "b", training=False) == 4.0
    assert seen(versions, 4, "b", training=False) == 4.0


def test_only_versions_from_the_checkpoint_on_stay(tmp_path):
    versions = MemoryVersions(tmp_path, "run")
    mine = memory()
    for rounds in range(1, 6):
        versions.read(mine, rounds, "a", training=True)
        mine.keep("x", torch.tensor([12]), torch.tensor([[float(rounds)]]))
        versions.write(mine, rounds, "a", saved=3)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == [f"{n:08d}-a.safetensors" for n in (3, 4, 5)]
