"""Imports packages that only some data need."""

import importlib
from types import ModuleType


def needed(module: str, *, package: str, purpose: str, extra: str = "data") -> ModuleType:
    """The module; raises with the purpose of the package and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs {package}, which is not installed: pip install 'psac[{extra}]'."
        ) from error
