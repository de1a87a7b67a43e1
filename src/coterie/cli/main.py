"""The command line: `coterie run`, `predict`, `report`, `compare`, `data`, `deploy` and more."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from coterie.cli.check import add_check
from coterie.cli.compare import add_compare
from coterie.cli.completion import add_completion
from coterie.cli.data import add_data
from coterie.cli.deploy import add_deploy
from coterie.cli.export import add_export
from coterie.cli.list import add_list
from coterie.cli.overview import FIRST_STEPS, add_help, check_command_name
from coterie.cli.placeholders import use_placeholders
from coterie.cli.predict import add_predict
from coterie.cli.report import add_report
from coterie.cli.reproduce import add_reproduce
from coterie.cli.run import add_run
from coterie.core.errors import CoterieError, CoterieWarning, SettingError, one_sentence
from coterie.core.imports import describe_failure, exception_text
from coterie.version import __version__

MISTAKE = 2  # exit code for wrong input
INTERRUPTED = 130  # exit code after Ctrl-C
OUT_OF_MEMORY = (
    "the memory of this machine is not enough: take a smaller network, fewer clients or starts, or "
    "fewer clients at a time with `chunk`"
)
RETRY = 0.02  # seconds until an interrupt is tried again that came during an import
WHOLE_ERRORS = "COTERIE_TRACEBACK"  # if set, errors in code of the user's own have a traceback


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all others of coterie are."""

    commands: Collection[str] = ()  # of the parser of all commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options of some words, and the words that are left; a wrong command is refused."""
        word = next(iter(args or ()), "-")
        if self.commands and not word.startswith("-"):
            check_command_name(word, self.commands)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message} (`coterie --help` shows how it is used)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    handle_interrupts()
    alone = arguments is None  # the process does nothing but this command
    try:
        parser, words = build_parser(), list(sys.argv[1:] if arguments is None else arguments)
        if nul := next((word for word in words if "\0" in word), None):
            raise SettingError(f"words of a command must be without NUL characters, got {nul!r}")
        if words in ([], ["help"]):
            parser.print_help()
            return 0
        options, rest = parser.parse_known_args(words)
        # Words behind an option, as in `coterie run ifca --json k=4`, belong to those before it.
        strays = [word for word in rest if word.startswith("-")]
        if strays or (rest and "words" not in options):
            raise SettingError(f"unrecognized arguments: {' '.join(strays or rest)}")
        options.words = [*getattr(options, "words", []), *rest]
        warnings.showwarning = show_warning
        if alone and "prints_names" in options and options.prints_names(options):
            use_placeholders()
        with working_directory_importable():
            code = int(options.command(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has closed it, as `head` does: nothing may be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as interrupt:
        print("; ".join(["coterie: interrupted", *interrupt.args]), file=sys.stderr)
        return INTERRUPTED
    except (CoterieError, OSError) as error:
        print(f"coterie: {one_sentence(str(error))}", file=sys.stderr)
    except Exception as error:
        # An error in a method, a network or data of the user's own is told as other mistakes are.
        if is_out_of_memory(error):
            print(f"coterie: {OUT_OF_MEMORY}", file=sys.stderr)
            return MISTAKE
        sentence = describe_failure(error)
        if sentence is None or os.environ.get(WHOLE_ERRORS):
            raise
        advice = f"; {WHOLE_ERRORS}=1 shows all of it"
        print(f"coterie: {one_sentence(sentence, advice)}", file=sys.stderr)
    return MISTAKE


def is_out_of_memory(error: Exception) -> bool:
    """Whether there was not enough memory, by Python or by PyTorch."""
    return isinstance(error, MemoryError) or "can't allocate memory" in exception_text(error)


@contextmanager
def working_directory_importable() -> Iterator[None]:
    """Let names of the user's own be files beside the user, as in `mymethod:Method`.

    The folder comes last: a file of the user's never hides a library.
    """
    here = os.getcwd()
    known = here in sys.path or "" in sys.path
    if not known:
        sys.path.append(here)
    try:
        yield
    finally:
        if not known and here in sys.path:
            sys.path.remove(here)


def handle_interrupts() -> None:
    """Let SIGTERM end a command as Ctrl-C does: with a checkpoint, and without what it started.

    Where Ctrl-C is ignored, as in what a shell starts in the background, it stays so.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, interrupt_outside_imports)
        signal.signal(signal.SIGTERM, interrupt_outside_imports)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt_outside_imports)


def interrupt_outside_imports(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but in the middle of an import only a little later.

    An import that is interrupted may swallow that, or end in another error of the library's.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.setitimer(signal.ITIMER_REAL, RETRY)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `command`, the function that carries it out."""
    top = Parser(
        prog="coterie",
        description="Clustered federated learning: find the groups, train a model for each.",
        epilog=FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"coterie {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    first = (add_run, add_predict, add_report, add_compare, add_reproduce)
    for add_command in (*first, add_export, add_list, add_check, add_data, add_deploy):
        add_command(commands)
    add_completion(commands)
    add_help(commands)
    top.commands = commands.choices
    return top


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Warnings of coterie as one line; those of libraries are not the user's concern here."""
    if issubclass(category, CoterieWarning):
        print(f"coterie: warning: {one_sentence(str(message))}", file=sys.stderr)
