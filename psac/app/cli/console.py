"""Where the commands write: results to `console`, which is stdout, the rest to `errors`."""

from pathlib import Path

from rich.console import Console

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def as_typed(path: Path) -> str:
    """The path from where the user is, if it lies below; else as it is."""
    here, there = Path.cwd().resolve(), path.resolve()
    return str(there.relative_to(here)) if there.is_relative_to(here) else str(path)
