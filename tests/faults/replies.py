"""Replies of a hostile node, in the place of those of one of three, over a grid in this process."""

import math
import random
import traceback
import warnings
from pathlib import Path

import torch

from coterie.core.errors import CoterieWarning
from coterie.flower.server import run_server
from coterie.flower.wire import HEADER, Packet, decode_packet, encode_packet
from tests.faults.command import Hang, at_most
from tests.faults.damage import DEEP, WRONG, replaced
from tests.flower.fake import DIGITS, FAST, FakeGrid, an_error, make_app, thirds

RUNS = {
    "ifca": ["ifca", *DIGITS, "k=2", "start=random", "rounds=2"],
    "ifca farthest": ["ifca", *DIGITS, "k=2", "start=farthest", "rounds=2"],
    "withheld": ["ifca", *DIGITS, "k=2", "start=random", "rounds=2", "withhold=clusters"],
    "by size": ["fedavg", *DIGITS, "rounds=2", "weighting=size"],
    "fedsgd": ["fedsgd", *DIGITS[:-1], "rounds=2"],
    "ditto": ["ditto", *DIGITS, "rounds=2"],
    "local": ["local", *DIGITS, "rounds=2"],
    "fesem": ["fesem", *DIGITS, "k=2", "rounds=2"],
    "fpfc": ["fpfc", *DIGITS, "path_rounds=1", "lambdas=2", "rounds=2"],
    "cfl": ["cfl", *DIGITS, "rounds=2"],
    "one-shot": ["one-shot", *DIGITS, "k=2", "rounds=2"],
    "k-fed": ["k-fed", "gaussian-clusters", "clients=6", "samples=40", "k=2"],
    "finetune": ["fedavg", *DIGITS, "rounds=2", "finetune=1"],
    "median": ["fedavg", *DIGITS, "rounds=2", "aggregate=median"],
}
NUMBERS = (math.nan, math.inf, -math.inf, 1e30, -1.0, 1e18, 0.0, 2.0**53)


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
        bad = [n for n, v in run.metrics.items() if not math.isfinite(v)]
        if bad:
            fault = f"NOT FINITE {bad}"
    except Hang as error:
        fault = f"HANG {error}"
    except BaseException as error:
        fault = f"ENDED {type(error).__name__}: {str(error)[:300]}\n" + traceback.format_exc()
    told = ", ".join(dict.fromkeys(done))[:200]
    return f"seed {seed}: {name}, {' '.join(kinds)}: {told}: {fault}" if fault else ""


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
            flat[draw.randrange(len(flat))] = draw.choice(NUMBERS)
        return other
    if kind == 1 and tensor.is_floating_point():
        return torch.full_like(tensor, draw.choice(NUMBERS))
    if kind == 1:
        return torch.full_like(tensor, draw.choice((-1, 0, 1, 100)))
    if kind == 2 and not tensor.is_floating_point() and tensor.dtype != torch.bool:
        limit = torch.iinfo(tensor.dtype)
        return torch.full_like(tensor, draw.choice((limit.max, limit.min, min(10**18, limit.max))))
    if kind == 3:
        return tensor.to(draw.choice((torch.float64, torch.int64, torch.bool, torch.float16)))
    shapes = (
        tensor[:0],
        tensor.flatten(),
        tensor[None],
        torch.cat([tensor, tensor]) if tensor.dim() else tensor,
        torch.zeros(()),
    )
    return draw.choice(shapes)
