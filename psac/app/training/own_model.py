"""Your own network in a recipe: `model = "my_model.py:build"`.

The function is called by keyword with `input_shape` and `classes`, if it takes them, and with the
`model_settings` of the recipe.  It returns the network, which maps inputs [n, *input_shape] to
scores [n, classes], or a tuple that begins with it, as for `psac check`.  Guarantees:

- A run copies the file to `model.py` and writes its SHA-256 to environment.json, so that it can be
  resumed, reported and used for predictions without the original.  Files that it imports are not
  copied.
- A run is resumed, and its model is built, only from the file that it was started with.

The file is executed: build models only from run folders that you trust like code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

FORM = "FILE.py:FUNCTION"
ARGUMENTS = ("input_shape", "classes")


def is_own(model: str) -> bool:
    """Whether the model is a function in a file.

    >>> is_own("my_model.py:build"), is_own("cnn"), is_own("my_model.py")
    (True, False, False)
    """
    return re.fullmatch(r".+\.py:\w+", model) is not None


def parts(model: str) -> tuple[Path, str]:
    file, _, name = model.rpartition(":")
    return Path(file).expanduser(), name


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def executed(path: Path) -> Any:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # its classes look it up by name
    sys.path.insert(0, str(path.parent.resolve()))  # for imports of files beside it
    spec.loader.exec_module(module)
    return module


def function_in(module: Any, name: str, place: str) -> Callable[..., Any]:
    """The module's function of this name."""
    function = getattr(module, name, None)
    if not callable(function):
        known = ", ".join(key for key, value in vars(module).items() if _own(value, module))
        raise ValueError(f"{place} has no function '{name}'. It has: {known or 'none'}.")
    return function


def _own(value: Any, module: Any) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def needed(function: Callable[..., Any]) -> list[str]:
    """The names of its required arguments."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is inspect.Parameter.empty and each.kind not in kinds
    ]


def build(
    model: str,
    source: Path,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    settings: Mapping[str, Any],
) -> nn.Module:
    """The network that the function of `model` returns, as defined in `source`."""
    _, name = parts(model)
    function = function_in(executed(source), name, str(source))
    taken = inspect.signature(function).parameters
    known = {"input_shape": input_shape, "classes": classes}
    arguments = {key: value for key, value in known.items() if key in taken} | dict(settings)
    missing = [key for key in needed(function) if key not in arguments]
    unknown = [key for key in settings if key not in taken and not _takes_any(taken)]
    if missing or unknown:
        raise ValueError(
            f"model '{model}' takes {', '.join(taken) or 'no arguments'}, but would get "
            f"{', '.join(arguments) or 'none'}. A function may take {' and '.join(ARGUMENTS)}; its "
            "other arguments are model_settings of the recipe (--model-settings NAME=VALUE)."
        )
    returned = function(**arguments)
    network = returned[0] if isinstance(returned, tuple) and returned else returned
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"model '{model}' returned a {type(network).__name__}. It must return a "
            "torch.nn.Module that maps inputs [n, *input_shape] to scores [n, classes]."
        )
    return network


def _takes_any(taken: Mapping[str, inspect.Parameter]) -> bool:
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
