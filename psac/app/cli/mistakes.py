"""What becomes of errors: one message, an exit code, and a traceback only for those who ask.

2  what was typed cannot be done: an unknown name, a setting out of range
1  it could be done, and failed
128 and the number of a signal: stopped by it, such as 130 by Ctrl-C, and saved
0  done
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

# Their messages are written for people; another one's is of use with its name only.
FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
EXPECTED = (ValueError, TypeError, OSError, ImportError, psac.PrivacyError)


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """What is refused within was typed so: exit code 2, with how the command is used."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from error


def explain(error: Exception) -> None:
    """Says on stderr what went wrong."""
    text = escape(sentence(error))
    if not isinstance(error, EXPECTED):
        text = f"{type(error).__name__}: {text} (`psac --debug ...` shows where)"
    errors.print(f"[bold red]Error:[/] {text}", soft_wrap=True)


def sentence(error: Exception) -> str:
    """An error as people write it.

    >>> sentence(PermissionError(errno.EACCES, "Permission denied", "runs/mine"))
    'runs/mine cannot be read or written (Permission denied). Take another folder.'
    """
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    where = "" if error.filename is None else os.fspath(error.filename)
    if where and error.errno in CLOSED:
        return f"{where} cannot be read or written ({error.strerror}). Take another folder."
    return f"{where}: {error.strerror}" if where else str(error.strerror)


def code_of(stop: KeyboardInterrupt) -> int:
    """The exit code of a shell for what a signal ended."""
    return 128 + getattr(stop, "number", signal.SIGINT)


@contextlib.contextmanager
def readable_warnings() -> Iterator[None]:
    """Warnings within are one line on stderr, without a place in the code."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        errors.print(f"[yellow]Warning:[/] {escape(str(message))}", soft_wrap=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
