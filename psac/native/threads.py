"""Runs a function on the threads that torch computes with.

After each parallel operation torch's OpenMP threads wait by spinning, on the cores that our own
threads would need: two threads of noise beside two that spin take as long as one.  So the function
runs on torch's threads, through the entry that compilers call for `omp parallel` (GOMP_parallel),
which GNU's and LLVM's OpenMP both have.  If it cannot be found, and in forked processes, a pool of
threads is used.

>>> done = []
>>> on_all(lambda: done.append(1), 2)
>>> len(done)
2
"""

import ctypes
import functools
import glob
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def on_all(work: Callable[[], None], threads: int) -> None:
    """Calls `work` once on each of so many threads; raises what any of them raised."""
    errors, ended = [], []

    def guarded(_: object) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # a callback cannot raise
            errors.append(error)
        ended.append(1)

    call_on_all(_CALLBACK(guarded), 0, threads)
    # The runtime may give fewer threads than asked; whoever came has done the work of all.
    if errors or not ended:
        raise errors[0] if errors else RuntimeError("no thread ran")


def call_on_all(function: Callable[[int], None], argument: int, threads: int) -> None:
    """Calls a function of C (`compiled_function`) with an address on so many threads.

    It has to share out the work by itself; no thread needs the interpreter.
    """
    start = None if _forked else _openmp()
    if threads == 1 or start is None:
        futures = [_pool().submit(function, argument) for _ in range(threads - 1)]
        function(argument)
        for future in futures:
            future.result()
    else:
        start(function, argument, threads, 0)


def compiled_function(function: object) -> Callable[[int], None]:
    """A function of a library that takes an address and gives nothing back."""
    return _CALLBACK(ctypes.cast(function, ctypes.c_void_p).value)  # type: ignore[arg-type]


@functools.cache
def _openmp() -> Callable | None:
    """GOMP_parallel of the library that torch has loaded."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    for path in sorted(glob.glob(os.path.join(folder, "lib*omp*.so*"))):
        try:
            function = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.argtypes = [_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        function.restype = None
        return function
    return None


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="psac")


_forked: list[bool] = []


def _after_fork() -> None:
    """A forked process has the pools without their threads; OpenMP would wait for them forever."""
    _forked.append(True)
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
