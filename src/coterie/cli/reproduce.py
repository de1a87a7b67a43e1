"""`coterie reproduce`: run a table or figure of the papers, or list all of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli.common import add_sweep_options, run_sweep
from coterie.core.errors import CoterieError, SettingError

if TYPE_CHECKING:
    from coterie.experiment.recipe_tables import Number
    from coterie.experiment.recipes import Recipe


def add_reproduce(commands: Any) -> None:
    """Add `coterie reproduce` to the command line."""
    reproduce = commands.add_parser("reproduce", help="run a table or figure of the papers")
    reproduce.add_argument("name", nargs="?", help="as in fpfc/table1; without it, a list of all")
    reproduce.add_argument("--quick", action="store_true", help="in minutes, with fewer rounds")
    reproduce.add_argument("--full", action="store_true", help="in the setting of the paper")
    reproduce.add_argument("--seeds", type=int, default=0, metavar="N", help="in place of its own")
    reproduce.add_argument("--stored", action="store_true", help="what was measured; runs nothing")
    reproduce.add_argument("--only", default="", metavar="TEXT", help="lines with this in the name")
    add_sweep_options(reproduce, "runs/reproduce")
    reproduce.set_defaults(command=reproduce_command)


def reproduce_command(options: argparse.Namespace) -> int:
    from coterie.experiment import recipes

    if options.name is None:
        print(recipes.recipe_list())
        return 0
    if options.quick and options.full:
        raise SettingError("a recipe is run --quick or --full, not both")
    recipe = recipes.find_recipe(options.name)
    mode = "full" if options.full else "quick"
    seeds = options.seeds or recipe.seeds[mode]
    if seeds < 1:
        raise SettingError(f"--seeds must be at least 1, got {seeds}")
    if options.stored:
        print_numbers(recipe, mode, recipe.stored_numbers(mode, options.only))
        return 0
    place = options.out or Path("runs") / "reproduce"
    print(
        f"{recipe.item} of {recipe.paper}\n{recipe.title}\n"
        f"{mode}: about {recipe.minutes[mode]:g} minutes on two cores for all of it",
        file=sys.stderr,
    )
    jobs = recipe.jobs(mode, seeds, place, options.only)
    results, failure = run_sweep(recipe.name, jobs, options.workers, "the same command continues")
    numbers = recipe.numbers(mode, seeds, results, options.only)
    folders = recipe.run_folders(mode, seeds, place, options.only)
    saved = recipe.save_numbers(mode, seeds, numbers, folders)
    print_numbers(recipe, mode, numbers)
    picture = recipe.save_picture(mode)
    drawn = "" if picture is None else f" and {picture}"
    print(f"\nWritten to {saved}{drawn}; the runs are in {place}")
    if failure:
        raise CoterieError(failure)
    return 0


def print_numbers(recipe: Recipe, mode: str, numbers: dict[str, dict[str, Number]]) -> None:
    """Print numbers of a recipe beside the published ones, its slopes, its tables and its notes."""
    from coterie.experiment import rates
    from coterie.report.text_tables import markdown_table

    head, rows, orders = recipe.verdicts(numbers)
    if rows:
        print(markdown_table(head, rows))
    print("\n".join(orders))
    if recipe.rates:
        print("\n" + markdown_table(rates.HEAD, recipe.rate_rows(mode)))
    for table in recipe.tables(mode):
        print("\n" + table)
    if recipe.notes:
        print("\n" + recipe.notes.strip())
