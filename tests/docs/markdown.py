"""Markdown as the tests need it: pages, blocks of code, inline code, links, headings."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks in this language, each with the line that it begins on."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def inline(page: Path) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def links(page: Path) -> list[tuple[str, str]]:
    """Links and pictures within the repository: path, which may be empty, and anchor."""
    text = re.sub(r"`[^`\n]+`", "code", prose(page))
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    inside = [target for target in targets if not re.match(r"[a-z]+:", target)]
    return [(target.partition("#")[0], target.partition("#")[2]) for target in inside]


def anchors(page: Path) -> set[str]:
    """What headings are linked by, as MkDocs and GitHub spell it."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    bare = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s+", "-", heading) for heading in bare}
