"""Pages about run folders: of one run, of several side by side, and live while they go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from coterie.core.errors import SettingError
from coterie.evaluation.results_table import ComparisonResults
from coterie.files import write_text
from coterie.report.comparison_page import Groups, group_runs, render_comparison
from coterie.report.live_server import HOME, PORT, page_server
from coterie.report.run_files import RunFiles, read_run, whole_parts
from coterie.report.run_page import render_run_files


def read_whole_runs(folders: Sequence[Path]) -> list[RunFiles]:
    """What is whole in the folders of runs."""

    def render(run: RunFiles) -> bytes:
        return render_runs([run] if len(folders) == 1 else [run, run]).encode()

    return [whole_parts(read_run(folder), render) for folder in folders]


def render_page(folders: Sequence[Path], *, place: Path | None = None, live: bool = False) -> str:
    """The page of what is whole in the folders of one run, or of several."""
    return render_runs(read_whole_runs(folders), place=place, live=live)


def render_runs(runs: Sequence[RunFiles], *, place: Path | None = None, live: bool = False) -> str:
    """The page of one run, or of several.

    With `place`, the folder it will lie in, a page of several is linked to the pages of its runs.
    """
    if len(runs) == 1:
        return render_run_files(runs[0], live)
    groups = group_runs(runs)
    results = comparison_results(groups)
    return render_comparison(groups, results, place, live)


def write_page(folders: Sequence[Path], path: Path) -> Path:
    """Write the page of runs to `path`; it appears there whole or not at all."""
    write_whole_page(folders, path)
    return path


def write_whole_page(folders: Sequence[Path], path: Path) -> list[str]:
    """Write the page of what is whole in the folders of runs to `path`; what is damaged there."""
    runs = read_whole_runs(folders)
    write_text(path, render_runs(runs, place=path.parent))
    return [f"{name} of {run.folder}" for run in runs for name in run.damaged]


def serve_page(folders: Sequence[Path], port: int | None, tell: Callable[[str], None]) -> None:
    """Serve the page of runs to browsers on this machine until Ctrl-C; `tell` gets its address."""
    if port is not None and not 0 <= port <= 65535:
        raise SettingError(f"--port must be between 0 and 65535, got {port}")
    try:
        server = page_server(
            folders,
            lambda: render_page(folders, live=True),
            PORT if port is None else port,
        )
    except OSError as error:
        raise SettingError(
            f"cannot serve on port {port or PORT}: {error.strerror}; give another one with --port"
        ) from error
    with server, suppress(KeyboardInterrupt):
        tell(f"http://{HOME}:{server.server_port}/")
        server.serve_forever()


def comparison_results(groups: Groups, metric: str = "") -> ComparisonResults:
    """The results of grouped runs, with those so far of runs that go on; `metric` decides."""
    return ComparisonResults.of(
        {
            federation: {label: [run.facts for run in runs] for label, runs in labels.items()}
            for federation, labels in groups.items()
        },
        metric,
    )
