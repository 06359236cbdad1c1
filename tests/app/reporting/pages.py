"""Pages as a test reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

from psac.app.reporting import report

VOID = {"img", "meta"}


def page_of(folders: Path | Iterable[Path], tmp_path: Path, *, publish: bool = False) -> str:
    return report(folders, tmp_path / "page.html", publish=publish).read_text(encoding="utf-8")


def words_of(page: str) -> str:
    """What a person reads, without the style sheet, in one line."""
    body = page[page.index("<body>") :]
    text = re.sub(r"<[^>]*>", " ", body)
    return re.sub(r"\s+", " ", text.replace("\N{NARROW NO-BREAK SPACE}", " "))


def public_part(page: str) -> str:
    """The page without its marked section."""
    start, end = page.index('<section class="private"'), page.index("<footer>")
    return page[:start] + page[end:]


class Tags(HTMLParser):
    """All elements with their attributes; an element that is not closed is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(page)
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open
        assert self._open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]
