"""Pages from templates: HTML, scripts, styles and data in one file."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from coterie.core.names import short_name
from coterie.files import without_infinities
from coterie.report import number_format as numbers

if TYPE_CHECKING:
    from markupsafe import Markup

SCRIPTS = ("charts.js", "map.js", "clients.js", "page.js")


def fill_template(
    template: str, context: dict[str, Any], data: dict[str, Any], live: bool = False
) -> str:
    """A template with everything it needs inside; `data` is what the scripts read.

    A `live` page asks the server that it came from for news.
    """
    # Imported where pages are drawn: most of a small run is over before.
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

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
        plotly=Markup(get_plotlyjs()),
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
    )


def json_for_script(value: Any) -> Markup:
    """JSON that may stand in a script element: nothing in it can end the element."""
    from markupsafe import Markup

    finite = without_infinities(value, digits=6)  # more than any cell or chart shows
    text = json.dumps(finite, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
