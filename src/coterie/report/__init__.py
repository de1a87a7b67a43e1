"""One run, or several side by side, as one web page that opens offline."""

from coterie.report.live import HOME, PORT, server
from coterie.report.one import render
from coterie.report.reading import RunFiles, read
from coterie.report.several import Groups, grouped, render_several

__all__ = [
    "HOME",
    "PORT",
    "Groups",
    "RunFiles",
    "grouped",
    "read",
    "render",
    "render_several",
    "server",
]
