"""One run as one web page that opens offline: figures, tables, settings and the command."""

from coterie.report.page import render

__all__ = ["render"]
