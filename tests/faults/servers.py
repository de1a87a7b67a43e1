"""A hostile server against one node: what it sends, and what it learns of what the node holds.

The node has a table of which it offers some columns. The server changes the settings of the run and
the messages, and looks through everything that comes back, replies and errors, for values and names
of other columns, paths, and single rows.
"""

import contextlib
import io
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.algorithm import Info, Serving, Start
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError, DataError
from coterie.core.local_training import LocalTraining
from coterie.experiment.settings import make_settings, setting_names
from coterie.flower.app import read_app, write_app
from coterie.flower.node import NodeWorker
from coterie.flower.node_file import NodeFile
from coterie.flower.wire import BadPacket, Packet
from coterie.registry import resolve
from coterie.shelves import SHELVES
from tests.faults.command import Hang, at_most
from tests.faults.damage import DEEP, WRONG

OFFERED = ["site", "age", "dose", "score", "outcome"]
HIDDEN = ["diagnosis", "income"]
SECRET = "Zebulon"  # begins every value of the hidden text
ROWS = 30  # of each of four sites
TELLING = "tests.faults.servers:Telling"
ROUND = {"round": 0, "rounds": 1, "exchange": 1, "saved": 0, "best": [0, 0], "began": -1}
RUN = {"run": "r1", "attempt": "a1", "fold": None, "channel": [], "trains": True}
ENROL = Packet({"do": "enrol"})
ERRORS = ValueError, KeyError, CoterieError, DataError, BadPacket, RuntimeError


class State(NamedTuple):
    models: Tensor  # [1, d]


class Upload(NamedTuple):
    model: Tensor  # [m, d]


@dataclass(frozen=True, kw_only=True)
class Telling(LocalTraining):
    """An algorithm of a user's own that fails, and says in its error what a client holds."""

    kind: int = 0

    def init(self, start: Start) -> State:
        return State(start.models(1))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        ids, _ = clients.run(self.train, models=state.models)
        return state, Info(ids, ids * 0, 1)

    def serve(self, state: State, clients: Clients) -> Serving:
        return Serving(state.models, clients.ids, clients.ids * 0)

    @on_client
    def train(self, cohort: Cohort, models: Tensor) -> Upload:
        x = next(iter(cohort))[0]
        raise ERRORS[self.kind % len(ERRORS)](f"the first row is {x[0].tolist()} {SECRET}")


class Site(NamedTuple):
    """A node with its table, and the app that it knows."""

    home: Path
    file: NodeFile
    hidden: np.ndarray  # numbers of the hidden column
    rows: np.ndarray  # what its clients train and are tested on, as models see it


@cache
def make_site(home: Path, small: bool = False) -> Site:
    """A node in a folder; with `small` one of its clients has a single row to train on."""
    draw = np.random.default_rng(0)
    count = 4 * ROWS + 2 * small
    site = [f"s{i % 4}" for i in range(4 * ROWS)] + ["alone"] * 2 * small
    numbers = draw.normal(size=(count, 3)).round(6)
    outcome = draw.integers(0, 3, count)
    income = 1e5 + draw.uniform(0, 1e4, count).round(4)
    table = home / "kept privately" / "table.csv"
    table.parent.mkdir(parents=True)
    lines = [
        ",".join(
            [site[i], *map(str, numbers[i]), "abc"[outcome[i]], f"{SECRET}{i % 3}", f"{income[i]}"]
        )
        for i in range(count)
    ]
    table.write_text("\n".join([",".join([*OFFERED, *HIDDEN]), *lines]) + "\n")
    public = home / "public.csv"
    kept = [line.rsplit(",", 2)[0] for line in lines[: 4 * ROWS]]
    public.write_text("\n".join([",".join(OFFERED), *kept]) + "\n")
    words = [str(public), "client=site", "label=outcome", "network=linear", "min_samples=2"]
    for name in ("fedsgd", "ifca", "local"):
        write_app(home / name, [name, *words])
    file = NodeFile(data=str(table), memory=str(home / "memory"))
    worker = NodeWorker(replace(file, smallest_client=1))
    worker.answer(read_app(home / "fedsgd").config(), ENROL)
    assert worker.node is not None
    rows = torch.cat([part.x.flatten(1) for part in worker.node.parts.values()])
    return Site(home, file, income, rows.numpy())


def try_server(seed: int, place: Path, *, protected: bool = True) -> str:
    """Some messages of a hostile server to a node; what it learnt that it must not, if anything."""
    draw = random.Random(seed)
    site = make_site(place / "site")
    name = draw.choice(["fedsgd", "ifca", "local"])
    protection = draw.choice(
        [
            {"app": str(site.home / name)},
            {"columns": frozenset(OFFERED), "client": "site"},
            {"columns": frozenset(OFFERED)},
        ]
    )
    file = replace(site.file, **(protection if protected else {}), allow=frozenset({TELLING}))
    memory = place / f"memory{seed}"
    worker = NodeWorker(replace(file, memory=str(memory), longest_step=20))
    config = read_app(site.home / name).config()
    log = io.StringIO()
    for turn in range(draw.randrange(1, 6)):
        asked = hostile_settings(config, draw, site) if draw.random() < 0.7 else config
        only_enrol = asked is not config and draw.random() < 0.5
        packet = ENROL if only_enrol else hostile_packet(asked, draw)
        told: list[object] = []
        try:
            with at_most(60), contextlib.redirect_stderr(log), watched() as opened:
                reply = worker.answer(asked, packet)
            told = [reply.header, *reply.tensors.values()]
            ENDED["answered"] += 1
        except Hang as error:
            return f"seed {seed}: turn {turn}: HANG {error}: {short(asked, packet)}"
        except Exception as error:
            told = [str(error)]
            ENDED[str(error)[:60]] += 1
        wrong = learnt(told, site, asked, packet)
        wrong = wrong or [f"opened {each}" for each in opened if "elsewhere" in each]
        if wrong:
            return f"seed {seed}: turn {turn}: LEARNT {wrong}: {short(asked, packet)}"
    return ""


ENDED: Counter[str] = Counter()  # how messages were answered, for whoever looks
OPENED: list[str] = []
WATCHING: list[bool] = []


def note_open(event: str, arguments: tuple[object, ...]) -> None:
    if WATCHING and event == "open":
        OPENED.append(str(arguments[0]))


@contextlib.contextmanager
def watched():
    """The paths that are opened inside."""
    if note_open not in HOOKED:
        HOOKED.append(note_open)
        sys.addaudithook(note_open)
    OPENED.clear()
    WATCHING.append(True)
    try:
        yield OPENED
    finally:
        WATCHING.clear()


HOOKED: list[object] = []


def hostile_settings(config, draw, site):
    """The settings of a run, of which some ask for what the node does not offer."""
    changed = dict(config)
    elsewhere = str(site.home / "elsewhere" / "other.csv")
    columns = [*HIDDEN * 4, "age", f"{{0.{HIDDEN[0]}}}", "%s%n", elsewhere, "", "x" * 5000, SECRET]
    for _ in range(draw.choice((1, 1, 2, 3))):
        kind = draw.choice((0, 0, 0, 0, 0, 1, 2, 2, 3, 3, 4, 5, 6))
        if kind == 0:
            others = ["label", "split", "group", "time", "features", "categorical", "missing"]
            setting = draw.choice([*["client"] * 7, *others])
            changed[setting] = draw.choice(columns)
        elif kind == 1:
            changed[draw.choice(["path", "test", "out", "owners"])] = elsewhere
        elif kind == 2:
            changed["schema"] = hostile_schema(config["schema"], draw, columns)
        elif kind == 3:
            of = draw.choice([*SHELVES["algorithm"], TELLING, "os:system", "tests.own:nothing"])
            changed = other_algorithm(changed, of, draw)
        elif kind == 4:
            key = draw.choice(sorted(changed))
            wrong = draw.choice([each for each in WRONG if each != 10**400])
            changed[key] = draw.choice([wrong, 10**6, 1, draw.choice(columns)])
        elif kind == 5:
            changed |= {"batch": 1, "steps": 1} if "batch" in changed else {}
            changed |= {"seed": draw.randrange(10**6)}
        else:
            changed |= {"most_samples": 10**12, "most_share": 1.0, "standardise": False}
    return changed


def other_algorithm(config, of, draw):
    """The settings with another algorithm."""
    rest = dict(config) | {"algorithm": of}
    with contextlib.suppress(Exception):
        kind = resolve("algorithm", of)
        own = resolve("algorithm", config["algorithm"])
        for name in set(setting_names(own)) - set(setting_names(kind)):
            rest.pop(name, None)
        usual = make_settings(kind, {})
        rest |= {n: getattr(usual, n) for n in setting_names(kind) if n not in rest}
        if "kind" in rest:
            rest["kind"] = draw.randrange(6)
    return rest


def hostile_schema(text, draw, columns):
    """A schema of other columns, or one that cannot be."""
    raw = json.loads(text)
    kind = draw.randrange(6)
    if kind == 0:
        raw["client"] = draw.choice(columns)
    elif kind == 1:
        raw["label"] = draw.choice(columns)
    elif kind == 2:
        raw["encoders"][draw.randrange(len(raw["encoders"]))]["column"] = draw.choice(columns)
    elif kind == 3:
        words = [f"{SECRET}{i}" for i in range(200)]
        encoder = {"column": HIDDEN[0], "words": words, "other": False, "missing": False}
        raw["encoders"].append({"kind": "OneHot", **encoder})
    elif kind == 4:
        return '{"a":' * DEEP + "1" + "}" * DEEP
    else:
        raw[draw.choice(sorted(raw))] = draw.choice([each for each in WRONG if each != 10**400])
    return json.dumps(raw)


def hostile_packet(config, draw):
    """A message of any kind, true or not."""
    kind = draw.choice(
        [
            "enrol",
            "enrol",
            "enrol",
            "step",
            "step",
            "step",
            "score",
            "score",
            "keep",
            "finish",
            "nonsense",
        ]
    )
    odd = draw.choice([["alone"], ["s0", SECRET], [], ["s0", "s0"]])
    names = draw.choice([["s0", "s1"], ["s0", "s2", "s3"], ["s0"], odd])
    tensors = {"ids": torch.arange(len(names)), "kept": torch.zeros(len(names), dtype=torch.long)}
    header = {"do": kind, "names": names, **RUN, **ROUND, "address": [0, "round", 0]}
    model = draw_model(draw)
    if kind == "step":
        of = draw.choice(
            [config.get("algorithm"), "fedsgd", "k-fed", "local", TELLING, "os:system"]
        )
        with contextlib.suppress(Exception):
            owner = make_settings(resolve("algorithm", of), config)
            settings = {name: getattr(owner, name) for name in setting_names(type(owner))}
            settings |= draw.choice([{}, {"k_local": 10**4}, {"batch": 1}, {"steps": 10**9}])
            header["settings"] = {n: v for n, v in settings.items() if hasattr(owner, n)}
        step = draw.choice(["train", "gradient", "begin", "cluster", "losses", "__init__", "init"])
        header |= {"of": of, "step": step, "plain": {}}
        tensors |= {"all.model": model[0], "all.models": model, "all.seed": torch.tensor(0)}
    elif kind in ("score", "keep"):
        header |= {"part": draw.choice(["train", "test", "validation", HIDDEN[0]]), "use": ""}
        header |= {"map": draw.choice(["", "losses", "gradients", "rows"]), "tune": False}
        header |= {"classes": 3, "plain": {}, "quality": draw.random() < 0.3, "groups": 1}
        cluster = torch.zeros(len(names), dtype=torch.long)
        tensors |= {"models": model, "cluster": cluster, "common": model}
    for _ in range(draw.choice((0, 0, 0, 1))):
        key = draw.choice(sorted(header))
        header[key] = draw.choice([each for each in WRONG if each != 10**400])
    return Packet(header, tensors)


def draw_model(draw):
    """Models of the app's network, or others; some ask for the rows of one class."""
    size = draw.choice([12, 12, 12, 1, 10**5])
    model = torch.randn(draw.choice((1, 2, 70)), size) * draw.choice((0.0, 1.0, 1e30))
    if size == 12 and draw.random() < 0.3:
        model = class_bias(draw.randrange(3))
    return model


def class_bias(chosen: int) -> Tensor:
    """A linear model [1, 12] that is certain of one class: its gradient holds the others' rows."""
    model = torch.zeros(1, 12)
    model[0, 9 + chosen] = 1e4
    return model


def learnt(told, site, asked, packet):
    """What a server has learnt that the node did not offer."""
    text = json.dumps([t for t in told if not torch.is_tensor(t)], default=str)
    sent = json.dumps([asked, packet.header], default=str)
    wrong = [f"values of {HIDDEN[0]}"] if SECRET in text.replace(f"{SECRET}' ", "") else []
    if wrong and SECRET in sent and "clients" not in text:
        wrong = []  # the server's own words
    names = [name for name in (*HIDDEN, *OFFERED) if name in text and name not in sent]
    wrong += [f"the name of column {name}" for name in names]
    places = ("kept privately", str(site.home), "table.csv", "/memory")
    wrong += [f"the path {each}" for each in places if each in text and each not in sent]
    for tensor in (t for t in told if torch.is_tensor(t) and t.is_floating_point()):
        values = tensor.double().flatten().numpy()
        near = np.isclose(values[:, None], site.hidden[None, :], rtol=1e-7).any()
        wrong += [f"numbers of {HIDDEN[1]}"] if near else []
    return wrong


def recovered_rows(file: NodeFile, site: Site, algorithm: str, tries: int, seed: int) -> int:
    """How many rows a server recovers from what a node sends for the map, in so many tries.

    It asks for gradients at models of its choice, and for losses under many, with seed after seed;
    solves for the gradient; and takes the rows of it for the rows of the table.
    """
    draw = random.Random(seed)
    found: set[int] = set()
    config = read_app(site.home / algorithm).config()
    for _ in range(tries):
        asked = {**config, "seed": draw.randrange(10**6)}
        worker = NodeWorker(file)
        with contextlib.suppress(Exception):
            names = worker.answer(asked, ENROL).header["clients"]
            common = draw.choice([class_bias(draw.randrange(3)), torch.zeros(1, 12)])
            packet = map_packet(names, common, draw.choice(["gradients", "losses"]))
            rows = worker.answer(asked, packet).tensors["map"].double()
            for row in rows[~rows.isnan().any(1)]:
                found |= matches(solve(row, asked["seed"]), site.rows)
    return len(found)


def try_map(seed: int, place: Path) -> str:
    """Whether a server recovers a row from what a node sends for the map; `fault` if it does."""
    site, algorithm = make_site(place / "small", True), ("local", "fedsgd")[seed % 2]
    count = recovered_rows(site.file, site, algorithm, 20, seed)
    return f"seed {seed}: {count} rows of {algorithm}" if count else ""


def map_packet(names, models, drawn):
    cluster = torch.zeros(len(names), dtype=torch.long)
    header = {"do": "score", "names": names, **RUN, **ROUND, "part": "train", "use": ""}
    header |= {"map": drawn, "tune": False, "classes": 3, "plain": {}}
    kept = torch.zeros(len(names), dtype=torch.long)
    tensors = {"ids": torch.arange(len(names)), "kept": kept, "cluster": cluster}
    return Packet(header, {**tensors, "models": models, "common": models})


def solve(sketch: Tensor, seed: int) -> Tensor:
    """The gradient [12] that a sketch is of, by least squares; the projection is known."""
    from coterie.evaluation.client_map import count_sketch

    if len(sketch) < 12:
        return torch.zeros(12).double()
    projection = count_sketch(torch.eye(12, dtype=torch.float64), seed)  # [12, 64]
    return torch.linalg.lstsq(projection.T, sketch[:, None]).solution[:, 0]


def matches(gradient: Tensor, rows: np.ndarray) -> set[int]:
    """The rows that the gradient of one class is a multiple of, as that of a single row is."""
    weights, bias = gradient[:9].view(3, 3), gradient[9:]
    found = set()
    for row in (weights / bias[:, None]).numpy():
        if np.isfinite(row).all():
            near = np.isclose(rows, row[None], rtol=1e-3, atol=1e-3).all(1)
            found |= set(np.nonzero(near)[0].tolist())
    return found


def short(config, packet):
    """What was asked, in a line."""
    return f"{json.dumps(packet.header, default=str)[:400]} {json.dumps(config, default=str)[:600]}"
