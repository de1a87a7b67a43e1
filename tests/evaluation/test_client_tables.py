import torch

import coterie
from coterie import IFCA, FeSEM
from coterie.core.algorithm import Serving
from coterie.evaluation.client_tables import client_columns, known_values


def test_a_client_of_whom_nothing_is_known_has_a_row():
    serving = Serving(torch.zeros(2, 1), torch.tensor([5, 7]), torch.tensor([1, -1]))
    columns = client_columns(serving, 5, torch.tensor([3, 4, 9]), None)
    assert columns == {
        "client": [5, 6, 7],
        "name": None,
        "samples": [3, 4, 9],
        "cluster": [1, None, None],
        "shares": None,
        "true": None,
    }
    assert known_values(torch.tensor([torch.nan, 0.5])) == [None, 0.5]


def test_fine_tuned_models_have_their_place_in_a_plane():
    federation, task = coterie.load("rotated-digits", clients=12, rotations=2, hidden=8)
    run = coterie.simulate(FeSEM(k=2), federation, task, rounds=3, finetune=2)
    table, true = run.clients, federation.cluster
    places = torch.tensor(table[["tuned_x", "tuned_y"]].to_numpy())
    middle = [places[true == j].mean(0) for j in (0, 1)]
    for j in (0, 1):  # nearer to the middle of their own cluster
        own, other = ((places[true == j] - middle[i]).norm(dim=1) for i in (j, 1 - j))
        assert bool((own < other).all())
    plain = coterie.simulate(IFCA(k=2), federation, task, rounds=1)
    assert "tuned_x" not in plain.clients
