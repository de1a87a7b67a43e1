"""Clients that never took part in a run: which of its models serve them, and fine-tuned how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.core.errors import DataError, SettingError
from coterie.data.federation import Federation
from coterie.data.tables.known_schema import new_federation
from coterie.engine.simulator import Simulator
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.personal import PersonalModels, check_tunable, choose_personal
from coterie.evaluation.scoring import SimulatedScorer
from coterie.tasks.defaults import check_labelled

if TYPE_CHECKING:
    from coterie.experiment.run import Run


def read_newcomers(known: Federation, rows: Any) -> Federation:
    """Newcomers as samples like those of a `known` federation, by whose schema tables are read.

    A federation is taken as it is; one whose table was read by a schema of its own is refused, for
    its features mean something else.
    """
    if not isinstance(rows, Federation):
        if known.schema is None or not known.schema.encoders:
            raise DataError(
                f"clients of {known.name} are given as a Federation: its samples are no rows of a "
                "table"
            )
        found = new_federation(known.schema, rows)
        if known.labelled and not found.labelled:
            raise DataError(
                f"{found.name} has no labels, by which clients choose a model: "
                "`predict` does without"
            )
        return found
    own, other = known.schema, rows.schema
    if own is not None and other is not None and own.encoders != other.encoders:
        raise DataError(
            f"{rows.name} was read by a schema of its own, so that its features are not those of "
            "the run: give the table itself, or read it by "
            "Federation.from_table(table, schema=run.federation.schema)"
        )
    return rows


def newcomers_of(run: Run, federation: Federation) -> Simulator:
    """The clients of another federation, numbered behind those of the run."""
    check_labelled(run.algorithm, federation, run.task)
    run.task.check_samples(federation.train.x, federation.train.y)
    count = len(run.federation)
    return Simulator(
        federation.train,
        run.task,
        seed=run.settings.seed,
        first=count,
        population=count,
        device=run.settings.device,
    )


def personalise_newcomers(run: Run, federation: Federation) -> PersonalModels:
    """What becomes of the models of the run that newcomers fine-tune, and who uses its own.

    The threshold of the distance is that of the clients of the run.
    """
    tuning, members = run.evaluator.tuning, run.personal
    if tuning is None or members is None:
        raise SettingError("`finetune` of the run must be at least 1 for newcomers to fine-tune")
    if federation.unseen:
        raise DataError("newcomers that fine-tune must have training data, got test clients only")
    train = newcomers_of(run, federation)
    others = {
        part: train.with_samples(samples, train.first)
        for part, samples in federation.parts.items()
        if part != "train"
    }
    scorer = SimulatedScorer(federation, train, others)
    serving = Evaluator(run.algorithm, federation, scorer, "train-loss").serve(run.state)
    check_tunable(serving, type(run.algorithm).__name__)
    _, scores = scorer.score_tuned(serving, tuning, "test" if scorer.tested else "train")
    return choose_personal(run.task, serving, scores, members.threshold)
