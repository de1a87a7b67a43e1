"""What clients keep on a node, in versions."""

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.engine.client_memory import ClientMemory
from coterie.flower.memory import WHEN_KEPT, RunMemory, StepNumber, check_kept


def memory():
    return ClientMemory(3, lambda ids: ids - 10)


def run_memory(folder, run="run", **attempt):
    return RunMemory(folder, run, ["a", "b", "c"], **{"began": 99, **attempt})


class Attempt:
    """An attempt at a run: it numbers its messages."""

    def __init__(self, folder, name="1", began=-1):
        self.runs = run_memory(folder, attempt=name, began=began)
        self.name, self.exchange = name, 0

    def keep(self, rounds, value, *, saved=0, client=10):
        """Keep a value in a message that leads to so many rounds; what was there before."""
        self.exchange += 1
        step = StepNumber(rounds, self.exchange, self.name)
        mine = memory()
        self.runs.begin(step)
        self.runs.read_before(mine, step)
        before = seen_in(mine, client)
        self.runs.note_answer(step, {"a": client})
        mine.keep("x", torch.tensor([client]), torch.tensor([[value]]))
        self.runs.write(mine, step, saved)
        return before


def seen_in(mine, client=10):
    if not bool(mine.remembers("x", torch.tensor([client]))):
        return None
    return float(mine.recall("x", torch.tensor([client])))


def seen(folder, rounds):
    mine = memory()
    run_memory(folder).read_after(mine, rounds)
    return seen_in(mine)


def versions(folder):
    return sorted(path.name[:8] for path in folder.rglob("*.safetensors"))


def test_a_message_builds_on_what_was_kept_before(tmp_path):
    attempt = Attempt(tmp_path)
    assert attempt.keep(1, 1.0) is None
    assert attempt.keep(1, 2.0) == 1.0  # a second message of the same round
    assert attempt.keep(2, 3.0) == 2.0
    assert seen(tmp_path, 5) == 3.0  # also in a new process


def test_a_step_that_is_asked_for_again_builds_on_what_was_before_it(tmp_path):
    attempt = Attempt(tmp_path)
    attempt.keep(1, 1.0)
    attempt.keep(2, 2.0)
    for _ in range(3):
        attempt.exchange = 1
        assert attempt.keep(2, 3.0) == 1.0
        assert seen(tmp_path, 2) == 3.0


def test_a_step_from_which_the_run_has_gone_on_is_refused(tmp_path):
    attempt = Attempt(tmp_path)
    attempt.keep(1, 1.0)
    attempt.keep(2, 2.0)
    attempt.exchange = 0
    with pytest.raises(CoterieError, match="has gone on"):
        attempt.keep(1, 5.0)
    Attempt(tmp_path, "2", began=1).keep(2, 3.0)
    with pytest.raises(CoterieError, match="has gone on"):  # a message of the attempt that is over
        attempt.keep(3, 4.0)
    assert seen(tmp_path, 9) == 3.0


def test_rounds_that_the_server_forgot_did_not_happen(tmp_path):
    attempt = Attempt(tmp_path)
    for rounds in range(1, 5):
        attempt.keep(rounds, float(rounds))
    assert seen(tmp_path, 2) == 2.0
    # The server goes on from its checkpoint of 2 rounds: the message that leads to 3.
    assert Attempt(tmp_path, "2", began=2).keep(3, 7.0) == 2.0
    assert seen(tmp_path, 9) == 7.0
    # This node was silent for some rounds of the next attempt.
    assert Attempt(tmp_path, "3", began=2).keep(5, 9.0) == 2.0
    assert seen(tmp_path, 9) == 9.0
    # Before the first checkpoint everything begins anew.
    assert Attempt(tmp_path, "4").keep(0, 8.0) is None


def test_a_look_at_a_finished_run_takes_nothing_away(tmp_path):
    Attempt(tmp_path).keep(4, 4.0)
    run_memory(tmp_path).finish()
    assert seen(tmp_path, 4) == seen(tmp_path, 4) == 4.0
    assert Attempt(tmp_path, "2", began=4).keep(5, 5.0) == 4.0  # resumed, with more rounds


def test_a_look_at_a_run_that_was_never_here_leaves_nothing(tmp_path):
    assert seen(tmp_path / "memory", 4) is None
    run_memory(tmp_path / "memory").finish()
    assert not (tmp_path / "memory").exists()


def test_only_versions_to_which_something_goes_back_stay(tmp_path):
    attempt = Attempt(tmp_path)
    for rounds in range(1, 6):
        attempt.keep(rounds, float(rounds), saved=3)
    assert versions(tmp_path) == ["00000003", "00000004", "00000005"]
    for _ in range(5):  # messages of one round
        attempt.keep(6, 6.0, saved=5)
    assert versions(tmp_path) == ["00000005", "00000006", "00000006"]


def test_a_paused_run_is_not_forgotten_for_others(tmp_path):
    Attempt(tmp_path).keep(1, 1.0)
    for number in range(4):
        other = run_memory(tmp_path, f"other{number}", attempt="1")
        other.begin(StepNumber(1, 1, "1"))
        other.finish()
    assert seen(tmp_path, 1) == 1.0
    assert len(list(tmp_path.iterdir())) == 2


def test_nodes_that_share_a_folder_do_not_share_what_clients_keep(tmp_path):
    Attempt(tmp_path).keep(1, 1.0)
    mine = memory()
    RunMemory(tmp_path, "run", ["d", "e", "f"], began=9).read_after(mine, 1)
    assert mine.rows == {}


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b"])
def test_the_name_of_a_run_is_letters_and_digits(tmp_path, name):
    with pytest.raises(CoterieError, match="letters and digits"):
        run_memory(tmp_path, name)


def test_what_clients_kept_by_the_servers_account_must_be_there():
    mine, clients = memory(), {"a": 10, "b": 11, "c": 12}
    check_kept(mine, clients, torch.tensor([0, 0, 0]))
    with pytest.raises(CoterieError, match="what client b kept in round 4 is not in its node's"):
        check_kept(mine, clients, torch.tensor([0, 5, 0]))
    mine.keep(WHEN_KEPT, torch.tensor([11]), torch.tensor([5]))
    check_kept(mine, clients, torch.tensor([0, 5, 0]))
    with pytest.raises(CoterieError, match=r"client a .* \(as of 1 others\)"):
        check_kept(mine, clients, torch.tensor([1, 6, 0]))
