"""Pages from templates: HTML, scripts, styles and data in one file."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.names import short_name
from coterie.files import without_infinities, write_text
from coterie.report import number_format as numbers

if TYPE_CHECKING:
    from markupsafe import Markup

SCRIPTS = ("charts.js", "map.js", "clients.js", "page.js")
# What draws the charts, 5 MB: in a page, or in the folder above the runs of a sweep, for all.
LIBRARY = "plotly.min.js"


def fill_template(
    template: str,
    context: dict[str, Any],
    data: dict[str, Any],
    live: bool = False,
    library: str = "",
) -> str:
    """A template with everything it needs inside; `data` is what the scripts read.

    A `live` page asks the server that it came from for news. With `library`, the path to it from
    the page, what draws the charts is not inside but there.
    """
    # Imported where pages are drawn: most of a small run is over before.
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    environment = Environment(loader=PackageLoader("coterie.report", ""), autoescape=True)
    environment.filters |= {
        "count": numbers.count,
        "percent": numbers.percent,
        "decimal": numbers.decimal,
        "size": numbers.byte_size,
        "duration": numbers.duration,
        "short": short_name,
    }
    here = resources.files("coterie.report")
    script = "\n".join((here / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return environment.get_template(template).render(
        context,
        live=live,
        data=json_for_script(data),
        library=library,
        plotly=Markup("" if library else chart_library()),
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
    )


def chart_library() -> str:
    """What draws the charts of a page, as a script."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text


def share_library(folder: Path) -> None:
    """Put what draws the charts into a folder of runs, once for the pages of all."""
    if not (folder / LIBRARY).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / LIBRARY, chart_library())


def shared_library(folder: Path) -> str:
    """The path from a run's folder to what draws the charts of all runs beside it; else empty."""
    return f"../{LIBRARY}" if (folder.resolve().parent / LIBRARY).is_file() else ""


def json_for_script(value: Any) -> Markup:
    """JSON that may stand in a script element: nothing in it can end the element."""
    from markupsafe import Markup

    finite = without_infinities(value, digits=6)  # more than any cell or chart shows
    text = json.dumps(finite, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
