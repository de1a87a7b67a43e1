import math
import xml.etree.ElementTree as ET

import pytest

from coterie.report.palette import colour
from coterie.report.svg_charts import Panel, Scale, Series, draw_charts

SVG = "{http://www.w3.org/2000/svg}"


def drawn(panels, title=""):
    return ET.fromstring(draw_charts(panels, title))


def texts(picture):
    return [each.text for each in picture.iter(f"{SVG}text")]


def dots(picture):
    return [(float(c.get("cx")), float(c.get("cy"))) for c in picture.iter(f"{SVG}circle")]


def test_a_scale_places_values_by_hand():
    # From 0 to 10 with a margin of 6 %: -0.6 to 10.6. The middle of both is 5.
    scale = Scale.fitting([0, 10], 100, 212, log=False)
    assert scale.place(5) == pytest.approx(156)
    assert scale.place(0) == pytest.approx(100 + 112 * 0.6 / 11.2)
    # On a logarithmic scale 10 is half way from 1 to 100.
    assert Scale.fitting([1, 100], 0, 100, log=True).place(10) == pytest.approx(50)


def test_equal_values_have_a_scale_too():
    for log in (False, True):
        assert Scale.fitting([3, 3, 3], 0, 100, log=log).place(3) == pytest.approx(50)
    assert Scale.fitting([0.0], 0, 100, log=False).ticks()


@pytest.mark.parametrize("low", [1e-6, 0.02, 0.9, 7.0, 4000.0])
@pytest.mark.parametrize("factor", [1.001, 1.4, 3.0, 60.0, 1e7])
@pytest.mark.parametrize("log", [False, True])
def test_every_axis_has_a_few_ticks_inside(low, factor, log):
    scale = Scale.fitting([low, low * factor], 0, 100, log)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 12
    assert all(-0.01 <= scale.place(tick) <= 100.01 for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_points_bars_and_lines_are_at_their_values():
    panel = Panel("t", [Series("a", [1, 10, 100], [2.0, 4.0, 8.0], [0.5] * 3)], log="x")
    picture = drawn([panel])
    (x1, y1), (x2, y2), (x3, y3) = dots(picture)[:3]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx((y2 - y3) / 2, abs=0.2)  # upwards, and twice as far
    bars = [line for line in picture.iter(f"{SVG}polyline") if line.get("stroke-width") == "1"]
    bars = [line.get("points").split() for line in bars if line.get("stroke") == colour(0)]
    assert len(bars) == 3
    for bar in bars:
        (x, low), (same, high) = ([float(v) for v in end.split(",")] for end in bar)
        assert x == same
        assert low - high == pytest.approx((y1 - y2) / 2, abs=0.2)  # 2 x 0.5 against 2


def test_a_line_without_marks_has_a_band():
    series = Series("a", [0, 1], [1.0, 2.0], [0.1, 0.1], marks=False)
    picture = drawn([Panel("t", [series])])
    assert len(list(picture.iter(f"{SVG}polygon"))) == 1
    assert dots(picture) == []


def test_what_cannot_be_drawn_is_left_out():
    y = [1.0, -1.0, math.nan, math.inf, 2.0]
    panel = Panel("t", [Series("a", [1, 2, 3, 4, 5], y, [2.0] * 5)], log="y")
    assert len(dots(drawn([panel]))) == 2
    assert [low for _, low, _, _ in panel.visible(panel.series[0])] == [1.0, 2.0]
    empty = Panel("nothing here", [Series("a", [1.0], [math.nan])])
    assert "nothing here" not in texts(drawn([panel, empty]))
    assert texts(drawn([empty])) == ["no values"]
    assert texts(drawn([])) == ["no values"]


def test_a_common_legend_is_drawn_once_and_others_below_their_panels():
    one = Panel("one", [Series("a", [1, 2], [1.0, 2.0]), Series("b", [1, 2], [2.0, 3.0])])
    two = Panel("two", [Series("a", [1, 2], [5.0, 6.0]), Series("b", [1, 2], [7.0, 9.0])])
    other = Panel("other", [Series("c", [1, 2], [1.0, 2.0])])
    assert texts(drawn([one, two])).count("a") == 1
    assert texts(drawn([one, two, other])).count("a") == 2
    assert texts(drawn([one, two, other])).count("c") == 1


def test_everything_lies_inside_the_picture_and_words_are_escaped():
    panels = [
        Panel(f"<{i}>", [Series("a & b", [1, 2], [i, i + 1.0])], "x < 1", "y", log="xy")
        for i in range(1, 8)
    ]
    picture = drawn(panels, 'a "title" & more')
    width, height = float(picture.get("width")), float(picture.get("height"))
    found = dots(picture)
    assert len(found) >= 14
    assert all(0 < x < width and 0 < y < height for x, y in found)
    for each in picture.iter(f"{SVG}text"):
        assert 0 <= float(each.get("x")) <= width
        assert 0 <= float(each.get("y")) <= height
    assert "<3>" in texts(picture)
    assert 'a "title" & more' in texts(picture)


def test_the_same_numbers_give_the_same_file():
    panel = Panel("t", [Series("a", [3, 1, 2], [1.0, 2.0, 3.0])])
    assert draw_charts([panel]) == draw_charts([panel])
