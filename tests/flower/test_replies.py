"""A reply that a client step cannot have returned enters no model."""

import functools

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord

from coterie.flower.replies import read_enrolment
from coterie.flower.wire import BadPacket, Packet
from tests.flower.fake import DIGITS, IFCA, alike, an_error, deployed, edited


def first_float(tensors):
    floats = [name for name, value in tensors.items() if value.is_floating_point()]
    return next(name for name in floats if name != "weight")


def wrong_shape(header, tensors):
    name = first_float(tensors)
    tensors[name] = tensors[name][:, :-1]


def wrong_type(header, tensors):
    name = first_float(tensors)
    tensors[name] = tensors[name].double()


def other_clients(header, tensors):
    for name, value in tensors.items():
        tensors[name] = torch.cat([value, value])


def not_a_number(header, tensors):
    tensors[first_float(tensors)][0, 0] = float("nan")


def too_large(header, tensors):
    name = first_float(tensors)
    tensors[name] = 100 * tensors[name]


def unknown_cluster(header, tensors):
    tensors["cluster"] = tensors["cluster"] + 2


def negative_cluster(header, tensors):
    tensors["cluster"] = tensors["cluster"] - 2


def more_samples(header, tensors):
    tensors["size"] = 1000 * tensors["size"]


def extra_field(header, tensors):
    tensors["surprise"] = torch.zeros(2)


def declared_extra_field(header, tensors):
    tensors["surprise"] = torch.zeros(2)
    header["fields"].append("surprise")


def missing_field(header, tensors):
    del tensors[first_float(tensors)]


def longer_header(header, tensors):
    header["surprise"] = 1


def truncated(reply):
    record = reply.content["words"]
    record["bytes"] = record["bytes"][:-4]
    return reply


def another_record(reply):
    reply.content["surprise"] = ArrayRecord()
    return reply


def pickled(reply):
    values = np.zeros(3, dtype=np.float32)
    reply.content["arrays"] = ArrayRecord({"model": Array(values)})  # as Flower packs them
    assert reply.content["arrays"]["model"].stype == "numpy.ndarray"
    return reply


BAD = [
    *(
        functools.partial(edited, edit=edit)
        for edit in (
            wrong_shape,
            wrong_type,
            other_clients,
            not_a_number,
            too_large,
            unknown_cluster,
            negative_cluster,
            more_samples,
            extra_field,
            declared_extra_field,
            missing_field,
            longer_header,
        )
    ),
    truncated,
    another_record,
    pickled,
    an_error,
]


@pytest.mark.parametrize(
    "bad",
    BAD,
    ids=lambda bad: bad.keywords["edit"].__name__ if hasattr(bad, "func") else bad.__name__,
)
def test_a_malformed_reply_enters_no_model_and_is_named(tmp_path, bad, without_third):
    run = deployed(tmp_path, IFCA, {3: bad})
    alike(run, without_third)
    said = " ".join(run.warnings)
    assert "refused" in said or "replied with an error: out of memory" in said
    assert "node 3" in said or "client 4" in said
    assert [record["answered"] for record in run.records] == [4, 4, 4]
    refused = sum(record["refused"] for record in run.records)
    silent = sum(record["silent"] for record in run.records)
    assert refused + silent >= 6
    assert "refused" in (tmp_path / "run" / "report.html").read_text() or bad is an_error


def test_a_large_reply_is_usual_where_all_are_large(tmp_path):
    large = functools.partial(edited, edit=too_large)
    run = deployed(tmp_path, ["fedavg", *DIGITS, "rounds=1"], {1: large, 2: large, 3: large})
    assert run.records[0]["refused"] == 0


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"app": "another"}, "another app, or another version"),
        ({"clients": []}, "each once"),
        ({"clients": ["a", "a"]}, "each once"),
        ({"clients": ["a", "b", "c"]}, "how many samples"),
        ({"samples": None}, "what its samples and its targets are like"),
        ({"outputs": 0}, "1 to 1000000 outputs, got 0"),
        ({"outputs": 10**9}, "1 to 1000000 outputs"),
        ({"cluster": [1]}, "in which true cluster"),
        ({"clients": "a"}, "`clients` of a message"),
    ],
)
def test_an_impossible_enrolment_is_refused(enrolment, header, says):
    app, reply = enrolment
    with pytest.raises(BadPacket, match=says):
        read_enrolment(app, Packet({**reply.header, **header}, reply.tensors))


def test_a_client_without_samples_is_refused(enrolment):
    app, reply = enrolment
    with pytest.raises(BadPacket, match="how many samples"):
        read_enrolment(app, Packet(reply.header, {"sizes": torch.tensor([0, 20])}))
