"""Where the commands write: results to `console`, which is stdout, the rest to `errors`."""

from rich.console import Console

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)
