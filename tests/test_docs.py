"""Every algorithm has a page, and all pages have the same headings."""

from pathlib import Path

import pytest

from coterie.registry import ALGORITHMS

DOCS = Path(__file__).parent.parent / "docs"
HEADINGS = [
    "What it does",
    "When to use it",
    "Try it",
    "Settings",
    "What leaves a client",
    "Numbers",
    "Differences from the paper",
    "Traps",
]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_a_page_with_the_same_headings_as_the_others(name):
    text = (DOCS / f"{name}.md").read_text()
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == HEADINGS
    assert f"](../src/coterie/algorithms/{name.replace('-', '_')}.py)" in text


def test_links_between_files_lead_somewhere():
    import re

    root = DOCS.parent
    for page in [root / "README.md", root / "CONTRIBUTING.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
