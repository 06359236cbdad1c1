"""Where commands write: results to `console` (stdout), everything else to `errors` (stderr)."""

from pathlib import Path

from rich.console import Console

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def as_typed(path: Path) -> str:
    """The path relative to the current folder if it lies below it."""
    here, there = Path.cwd().resolve(), path.resolve()
    return str(there.relative_to(here)) if there.is_relative_to(here) else str(path)
