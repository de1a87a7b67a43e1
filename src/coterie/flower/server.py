"""The server of a run over a network: the same rounds as in a simulation, on real clients."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.errors import CheckpointError, CoterieError
from coterie.deploy.flwr_internals import node_keys, shorten_fetch_waits
from coterie.evaluation.evaluator import Evaluator
from coterie.experiment.folder import RunFolder
from coterie.experiment.run import Run
from coterie.experiment.run_result import run_config
from coterie.files import to_json, write_text
from coterie.flower.clients import Network, join_network
from coterie.flower.evaluation import NetworkScorer
from coterie.flower.final_models import hand_out_models
from coterie.flower.mailbox import Pace, emit_warning
from coterie.flower.owners import ClientOwners, owners_file
from coterie.flower.schema_exchange import app_with_schema
from coterie.flower.settings import App

if TYPE_CHECKING:
    from flwr.serverapp import Grid

NETWORK = "network.json"  # in the run folder: the name of the run, and its clients


def run_server(
    grid: Grid, config: Mapping[str, Any], attempt: str, *, pace: Pace | None = None
) -> Run:
    """Do the run that the settings of an app describe; `attempt` is Flower's name of it."""
    app = App.from_config(config)
    shorten_fetch_waits(app.network.timeout)
    out = Path(app.network.out)
    resume = app.network.resume
    if not resume and (out / "config.json").exists():  # said before anybody waits for nodes
        raise CoterieError(f"{out} already holds a run; resume=true continues it")
    if out.is_dir():
        with RunFolder(out).locked():  # refused before anybody waits for nodes
            pass
    before = known_clients(out) if resume else None
    app = app_with_schema(app, grid, out if before else None, pace or Pace())
    run_name = before["run"] if before else secrets.token_hex(8)
    clients = dict(zip(before["clients"], before["sizes"], strict=True)) if before else None
    network = join_network(
        grid,
        app,
        run=run_name,
        attempt=f"{attempt}x{secrets.token_hex(4)}",  # no two attempts have one name
        clients=clients,
        pace=pace or Pace(),
        owners=ClientOwners(owners_file(app.network.owners, out), partial(node_keys, grid)),
    )
    run = network_run(app, network)
    run.use(out, resume=resume and (out / "config.json").exists())
    if not before:
        sizes = network.sizes.tolist()
        facts = {"run": run_name, "clients": network.names, "sizes": sizes}
        write_text(out / NETWORK, to_json(facts) + "\n")
    network.rounds_saved = run.rounds
    network.began = -1 if run.state is None else run.rounds
    run.complete()
    if not run.failure:
        hand_out_models(network, run)
    network.finish()
    if run.failure:
        raise CoterieError(run.failure)
    return run


def network_run(app: App, network: Network) -> Run:
    """The run of an app on the clients of a network."""
    plan, federation = app.plan, network.federation
    command = f"flwr run . --run-config 'out=\"{app.network.out}\"'"
    config = run_config(plan.algorithm_name, plan.federation_name, app.config(), command)
    # Clients choose by their training data: nobody else may see what they are tested on.
    evaluator = Evaluator(plan.algorithm, federation, NetworkScorer(network), "train-loss")
    parts = (plan.algorithm, federation, network.task, plan.settings, config)
    run = Run(*parts, population=network, evaluator=evaluator)
    alone = [node.names[0] for node in network.roster.nodes.values() if len(node.names) == 1]
    told = [network.counts_less] if network.counts_less else []
    if plan.settings.withheld and alone:
        told.append(
            "the sums of a node tell the cluster of a client that is alone on it: "
            + ", ".join(alone)
        )
    with run.training.health.record_warnings():
        for each in told:
            emit_warning(each)
    return run


def known_clients(out: Path) -> dict[str, Any] | None:
    """The clients of a run that goes on; None if it had not begun."""
    path = out / NETWORK
    if not path.exists():
        if (out / "checkpoint.safetensors").exists():
            raise CheckpointError(f"{out} is not the folder of a run over a network")
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return {name: found[name] for name in ("run", "clients", "sizes")}
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}") from error
