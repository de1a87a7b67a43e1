"""The example package, installed as a user would, through the command line and over three nodes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from coterie.core.imports import load_object

EXAMPLE = Path(__file__).parent.parent / "examples" / "soft-clusters"
COTERIE = [
    sys.executable,
    "-P",
    "-c",
    "from coterie.cli.main import main; raise SystemExit(main())",
]
SMALL = ["speakers=4", "sentences=6", "width=4", "steps=2", "rounds=2"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package installed in it, and nothing else; no network is needed."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "soft-clusters"
    command = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(["cp", "-r", str(EXAMPLE), str(source)], check=True)
    target = ["--target", str(folder), str(source)]
    done = subprocess.run([sys.executable, "-m", *command, *target], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def installed(site, monkeypatch):
    """The package importable in this process."""
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "soft_clusters"]:
        del sys.modules[name]


def coterie(site, folder, *words):
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [*COTERIE, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_names_are_found_and_run(site, tmp_path):
    listing = coterie(site, tmp_path, "list")
    for name in ("fedem", "dialects", "tagger"):
        (line,) = [line for line in listing.splitlines() if line.startswith(f"  {name} ")]
        assert line.endswith("(soft-clusters 1.0.0)")
    result = json.loads(
        coterie(site, tmp_path, "run", "fedem", "dialects", *SMALL, "--out", "r", "--json")
    )
    assert result["algorithm"] == "soft_clusters.fedem:FedEM"
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["settings"]["network"] == "soft_clusters.tagger:tagger"
    again = json.loads(coterie(site, tmp_path, "run", "--resume", "r", "--json"))
    assert again["metrics"] == result["metrics"]
    words = ["fedem,fedavg", "dialects", "seeds=1", *SMALL, "--out", "c", "--workers", "1"]
    assert "fedem" in coterie(site, tmp_path, "compare", *words)
    assert (tmp_path / "c" / "dialects-fedem-0" / "result.json").exists()


def test_it_keeps_every_promise(installed):
    from coterie.checks import check_algorithm
    from coterie.experiment.plan import load

    fedem = load_object("soft_clusters.fedem:FedEM")
    check_algorithm(fedem(k=2, steps=2))
    federation, task = load("dialects", sentences=4, longest=4, width=3)
    check_algorithm(fedem(k=2, steps=1, iterations=2), task=task, federation=federation)


@pytest.mark.filterwarnings("ignore::coterie.CoterieWarning")
def test_mixtures_serve_better_than_clusters(installed):
    """Its reason to exist: clients that mix dialects."""
    from coterie.algorithms.ifca import IFCA
    from coterie.experiment.plan import load
    from coterie.experiment.simulate import simulate

    fedem = load_object("soft_clusters.fedem:FedEM")
    federation, task = load("dialects", speakers=8, longest=6, purity=2.0, width=8, seed=1)
    soft, hard = (
        simulate(algorithm, federation, task, rounds=12, seed=1, evaluate=12)
        for algorithm in (fedem(k=2, lr=0.5), IFCA(k=2, lr=0.5, start="random"))
    )
    assert soft.metrics["loss"] < hard.metrics["loss"]


def test_three_nodes_that_allow_it_give_the_simulated_run(installed, tmp_path):
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from coterie.flower.permission import load_allowed
    from coterie.flower.server import run_server
    from tests.flower.fake import FakeGrid, make_app, metrics_alike, simulated, thirds

    words = ["fedem", "dialects", *SMALL]
    app = make_app(*words, out=str(tmp_path / "run"), nodes=3)
    allowed = load_allowed(["fedem", "dialects", "tagger"])
    files = [replace(file, allow=allowed) for file in thirds(tmp_path)]
    run = run_server(FakeGrid(app, files), app.config(), "1")
    expected = simulated(words)
    assert metrics_alike(run.metrics, expected.metrics, 1e-4)


@pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed")
def test_it_runs_in_ray_actors(site, tmp_path):
    words = ["run", "fedem", "dialects", *SMALL, "--json"]
    one, two = (
        json.loads(coterie(site, tmp_path, *words, "--out", f"r{len(more)}", *more))["metrics"]
        for more in ([], ["--shards", "2"])
    )
    assert one == pytest.approx(two, rel=1e-5)
