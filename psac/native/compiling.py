"""Compiles a C file of ours on the user's machine, where there is a compiler.

Each process compiles it once (in about a second) in a temporary folder, so that no cached
binary is stale, for another processor, or tampered with.  Callers have the same in torch
operations, check that both agree, and otherwise use torch.
"""

import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
WIDE = "-mprefer-vector-width=512"  # Not known to every compiler: tried first.


@functools.cache
def library(source: pathlib.Path) -> ctypes.CDLL | None:
    """The compiled file, or None where it cannot be had or PSAC_NO_COMPILE is set."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or "PSAC_NO_COMPILE" in os.environ:
        return None
    with tempfile.TemporaryDirectory(prefix="psac-", ignore_cleanup_errors=True) as folder:
        target = str(pathlib.Path(folder, f"{source.stem}.so"))
        for flags in ([*FLAGS, WIDE], FLAGS):
            command = [compiler, *flags, str(source), "-o", target, "-lm"]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=60)
                return ctypes.CDLL(target)
            except (OSError, subprocess.SubprocessError):
                continue
    return None
