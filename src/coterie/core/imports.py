"""Import something of the user's by its name `package.module:name`; a mistake is one sentence."""

from __future__ import annotations

import importlib
import re
import sysconfig
import traceback
from functools import reduce
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, get_type_hints

from coterie.core.errors import SettingError, did_you_mean

PACKAGES: set[str] = set()  # those that a name of the user's was looked for in

DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def load_object(path: str) -> Any:
    """What `package.module:name` names.

    >>> load_object("coterie.core.errors:SettingError").__name__
    'SettingError'
    >>> load_object("coterie.core.seeds:derived")
    Traceback (most recent call last):
    ...
    coterie.core.errors.SettingError: coterie.core.seeds has no derived; did you mean `derive`?
    """
    where, _, name = path.partition(":")
    if not (DOTTED.fullmatch(where) and DOTTED.fullmatch(name)):
        raise SettingError(f"a name of your own is written package.module:name, got {path}")
    module = load_module(where, name)
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        known = [each for each in vars(module) if not each.startswith("_")]
        raise SettingError(f"{where} has no {name}{did_you_mean(name, known)}") from None


def load_module(where: str, name: str) -> ModuleType:
    """The module of a name; what goes wrong in it is told with file and line."""
    importlib.invalidate_caches()  # a file may have been written a moment ago
    PACKAGES.add(where.partition(".")[0])
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise import_failure(where, error) from error
        if where.endswith(".py"):
            advice = f"write {where.removesuffix('.py')}:{name}"
        else:
            advice = "install it, or run coterie in the folder where it lies"
        raise SettingError(f"no module is named {error.name}: {advice}") from None
    except (Exception, SystemExit) as error:
        raise import_failure(where, error) from error


def import_failure(where: str, error: BaseException) -> SettingError:
    """The sentence about a module that cannot be imported: what is wrong, in which file and line.

    The line is the last one of the user's own code that was reached.
    """
    if isinstance(error, SyntaxError) and error.filename:
        file, line, reason = error.filename, error.lineno or 0, error.msg
    else:
        frame, line = own_frame(error) or list(traceback.walk_tb(error.__traceback__))[-1]
        file, reason = frame.f_code.co_filename, exception_text(error) or "it ends the program"
    reason = " ".join(reason.split())
    kind = type(error).__name__
    return SettingError(f"{where} cannot be imported: {file}, line {line}: {kind}: {reason}")


def exception_text(error: BaseException) -> str:
    """The text of an exception; empty where a class of the user's own fails to give one."""
    try:
        return str(error)
    except Exception:
        return ""


def describe_failure(error: BaseException) -> str | None:
    """The sentence about an error in code of the user's, with its line; None if it is not there.

    It may go over a network, so that folders are left out.
    """
    found = own_frame(error)
    if found is None:
        return None
    frame, line = found
    text = ": ".join([type(error).__name__, " ".join(exception_text(error).split())]).removesuffix(
        ": "
    )
    code = frame.f_code
    return f"{text} ({Path(code.co_filename).name}, line {line}, in {code.co_name})"


def own_frame(error: BaseException) -> tuple[FrameType, int] | None:
    """The last line of the user's own code that was reached before an error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return next((each for each in reversed(frames) if is_own_code(each[0])), None)


def is_own_code(frame: FrameType) -> bool:
    """Whether a line is in a package that the user named, or at least in no library."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    if package in PACKAGES - {"coterie"}:
        return True
    file = Path(frame.f_code.co_filename)
    paths = sysconfig.get_paths()
    libraries = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    libraries.append(Path(__file__).parent.parent)
    return file.exists() and not any(file.is_relative_to(library) for library in libraries)


def read_annotations(owner: Any, *, with_roles: bool = False) -> dict[str, Any]:
    """The types of a function or class, maybe with roles; refuse names that cannot be found."""
    try:
        return get_type_hints(owner, include_extras=with_roles)
    except NameError as error:
        raise SettingError(
            f"the annotations of {owner.__qualname__} must be names that its module has: {error}"
        ) from error
