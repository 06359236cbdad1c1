"""Modules import only from earlier stages of the pipeline."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "psac"
# A module may import from those above it.
ORDER = [
    "_starting",
    "checks",
    "errors",
    "cache",
    "native",
    "noise",
    "sampling",
    "clipping",
    "gradients",
    "accounting",
    "plan",
    "distributed",
    "loading",
    "private",
    "checkpoint",
    "auditing",
    "integrations",
    "app",
    "__main__",
]


def imported(path: Path) -> set[str]:
    """Names of the top-level modules of psac that a file imports."""
    found = set()
    depth = len(path.relative_to(PACKAGE).parts) - 1
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
            if node.module == "psac":
                names = [f"psac.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == depth + 1:
            names = (
                [f"psac.{node.module}"] if node.module else [f"psac.{a.name}" for a in node.names]
            )
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("psac.")}
    return found


def stage(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_its_place_in_the_order():
    stages = {stage(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert stages == set(ORDER)


def test_modules_import_only_from_above():
    for path in PACKAGE.rglob("*.py"):
        own = stage(path)
        if own == "__init__":  # public names
            continue
        allowed = set(ORDER[: ORDER.index(own) + 1])
        assert imported(path) <= allowed, f"{path.name} imports {imported(path) - allowed}"


def test_the_core_imports_no_heavy_library():
    heavy = {"transformers", "peft", "opacus", "matplotlib", "rich", "typer", "benchmarks", "tests"}
    for path in PACKAGE.rglob("*.py"):
        extras = PACKAGE / "app" / "cli", PACKAGE / "integrations"
        if any(map(path.is_relative_to, extras)):  # they need the extras, nothing needs them
            continue
        tree = ast.parse(path.read_text())
        roots = {
            a.name.split(".")[0]
            for n in ast.walk(tree)
            if isinstance(n, ast.Import)
            for a in n.names
        }
        roots |= {
            (n.module or "").split(".")[0]
            for n in ast.walk(tree)
            if isinstance(n, ast.ImportFrom) and not n.level
        }
        assert not roots & heavy, path


# The rooms of psac/gradients, in the order in which a batch passes them.
ROOMS = [
    "errors",
    "trees",
    "precision",
    "groups",
    "kernels",
    "contributions",
    "rules",
    "measured",
    "isolation",
    "vectorized",
    "alone",
    "batched",
    "evaluator",
    "clipped",
    "functional",
    "check",
]


def test_rooms_of_the_engine_import_only_from_earlier_ones():
    for path in (PACKAGE / "gradients").rglob("*.py"):
        room = path.relative_to(PACKAGE / "gradients").parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        others = {name.split(".")[2] for name in at_run_time(path)} - {room}
        later = others - set(ROOMS[: ROOMS.index(room)])
        assert not later, f"gradients/{room} imports {later}"


def at_run_time(path: Path) -> set[str]:
    """Modules of the engine that a file imports, those for type checkers left out."""
    names = set()
    stack: list[ast.AST] = [ast.parse(path.read_text())]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "psac.gradients":
            names |= {f"psac.gradients.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("psac.gradients."):
            names.add(node.module or "")
        stack += ast.iter_child_nodes(node)
    return names
