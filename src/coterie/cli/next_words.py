"""What may follow a line of the command line: commands, options, names, settings and values."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import fields

from coterie.cli.overview import visible_commands
from coterie.shelves import ALGORITHMS, FEDERATIONS, NETWORKS, SHELVES

RUNS = ("run", "compare", "check")  # commands whose words are names and settings
KINDS = {"algorithm": ALGORITHMS, "federation": FEDERATIONS}
FORMATS = ("markdown", "latex", "csv")


def complete_line(line: str, parser: argparse.ArgumentParser) -> list[str]:
    """The words that the last one of a line may become; none: it may be a file.

    `line` begins with the name of the program. What is behind a space is a new word.
    """
    *before, word = split_line(line)[1:]
    commands = subcommands(parser)
    if not before:
        return beginning(word, [*commands, "--help", "--version"])
    command = before[0]
    if command not in commands:
        return []
    if word.startswith("-"):
        return beginning(word, re.findall(r"--[\w-]+", commands[command].format_help()))
    if before[-1] == "--format":
        return beginning(word, FORMATS)
    words = [each for each in before[1:] if not each.startswith("-")]
    return beginning(word, words_of(command, words, word, parser))


def split_line(line: str) -> list[str]:
    """The words of a line, the last of them maybe empty; one that is still quoted is not split.

    >>> split_line("coterie run "), split_line("coterie run if")
    (['coterie', 'run', ''], ['coterie', 'run', 'if'])
    """
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    return [*words, ""] if line[-1:].isspace() else words


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of the parser of all."""
    found: dict[str, argparse.ArgumentParser] = getattr(parser, "commands", {})
    return {name: found[name] for name in visible_commands(found)}


def beginning(word: str, known: Iterable[str]) -> list[str]:
    """Those that begin as the word does."""
    return sorted({each for each in known if each.startswith(word)})


def words_of(
    command: str, words: Sequence[str], word: str, parser: argparse.ArgumentParser
) -> list[str]:
    """What a word of a command may be, behind `words` of it."""
    if command in RUNS:
        return words_of_run(command, words, word)
    if words:
        return []
    if command == "describe":
        return [name for shelf in SHELVES.values() for name in shelf]
    if command == "help":
        return list(subcommands(parser))
    if command == "completion":
        return ["bash", "zsh", "fish"]
    if command == "reproduce":
        from coterie.experiment.recipes import all_recipes

        return [recipe.name for recipe in all_recipes()]
    return actions_of(subcommands(parser)[command])


def actions_of(parser: argparse.ArgumentParser) -> list[str]:
    """The actions of a command that has some, as its help lists them."""
    return re.findall(r"^    (\w+) ", parser.format_help(), flags=re.MULTILINE)


def words_of_run(command: str, words: Sequence[str], word: str) -> list[str]:
    """Names and settings of a run, or of several that are compared."""
    names = [each for each in words if "=" not in each]
    several = command == "compare"
    if "=" in word:
        key, _, _ = word.partition("=")
        return [f"{key}={value}" for value in values_of(key.rpartition(".")[2], names)]
    if len(names) < len(KINDS):
        shelf = list(KINDS.values())[len(names)]
        # Names of several are given with commas between.
        chosen = word.split(",")[:-1] if several else []
        found = [",".join([*chosen, name]) for name in shelf if name not in chosen]
        if beginning(word, found):
            return found
    given = {each.partition("=")[0] for each in words}
    known = settings_known(names) + (["seeds"] if several else [])
    if several and names:
        known += own_settings(names[0].split(","))
    return [f"{name}=" for name in known if name not in given]


def owners_of(names: Sequence[str]) -> list[type]:
    """The classes of settings of runs of these names; a name that is not there yet may be any."""
    from coterie.experiment.plan import find_owners, names_a_file

    first, second = [*names, *["ifca", "table"][len(names) :]][:2]
    algorithms, federations = first.split(","), second.split(",")
    return [
        owner
        for algorithm in algorithms
        for federation in federations
        for owner in find_owners(algorithm, "table" if names_a_file(federation) else federation)
    ]


def settings_known(names: Sequence[str]) -> list[str]:
    """The settings of runs of these names."""
    from coterie.experiment.settings import setting_names

    return setting_names(*owners_of(names))


def own_settings(algorithms: Sequence[str]) -> list[str]:
    """The settings of one algorithm alone among several that are compared, as in ifca.k."""
    from coterie.experiment.settings import setting_names
    from coterie.registry import resolve

    return [f"{a}.{name}" for a in algorithms for name in setting_names(resolve("algorithm", a))]


def values_of(key: str, names: Sequence[str]) -> list[str]:
    """The values that a setting can be given: the words that it takes, networks, true or false."""
    if key == "network":
        return list(NETWORKS)
    from coterie.experiment.settings import settings_of

    found: list[str] = []
    for owner in owners_of(names):
        rules = {each.name: each.metadata.get("rule") for each in fields(owner)}
        for setting in settings_of(owner):
            if setting.name == key:
                found += ["true", "false"] if setting.type is bool else []
                found += getattr(rules[key], "choices", ())
    return found
