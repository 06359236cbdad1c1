"""How errors and warnings are shown: one message, an exit code, a traceback only with --debug.

0      done
1      the command was valid, but failed
2      the command was not valid: an unknown name, a setting out of range
128+n  stopped by signal n and saved, such as 130 for Ctrl-C
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import warnings
from collections.abc import Iterator

import typer
from rich.markup import escape

import psac
from psac.app.cli.console import errors

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
# Messages of other errors make sense only with the name of the error.
EXPECTED = (ValueError, TypeError, OSError, ImportError, psac.PrivacyError)


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """Errors within are usage errors: exit code 2, and how to use the command."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from error


def explain(error: Exception) -> None:
    text = escape(sentence(error))
    if not isinstance(error, EXPECTED):
        text = f"{type(error).__name__}: {text} (`psac --debug ...` shows where)"
    errors.print(f"[bold red]Error:[/] {text}", soft_wrap=True)


def sentence(error: Exception) -> str:
    """The error as a sentence.

    >>> sentence(PermissionError(errno.EACCES, "Permission denied", "runs/mine"))
    'runs/mine cannot be read or written (Permission denied). Choose another folder.'
    """
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    where = "" if error.filename is None else os.fspath(error.filename)
    if where and error.errno in FORBIDDEN:
        return f"{where} cannot be read or written ({error.strerror}). Choose another folder."
    return f"{where}: {error.strerror}" if where else str(error.strerror)


def code_of(stop: KeyboardInterrupt) -> int:
    """The exit code after a signal, as shells count."""
    return 128 + getattr(stop, "number", signal.SIGINT)


@contextlib.contextmanager
def readable_warnings() -> Iterator[None]:
    """Warnings within are one line on stderr, without a source location."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        errors.print(f"[yellow]Warning:[/] {escape(str(message))}", soft_wrap=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
