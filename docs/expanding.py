"""Adds to the site what the Markdown files leave to the code.

MkDocs calls `on_files` once and `on_page_markdown` for each page.  Guarantees:

- `<!-- code: name.py -->` is replaced by that example, and `<!-- commands -->` by every command of
  `psac` with its options, as they are in the code when the site is built.
- A link to an example leads to its section on the page of examples.
- A link to a file of the package leads to a page with its source code.
- The reference shows `psac.app.data.load` by its short name, `psac.data.load`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[1]
APP = re.compile(r"^::: psac\.app\.((?:\w+\.)+(\w+))$(?!\n +options:)", re.MULTILINE)
SHORT = r"::: psac.app.\1\n    options:\n      heading: psac.\1\n      toc_label: \2"
SOURCE = re.compile(r"\]\((?:\.\./)+(psac/[\w/]+)\.py\)")  # a link to a file of the package


def on_files(files: Any, config: Any, **_: Any) -> Any:
    pages = [file.content_string for file in files.documentation_pages()]
    for path in sorted({path for text in pages for path in SOURCE.findall(text)}):
        code = (ROOT / f"{path}.py").read_text(encoding="utf-8")
        content = f"# {path}.py\n\n````python\n{code}````\n"
        hidden = InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, f"source/{path}.md", content=content, inclusion=hidden))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    markdown = re.sub(r"<!-- code: (\S+) -->", _example, markdown)
    markdown = re.sub(r"<!-- commands -->", lambda _: commands(), markdown)
    markdown = APP.sub(SHORT, markdown)
    here = "../" * page.file.src_uri.count("/")
    markdown = SOURCE.sub(rf"]({here}source/\1.md)", markdown)
    return re.sub(r"\]\((?:\.\./)+examples/(\w+)\.py\)", rf"]({here}examples.md#\1py)", markdown)


def _example(marker: re.Match[str]) -> str:
    code = (ROOT / "examples" / marker[1]).read_text(encoding="utf-8")
    return f"```python\n{code}```"


def commands() -> str:
    """Every command, as Markdown: what it does, its arguments and options."""
    import typer

    from psac.app.cli.app import app

    return "\n\n".join(_sections(typer.main.get_command(app), "psac"))


def _sections(command: Any, name: str) -> list[str]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        return [part for key in sorted(inner) for part in _sections(inner[key], f"{name} {key}")]
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    table = ["| | default | |", "|---|---|---|", *rows] if rows else []
    return [f"### {name}", command.help or "", "\n".join(table)]


def _row(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = [parameter.name.upper()]
    default = "needed" if parameter.required else _default(parameter.default)
    told = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| {' '.join(f'`{name}`' for name in names)} | {default} | {told} |"


def _default(value: Any) -> str:
    return "" if value is None or value is False or callable(value) else f"`{value}`"
