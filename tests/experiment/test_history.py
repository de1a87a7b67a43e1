import pytest

from coterie.core.errors import CheckpointError
from coterie.experiment.history import History
from coterie.files import read_checked_lines

RECORDS = [{"round": number, "seconds": 0.5} for number in (1, 2, 3)]


def is_record(number, line):
    return line["round"] == number


def test_lines_come_back_and_those_after_them_are_cut_off(tmp_path):
    history = History(tmp_path)
    for record in RECORDS:
        history.append(record)
    assert history.cut("rounds.jsonl", 3, "done", is_record, history.facts) == RECORDS
    assert History(tmp_path).cut("rounds.jsonl", 2, "done", is_record, {}) == RECORDS[:2]
    assert len(read_checked_lines(tmp_path / "rounds.jsonl")[0]) == 2
    assert read_checked_lines(tmp_path / "rounds.jsonl")[1] == []


def test_every_flipped_bit_of_a_line_is_noticed(tmp_path):
    history = History(tmp_path)
    history.append(RECORDS[0])
    path = tmp_path / "rounds.jsonl"
    content, sums = path.read_bytes(), (tmp_path / "rounds.crc").read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            path.write_bytes(
                content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
            )
            (tmp_path / "rounds.crc").write_bytes(sums)
            assert read_checked_lines(path)[1], (place, bit)
            with pytest.raises(CheckpointError):
                History(tmp_path).cut("rounds.jsonl", 1, "done", is_record, history.facts)


def test_lines_of_another_run_are_refused_and_those_of_before_checksums_are_read(tmp_path):
    one, other = History(tmp_path), History(tmp_path / "other")
    (tmp_path / "other").mkdir()
    one.append(RECORDS[0])
    other.append({**RECORDS[0], "seconds": 0.25})
    with pytest.raises(CheckpointError, match="is damaged or of another run"):
        other.cut("rounds.jsonl", 1, "done", is_record, one.facts)
    (tmp_path / "rounds.crc").unlink()
    assert History(tmp_path).cut("rounds.jsonl", 1, "done", is_record, {}) == RECORDS[:1]
    assert (tmp_path / "rounds.crc").exists()
