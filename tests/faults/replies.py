"""Replies of a hostile node, in the place of those of one of three, over a grid in this process.

Every algorithm that is registered is run, and every reply to every kind of message is changed: it
is broken, or lies, comes late, or comes again. No run may end, and no measure be no number.
"""

import math
import random
import traceback
import warnings
from pathlib import Path

import torch

from coterie.core.errors import CoterieWarning
from coterie.experiment.settings import setting_names
from coterie.flower.server import run_server
from coterie.flower.wire import HEADER, Packet, decode_packet, encode_packet
from coterie.registry import resolve
from coterie.shelves import SHELVES
from tests.faults.command import Hang, at_most
from tests.faults.damage import DEEP, WRONG, replaced
from tests.flower.fake import DIGITS, FAST, FakeGrid, an_error, make_app, thirds

# What an algorithm needs besides two rounds; every one that is registered is tried.
OWN_DATA = {
    "k-fed": ["gaussian-clusters", "clients=6", "samples=40", "k=2"],
    "uifca": ["subspace-clusters", "clients=6", "samples=30", "k=2", "restarts=1", "fit_rounds=1"],
    "cluster-gan": ["subspace-clusters", "clients=6", "samples=30", "k=2", "tries=1"],
}
SETTINGS = {"path_rounds": 1, "lambdas": 2, "k": 2, "block_count": 6, "trunk_rounds": 1}
VARIANTS = [
    ["ifca", "start=farthest"],
    ["ifca", "withhold=clusters", "metric=auc"],
    ["ifca", "average=gradients"],
    ["fedavg", "weighting=size"],
    ["fedavg", "finetune=1"],
    ["fedavg", "aggregate=median"],
    ["fedavg", "screen=norm"],
    ["hypcluster", "finetune=1", "withhold=clusters"],
    ["fesem", "warm_rounds=1"],
    ["fpfc", "lam=0.5"],
]


def words_of(algorithm, more=()):
    """A short run of an algorithm, whichever it is."""
    known = set(setting_names(resolve("algorithm", algorithm)))
    words = OWN_DATA.get(algorithm, DIGITS[:-1])
    if algorithm not in OWN_DATA:
        words = [*words, *(f"{n}={v}" for n, v in SETTINGS.items() if n in known)]
    given = {word.partition("=")[0] for word in (*words, *more)}
    work = [f"{n}={v}" for n, v in {"steps": 2, "start": "random"}.items() if n in known - given]
    if "start" in known and algorithm != "ifca":
        work = [word for word in work if not word.startswith("start")]
    return [algorithm, *words, *work, "rounds=2", *more]


RUNS = {name: words_of(name) for name in SHELVES["algorithm"]}
RUNS |= {" ".join(each): words_of(each[0], each[1:]) for each in VARIANTS}
RUNS["regression"] = ["ifca", "linear-mixture", "clients=6", "samples=20", "k=2", "rounds=2"]
RUNS["regression"] += ["start=random", "steps=2"]
SHARES = ("accuracy", "f1", "balanced_accuracy", "auc", "average_precision", "purity")
NUMBERS = (1e300, 1e38, math.nan, math.inf, -math.inf, 1e30, -1.0, 1e18, 0.0, 2.0**53)


def try_replies(seed: int, place: Path) -> str:
    """A run with one hostile node of three; what is wrong with how it ended, if anything."""
    draw = random.Random(seed)
    name = draw.choice(sorted(RUNS))
    kinds = draw.choice([("enrol",), ("step",), ("score",), ("step", "score"), ("all",)])
    share = draw.choice([1.0, 1.0, 0.5])
    words, done = RUNS[name], []
    home = place / f"run{seed}"
    app = make_app(*words, out=str(home / "run"), nodes=2, timeout=1.0, patience=15.0)
    grid = FakeGrid(app, thirds(home))

    def hostile(reply):
        if reply.has_error() or draw.random() > share:
            return reply
        if draw.random() < 0.1:
            done.append("silent")
            return None
        packet = decode_packet(reply.content)
        kind = "enrol" if "app" in packet.header else "step"
        kind = "score" if {"scores", "total"} & set(packet.tensors) else kind
        if kind not in kinds and kinds != ("all",):
            return reply
        return malformed(reply, packet, draw, done)

    grid.change = {draw.choice([1, 2, 3]): hostile}
    fault = ""
    try:
        with at_most(60), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("ignore", CoterieWarning)
            run = run_server(grid, grid.config, "1", pace=FAST)
        fault = wrong_measures(run)
    except Hang as error:
        fault = f"HANG {error}"
    except BaseException as error:
        fault = f"ENDED {type(error).__name__}: {str(error)[:300]}\n" + traceback.format_exc()
    told = ", ".join(dict.fromkeys(done))[:200]
    return f"seed {seed}: {name}, {' '.join(kinds)}: {told}: {fault}" if fault else ""


def wrong_measures(run):
    """What the measures of a run, and of each of its rounds, cannot be."""
    told = [("", run.metrics)]
    for record in run.records:
        told.append((f"round {record['round']}: ", record.get("metrics") or {}))
    for where, metrics in told:
        bad = [n for n, v in metrics.items() if v is None or not math.isfinite(v)]
        if bad:
            return f"NOT FINITE {where}{bad}"
        bad = [n for n, v in metrics.items() if n.startswith(SHARES) and not 0 <= v <= 1 + 1e-6]
        if bad:
            return f"NO SHARE {where}{bad}"
    return ""


def malformed(reply, packet, draw, done):
    """A reply of a node that is broken or lies."""
    kind = draw.choice(("header", "header", "tensor", "tensor", "tensor", "names", "whole"))
    header, tensors = dict(packet.header), dict(packet.tensors)
    if kind == "whole":
        what = draw.choice(("deep", "not json", "error", "no tensors", "list"))
        done.append(what)
        if what == "error":
            return an_error(reply)
        if what == "no tensors":
            reply.content = encode_packet(Packet(header, {}))
            return reply
        text = {"deep": '{"a":' * DEEP + "1" + "}" * DEEP, "not json": "{", "list": "[1]"}[what]
        reply.content[HEADER]["json"] = text
        return reply
    if kind == "names" and "clients" in header:
        names = header["clients"]
        made_up = [[*names, "made up"], names[:1], [], names * 2, ["x" * 5000], [1, 2], ["4", "5"]]
        header["clients"] = draw.choice(made_up)
        done.append("other names")
    elif kind == "header" or not tensors:
        header = replaced_key(header, draw)
        done.append("header")
    else:
        name = draw.choice(sorted(tensors))
        tensors[name] = changed(tensors[name], draw)
        done.append(f"tensor {name}")
        if draw.random() < 0.2:  # several lies at once
            other = draw.choice(sorted(tensors))
            tensors[other] = changed(tensors[other], draw)
        if draw.random() < 0.1:
            tensors[draw.choice(["more", "models", ""])] = torch.zeros(2)
    reply.content = encode_packet(Packet(header, tensors))
    return reply


def replaced_key(header, draw):
    key = draw.choice(sorted(header))
    if draw.random() < 0.4:
        return {**header, key: draw.choice([wrong for wrong in WRONG if wrong != 10**400])}
    if isinstance(header[key], float):
        return {**header, key: draw.choice((1e308, -1.0, 1e18))}
    other = replaced(header[key], draw)
    return {**header, key: other if len(str(other)) < 4000 else 10**18}


def changed(tensor, draw):
    """A tensor of other values, another shape or another type."""
    kind = draw.randrange(5)
    if kind == 0 and tensor.is_floating_point() and tensor.numel():
        other = tensor.clone()
        flat = other.view(-1)
        for _ in range(draw.choice((1, 1, 5))):
            flat[draw.randrange(len(flat))] = torch.tensor(
                draw.choice(NUMBERS), dtype=torch.float64
            ).to(flat.dtype)
        return other
    if kind == 1 and tensor.is_floating_point():
        lie = torch.full(tensor.shape, draw.choice(NUMBERS), dtype=torch.float64)
        return lie.to(tensor.dtype)
    if kind == 1:
        return torch.full_like(tensor, draw.choice((-1, 0, 1, 100)))
    if kind == 2 and not tensor.is_floating_point() and tensor.dtype != torch.bool:
        limit = torch.iinfo(tensor.dtype)
        return torch.full_like(tensor, draw.choice((limit.max, limit.min, min(10**18, limit.max))))
    if kind == 3:
        return tensor.to(draw.choice((torch.float64, torch.int64, torch.bool, torch.float16)))
    shapes = (
        tensor[:0] if tensor.dim() else tensor[None],
        tensor.flatten(),
        tensor[None],
        torch.cat([tensor, tensor]) if tensor.dim() else tensor,
        torch.zeros(()),
    )
    return draw.choice(shapes)
