"""Comparing algorithms from Python: every one on every federation, with every seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.algorithm import Algorithm
from coterie.core.errors import CoterieError, CoterieWarning, SettingError, did_you_mean
from coterie.core.names import file_name
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.evaluation.results_table import ComparisonResults, finite_metrics
from coterie.evaluation.significance import has_splits
from coterie.experiment.comparison import DEFAULT_SEEDS, SeedPair, part_names
from coterie.experiment.frames import import_pandas
from coterie.experiment.plan import find_owners, make_plan, names_a_file
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings, make_settings, setting_names
from coterie.experiment.simulate import (
    check_algorithm_argument,
    check_federation_argument,
    check_task_argument,
    simulate,
)
from coterie.files import write_text
from coterie.registry import algorithm_name, resolve
from coterie.report import figures
from coterie.report.comparison_page import render_comparison
from coterie.report.pages import comparison_results
from coterie.report.run_files import RunFiles
from coterie.report.text_tables import latex_table, markdown_table

STAND_IN = "fedavg"  # has no settings of its own that a federation suggests


class ComparedFederation(NamedTuple):
    """Where the clients of a comparison come from: a name, or data with their task."""

    name: str = ""
    data: tuple[Federation, Task] | None = None


@dataclass(frozen=True)
class ComparedRuns:
    """What became of the runs of a comparison."""

    groups: dict[str, dict[str, list[RunFiles]]]  # federation -> algorithm -> runs by seed
    # (federation, algorithm, seeds) -> what went wrong
    failures: dict[tuple[str, str, SeedPair], str]
    metric: str = ""  # the one that decides; empty: that of the task

    def __repr__(self) -> str:
        labels = list(dict.fromkeys(label for each in self.groups.values() for label in each))
        runs = sum(len(runs) for each in self.groups.values() for runs in each.values())
        return f"<ComparedRuns: {', '.join(labels)} on {', '.join(self.groups)}, {runs} runs>"

    @property
    def results(self) -> ComparisonResults:
        """The metrics of all runs."""
        return comparison_results(self.groups, self.metric)

    @property
    def table(self) -> Any:
        """A pandas frame: mean and standard deviation over seeds, and how far behind the best.

        It says what `coterie compare` prints, with a row for each federation and algorithm.
        """
        pandas = import_pandas()
        frames = []
        for federation in self.groups:
            (_, *head), rows = self.results.table(federation)
            index = [(federation, row[0]) for row in rows]
            frame = pandas.DataFrame([row[1:] for row in rows], columns=head)
            frame.index = pandas.MultiIndex.from_tuples(index, names=["federation", "algorithm"])
            frames.append(frame)
        return frames[0].droplevel(0) if len(frames) == 1 else pandas.concat(frames)

    @property
    def runs(self) -> Any:
        """A pandas frame with a row for each run: federation, algorithm, seed and its metrics.

        Where runs are on several splits of the data, the seed of the split stands behind that.
        """
        results = self.results
        several = has_splits(
            r for each in results.metrics.values() for runs in each.values() for r in runs
        )
        return import_pandas().DataFrame(
            {
                "federation": federation,
                "algorithm": label,
                "seed": repeat.start,
                **({"split_seed": repeat.split} if several else {}),
                **metrics,
            }
            for federation, labels in results.metrics.items()
            for label, runs in labels.items()
            for repeat, metrics in runs.items()
        )

    def caption(self, federation: str = "") -> str:
        """What the table of a federation says: what varies between runs, which test it has."""
        return self.results.caption(federation or next(iter(self.groups)))

    def latex(self) -> str:
        """The table for a paper, one for each federation, as `coterie compare --format latex`."""
        return "\n\n".join(self._text(each, latex_table) for each in self.groups)

    def __str__(self) -> str:
        return "\n\n".join(f"{each}\n\n{self._text(each, markdown_table)}" for each in self.groups)

    def _text(self, federation: str, form: Callable[..., str]) -> str:
        results = self.results
        return form(*results.table(federation), results.caption(federation))

    def figure(self, metric: str = "accuracy") -> Any:
        """A plotly figure: the mean of a metric at the end, with the deviation over seeds."""
        values = {
            federation: {
                label: finite_metrics((run.metrics for run in runs), metric)
                for label, runs in labels.items()
            }
            for federation, labels in self.groups.items()
        }
        return self._plot(figures.mean_points(values, metric), metric)

    def curves(self, metric: str = "accuracy", federation: str = "") -> Any:
        """A plotly figure: the mean of a metric over the rounds, in a band of one deviation."""
        labels = self.groups[federation or next(iter(self.groups))]
        histories = {label: [run.rounds for run in runs] for label, runs in labels.items()}
        return self._plot(figures.mean_curves(histories, metric), metric)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write a self-contained page about the comparison."""
        write_text(Path(path), render_comparison(self.groups, self.results, Path(path).parent))
        return Path(path)

    def _plot(self, figure: figures.Figure | None, metric: str) -> Any:
        from plotly.graph_objects import Figure

        if figure is None:
            known = self.runs.columns[3:].tolist()
            raise SettingError(f"no run has the metric {metric} (metrics: {', '.join(known)})")
        return Figure(figure)


def compare(
    algorithms: Sequence[Algorithm[Any] | str] | Mapping[str, Algorithm[Any] | str],
    federations: Any,
    task: Task | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    split_seeds: int | Sequence[int] = 0,
    folder: str | Path | None = None,
    **settings: Any,
) -> ComparedRuns:
    """Run every algorithm on every federation with every seed, one after another.

    `algorithms` are instances or names, in a list or, with labels of their own, in a dict.
    `federations` is a federation with its `task`, a pair of both, a name as of `coterie run`, or
    several in a list or a dict. Settings go to every run that has them, as on the command line;
    those of an instance are its own. `split_seeds` splits the data of a named federation anew as
    often, with one start on each split unless `seeds` says more. With a `folder`, every run leaves
    its files in it, and one that is there already is taken up. A run that fails is warned of and
    left out.

    >>> import coterie
    >>> found = coterie.compare(
    ...     [coterie.IFCA(k=4), "fedavg"], "rotated-digits", clients=8, rounds=2, seeds=2
    ... )
    >>> found.table.index.tolist(), len(found.runs)
    (['ifca', 'fedavg', 'constant'], 4)
    """
    chosen, sources = label_algorithms(algorithms), label_federations(federations, task)
    check_settings(chosen, sources, settings)
    repeats = make_repeats(seeds, split_seeds)
    if repeats[0].split_seed is not None and any(each.data for each in sources.values()):
        raise SettingError(
            "`split_seeds` must be 0 for a federation that is given as it is: its name, or that of "
            "its file, can be split anew"
        )
    parts = part_names(list(sources))
    groups: dict[str, dict[str, list[RunFiles]]] = {}
    failures: dict[tuple[str, str, SeedPair], str] = {}
    for federation, source in sources.items():
        for label, algorithm in chosen.items():
            group = groups.setdefault(federation, {}).setdefault(label, [])
            for repeat in repeats:
                name = f"{parts[federation]}-{file_name(label)}-{repeat.place}"
                place = None if folder is None else Path(folder) / name
                try:
                    run = do_run(algorithm, source, repeat, settings, place)
                except CoterieError as error:
                    failures[federation, label, repeat] = str(error)
                    text = f"{label} on {federation} with seed {repeat.place} failed: {error}"
                    warnings.warn(text, CoterieWarning, stacklevel=2)
                else:
                    facts = (run.config, run.records, run.result)
                    group.append(RunFiles(place or Path(), *facts, {}, {}, [], {}))
    if not any(group for labels in groups.values() for group in labels.values()):
        raise CoterieError(f"all runs failed: {next(iter(failures.values()))}")
    metric = str(settings.get("metric", "auto"))
    return ComparedRuns(groups, failures, "" if metric == "auto" else metric)


def make_repeats(
    seeds: int | Sequence[int] | None, split_seeds: int | Sequence[int]
) -> list[SeedPair]:
    """The seeds of each run of an algorithm on a federation."""
    splits = range(split_seeds) if isinstance(split_seeds, int) else split_seeds
    seeds = (1 if splits else DEFAULT_SEEDS) if seeds is None else seeds
    starts = range(seeds) if isinstance(seeds, int) else seeds
    if not len(starts):
        raise SettingError(f"`seeds` must be at least one, got {seeds}")
    known: list[int | None] = [*splits] or [None]
    return [SeedPair(seed, split) for split in known for seed in starts]


def do_run(
    algorithm: Algorithm[Any] | str,
    source: ComparedFederation,
    repeat: SeedPair,
    settings: Mapping[str, Any],
    place: Path | None,
) -> Run:
    """One run of a comparison, in a folder if there is one."""
    resume = place is not None and (place / "config.json").exists()
    if source.data is not None:
        method: Algorithm[Any] = (
            make_settings(resolve("algorithm", algorithm), settings)
            if isinstance(algorithm, str)
            else algorithm
        )
        own = {name: settings[name] for name in setting_names(RunSettings) if name in settings}
        own["seed"] = repeat.seed
        return simulate(method, *source.data, folder=place, resume=resume, **own)
    name = algorithm if isinstance(algorithm, str) else STAND_IN
    known = known_settings(algorithm, source, settings)
    words = [f"{key}={value}" for key, value in settings.items() if key in known]
    made = not isinstance(algorithm, str)  # by the user, who has said its k
    plan = make_plan([name, source.name, *words, *repeat.words], alone=made)
    if not isinstance(algorithm, str):
        plan = plan._replace(algorithm=algorithm, algorithm_name=algorithm_name(algorithm))
        plan = plan._replace(command="")
    run = plan.run(plan.config())
    if place is not None:
        run.use(place, resume=resume)
    return run.complete()


def known_settings(
    algorithm: Algorithm[Any] | str, source: ComparedFederation, settings: Mapping[str, Any]
) -> set[str]:
    """The names of the settings that a run of a comparison understands."""
    if source.data is not None:
        own = setting_names(resolve("algorithm", algorithm)) if isinstance(algorithm, str) else []
        return {*own, *setting_names(RunSettings)}
    name = algorithm if isinstance(algorithm, str) else STAND_IN
    federation = "table" if names_a_file(source.name) else source.name
    owners = find_owners(name, federation, str(settings.get("network", "")))
    return {*setting_names(*(owners if name == algorithm else owners[1:]))}


def check_settings(
    algorithms: Mapping[str, Algorithm[Any] | str],
    sources: Mapping[str, ComparedFederation],
    settings: Mapping[str, Any],
) -> None:
    """Refuse settings that no run of the comparison has."""
    if "seed" in settings:
        raise SettingError("the seeds of a comparison are given as `seeds`, as in seeds=[3, 4]")
    pairs = [(each, source) for each in algorithms.values() for source in sources.values()]
    known = set[str]().union(*(known_settings(*pair, settings) for pair in pairs))
    for name in settings:
        if name not in known:
            raise SettingError(
                f"no run of the comparison has a setting named {name}{did_you_mean(name, known)}"
            )


def label_algorithms(algorithms: Any) -> dict[str, Algorithm[Any] | str]:
    """Algorithms by what they are called: their name, and the settings that tell them apart."""
    if isinstance(algorithms, Mapping):
        labelled = dict(algorithms)
    else:
        if isinstance(algorithms, str) or not isinstance(algorithms, Sequence):
            algorithms = [algorithms]
        names = [each if isinstance(each, str) else algorithm_name(each) for each in algorithms]
        labelled = {}
        for each, name in zip(algorithms, names, strict=True):
            alike = [a for a, n in zip(algorithms, names, strict=True) if n == name]
            label = " ".join([name, *telling_settings(each, alike)])
            if label in labelled:
                raise SettingError(f"{label} is in the comparison twice")
            labelled[label] = each
    for each in labelled.values():
        if not isinstance(each, str):
            check_algorithm_argument(each)
    if not labelled:
        raise SettingError("a comparison needs at least one algorithm, got none")
    return labelled


def telling_settings(algorithm: Any, alike: Sequence[Any]) -> list[str]:
    """The settings of an algorithm in which others of its name differ, as in k=4."""
    if len(alike) < 2 or any(isinstance(each, str | type) for each in alike):
        return []
    values = [asdict(each) for each in alike]
    own = asdict(algorithm)
    return [f"{key}={own[key]}" for key in own if len({str(each[key]) for each in values}) > 1]


def label_federations(federations: Any, task: Task | None) -> dict[str, ComparedFederation]:
    """Federations by what they are called."""
    if isinstance(federations, Mapping):
        return {label: read_source(each, task) for label, each in federations.items()}
    labelled: dict[str, ComparedFederation] = {}
    for each in federations if isinstance(federations, list) else [federations]:
        source = read_source(each, task)
        name = source.name or (source.data[0].name if source.data else "")
        if name in labelled:
            raise SettingError(f"{name} is in the comparison twice; a dict gives both their names")
        labelled[name] = source
    if not labelled:
        raise SettingError("a comparison needs at least one federation, got none")
    return labelled


def read_source(federation: Any, task: Task | None) -> ComparedFederation:
    """A federation of a comparison: a name, a pair of data and task, or data for the given task."""
    if isinstance(federation, str):
        return ComparedFederation(name=federation)
    if isinstance(federation, tuple) and len(federation) == 2:
        federation, task = federation
    check_federation_argument(federation)
    check_task_argument(task)
    assert task is not None
    return ComparedFederation(data=(federation, task))
