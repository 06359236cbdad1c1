"""The site builds without warnings, fetches nothing from elsewhere, and has every public name."""

from __future__ import annotations

import html
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT

PUBLIC = [
    "psac",
    "psac.auditing",
    "psac.integrations.transformers",
    *(f"psac.app.{part}" for part in ["data", "models", "training", "reporting"]),
    "paper.theory",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


def text(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_page_is_built(site):
    for page in DOCS:
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists()


def test_nothing_is_fetched_from_elsewhere(site):
    fetched = r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|<link[^>]+href="https?://'
    for page in site.rglob("*.html"):
        found = re.search(fetched, page.read_text())
        # A canonical address would be a link too, and would not be fetched: the site has none.
        assert found is None, f"{page.name}: {found and found[0]}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text()), style.name


def test_examples_and_commands_are_filled_in(site):
    examples = text(site / "examples.html")
    assert "def main() -> None:" in examples
    commands = (site / "command-line.html").read_text()
    assert "psac train" in commands
    assert "--resume" in commands
    assert "<!-- co" not in commands + examples


def test_links_to_code_lead_to_its_source(site):
    assert 'href="source/psac/private/run.html"' in (site / "engine.html").read_text()
    assert "def release(self) -> None:" in text(site / "source" / "psac" / "private" / "run.html")


def test_the_reference_is_of_objects_where_a_file_has_the_same_name():
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for dotted in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            file = ROOT / (dotted.replace(".", "/") + ".py")
            assert not file.exists(), (
                f"{dotted} would show the file: write it once more behind a dot"
            )


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module, site):
    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    headings = re.sub(r"<[^>]+>", "", " ".join(re.findall(r"<h3.*?</h3>", pages, re.DOTALL)))
    found = set(re.findall(r"(?:psac|paper)(?:\.\w+)+", headings))
    for public in importlib.import_module(module).__all__:
        short = module.replace("psac.app.", "psac.")
        assert found & {f"{module}.{public}", f"{short}.{public}", f"psac.{public}"}, public
