"""Small images inside the page: rows of values in 0..255 become a PNG file in a data URL."""

import base64
import struct
import zlib
from typing import Any

from psac.app.reporting.html import Html, element


def thumbnail(pixels: Any, words: str) -> Html | None:
    """An image of rows of values in 0..255, grey or red, green and blue."""
    data = png(pixels)
    if data is None:
        return None
    address = "data:image/png;base64," + base64.b64encode(data).decode()
    return element("img", src=address, alt=words, title=words)


def png(pixels: Any) -> bytes | None:
    """The pixels as a PNG file; None if they are not pixels."""
    try:
        rows = [[_colour(pixel) for pixel in row] for row in pixels]
        depth = len(rows[0][0])
        widths, depths = {len(row) for row in rows}, {len(p) for row in rows for p in row}
    except (TypeError, IndexError, ValueError):
        return None
    if len(widths) != 1 or depths != {depth} or depth not in (1, 3):
        return None
    raw = b"".join(b"\0" + b"".join(row) for row in rows)
    kind = 0 if depth == 1 else 2
    header = struct.pack(">IIBBBBB", widths.pop(), len(rows), 8, kind, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _colour(pixel: Any) -> bytes:
    channels = pixel if isinstance(pixel, list) else [pixel]
    return bytes(min(max(round(float(value)), 0), 255) for value in channels)


def _chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)
