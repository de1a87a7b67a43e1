"""What `flwr supernode register`, `flwr run` and `flwr list` do, without a new process for each.

Flower's command line takes seconds to start and reads its connections from a file in the home
folder. The same requests are made here directly. All that is used of Flower's inner parts (of
version 1.41) to talk to a SuperLink is in this file.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy.keys import need_flower


class Status(NamedTuple):
    """How far a run is."""

    finished: bool
    completed: bool  # finished, and well
    text: str  # as in "running" or "failed"
    details: str  # the reason, where it failed


class Control:
    """A connection to the SuperLink for its users.

    superlink  host:port
    ca         the authority's certificate; None: without encryption
    """

    def __init__(self, superlink: str, ca: Path | None) -> None:
        need_flower()
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self.superlink = superlink
        self.client = ControlHttpClient.from_server_address(
            server_address=superlink,
            insecure=ca is None,
            root_certificates=None if ca is None else ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="coterie")],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()

    def register(self, public_key: Path) -> int:
        """Let the SuperLink believe the node that has this key; the id that it gave the node."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        try:
            key = serialization.load_ssh_public_key(public_key.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise SettingError(f"{public_key} is not a public key of a node") from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise SettingError(f"{public_key} is not a public key of a node: it must be ECDSA")
        with self.trouble(f"register {public_key.name}"):
            request = RegisterNodeRequest(public_key=public_key_to_bytes(key))
            return int(self.client.RegisterNode(request).node_id)

    def start_run(self, bundle: bytes, settings: Mapping[str, str | bool | int | float]) -> int:
        """Send an app (see `bundled`) and begin its run with these settings in place of its own.

        The answer is the run's id.
        """
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(settings))
        )
        with self.trouble("start the run"):
            answer = self.client.StartRun(request)
        if not answer.HasField("run_id"):
            raise CoterieError(f"the SuperLink did not start the run: {answer.note or 'no reason'}")
        return int(answer.run_id)

    def stop_run(self, run: int) -> None:
        """Let a run end at once."""
        from flwr.proto.control_pb2 import StopRunRequest

        with self.trouble("stop the run"):
            self.client.StopRun(StopRunRequest(run_id=run))

    def status(self, run: int) -> Status:
        """How far a run is."""
        from flwr.proto.control_pb2 import ListRunsRequest

        with self.trouble("ask for the run"):
            answer = self.client.ListRuns(ListRunsRequest(run_id=run))
        found = answer.run_dict[run].status
        return Status(
            found.status == "finished",
            found.sub_status == "completed",
            found.sub_status or found.status,
            found.details.removeprefix("ServerApp failed with exception: "),
        )

    @contextlib.contextmanager
    def trouble(self, doing: str) -> Iterator[None]:
        """One sentence in place of the errors of the connection."""
        import httpx

        try:
            yield
        except httpx.HTTPStatusError as error:
            raise CoterieError(
                f"the SuperLink {self.superlink} refused to {doing}: {error.response.text}"
            ) from error
        except httpx.HTTPError as error:
            raise CoterieError(
                f"cannot {doing}: the SuperLink {self.superlink} does not answer ({error})"
            ) from error


def bundled(app: Path) -> bytes:
    """The folder of an app as the one file in which Flower sends it."""
    need_flower()
    from flwr.cli.build import build_fab_from_disk

    if not (app / "pyproject.toml").is_file():
        raise SettingError(f"{app} is not the folder of an app: it has no pyproject.toml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        try:
            return build_fab_from_disk(app)
        except (ValueError, OSError) as error:
            raise SettingError(f"{app} is not an app that Flower can take: {error}") from error
