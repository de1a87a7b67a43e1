"""The commands of `coterie deploy`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli.predict import add_prediction_options, write_predictions
from coterie.core.errors import SettingError
from coterie.core.names import short_name

if TYPE_CHECKING:
    from coterie.flower.settings import App


def add_deploy(commands: Any) -> None:
    """Add the actions of `coterie deploy` to the command line."""
    deploy = commands.add_parser("deploy", help="run over a real network, on Flower")
    actions = deploy.add_subparsers(title="actions", required=True, metavar="ACTION")

    def add(command: Callable[[argparse.Namespace], int], meaning: str) -> Any:
        action = actions.add_parser(command.__name__.removeprefix("deploy_"), help=meaning)
        action.set_defaults(command=command)
        return action

    init = add(deploy_init, "write the app of a run into a new folder")
    init.add_argument("folder", type=Path, metavar="DIR")
    table = "as of `coterie run`; a table stands for those of the nodes, its rows stay here"
    init.add_argument("words", nargs="*", metavar="ALGORITHM DATA key=value", help=table)
    check = add(deploy_check, "say whether a node's data fit an app")
    check.add_argument("node", type=Path, metavar="NODE.toml")
    check.add_argument("--app", type=Path, required=True, metavar="DIR")
    memory = add(deploy_memory, "what a node's clients keep of runs: list, remove, take over")
    memory.add_argument("node", type=Path, metavar="NODE.toml")
    either = memory.add_mutually_exclusive_group()
    either.add_argument("--remove", metavar="RUN", help="forget what is kept of this run")
    predecessor = "take over what a node that was replaced kept: its memory, or one run's folder"
    either.add_argument("--from", type=Path, dest="source", metavar="FOLDER", help=predecessor)
    owners = add(deploy_owners, "which node's key clients belong to, on the server")
    owners.add_argument("file", type=Path, metavar="clients.json")
    change = owners.add_mutually_exclusive_group()
    key = "the .pub file of a key, or its fingerprint"
    change.add_argument("--replace", nargs=2, metavar=("OLD", "NEW"), help=f"keys, each {key}")
    change.add_argument("--remove", metavar="KEY", help=f"free the clients of this key: {key}")
    keys = add(deploy_keys, "make certificates, or the key of a node")
    keys.add_argument("folder", type=Path, metavar="DIR")
    server = "name or address of the server"
    keys.add_argument("--host", action="append", default=[], metavar="NAME", help=server)
    keys.add_argument("--node", metavar="NAME", help="make the key of this node instead")
    renewed = "renew the server's certificate, for the same hosts"
    keys.add_argument("--renew", action="store_true", help=renewed)
    local = add(deploy_local, "run an app on this machine, with all of a network")
    local.add_argument("app", type=Path, metavar="DIR")
    local.add_argument("--nodes", type=int, default=3, metavar="N")
    local.add_argument("--data", default="", metavar="FILE", help="a table that the nodes share")
    place = local.add_mutually_exclusive_group()
    place.add_argument("--out", type=Path, metavar="RUN", help="the run folder (default: in runs/)")
    place.add_argument("--resume", type=Path, metavar="RUN", help="go on with this run")
    local.add_argument("--logs", type=Path, metavar="DIR", help="keep what the processes say")
    link = add(deploy_superlink, "run the server that nodes connect to")
    link.add_argument("keys", type=Path, metavar="KEYS", help="the folder of `deploy keys`")
    link.add_argument("nodes", type=Path, metavar="NODES", help="folder with the keys of nodes")
    link.add_argument("--host", default="0.0.0.0", help="where to listen (default: everywhere)")
    link.add_argument("--port", type=int, default=9092)
    own = "of the SuperLink itself (default: 8000, or another for another --port)"
    link.add_argument("--own-port", type=int, metavar="PORT", help=own)
    notes = "folder where runs are noted until they have finished"
    link.add_argument("--unfinished", type=Path, default=Path("unfinished-runs"), help=notes)
    node = add(deploy_node, "take part, with the data of a node")
    node.add_argument("node", type=Path, metavar="NODE.toml")
    node.add_argument("--superlink", required=True, metavar="HOST:PORT")
    node.add_argument("--ca", type=Path, required=True, metavar="FILE", help="ca.pem of the server")
    node.add_argument("--key", type=Path, required=True, metavar="FILE", help="the node's own key")
    predict = add(deploy_predict, "predict rows of a node with the models that its last run left")
    predict.add_argument("node", type=Path, metavar="NODE.toml")
    rows = "a table like that of the node (default: its own)"
    predict.add_argument("rows", type=Path, nargs="?", metavar="FILE", help=rows)
    accepted = "the app that the models must be of (default: `app` of NODE.toml, else any)"
    predict.add_argument("--app", type=Path, metavar="DIR", help=accepted)
    add_prediction_options(predict)


def deploy_init(options: argparse.Namespace) -> int:
    from coterie.flower.app import write_app

    app = write_app(options.folder, options.words)
    if app.plan.says:
        print(f"coterie: {app.plan.says}", file=sys.stderr)
    rounds, name = app.plan.settings.rounds, short_name(app.plan.algorithm_name)
    table = " --data FILE" if app.plan.federation_name == "table" else ""
    trial = f"`coterie deploy local {options.folder}{table}` tries it here."
    print(f"Wrote the app to {options.folder}: {rounds} rounds of {name}; {trial}")
    return 0


def deploy_check(options: argparse.Namespace) -> int:
    from coterie.flower.app import read_app
    from coterie.flower.node import Node
    from coterie.flower.node_file import NodeFile, check_accepted
    from coterie.flower.schema_exchange import describe_sums

    file = NodeFile.read(options.node)
    app = read_app(options.app, file.allow)
    if app.learns_schema:
        check_accepted(file, app)
        print(f"{options.node}: a schema is learnt from the nodes, and this one says sums of")
        print("\n".join(describe_sums(app, file)))
        return 0
    node = Node(app, file)
    sizes = node.train.sizes
    print(f"{options.node} fits the app in {options.app}:")
    names = ", ".join(node.names[:8]) + (", ..." if len(node.names) > 8 else "")
    print(f"  clients   {len(node.names)}: {names}")
    print(f"  training  {int(sizes.sum()):,} samples, {int(sizes.min()):,} to {int(sizes.max()):,}")
    for part, name in (("validation", "held out"), ("test", "test")):
        held = node.parts.get(part)
        print(f"  {name:<9} {'none' if held is None else f'{len(held.y):,} samples'}")
    print(f"  model     {node.task.layout.size:,} parameters")
    if node.left_out:
        print(
            f"  too small {node.left_out} clients, with fewer than {file.smallest_client} samples"
        )
    warn_of_open_columns(file.data, file.app, file.client)
    return 0


def warn_of_open_columns(data: str, app: str, client: str) -> None:
    """Say where a server may choose the column whose values leave a node as names of clients."""
    if data and not app and not client and not Path(data).is_dir():
        print(
            "coterie: warning: NODE.toml has neither `app` nor `client`, so that a server may say "
            "which column names the clients, and learn its values",
            file=sys.stderr,
        )


def deploy_memory(options: argparse.Namespace) -> int:
    from coterie.flower.memory_folders import find_kept, kept_runs, remove_run, take_over
    from coterie.flower.node_file import NodeFile

    memory = Path(NodeFile.read(options.node).memory)
    if options.remove:
        for kept in find_kept(memory, options.remove):
            remove_run(kept)
        print(f"What was kept of the run {options.remove} is removed from {memory}.")
        return 0
    if options.source:
        taken = take_over(memory, options.source)
        print(f"Taken over from {options.source}: {', '.join(kept.run for kept in taken)}.")
        return 0
    found = kept_runs(memory)
    print(f"{memory} keeps {len(found)} runs" + (":" if found else "."))
    for kept in found:
        of, state = kept.of, "finished" if kept.finished else "not finished"
        what = f"{of.algorithm or 'unknown':12} {of.clients:6,} clients"
        print(f"  {of.run}  {what}  {kept.days:6.1f} days  {kept.size / 1e6:10.1f} MB  {state}")
    return 0


def deploy_owners(options: argparse.Namespace) -> int:
    from coterie.deploy.keys import read_fingerprint
    from coterie.flower.owners import owners_table, replace_owner

    if not options.file.is_file():
        raise SettingError(f"there is no file {options.file}; the first run of a server makes it")
    words = options.replace or ([options.remove] if options.remove else [])
    old, new = [*map(read_fingerprint, words), None, None][:2]
    if old:
        count = replace_owner(options.file, old, new)
        print(f"{count} clients of {old} belong to {new or 'nobody'} now.")
    print(owners_table(options.file))
    return 0


def deploy_keys(options: argparse.Namespace) -> int:
    from coterie.deploy.keys import make_authority, make_node_key, renew_server

    if options.renew:
        if options.node or options.host:
            raise SettingError("--renew keeps the server's hosts: give neither --host nor --node")
        authority = renew_server(options.folder)
        print(f"{authority.server_certificate} holds anew; start the server again to use it.")
        return 0
    if options.node:
        if options.host:
            raise SettingError("--host belongs to the server's certificate, not to a node's key")
        key = make_node_key(options.folder, options.node)
        print(f"{key.private} stays with the node; {key.public} goes to the server.")
        return 0
    authority = make_authority(options.folder, options.host)
    print(f"{options.folder} has the server's keys; nodes need {authority.certificate}.")
    return 0


def deploy_local(options: argparse.Namespace) -> int:
    from coterie.deploy.local import run_local
    from coterie.flower.app import read_app
    from coterie.flower.permission import own_names

    app = read_app(options.app)
    own = own_names(app.config())
    if options.nodes < 1:
        raise SettingError(f"--nodes must be at least 1, got {options.nodes}")
    if app.plan.federation_name == "table" and not options.data:
        raise SettingError("the app is about tables: say with --data which one the nodes share")
    clients = count_clients(app, options.data or "")
    if clients < options.nodes:  # a node without clients could not answer, and all would wait
        raise SettingError(
            f"--nodes must be at most {clients}, the clients that the nodes share, "
            f"got {options.nodes}"
        )
    name = f"{options.app.resolve().name}-{datetime.now():%Y%m%d-%H%M%S}"
    out: Path = options.resume or options.out or Path("runs") / name
    home = out.with_name(f"{out.name}-nodes")  # where the nodes keep what their clients remember
    nodes = []
    for number in range(1, options.nodes + 1):
        path = home / str(number) / "node.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = f"data = {Path(options.data).resolve().as_posix()!r}\n" if options.data else ""
        share = f'share = "{number}/{options.nodes}"\n'
        bounds = "smallest_client = 1\n"  # as in a simulation: all of it is on this machine
        path.write_text(f"{data}{share}{bounds}allow = {json.dumps(own)}\n", encoding="utf-8")
        nodes.append(path)
    code = run_local(
        options.app,
        nodes,
        out=out,
        resume=options.resume is not None,
        logs=options.logs,
        code=Path.cwd() if own else None,
        on_round=lambda record: print(round_line(record, app.plan.settings.rounds), flush=True),
    )
    if code == 0:
        remove_nodes(home, nodes)
        print(f"Report: {out / 'report.html'}")
        if nodes[0].exists():
            print(f"`coterie deploy predict {nodes[0]}` predicts with what the first node keeps.")
    elif (out / "checkpoint.safetensors").exists():
        again = f"coterie deploy local {options.app} --nodes {options.nodes} --resume {out}"
        print(f"coterie: `{again}` goes on from the checkpoint", file=sys.stderr)
    return code


def count_clients(app: App, data: str) -> int:
    """How many clients the table or federation has that the nodes of an app share."""
    from coterie.flower.node_file import NodeFile
    from coterie.flower.schema_exchange import own_sums

    if app.learns_schema:
        return len(own_sums(app, NodeFile(data=data)).clients.names)
    return len(app.data(data)[0])


def remove_nodes(home: Path, nodes: list[Path]) -> None:
    """Remove what the clients of nodes kept for a run, and the files of nodes without a model.

    The models of a table stay, and the files by which they are found; so does all else.
    """
    from coterie.flower.final_models import model_folder
    from coterie.flower.memory_folders import kept_runs, remove_run
    from coterie.flower.node_file import NodeFile

    for node in nodes:
        for run in kept_runs(node.parent / "memory"):
            remove_run(run)
        if node.exists() and not model_folder(NodeFile.read(node)).exists():
            node.unlink()
    for folder in (*(n.parent / "memory" for n in nodes), *(n.parent for n in nodes), home):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def round_line(record: dict[str, Any], rounds: int) -> str:
    """One line about a round."""
    metrics = record.get("metrics") or {}
    shown = [f"{n} {metrics[n]:.4f}" for n in ("accuracy", "loss", "ari") if n in metrics]
    problems = [f"{record[name]} {name}" for name in ("refused", "silent") if record.get(name)]
    problems += [f"without {who} ({why})" for who, why in record.get("missing", {}).items()]
    times = f"{record['seconds']:.1f} s, of which {record.get('compute', 0):.1f} s computing"
    return "  ".join([f"round {record['round']}/{rounds}", times, *shown, *problems])


def deploy_superlink(options: argparse.Namespace) -> int:
    from coterie.deploy.services import run_superlink

    for name, port in (("--port", options.port), ("--own-port", options.own_port)):
        if port is not None and not 1 <= port <= 65_535:
            raise SettingError(f"{name} must be from 1 to 65535, got {port}")
    return run_superlink(
        options.keys,
        options.nodes,
        host=options.host,
        port=options.port,
        own_port=options.own_port,
        unfinished=options.unfinished,
    )


def deploy_node(options: argparse.Namespace) -> int:
    from coterie.deploy.services import run_node
    from coterie.flower.node_file import NodeFile

    file = NodeFile.read(options.node)  # a mistake in it is reported before anything starts
    warn_of_open_columns(file.data, file.app, file.client)
    return run_node(options.node, options.superlink, options.ca, options.key)


def deploy_predict(options: argparse.Namespace) -> int:
    from coterie.flower.app import read_app
    from coterie.flower.final_models import load_final_models
    from coterie.flower.node_file import NodeFile

    file = NodeFile.read(options.node)
    app = options.app or (Path(file.app) if file.app else None)
    models = load_final_models(file, None if app is None else read_app(app, file.allow))
    rows = options.rows or file.data
    if not rows:
        raise SettingError(f"{options.node} names no table in `data`: say which FILE to predict")
    return write_predictions(models, Path(rows), options)
