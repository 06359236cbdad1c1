"""Compiles a C file of ours on the user's machine, where there is a compiler.

It takes about a second, so what was compiled is kept in the folder `compiled` of the cache, under
a name that follows from the source, the flags, the compiler and the processor.  A file is loaded
only if it and its folder belong to this user and nobody else may write to them.  Where that cannot
be had, each process compiles in a temporary folder.  Callers have the same in torch operations,
check in each process that both agree, and otherwise use torch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile

from psac.cache import cache_folder

FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
WIDE = "-mprefer-vector-width=512"  # Not known to every compiler: tried first.
PROCESSOR = pathlib.Path("/proc/cpuinfo")
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@functools.cache
def library(source: pathlib.Path) -> ctypes.CDLL | None:
    """The compiled file, or None where it cannot be had or PSAC_NO_COMPILE is set."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or "PSAC_NO_COMPILE" in os.environ:
        return None
    kept = place_for(source, compiler)
    if kept is not None and is_ours(kept):
        try:
            return ctypes.CDLL(str(kept))
        except OSError:  # damaged
            pass
    folder = None if kept is None else kept.parent
    with tempfile.TemporaryDirectory(
        prefix="psac-", dir=folder, ignore_cleanup_errors=True
    ) as temporary:
        target = pathlib.Path(temporary, f"{source.stem}.so")
        if not compiles(compiler, source, target):
            return None
        if kept is not None:
            target = target.replace(kept)  # at once: another process may do the same
        try:
            return ctypes.CDLL(str(target))
        except OSError:
            return None


def compiles(compiler: str, source: pathlib.Path, target: pathlib.Path) -> bool:
    for flags in ([*FLAGS, WIDE], FLAGS):
        command = [compiler, *flags, str(source), "-o", str(target), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            return True
        except (OSError, subprocess.SubprocessError):
            continue
    return False


def place_for(source: pathlib.Path, compiler: str) -> pathlib.Path | None:
    """Where it is kept; None where nothing can be, or the processor is not known."""
    try:
        processor = PROCESSOR.read_text().split("\n\n")[0].splitlines()
        made_for = [line for line in processor if line.startswith(("model name", "flags"))]
        tool = os.stat(compiler)
        headers = sorted(source.parent.glob("*.h"))
        digest = hashlib.sha256()
        for part in (*made_for, *FLAGS, WIDE, compiler, str(tool.st_mtime_ns), str(tool.st_size)):
            digest.update(part.encode() + b"\0")
        for file in (source, *headers):
            digest.update(file.read_bytes())
        folder = cache_folder() / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError, IndexError):
        return None
    writable = made_for and is_ours(folder) and os.access(folder, os.W_OK)
    return folder / f"{source.stem}-{digest.hexdigest()[:32]}.so" if writable else None


def is_ours(path: pathlib.Path) -> bool:
    """Whether it is there, belongs to this user, and nobody else may write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    mine = found.st_uid == os.getuid() if hasattr(os, "getuid") else False
    return plain and mine and not found.st_mode & OTHERS_MAY_WRITE
