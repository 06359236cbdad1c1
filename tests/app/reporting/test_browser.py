"""The page in a real browser: no complaint, every figure to be seen, no wider than a phone."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from psac.app.reporting import report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
WIDTHS = (390, 1200)
MEASURE = """
addEventListener("load", () => setTimeout(() => {
  const box = e => { const b = e.getBoundingClientRect(); return [b.width, b.height]; };
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const all = (what, measure) => [...page.querySelectorAll(what)].map(measure);
    return {
      page: frame.title,
      overflow: root.scrollWidth - frame.contentWindow.innerWidth,
      figures: all("figure, [role=img], section", box),
      images: all("img", e => [e.naturalWidth, ...box(e)]),
      marks: all("svg path.line, svg path.area", e => {
        const b = e.getBBox(); return b.width + b.height; }),
      labels: all(".plot span", box),
    };
  });
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
}, 300));
"""

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser on PATH; looked for {', '.join(NAMES)}"
)


def opened(page: Path, profile: Path) -> tuple[str, str]:
    """The document after loading, and what the browser said."""
    command = [str(BROWSER), "--headless=new", "--disable-gpu", "--no-first-run",
               "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=4000",
               f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.insert(1, "--no-sandbox")  # as root, in a container, there is no other way
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def test_the_browser_has_no_complaint(runs, tmp_path):
    page = report(runs["secure"], tmp_path / "page.html")
    document, said = opened(page, tmp_path / "profile")
    assert "Privacy card" in document
    complaints = [line for line in said.splitlines() if "CONSOLE" in line]
    assert not complaints


def test_every_figure_is_seen_and_nothing_is_wider_than_the_page(runs, tmp_path):
    several = [runs[name] for name in ("secure", "again", "auto_s", "auto_s-again", "killed")]
    pages = {"one": runs["secure"], "seeded": runs["seeded"], "several": several}
    frames = []
    for name, folders in pages.items():
        text = report(folders, tmp_path / f"{name}.html").read_text()
        frames += [
            f'<iframe title="{name} {width}" style="width:{width}px; height:900px; border:0" '
            f'srcdoc="{html.escape(text)}"></iframe>'
            for width in WIDTHS
        ]
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(f"<body>{''.join(frames)}<script>{MEASURE}</script></body>")
    document, _ = opened(wrapper, tmp_path / "profile")
    result = re.search(r'<pre id="result">(.*?)</pre>', document)
    assert result is not None
    measured = json.loads(html.unescape(result[1]))
    assert len(measured) == len(pages) * len(WIDTHS)
    for page in measured:
        assert page["overflow"] <= 0, page["page"]
        assert len(page["figures"]) >= 5
        assert all(width > 100 and height > 20 for width, height in page["figures"]), page["page"]
        assert all(height < 40 for _, height in page["labels"])
        assert all(natural > 0 and width > 20 for natural, width, _ in page["images"])
        assert len(page["marks"]) >= 4
        assert all(size > 0 for size in page["marks"]), page["page"]
