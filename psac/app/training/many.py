"""Many runs, several at a time, each in a process of its own.

    outcomes = train_many([Job(recipe, "runs/first"), Job(other, "runs/second")], processes=2)

Guarantees:

- The folder of a job ends as `psac.training.train` leaves it.  A finished one is left as it is, a
  half-finished one goes on: calling this again with the same jobs does what is missing.
- A run that fails, or whose process dies, is reported; the others go on.
- Ctrl-C, or SIGTERM, ends every run after the step at hand, saved, and raises KeyboardInterrupt;
  a second one kills them, and what their checkpoints hold stays.  If this process is killed, its
  children end by themselves.
- Processes are children in the same process group, and have one thread each when they are several.

For small networks that is the fastest: on 2 busy cores, two runs of the MNIST CNN with one thread
each took a quarter to a seventh of the time of one after the other with two threads, because a
thread that waits for its descheduled twin waits in vain.  `watch(job, line)` is told, in the
calling thread, every line of metrics.jsonl as it is written (metrics.py) and three more kinds:
`found` for a run that was finished before, `failed` with a `message`, `stopped`.
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

# Ctrl-C in a terminal, and whoever ends a process group, reach the children, too: only this process
# ends them, so that they are asked once.
CHILD = """
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
from psac.app.training.child import main
main()
"""
STOP = signal.SIGTERM if sys.platform == "win32" else signal.SIGUSR1
POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to be made in this folder."""

    recipe: Recipe
    folder: Path


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`error` is None if the run is finished."""

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
    """Trains all jobs and returns what became of them, in their order.

    `threads` is the number of torch's threads in each process; None is 1, or torch's own choice
    for a single process.
    """
    jobs = list(jobs)
    _refuse_shared_folders(jobs)
    if processes < 1:
        raise ValueError(f"processes is {processes}: it must be 1 or above.")
    crew = _Crew(threads or (1 if processes > 1 else None), watch)
    with Interruption() as interruption:
        try:
            crew.work(jobs, processes, interruption)
        finally:
            crew.kill()
    if interruption.requested:
        raise Stopped(
            f"{sum(Run(job.folder).finished for job in jobs)} of {len(jobs)} runs are finished. "
            "The others are saved, as far as they came.",
            interruption.number,
        )
    return [crew.outcomes[job.folder] for job in jobs]


def _refuse_shared_folders(jobs: Sequence[Job]) -> None:
    counts = collections.Counter(Path(job.folder).absolute() for job in jobs)
    for folder, count in counts.items():
        if count > 1:
            raise ValueError(f"{count} jobs have the folder {folder}: give each its own.")


class _Crew:
    """The children at work, and what became of the others."""

    def __init__(self, threads: int | None, watch: Watch) -> None:
        self.outcomes: dict[Path, Outcome] = {}
        self._threads, self._watch = threads, watch
        self._children: dict[_Child, Job] = {}
        self._lines: queue.SimpleQueue[tuple[_Child, dict[str, Any] | None]] = queue.SimpleQueue()

    def work(self, jobs: Sequence[Job], processes: int, interruption: Interruption) -> None:
        waiting, told_to_stop = collections.deque(jobs), False
        while self._children or (waiting and not interruption.requested):
            if interruption.requested and not told_to_stop:
                told_to_stop = True
                for child in self._children:
                    child.stop()
            while waiting and len(self._children) < processes and not interruption.requested:
                self._begin(waiting.popleft())
            try:
                child, line = self._lines.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            self._hear(child, line)

    def _begin(self, job: Job) -> None:
        run = Run(job.folder)
        if run.finished and not run.recipe().differences(job.recipe):
            self._end(job, {"kind": "found"}, None)
        else:
            self._children[_Child(job, self._threads, self._lines)] = job

    def _hear(self, child: _Child, line: dict[str, Any] | None) -> None:
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
    """A process that trains one job and tells of it, line by line."""

    def __init__(self, job: Job, threads: int | None, lines: queue.SimpleQueue) -> None:
        self.failure: str | None = None
        self.stopped = False
        self._last_words = ""
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
        order = {"recipe": settings, "folder": str(job.folder), "threads": threads}
        with contextlib.suppress(BrokenPipeError), cast(IO, self.process.stdin) as pipe:
            json.dump(order, pipe)
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: queue.SimpleQueue) -> None:
        with self._errors, cast(IO, self.process.stdout) as pipe:
            for line in pipe:
                lines.put((self, json.loads(line)))
            self.process.wait()
            self._errors.seek(0)
            self._last_words = self._errors.read().decode(errors="replace").strip()
        lines.put((self, None))

    def stop(self) -> None:
        """After the step at hand."""
        self.stopped = True
        self.process.send_signal(STOP)

    def error(self) -> str | None:
        """Why the run is not finished; None if it is."""
        if self.failure is None and self.process.returncode == 0:
            return None
        last = self._last_words.splitlines()[-3:]
        return self.failure or "\n".join([f"it ended with {self.process.returncode}", *last])


def _environment(threads: int | None) -> dict[str, str]:
    """That of this process, and where this very psac is."""
    import psac

    places = [str(Path(psac.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(place for place in places if place)}
    return {**os.environ, **own, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
