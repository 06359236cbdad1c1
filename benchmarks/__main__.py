"""The command line: `python -m benchmarks [TASK]`.

A task is speed, memory, scaling, noise, models, transformers, workers, profile, report, or all.

Every workload's result is written as soon as it is there, and what is already measured for this
very code, machine and settings is not measured again (`--fresh` does). Quick runs go to a folder
of their own, so that they never replace real figures.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    finetuning,
    finetuning_page,
    memory,
    noise,
    profiles,
    records,
    report,
    scaling,
    speed,
    survey,
    survey_page,
    workers,
    workers_page,
)
from benchmarks.architectures import ARCHITECTURES
from benchmarks.contestants import CONTESTANTS, silence_known_warnings
from benchmarks.models import MODELS
from benchmarks.workloads import WORKLOADS

TASKS = (
    *("speed", "memory", "scaling", "noise", "models", "transformers", "workers"),
    *("profile", "report"),
)
WORKERS_FOLDER = records.ROOT / "results" / "scaling"
WORKERS_PAGE = records.ROOT / "docs" / "scaling.md"
BY_WORKERS = ("cnn", "mlp", "transformer")
PAGE = records.ROOT / "docs" / "models-table.md"
TRANSFORMERS = records.ROOT / "docs" / "transformers-table.md"
SCALED = ("ordinary", "psac", "opacus_ghost")
PROFILED = ("psac", "engine", "ordinary")


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    result.add_argument("task", nargs="?", default="all", choices=(*TASKS, "all"))
    result.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    result.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=None)
    result.add_argument("--sweeps", nargs="+", choices=scaling.SWEEPS, default=list(scaling.SWEEPS))
    result.add_argument("--only", nargs="+", choices=MODELS, metavar="MODEL", default=list(MODELS))
    result.add_argument(
        "--architectures", nargs="+", choices=ARCHITECTURES, metavar="CLASS",
        default=list(ARCHITECTURES),
    )  # fmt: skip
    result.add_argument("--seconds", type=float, default=60.0, help="time budget per workload")
    result.add_argument("--repeats", type=int, default=2, help="processes per memory figure")
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--threads", type=int, default=None, help="default: torch's own choice")
    result.add_argument("--quick", action="store_true", help="a rough look in a minute or two")
    result.add_argument("--fresh", action="store_true", help="measure again what is there")
    result.add_argument(
        "--output",
        type=Path,
        default=None,
        help="default: results/bench; give another folder for a part of the contestants",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the tasks asked for."""
    options = parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # for the memory processes
    if options.quick:
        options.seconds, options.repeats = min(options.seconds, 3.0), 1
    folder = Path("results/bench/quick" if options.quick else "results/bench")
    options.output = options.output or records.ROOT / folder
    silence_known_warnings()
    for task in TASKS if options.task == "all" else (options.task,):
        RUN[task](options)


def _record(
    options: argparse.Namespace,
    kind: str,
    name: str,
    settings: dict[str, Any],
    measure: Callable[[], dict[str, Any]],
) -> None:
    """Measure and write one record, unless it is already there."""
    record = records.new_record(kind, name, settings={**settings, "seed": options.seed})
    if not options.fresh and records.is_done(options.output, record):
        print(f"{kind} {name}: already measured", flush=True)
        return
    print(f"{kind} {name} ...", flush=True)
    record |= measure()
    records.save(options.output, record)
    for line in report.lines_of(record):
        print("  " + line, flush=True)


def _speed(options: argparse.Namespace) -> None:
    contestants = options.contestants or list(CONTESTANTS)
    settings = {"seconds": options.seconds, "contestants": contestants}
    for name in options.workloads:
        workload = WORKLOADS[name]
        _record(
            options,
            "speed",
            name,
            {**settings, "batch_size": workload.batch_size},
            lambda workload=workload: {
                "title": workload.title,
                "contestants": speed.measure(
                    workload, contestants, seconds=options.seconds, seed=options.seed
                ),
            },
        )


def _memory(options: argparse.Namespace) -> None:
    contestants = options.contestants or list(CONTESTANTS)
    settings = {"repeats": options.repeats, "contestants": contestants}
    for name in options.workloads:
        workload = WORKLOADS[name]
        _record(
            options,
            "memory",
            name,
            {**settings, "batch_size": workload.batch_size, "malloc": memory.ENVIRONMENT},
            lambda workload=workload: {
                "title": workload.title,
                "contestants": memory.measure(
                    workload.name, contestants, repeats=options.repeats, seed=options.seed
                ),
            },
        )


def _scaling(options: argparse.Namespace) -> None:
    contestants = options.contestants or list(SCALED)
    for name in options.sweeps:
        sweep = scaling.SWEEPS[name]
        sizes = sweep.sizes[:3] if options.quick else sweep.sizes
        _record(
            options,
            "scaling",
            name,
            {"seconds": options.seconds, "contestants": contestants, "sizes": sizes},
            lambda sweep=sweep, sizes=sizes: scaling.measure(
                sweep, contestants, sizes=sizes, seconds=options.seconds, seed=options.seed
            ),
        )


def _noise(options: argparse.Namespace) -> None:
    _record(
        options,
        "noise",
        "ten-million",
        {"seconds": options.seconds / 4, "size": noise.SIZE},
        lambda: noise.measure(size=noise.SIZE, seconds=options.seconds / 4, seed=options.seed),
    )


def _models(options: argparse.Namespace) -> None:
    survey.run(
        options.output,
        options.only,
        seconds=options.seconds / 40,
        seed=options.seed,
        fresh=options.fresh,
    )
    _page(options)


def _workers(options: argparse.Namespace) -> None:
    """Several processes; their results and their page have places of their own."""
    folder = options.output / "scaling" if options.quick else WORKERS_FOLDER
    kept, options.output = options.output, folder
    sizes = workers.SIZES[:3] if options.quick else workers.SIZES
    measure = lambda: workers.same_run(sizes)  # noqa: E731
    _record(options, "workers", "same-run", {"sizes": sizes}, measure)
    for name in BY_WORKERS:
        if name in options.workloads:
            _record(
                options,
                "workers",
                name,
                {"seconds": options.seconds, "rounds": options.repeats},
                lambda name=name: workers.cost(name, options.seconds, options.repeats),
            )
    options.output = kept
    workers_page.write(folder, None if options.quick else WORKERS_PAGE)


def _transformers(options: argparse.Namespace) -> None:
    finetuning.run(
        options.output,
        options.architectures,
        seconds=options.seconds / 60,
        seed=options.seed,
        fresh=options.fresh,
    )
    _page(options)


def _profile(options: argparse.Namespace) -> None:
    contestants = options.contestants or list(PROFILED)
    for name in options.workloads:
        text = profiles.profile_text(WORKLOADS[name], contestants, seed=options.seed)
        records.write_text(options.output / f"profile-{name}.txt", text)
        print(text, flush=True)


def _report(options: argparse.Namespace) -> None:
    for path in report.write(options.output, root=records.ROOT if _kept(options) else None):
        print(f"wrote {path.name}", flush=True)
    _page(options)


def _kept(options: argparse.Namespace) -> bool:
    """Whether these are the results that the repository keeps."""
    return options.output.resolve() == records.ROOT / "results" / "bench"


def _page(options: argparse.Namespace) -> None:
    """The pages of the surveys, from the results that are kept."""
    is_kept = _kept(options)
    for path in (
        *survey_page.write(options.output, PAGE if is_kept else None),
        *finetuning_page.write(options.output, TRANSFORMERS if is_kept else None),
    ):
        print(f"wrote {path.name}", flush=True)


RUN: dict[str, Callable[[argparse.Namespace], None]] = {
    "speed": _speed,
    "memory": _memory,
    "scaling": _scaling,
    "noise": _noise,
    "models": _models,
    "workers": _workers,
    "transformers": _transformers,
    "profile": _profile,
    "report": _report,
}

if __name__ == "__main__":
    main()
