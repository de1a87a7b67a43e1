"""Names of algorithms, federations and networks as text: `ifca`, or `package.module:name`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable


def short_name(name: str) -> str:
    """A name without the package that it is from.

    >>> short_name("mypackage.mine:Method"), short_name("ifca")
    ('Method', 'ifca')
    """
    return name.rpartition(":")[2]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """What to call some things beside each other: short, unless two would be called the same.

    >>> short_names(["ifca", "one:Method", "other:Method", "one:Soft"])
    {'ifca': 'ifca', 'one:Method': 'one:Method', 'other:Method': 'other:Method', 'one:Soft': 'Soft'}
    """
    different = list(dict.fromkeys(names))
    counts = Counter(map(short_name, different))
    return {n: short_name(n) if counts[short_name(n)] == 1 else n for n in different}


def file_name(name: str) -> str:
    """A name as part of a file's name: different for different names, and valid everywhere.

    >>> file_name("mypackage.mine:Method"), file_name("fpfc-l1")
    ('mypackage.mine+Method', 'fpfc-l1')
    """
    return re.sub(r"[^\w.-]", "+", name)
