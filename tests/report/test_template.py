from coterie.files import write_text
from coterie.report.run_page import render_run
from coterie.report.template import LIBRARY, chart_library, share_library, shared_library


def test_runs_of_a_sweep_share_what_draws_their_charts(tmp_path, make_run):
    folder = make_run()
    assert shared_library(folder) == ""
    share_library(folder.parent)
    library = folder.parent / LIBRARY
    assert library.read_text() == chart_library()
    assert (folder / shared_library(folder)).resolve() == library.resolve()
    whole, shared = render_run(folder), render_run(folder, library=shared_library(folder))
    assert len(whole) - len(shared) > 4e6
    assert f'<script src="../{LIBRARY}"></script>' in shared
    assert "script-src 'unsafe-inline' 'self' file:;" in shared
    assert "script-src 'unsafe-inline';" in whole


def test_what_is_there_is_not_written_again(tmp_path):
    write_text(tmp_path / LIBRARY, "mine")
    share_library(tmp_path)
    assert (tmp_path / LIBRARY).read_text() == "mine"
