"""Trains many runs, several at a time, each in its own process.

    outcomes = train_many([Job(recipe, "runs/first"), Job(other, "runs/second")], processes=2)

Guarantees:

- A folder ends up as `psac.training.train` would leave it.  Finished runs are skipped and
  interrupted ones are resumed, so calling this again with the same jobs does what is missing.
- A run that fails, or whose process dies, is reported; the other runs continue.
- Ctrl-C or SIGTERM stops every run after its current step, saves it, and raises KeyboardInterrupt.
  A second one kills the runs; their checkpoints stay valid.  If this process is killed, its
  children stop by themselves.
- If several processes run at a time, each has one thread.

For small networks one thread each is fastest: on 2 busy cores, two runs of the MNIST CNN at a time
took a quarter to a seventh of the time of one after the other with two threads.
`watch(job, line)` is called in this thread for every line of metrics.jsonl, and for lines of kind
`already_finished`, `failed` with a `message`, and `stopped`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from psac.app.training.interruption import Interruption, Stopped
from psac.app.training.recipe import Recipe
from psac.app.training.run import Run
from psac.checks import positive

# Ctrl-C in a terminal also reaches the children.  They ignore it, so that only this process stops
# them, and only once.
CHILD = """
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
from psac.app.training.many_child import main
main()
"""
STOP = signal.SIGTERM if sys.platform == "win32" else signal.SIGUSR1
POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to train in this folder."""

    recipe: Recipe
    folder: Path


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`error` is None if the run finished."""

    job: Job
    error: str | None = None

    @property
    def run(self) -> Run:
        return Run(self.job.folder)


Watch = Callable[[Job, dict[str, Any]], None]


def train_many(
    jobs: Iterable[Job],
    *,
    processes: int = 2,
    threads: int | None = None,
    watch: Watch = lambda job, line: None,
) -> list[Outcome]:
    """Trains all jobs and returns their outcomes, in order.

    `threads` is the number of torch's threads in each process; None is 1, or torch's own choice
    for a single process.
    """
    jobs = list(jobs)
    _refuse_shared_folders(jobs)
    positive("processes", processes)
    pool = _Pool(threads or (1 if processes > 1 else None), watch)
    with Interruption() as interruption:
        try:
            pool.work(jobs, processes, interruption)
        finally:
            pool.kill()
    if interruption.requested:
        raise Stopped(
            f"{sum(Run(job.folder).finished for job in jobs)} of {len(jobs)} runs are finished. "
            "The others are saved.",
            interruption.number,
        )
    return [pool.outcomes[job.folder] for job in jobs]


def _refuse_shared_folders(jobs: Sequence[Job]) -> None:
    counts = collections.Counter(Path(job.folder).absolute() for job in jobs)
    for folder, count in counts.items():
        if count > 1:
            raise ValueError(f"{count} jobs have the folder {folder}. Each needs its own.")


class _Pool:
    """The running children, and the outcomes of the finished ones."""

    def __init__(self, threads: int | None, watch: Watch) -> None:
        self.outcomes: dict[Path, Outcome] = {}
        self._threads, self._watch = threads, watch
        self._children: dict[_Child, Job] = {}
        self._lines: queue.SimpleQueue[tuple[_Child, dict[str, Any] | None]] = queue.SimpleQueue()

    def work(self, jobs: Sequence[Job], processes: int, interruption: Interruption) -> None:
        waiting, stopping = collections.deque(jobs), False
        while self._children or (waiting and not interruption.requested):
            if interruption.requested and not stopping:
                stopping = True
                for child in self._children:
                    child.stop()
            while waiting and len(self._children) < processes and not interruption.requested:
                self._start(waiting.popleft())
            try:
                child, line = self._lines.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            self._handle(child, line)

    def _start(self, job: Job) -> None:
        run = Run(job.folder)
        if run.finished and not run.recipe().differences(job.recipe):
            self._end(job, {"kind": "already_finished"}, None)
        else:
            self._children[_Child(job, self._threads, self._lines)] = job

    def _handle(self, child: _Child, line: dict[str, Any] | None) -> None:
        job = self._children[child]
        if line is not None and line["kind"] != "failed":
            self._watch(job, line)
            return
        if line is not None:
            child.failure = line["message"]
            return
        del self._children[child]
        error = child.error()
        if error is None:
            self.outcomes[job.folder] = Outcome(job)
        elif child.stopped:
            self._end(job, {"kind": "stopped"}, error)
        else:
            self._end(job, {"kind": "failed", "message": error}, error)

    def _end(self, job: Job, line: dict[str, Any], error: str | None) -> None:
        self.outcomes[job.folder] = Outcome(job, error)
        self._watch(job, line)

    def kill(self) -> None:
        for child in self._children:
            child.process.kill()
            child.process.wait()


class _Child:
    """A process that trains one job and reports it line by line."""

    def __init__(self, job: Job, threads: int | None, lines: queue.SimpleQueue) -> None:
        self.failure: str | None = None
        self.stopped = False
        self._error_output = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (the reader closes it)
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(threads),
            encoding="utf-8",
        )
        settings = dataclasses.asdict(job.recipe)
        message = {"recipe": settings, "folder": str(job.folder), "threads": threads}
        with contextlib.suppress(BrokenPipeError), cast(IO, self.process.stdin) as pipe:
            json.dump(message, pipe)
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: queue.SimpleQueue) -> None:
        with self._errors, cast(IO, self.process.stdout) as pipe:
            for line in pipe:
                lines.put((self, json.loads(line)))
            self.process.wait()
            self._errors.seek(0)
            self._error_output = self._errors.read().decode(errors="replace").strip()
        lines.put((self, None))

    def stop(self) -> None:
        """Stops the run after its current step."""
        self.stopped = True
        self.process.send_signal(STOP)

    def error(self) -> str | None:
        """Why the run did not finish; None if it did."""
        if self.failure is None and self.process.returncode == 0:
            return None
        last = self._error_output.splitlines()[-3:]
        return self.failure or "\n".join(
            [f"the process ended with exit code {self.process.returncode}", *last]
        )


def _environment(threads: int | None) -> dict[str, str]:
    """The environment of this process, with the path of this psac."""
    import psac

    places = [str(Path(psac.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(place for place in places if place)}
    return {**os.environ, **own, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
