"""Numbers as a reader wants to see them."""

import math
from collections.abc import Sequence
from itertools import pairwise

MISSING = "–"


def count(value: float | None) -> str:
    """A whole number with thousands separated.

    >>> count(12345)
    '12,345'
    """
    return MISSING if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal.

    >>> percent(0.9123), percent(None)
    ('91.2%', '–')
    """
    return MISSING if value is None or not math.isfinite(value) else f"{value:.1%}"


def decimal(value: float | None) -> str:
    """A number with four significant digits.

    >>> decimal(0.123456), decimal(1.0), decimal(0.0000123456)
    ('0.1235', '1', '1.235e-05')
    """
    return MISSING if value is None or not math.isfinite(value) else f"{value:.4g}"


def byte_size(value: float | None) -> str:
    """Bytes in the largest decimal unit that keeps the number at one or above.

    >>> byte_size(999), byte_size(1_234_567)
    ('999 B', '1.23 MB')
    """
    if value is None:
        return MISSING
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        # The bound is where three digits would round up into the next unit.
        if abs(amount) < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB" if amount < 999.5 else f"{amount:,.0f} TB"


def duration(seconds: float | None) -> str:
    """Seconds as hours, minutes or seconds.

    >>> duration(0.1234), duration(83), duration(7380)
    ('0.123 s', '1 min 23 s', '2 h 03 min')
    """
    if seconds is None:
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def round_ranges(numbers: Sequence[int]) -> str:
    """Round numbers, in rising order, as a phrase in which neighbours are joined.

    >>> round_ranges([3]), round_ranges([1, 2, 3, 7])
    ('round 3', 'rounds 1–3, 7')
    """
    breaks = [i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    bounds = [0, *breaks, len(numbers)]
    spans = [numbers[start:stop] for start, stop in pairwise(bounds)]
    joined = [str(s[0]) if len(s) == 1 else f"{s[0]}–{s[-1]}" for s in spans]
    return f"round{'s' if len(numbers) > 1 else ''} {', '.join(joined)}"
