"""The settings of an app, which are in `[tool.flwr.app.config]` of its pyproject.toml.

Every node gets them from the server at the beginning of a run. They are those of `coterie run`,
`algorithm` and `federation` by name, and the settings of the network below. For tables there is a
`schema`: which columns there are and how they become numbers, so that all nodes do the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.task import Task
from coterie.core.validate import above, at_least, fraction, in_range
from coterie.data.federation import Federation
from coterie.data.tables.known_schema import node_federation
from coterie.data.tables.schema import Schema
from coterie.experiment.finetuning import check_fine_tuning
from coterie.experiment.plan import Plan, plan_again
from coterie.experiment.settings import make_settings, parse_settings, setting_names
from coterie.experiment.training import check_withholding
from coterie.flower.folded import check_steps_declared, check_steps_fold
from coterie.version import __version__


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Settings):
    """Settings of a run over a network, whatever the algorithm."""

    out: str = setting("run", "folder of the run on the server: new, or that of a run to resume")
    nodes: int = setting(1, "nodes that must be there before the run begins", at_least(1))
    resume: bool = setting(False, "whether to go on from the checkpoint in `out`")
    timeout: float = setting(600.0, "seconds that the replies to a message may take", above(0))
    quorum: float = setting(0.5, "share of the participants that must reply in a round", fraction)
    patience: float = setting(3600.0, "seconds to wait for nodes and for a quorum", above(0))
    outlier: float = setting(
        50.0, "a reply this many times larger than the usual one is refused; 0: none", at_least(0)
    )
    most_samples: int = setting(
        10**7, "samples that a client may claim to have; more are refused", in_range(1, 10**12)
    )
    most_share: float = setting(
        0.5, "share of all samples that one of several nodes counts for; 1: any", fraction
    )
    owners: str = setting(
        "",
        "file of the server that says whose client each is; empty: clients.json beside `out`; "
        "none: clients are nobody's",
    )


NETWORK_NAMES = frozenset(setting_names(NetworkSettings))


def read_network_settings(arguments: list[str]) -> NetworkSettings:
    """The settings of the network among arguments, each as in nodes=3."""
    values = parse_settings(arguments, [NetworkSettings])
    found: NetworkSettings = make_settings(NetworkSettings, values)
    return found


@dataclass(frozen=True)
class App:
    """An app: the plan of its run, and how it goes over the network."""

    plan: Plan
    network: NetworkSettings
    schema: Schema | None = None
    learnt: bool = False  # whether nodes made the schema, which the app itself then lacks

    def __post_init__(self) -> None:
        taken = {*NETWORK_NAMES, "algorithm", "federation", "schema"}
        for name in self.plan.values():
            if name in taken:
                raise SettingError(
                    f"`{name}` means something else in a run over a network: rename the setting of "
                    f"{self.plan.algorithm_name}, {self.plan.federation_name} or "
                    f"{self.plan.network_name}"
                )
        check_fine_tuning(self.plan.algorithm, self.plan.settings)
        if self.plan.settings.attack != "none":
            raise SettingError(
                f"`attack` must be none in a deployment, for attacks are simulated, got "
                f"{self.plan.settings.attack}"
            )
        if self.plan.settings.withheld:
            check_withholding(self.plan.algorithm, self.plan.settings)
            check_steps_fold(self.plan.algorithm)
        check_steps_declared(self.plan.algorithm)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> App:
        """The app with these settings, as Flower gives them to server and nodes."""
        rest = dict(config)
        try:
            names = {name: str(rest.pop(name)) for name in ("algorithm", "federation")}
        except KeyError as error:
            raise SettingError(f"the settings of the app lack {error}") from error
        schema = rest.pop("schema", "")
        network = [f"{name}={value}" for name, value in rest.items() if name in NETWORK_NAMES]
        settings = {name: value for name, value in rest.items() if name not in NETWORK_NAMES}
        run = {"coterie": __version__, **names, "settings": settings, "command": ""}
        plan = plan_again(run, [])
        if plan.grid or plan.settings.starts > 1:
            raise SettingError(
                "a run over a network has one start and one value of each setting, so that k=auto "
                "and the like are found where data are together"
            )
        device = plan.settings.device
        if device != "cpu":
            raise SettingError(f"`device` must be cpu for a run over a network, got {device}")
        schema = Schema.of(json.loads(str(schema))) if schema else None
        return cls(plan, read_network_settings(network), schema)

    def config(self) -> dict[str, Any]:
        """The settings, so that `App.from_config` makes the same app of them."""
        found = {
            "algorithm": self.plan.algorithm_name,
            "federation": self.plan.federation_name,
            **self.plan.values(),
            **asdict(self.network),
        }
        return found if self.schema is None else {**found, "schema": json.dumps(self.schema.raw())}

    @property
    def learns_schema(self) -> bool:
        """Whether its schema is to be learnt from the nodes when a run begins."""
        return self.plan.federation_name == "table" and self.schema is None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what server and nodes must agree on."""
        what = {name: v for name, v in self.config().items() if name not in NETWORK_NAMES}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def accepted_fingerprint(self) -> str:
        """The same of the app as it was handed out, without a schema that was learnt since."""
        return (
            replace(self, schema=None, learnt=False).fingerprint
            if self.learnt
            else self.fingerprint
        )

    def data(self, path: str) -> tuple[Federation, Task]:
        """The data of a node, its own file or folder, or those of the federation by name."""
        plan, name = self.plan, self.plan.federation_name
        if name != "table":
            if path:
                raise SettingError(f"this app runs on {name}, so a node has no `data` of its own")
            return plan.prepare(plan.hold_out(plan.build()))
        if self.schema is None:
            raise SettingError("the app has no schema yet: nodes make it when a run begins")
        settings = replace(plan.federation, path=path)  # never one that the server names
        if not path:
            raise SettingError('a node of this app needs its own table: data = "FILE" in its file')
        own = plan.hold_out(node_federation(self.schema, settings, plan.settings.data_seed))
        return own, plan.prepare(self.schema.stub(own.train.x.shape[1:], own.train.x.dtype))[1]
