"""Axes hold their values, marks lie where they should, thumbnails are what they show."""

from __future__ import annotations

import base64
import re
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psac.app.reporting import plots
from psac.app.reporting.axes import Axis
from psac.app.reporting.html import Html, element
from psac.app.reporting.thumbnails import png, thumbnail

numbers = st.floats(-1e9, 1e9).map(lambda value: float(f"{value:.6g}"))
positive = st.floats(1e-12, 1e12)


@given(st.lists(numbers, min_size=1, max_size=8), st.booleans())
def test_a_linear_axis_holds_all_values_between_its_ends(values, tight):
    axis = Axis.over(values, "x", tight=tight)
    check(axis, values)


@given(st.lists(positive, min_size=1, max_size=8), st.booleans())
def test_a_logarithmic_axis_holds_all_values_between_its_ends(values, tight):
    axis = Axis.over(values, "x", log=True, tight=tight)
    check(axis, values)


def check(axis, values):
    room = 1e-6 * (axis.high - axis.low)
    assert axis.low < axis.high
    assert all(axis.low - room <= value <= axis.high + room for value in values)
    places = [tick.value for tick in axis.ticks]
    assert places == sorted(set(places))
    assert len(places) <= 9
    assert all(axis.low - room <= place <= axis.high + room for place in places)
    assert axis.place(axis.low) == pytest.approx(0.0)
    assert axis.place(axis.high) == pytest.approx(1.0)


def test_an_axis_without_a_value_is_an_axis():
    assert Axis.over([float("nan")], "x").low < 1
    assert Axis.over([0.0, -1.0], "x", log=True).low > 0


def test_a_line_goes_through_its_points():
    x, y = Axis.over([0, 10], "x"), Axis.over([0, 1], "y")
    mark = plots.line(x, y, [(0, 0), (5, 0.5), (7, float("nan")), (10, 1)])
    assert 'd="M0.0 1000.0L500.0 500.0L1000.0 0.0"' in mark.drawing


def test_a_trend_keeps_the_ends_of_its_line():
    x, y = Axis.over([0, 200], "x"), Axis.over([0, 200], "y")
    _, smooth = plots.trend(x, y, [(float(i), float(i)) for i in range(201)], colour=0)
    assert re.search(r'd="M0.0 1000.0L.*L1000.0 0.0"', smooth.drawing)


def test_hints_cover_the_plot_without_gaps():
    x = Axis.over([0, 10], "x")
    drawn = plots.hints(x, [(0, "a"), (4, "b <"), (10, "c")])
    boxes = re.findall(r'x="([\d.]+)" y="0" width="([\d.]+)"', drawn)
    assert [(float(a), float(b)) for a, b in boxes] == [(0, 200), (200, 500), (700, 300)]
    assert "<title>b &lt;</title>" in drawn


def test_text_is_escaped_and_html_is_not():
    assert element("p", "<b>", Html("<i></i>"), title='"<') == (
        '<p title="&quot;&lt;">&lt;b&gt;<i></i></p>'
    )


def decoded(data: bytes) -> list[bytes]:
    """The rows of a PNG file, with their checksums checked."""
    place, body, width, depth = 8, b"", 0, 1
    while place < len(data):
        (length,), name = struct.unpack(">I", data[place : place + 4]), data[place + 4 : place + 8]
        content = data[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert check == zlib.crc32(name + content)
        if name == b"IHDR":
            width, _, bits, kind = struct.unpack(">IIBB", content[:10])
            assert bits == 8
            depth = 3 if kind == 2 else 1
        body += content if name == b"IDAT" else b""
        place += 12 + length
    raw, stride = zlib.decompress(body), 1 + width * depth
    return [raw[i + 1 : i + stride] for i in range(0, len(raw), stride)]


def test_a_thumbnail_holds_its_pixels():
    assert decoded(png([[0, 128, 255], [1.4, -3, 300]]) or b"") == [b"\0\x80\xff", b"\1\0\xff"]
    assert decoded(png([[[1, 2, 3]], [[4, 5, 6]]]) or b"") == [b"\1\2\3", b"\4\5\6"]
    image = thumbnail([[1]], "a < b")
    assert image is not None
    assert 'alt="a &lt; b"' in image
    address = re.search(r"base64,([^\"]+)", image)
    assert address is not None
    assert decoded(base64.b64decode(address[1])) == [b"\1"]


@pytest.mark.parametrize("wrong", [None, "text", [], [[]], [[1], [1, 2]], [["x"]], [[[1, 2]]], 7])
def test_what_is_no_picture_has_no_thumbnail(wrong):
    assert thumbnail(wrong, "") is None
