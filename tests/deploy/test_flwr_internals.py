"""One test for each symbol of Flower that Flower does not document: what breaks without it.

A new version of Flower is tried out by running this file first: the names of the tests that fail
say which feature of a deployment has to be mended, all in src/coterie/deploy/flwr_internals.py.
Below them are the tests of what we make of these symbols.
"""

import ast
import importlib
import inspect
import signal
import threading
import time
import zipfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy import flwr_internals, flwr_supernode, flwr_worker
from coterie.deploy.flwr_internals import (
    ControlClient,
    build_bundle,
    deactivate_node,
    node_keys,
)
from coterie.deploy.flwr_worker import answer_messages
from coterie.deploy.keys import make_authority, make_node_key, read_fingerprint
from coterie.deploy.processes import free_ports
from coterie.deploy.services import node_commands

from .echo import write_echo

DOCUMENTED = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
CONTRACTS = set()  # every symbol that has a test


def resolve(symbol):
    """What `from module import name` gives."""
    module, _, name = symbol.rpartition(".")
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(symbol)


def contract(symbol):
    """Mark the test of a symbol, `module.name`, and hand it the symbol."""
    CONTRACTS.add(symbol)

    def mark(test):
        def run():
            test(resolve(symbol))

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return mark


def parameters(function):
    return list(inspect.signature(function).parameters)


def header_added(interceptor):
    """The headers that an interceptor adds to a request."""
    request = httpx.Request("POST", "http://x/v1/runtime/acquire-task")
    before = set(request.headers)
    context = SimpleNamespace(request=request)
    interceptor.intercept(context, lambda context: httpx.Response(200))
    return set(request.headers) - before


def imported_symbols(path):
    """What a file imports of Flower beyond what is documented, as `module.name`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            if node.module not in DOCUMENTED:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("flwr.")} - set(DOCUMENTED)
    return found


def test_only_one_file_touches_what_is_not_documented_and_each_symbol_has_a_contract():
    internals = [Path(module.__file__) for module in (flwr_internals, flwr_supernode, flwr_worker)]
    for path in internals[0].parents[1].rglob("*.py"):
        if path not in internals:
            assert not imported_symbols(path), path
    assert set().union(*map(imported_symbols, internals)) == CONTRACTS


@contract("flwr.cli.build.build_fab_from_disk")
def test_without_it_no_app_can_be_sent(symbol):
    """`deploy local` sends the app's folder as the one file that this function makes."""
    assert parameters(symbol) == ["app"]
    with TemporaryDirectory() as folder:
        made = build_bundle(write_echo(Path(folder)))
    assert {"app.py", "pyproject.toml"} <= set(zipfile.ZipFile(BytesIO(made)).namelist())


@contract("flwr.common.constant.ErrorCode")
def test_without_it_a_failing_client_step_has_no_error_reply(symbol):
    """A worker replies with this code when a client step raises an exception."""
    assert isinstance(symbol.CLIENT_APP_RAISED_EXCEPTION, int)


@contract("flwr.common.constant.Status")
def test_without_it_nobody_sees_that_a_run_has_ended(symbol):
    """`deploy local` waits until the SuperLink gives a run this status."""
    assert symbol.FINISHED == "finished"


@contract("flwr.common.constant.SubStatus")
def test_without_it_success_and_failure_look_alike(symbol):
    """The SuperLink says so of a run, and a worker of a task."""
    assert (symbol.COMPLETED, symbol.FAILED, symbol.STOPPED) == ("completed", "failed", "stopped")


@contract("flwr.common.serde.fab_to_proto")
def test_without_it_an_app_cannot_be_put_into_a_request(symbol):
    """The request that starts a run holds the app."""
    made = symbol(SimpleNamespace(hash_str="a", content=b"b", verifications={}))
    assert (made.hash_str, made.content) == ("a", b"b")


@contract("flwr.common.serde.user_config_to_proto")
def test_without_it_a_run_cannot_be_given_its_folder(symbol):
    """The request that starts a run holds `out`, `nodes` and `resume`."""
    made = symbol({"out": "run", "nodes": 3, "resume": True})
    assert (made["out"].string, made["nodes"].sint64, made["resume"].bool) == ("run", 3, True)


@contract("flwr.proto.control_pb2.ListRunsRequest")
def test_without_it_the_status_of_a_run_cannot_be_asked_for(symbol):
    """Sent every second by `deploy local`."""
    assert symbol(run_id=1).run_id == 1


@contract("flwr.proto.control_pb2.RegisterNodeRequest")
def test_without_it_no_node_can_be_let_in(symbol):
    """Sent for every public key."""
    assert symbol(public_key=b"key").public_key == b"key"


@contract("flwr.proto.control_pb2.ListNodesRequest")
def test_without_it_client_names_cannot_be_bound_to_keys(symbol):
    """Asks which node has which key."""
    from flwr.proto.control_pb2 import ListNodesResponse
    from flwr.proto.node_pb2 import NodeInfo

    assert symbol().ByteSize() == 0
    (field,) = [f for f in ListNodesResponse.DESCRIPTOR.fields if f.name == "nodes_info"]
    assert field.message_type is NodeInfo.DESCRIPTOR
    assert {"node_id", "public_key"} <= set(NodeInfo.DESCRIPTOR.fields_by_name)


@contract("flwr.superlink.grid.http_grid.HttpGrid")
def test_without_it_a_server_app_does_not_know_its_superlink(symbol):
    """Where it is, and whom to trust: what the connection of the ServerApp was made with."""
    grid = symbol("127.0.0.1:1", root_certificates=b"ca", token="t")
    inside = vars(grid)
    assert (inside["_addr"], inside["_insecure"], inside["_cert"]) == ("127.0.0.1:1", False, b"ca")


@contract("flwr.supercore.primitives.asymmetric.bytes_to_public_key")
def test_without_it_the_key_of_a_node_has_no_fingerprint(symbol):
    """Reads the keys that a SuperLink lists."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    assert symbol(public_key_to_bytes(key)).public_numbers() == key.public_numbers()


@contract("flwr.proto.control_pb2.StartRunRequest")
def test_without_it_no_run_can_be_started(symbol):
    """Holds the app and the settings that replace its own."""
    assert {"fab", "override_config"} <= set(symbol.DESCRIPTOR.fields_by_name)


@contract("flwr.proto.control_pb2.StopRunRequest")
def test_without_it_nodes_wait_for_a_run_whose_server_was_killed(symbol):
    """Sent for a run whose ServerApp has ended without a word."""
    assert symbol(run_id=1).run_id == 1


@contract("flwr.proto.fleet_pb2.DeactivateNodeRequest")
def test_without_it_the_server_waits_for_nodes_that_were_killed(symbol):
    """Sent for a SuperNode that could not sign off itself."""
    assert symbol(node_id=1).node_id == 1


@contract("flwr.proto.runtime_pb2.AcquireTaskRequest")
def test_without_it_a_worker_cannot_ask_for_work(symbol):
    """Names the kind of task that a worker carries out."""
    assert list(symbol(supported_task_types=["flwr-clientapp"]).supported_task_types)


@contract("flwr.proto.runtime_pb2.SendTaskHeartbeatRequest")
def test_without_it_a_task_has_no_heartbeat(symbol):
    """Goes to the SuperNode of the task, which answers whether there still is one."""
    assert symbol() == symbol()


@contract("flwr.supercore.control.ControlHttpClient")
def test_without_it_we_cannot_talk_to_a_superlink(symbol):
    """Registers nodes, starts runs and lists them."""
    names = {"RegisterNode", "StartRun", "StopRun", "ListRuns", "ListNodes", "close"}
    assert names <= set(dir(symbol))
    check_address(symbol)


@contract("flwr.supercore.date")
def test_without_it_a_step_of_the_clock_ends_a_run(symbol):
    """All of Flower asks this for the time; it asks the module `datetime`, which we replace."""
    source = inspect.getsource(symbol.now)
    assert "datetime.datetime.now(tz=datetime.UTC)" in source


@contract("flwr.supercore.fab.Fab")
def test_without_it_an_app_has_no_hash(symbol):
    """The SuperLink refuses an app whose hash is not that of its content."""
    assert list(symbol.__dataclass_fields__) == ["hash_str", "content", "verifications"]


@contract("flwr.supercore.heartbeat")
def test_without_it_the_server_misses_a_dead_node_only_after_a_minute(symbol):
    """Its interval says how often a SuperNode sends a heartbeat."""
    assert symbol.HEARTBEAT_DEFAULT_INTERVAL == 30


@contract("flwr.supercore.heartbeat.HeartbeatSender")
def test_without_it_a_step_of_more_than_a_minute_is_given_up(symbol):
    """A worker sends heartbeats while it computes."""
    assert {"start", "stop", "is_running"} <= set(dir(symbol))
    assert len(parameters(symbol)) == 1


@contract("flwr.supercore.inflatable.inflatable_utils")
def test_without_it_most_of_a_round_is_waiting_for_parts_of_messages(symbol):
    """Flower waits 1 s or more for a part that has not arrived, which we shorten."""
    waits = {"initial_backoff", "backoff_cap", "max_tries_per_object", "max_time"}
    assert waits <= set(symbol.pull_objects.__kwdefaults__)
    assert waits <= set(symbol.pull_and_inflate_object_from_tree.__kwdefaults__)


@contract("flwr.supercore.interceptors.RuntimeTokenHttpInterceptor")
def test_without_it_a_worker_cannot_fetch_the_message_of_its_task(symbol):
    """Adds the token that the SuperNode gave for the task."""
    assert header_added(symbol("token"))


@contract("flwr.supercore.interceptors.RuntimeVersionHttpInterceptor")
def test_without_it_servers_do_not_know_our_version(symbol):
    """Adds Flower's version, which servers compare with their own."""
    assert header_added(symbol(component_name="coterie"))


@contract("flwr.supercore.interceptors.SuperExecAuthHttpInterceptor")
def test_without_it_everybody_on_the_machine_could_take_a_nodes_messages(symbol):
    """Signs the request for work with the secret that worker and SuperNode share."""
    signer = symbol(
        master_secret=b"secret", protected_methods=frozenset({flwr_worker.ACQUIRE_TASK})
    )
    assert {"intercept"} <= set(dir(signer))


@contract("flwr.supercore.primitives.asymmetric.public_key_to_bytes")
def test_without_it_a_public_key_cannot_be_registered(symbol):
    """Makes of a public key what a SuperLink takes."""
    from cryptography.hazmat.primitives.asymmetric import ec

    assert symbol(ec.generate_private_key(ec.SECP384R1()).public_key()).startswith(b"-----BEGIN")


@contract("flwr.supercore.run.RunNotRunningException")
def test_without_it_a_node_waits_for_runs_that_are_over(symbol):
    """What a SuperNode is told of a run that is over; it passes every `except Exception`."""
    assert issubclass(symbol, BaseException)
    assert not issubclass(symbol, Exception)


@contract("flwr.supercore.runtime.RuntimeHttpClient")
def test_without_it_a_worker_cannot_talk_to_its_supernode(symbol):
    """Asks for work, fetches messages and sends replies."""
    assert {"AcquireTask", "close"} <= set(dir(symbol))
    check_address(symbol)


@contract("flwr.superlink.cli.flower_superlink")
def test_without_it_there_is_no_superlink_with_a_steady_clock(symbol):
    """What `flower-superlink` runs; we call it after the clock is replaced."""
    assert not parameters(symbol)


@contract("flwr.supernode.cli.flower_supernode")
def test_without_it_there_is_no_supernode_with_shorter_waits(symbol):
    """What `flower-supernode` runs; we call it after the waits are changed."""
    assert not parameters(symbol)


@contract("flwr.supernode.fleet_http_client.FleetHttpClient")
def test_without_it_a_killed_node_cannot_be_signed_off(symbol):
    """Talks to the SuperLink in the name of a node."""
    assert {"DeactivateNode", "__enter__", "__exit__"} <= set(dir(symbol))
    check_address(symbol)
    assert flwr_internals.FLEET_PATH + "deactivate-node" in inspect.getsource(symbol)


@contract("flwr.supernode.fleet_http_connection")
def test_without_it_a_node_that_was_killed_is_refused_for_a_minute(symbol):
    """Its interval is the one that a SuperNode promises to the SuperLink."""
    assert symbol.HEARTBEAT_DEFAULT_INTERVAL == 30


@contract("flwr.supernode.node_auth_http_interceptor.NodeAuthHttpInterceptor")
def test_without_it_the_superlink_refuses_to_sign_off_a_node(symbol):
    """Signs requests with the node's key."""
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    assert len(header_added(symbol(key, key.public_key()))) == 3


@contract("flwr.supernode.runtime.run_clientapp.pull_task_input")
def test_without_it_a_worker_cannot_fetch_a_message(symbol):
    """Returns message, context and two things that we do not need."""
    assert parameters(symbol) == ["client"]


@contract("flwr.supernode.runtime.run_clientapp.push_message")
def test_without_it_a_worker_cannot_reply(symbol):
    """Hands the reply to the SuperNode."""
    assert parameters(symbol) == ["client", "message", "context"]


@contract("flwr.supernode.runtime.run_clientapp.push_task_output")
def test_without_it_a_supernode_does_not_know_that_a_task_has_ended(symbol):
    """Says whether the task was completed or failed."""
    assert parameters(symbol) == ["client", "context", "sub_status", "details"]


@contract("flwr.supernode.start_client_internal")
def test_without_it_no_round_is_shorter_than_three_seconds(symbol):
    """Its loop only calls `time.sleep`: with 3 when idle, with less when it waits for a reply."""
    source = inspect.getsource(symbol)
    uses = {node.attr for node in ast.walk(ast.parse(source)) if is_of_time(node)}
    assert uses == {"sleep"}
    assert f"time.sleep({flwr_supernode.IDLE_SLEEP})" in source
    assert "time.sleep(0.5)" in source
    ours, flowers = (
        parameters(flwr_supernode.BusyNode.fetch),
        parameters(symbol._pull_and_store_message),
    )
    assert set(ours) - {"self", "others"} <= set(flowers)
    assert parameters(symbol._push_messages) == ["state", "object_store", "send", "push_object"]
    assert parameters(symbol._insert_message) == ["msg", "state", "store"]


def is_of_time(node):
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "time"


def check_address(client):
    wanted = {"server_address", "insecure", "root_certificates", "interceptors"}
    assert wanted <= set(parameters(client.from_server_address))


def test_without_the_environment_flower_sends_telemetry_and_starts_tasks_late(monkeypatch):
    """Settings of Flower's processes that are read from the environment."""
    from flwr.supercore import constant, telemetry
    from flwr.supercore.superexec import run_superexec

    names = {constant.FLWR_DISABLE_UPDATE_CHECK, run_superexec._TASK_POLL_INTERVAL_ENV}
    assert names | {"FLWR_TELEMETRY_ENABLED"} == set(flwr_internals.ENVIRONMENT)
    assert hasattr(telemetry, "FLWR_TELEMETRY_ENABLED")


def test_flower_reads_the_paths_of_a_node_as_they_are(tmp_path):
    from flwr.common.config import parse_config_args

    for name in ("a b.toml", "it's.toml", 'so "called".toml', "back\\slash.toml", "ü=1 x=2.toml"):
        node = tmp_path / name
        command = node_commands(node, "x:1", None, None, tmp_path, "n", 5).supernode
        given = command[command.index("--node-config") + 1]
        assert parse_config_args([given]) == {"node": str(node)}


def test_a_node_key_is_what_flower_reads(tmp_path):
    from cryptography.hazmat.primitives import serialization
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    made = make_node_key(tmp_path, "clinic-1")
    private = serialization.load_ssh_private_key(made.private.read_bytes(), None)
    assert try_load_public_key(made.public) == public_key_to_bytes(private.public_key())


# What we make of these symbols


def test_a_folder_that_is_no_app_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"it has no pyproject\.toml"):
        build_bundle(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(SettingError, match="is not an app that Flower can take"):
        build_bundle(tmp_path)


@pytest.fixture
def supernode(monkeypatch):
    """A SuperNode in this process that has tasks, then refuses."""
    from flwr.supercore import heartbeat
    from flwr.supercore.runtime import RuntimeHttpClient

    monkeypatch.setattr(heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", 30)
    tasks = iter([True, True, False])

    def acquire(request):
        if not next(tasks):
            response = httpx.Response(401, request=httpx.Request("POST", "http://x"))
            raise httpx.HTTPStatusError("no", request=response.request, response=response)
        return SimpleNamespace(HasField=lambda name: True, token="token")

    found = SimpleNamespace(AcquireTask=acquire, close=lambda: None, ended=[])
    monkeypatch.setattr(RuntimeHttpClient, "from_server_address", lambda **words: found)
    return found


def test_a_message_that_cannot_be_answered_is_dropped_and_the_worker_goes_on(
    supernode, monkeypatch, tmp_path
):
    from flwr.supernode.runtime import run_clientapp

    def fail(*words):
        raise RuntimeError("no such message")

    supernode.SendTaskHeartbeat = lambda request: SimpleNamespace(success=True)
    supernode.PushTaskOutput = lambda request: supernode.ended.append(request.sub_status)
    monkeypatch.setattr(run_clientapp, "pull_task_input", fail)
    with pytest.raises(CoterieError, match="does not let us work"):
        answer_messages(lambda message, context: message, "x:1", b"secret", tmp_path / "ready")
    assert supernode.ended == ["failed", "failed"]


@pytest.fixture
def in_the_background():
    """As in a process that a script has started with `&`: Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("refused", [False, True])
def test_a_step_whose_run_ends_while_it_is_computed_ends_the_worker(
    supernode, monkeypatch, tmp_path, refused, in_the_background
):
    from flwr.supernode.runtime import run_clientapp

    def beat(request):
        while not begun.is_set():
            time.sleep(0.01)
        if refused:
            response = httpx.Response(401, request=httpx.Request("POST", "http://x"))
            raise httpx.HTTPStatusError("no", request=response.request, response=response)
        return SimpleNamespace(success=False)

    def handle(message, context):
        begun.set()
        time.sleep(30)

    begun = threading.Event()
    supernode.SendTaskHeartbeat = beat
    supernode.PushTaskOutput = lambda request: supernode.ended.append(request.sub_status)
    monkeypatch.setattr(run_clientapp, "pull_task_input", lambda client: ("m", None, None, None))
    began = time.monotonic()
    with pytest.raises(CoterieError, match="a run ended while a step of it was computed"):
        answer_messages(handle, "x:1", b"secret", tmp_path / "ready")
    assert time.monotonic() - began < 25  # it slept
    assert supernode.ended == ["failed"]


def test_nobody_without_the_secret_can_take_the_messages_of_a_node(attempts, tmp_path):
    port, _, _ = attempts["registered"]
    with pytest.raises(CoterieError, match="does not let us work"):
        answer_messages(
            lambda message, context: message, f"127.0.0.1:{port}", b"a guess", tmp_path / "ready"
        )


def test_a_server_app_knows_which_node_has_which_key(server, attempts, known):
    from flwr.superlink.grid.http_grid import HttpGrid

    grid = HttpGrid(server.superlink, root_certificates=server.ca.read_bytes(), token="any")
    found = node_keys(grid)
    node = int(attempts["registered"][2].partition("SuperNode ID: ")[2].split()[0])
    assert found[node] == read_fingerprint(str(known.public))
    assert node_keys(object()) == {}, "another grid knows no keys"


def test_a_user_in_plain_text_is_refused(server, known):
    with (
        ControlClient(server.superlink, None) as control,
        pytest.raises(CoterieError, match="does not answer"),
    ):
        control.register_node(known.public)


def test_a_key_can_be_registered_only_once(server, known):
    with (
        ControlClient(server.superlink, server.ca) as control,
        pytest.raises(CoterieError, match=r"refused to register known\.pub"),
    ):
        control.register_node(known.public)


def test_to_sign_off_where_nobody_answers_is_no_error(tmp_path):
    authority, key = make_authority(tmp_path / "tls"), make_node_key(tmp_path, "node")
    (port,) = free_ports(1)
    assert not deactivate_node(f"127.0.0.1:{port}", authority.certificate, key.private, 1)
