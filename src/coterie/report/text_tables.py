"""Tables as text: Markdown for a README, LaTeX for a paper."""

from __future__ import annotations


def markdown_table(head: list[str], rows: list[list[str]], caption: str = "") -> str:
    """A table for a README, with what it shows below it."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    below = f"\n\n{caption}" if caption else ""
    table = "\n".join(
        "| " + " | ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
    return table + below


def latex_table(head: list[str], rows: list[list[str]], caption: str = "") -> str:
    """A table for a paper; what it shows is a comment above it."""

    def line(cells: list[str]) -> str:
        texts = (c.replace("_", " ").replace("±", r"$\pm$").replace("%", r"\%") for c in cells)
        return " & ".join(texts) + r" \\"

    return "\n".join(
        [
            *([f"% {caption}"] if caption else []),
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\hline",
            line(head),
            r"\hline",
            *map(line, rows),
            r"\hline",
            r"\end{tabular}",
        ]
    )


TABLE_FORMATS = {"markdown": markdown_table, "latex": latex_table}
