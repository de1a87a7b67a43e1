import json

import numpy as np
import pytest
import torch

import coterie
from coterie.report.map_frames import FRAMES, MapFrames, frame_rounds


@pytest.mark.parametrize("rounds", [1, 2, 7, 8, 40, 300, 5000])
@pytest.mark.parametrize("evaluate", [1, 3, 50])
def test_frames_are_few_after_evaluated_rounds_and_before_the_last(rounds, evaluate):
    taken = frame_rounds(rounds, evaluate)
    assert len(taken) <= min(FRAMES, rounds / 4)
    assert all(r % evaluate == 0 and r < rounds for r in taken)


def test_frames_come_back_as_they_were_but_for_later_rounds(tmp_path):
    frames = MapFrames(torch.tensor([1, 0]))
    frames.add(2, "losses", torch.tensor([[0.5, 1.0], [2.0, 3.0]]), torch.tensor([0, -1]))
    frames.add(5, "gradients", torch.zeros(2, 2), torch.tensor([1, 1]))
    frames.save(tmp_path)
    again = MapFrames(None)
    again.restore(tmp_path, rounds=4)
    assert (again.rounds, again.drawn) == ([2], ["losses"])
    assert again.points[0].tolist() == [[0.5, 1.0], [2.0, 3.0]]
    assert again.cluster[0].tolist() == [0, -1]
    with np.load(tmp_path / "map.npz") as arrays:
        assert arrays["true"].tolist() == [1, 0]


def test_a_frame_keeps_the_clusters_of_its_round():
    frames = MapFrames(None)
    cluster = torch.tensor([0, 0])
    frames.add(1, "losses", torch.zeros(2, 2), cluster)
    cluster[0] = 1
    assert frames.cluster[0].tolist() == [0, 0]


def test_frames_that_cannot_be_read_do_not_stop_a_run(tmp_path):
    (tmp_path / "map.npz").write_bytes(b"PK\x03\x04 half a file")
    frames = MapFrames(None)
    frames.restore(tmp_path, rounds=4)
    assert frames.rounds == []


def digits(folder, rounds=8, resume=False, on_round=None):
    federation, task = coterie.load("rotated-digits", clients=12, seed=0)
    algorithm = coterie.IFCA(k=3, start="random", steps=1)
    return coterie.simulate(
        algorithm, federation, task, rounds=rounds, folder=folder, resume=resume, on_round=on_round
    )


def test_resumed_run_has_the_same_frames(tmp_path):
    def stop(record, run):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        digits(tmp_path / "again", on_round=stop)
    resumed = digits(tmp_path / "again", resume=True).training.frames
    straight = digits(tmp_path / "straight").training.frames
    assert straight.rounds == sorted(frame_rounds(rounds=8, evaluate=1)) != []
    assert resumed.rounds == straight.rounds
    for ours, theirs in zip(resumed.points, straight.points, strict=True):
        assert np.array_equal(ours, theirs)


def test_last_frame_leads_to_the_end(tmp_path):
    digits(tmp_path / "run")
    with np.load(tmp_path / "run" / "map.npz") as arrays:
        assert arrays["points"].shape == (len(arrays["rounds"]), 12, 2)
        assert arrays["cluster"].max() < 3
    final = json.loads((tmp_path / "run" / "clients.json").read_text())["clients"]
    assert len(final["x"]) == 12


def test_every_round_has_the_means_of_its_clusters(tmp_path):
    run = digits(tmp_path / "run")
    last, judged = run.records[-1]["by_cluster"], run.evaluation
    served = judged.serving.cluster
    for name in ("accuracy", "loss"):
        for j in range(3):
            values = judged.summary.clients[name][served == j]
            if len(values):
                assert last[name][j] == pytest.approx(float(values.double().mean()), abs=1e-6)
            else:
                assert last[name][j] is None


def test_one_model_and_own_models_have_no_curves_by_cluster():
    federation, task = coterie.load("rotated-digits", clients=4, seed=0)
    for algorithm in (coterie.FedAvg(steps=1), coterie.Local(steps=1)):
        run = coterie.simulate(algorithm, federation, task, rounds=1)
        assert run.records[0]["by_cluster"] == {}
