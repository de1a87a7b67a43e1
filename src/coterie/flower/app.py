"""A Flower app: its two halves, and the folder that `coterie deploy init` writes."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.errors import CoterieError, SettingError
from coterie.core.imports import describe_failure
from coterie.core.names import short_name
from coterie.deploy.flwr_internals import keep_steady_time, need_flower
from coterie.experiment.plan import make_plan
from coterie.files import read_plain_file
from coterie.flower.permission import check_app_allowed, own_names
from coterie.flower.settings import NETWORK_NAMES, App, read_network_settings
from coterie.flower.unfinished import noted
from coterie.version import __version__

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

EVALUATE_EVERY = 10  # rounds, unless `evaluate` is given: an evaluation costs two more exchanges
APP = '''"""{title}

`coterie deploy` runs this, and so does Flower's own command line: `flwr run .`
"""

from coterie.flower.app import client_app, server_app

server = server_app()
client = client_app()
'''
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{title}"
license = "Apache-2.0"
dependencies = {dependencies}

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "{name}"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

# Every setting of the run. `coterie describe {algorithm}` says what they mean.
[tool.flwr.app.config]
{settings}
"""
README = """# {title}

```
coterie deploy local . --nodes 3        # the whole deployment on this machine, to try it
```

On several machines: `coterie deploy keys`, `coterie deploy superlink` and `coterie deploy node`,
step by step in docs/deploy.md of coterie. The settings are in `pyproject.toml`.

A node is described by a file of its own:

```toml
# node.toml
{node}
memory = "memory"      # folder for what its clients keep between rounds
{allow}```

`coterie deploy check node.toml --app .` says whether its data fit before it joins.
"""
TABLE_NODE = 'data = "{example}"    # its own table, with the columns that the app was made for'
OTHER_NODE = 'share = "1/3"    # the first third of the clients of {federation}'


def server_app() -> ServerApp:
    """Flower's server half of a coterie app."""
    need_flower()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from coterie.flower.server import run_server

        keep_steady_time()
        try:
            app, run = App.from_config(context.run_config), context.run_id
            with noted(Path(app.network.out), run, partial(write_app_files, app)):
                run_server(grid, context.run_config, str(run))
        except CoterieError:
            raise
        except Exception as error:
            reason = describe_failure(error)
            if reason is None:
                raise
            raise CoterieError(reason) from error

    return app


def client_app() -> ClientApp:
    """Flower's client half of a coterie app, for SuperNodes that start it themselves."""
    need_flower()
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        from coterie.flower.node import NodeWorker
        from coterie.flower.node_file import NodeFile

        node = context.node_config.get("node")
        file = NodeFile.read(Path(str(node))) if node else NodeFile()
        return NodeWorker(file)(message, context)

    return app


def write_app(folder: Path, arguments: list[str]) -> App:
    """Write an app into a new folder; `arguments` are as of `app_from_arguments`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CoterieError(f"the folder of the app, {folder}, must be new or empty")
    app = app_from_arguments(arguments)
    write_app_files(app, folder)
    return app


def write_app_files(app: App, folder: Path) -> None:
    """Write the files of an app into a folder, which is made if need be."""
    algorithm, federation = app.plan.algorithm_name, app.plan.federation_name
    names = f"{short_name(algorithm)} on {short_name(federation)}"
    title = f"{names}, a federation that coterie trains over a network."
    example = Path(getattr(app.plan.federation, "path", "")).name
    node = TABLE_NODE if federation == "table" else OTHER_NODE
    node = node.format(example=example, federation=federation)
    name = "".join(c if c.isalnum() else "-" for c in folder.resolve().name.lower()).strip("-")
    settings = app.config()
    if "path" in settings:  # the nodes have tables of their own
        settings["path"] = ""
    lines = [f"{key} = {json.dumps(v, ensure_ascii=False)}" for key, v in settings.items()]
    text = PROJECT.format(
        name=name or "app",
        title=title,
        dependencies=json.dumps(dependencies(own_names(settings))),
        algorithm=algorithm,
        settings="\n".join(lines),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    (folder / "app.py").write_text(APP.format(title=title), encoding="utf-8")
    own = own_names(settings)
    allow = f"allow = {json.dumps(own)}    # installed on every node\n" if own else ""
    readme = README.format(title=title, node=node, allow=allow)
    (folder / "README.md").write_text(readme, encoding="utf-8")


def dependencies(names: list[str]) -> list[str]:
    """What server and nodes must have installed: coterie, and the packages of these names.

    A file that belongs to no package has to be put there by hand.
    """
    homes = packages_distributions() if names else {}
    packages = {top for name in names for top in homes.get(re.split("[.:]", name)[0], [])}
    own = [f"{each}=={version(each)}" for each in sorted(packages)]
    return [f"coterie[flower]=={__version__}", *own]


def app_from_arguments(arguments: list[str]) -> App:
    """The app with the arguments of `coterie run` and settings of the network among them.

    If it is about a table, the schema is learnt from that table; where none is named, from the
    nodes when a run begins.
    """
    of_network = [a for a in arguments if a.partition("=")[0] in NETWORK_NAMES and "=" in a]
    rest = [a for a in arguments if a not in of_network]
    if not any(a.startswith("evaluate=") for a in rest):
        rest.append(f"evaluate={EVALUATE_EVERY}")
    plan = make_plan(rest, alone=True)
    network = read_network_settings(of_network)
    schema = None
    if plan.federation_name == "table" and plan.federation.path:
        federation = plan.build()
        plan.prepare(federation)  # refuses what the algorithm cannot learn on
        schema = federation.schema
    app = App.from_config(App(plan, network, schema).config())
    return replace(app, plan=app.plan._replace(says=plan.says))


def app_settings(folder: Path) -> dict[str, Any]:
    """The settings of a Flower app in a folder; none where it has none."""
    raw = tomllib.loads(read_plain_file(folder / "pyproject.toml").decode("utf-8"))
    found: dict[str, Any] = raw["tool"]["flwr"]["app"].get("config", {})
    return found


def read_app(folder: Path, allowed: frozenset[str] | None = None) -> App:
    """The app in a folder; refuse one that names more than what a node allows, if it is given."""
    try:
        config = app_settings(folder)
        if allowed is not None:
            check_app_allowed(allowed, config)
        return App.from_config(config)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SettingError(f"{folder} is not the folder of a coterie app: {error}") from error
