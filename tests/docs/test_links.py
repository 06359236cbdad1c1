"""Whatever a document links to is there, and every page can be reached."""

from __future__ import annotations

import re

import pytest

from tests.docs.markdown import DOCS, PAGES, ROOT, anchors, inline, links, name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_pictures_are_there(page):
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {path}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {path}#{anchor}"


ROOMS = ("", "psac", "psac/gradients", "psac/gradients/rules")  # paths may be relative to these


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_of_the_code_that_are_named_are_there(page):
    """Paths in backticks; on the page of the engine, names of files alone as well."""
    shown = r"(?:psac|paper|tests|docs|benchmarks|results)/[\w./-]*"
    if page.name == "engine.md":
        shown += r"|[\w/]+(?:/|\.py|\.c)"
    for code in inline(page):
        if re.fullmatch(shown, code):
            assert any((ROOT / room / code).exists() for room in ROOMS), f"{name(page)}: {code}"


def test_every_page_is_in_the_navigation_and_there():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"- (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in DOCS)


def test_the_reader_of_links_sees_what_is_broken(tmp_path):
    page = tmp_path / "page.md"
    page.write_text('[a](b.md#c) `[no](x.md)` <img src="d.png"> [e](https://f)\n```\n[g](h)\n```\n')
    assert links(page) == [("b.md", "c"), ("d.png", "")]


def test_pictures_are_small():
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert picture.stat().st_size < 300_000, picture.name
