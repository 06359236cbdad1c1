"""Result files: one JSON per question and workload, written whole or not at all.

A record says what was measured, on what, with which versions, settings, seed and command, so that
a reader can run it again. Two records with the same `key` answer the same question about the same
code; that is how an interrupted run resumes and how changed code is measured anew.

>>> error_text(RuntimeError("bad thing in /usr/lib/python3/site-packages/opacus/linear.py"))
'RuntimeError: bad thing in linear.py'
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
SOURCES = tuple(ROOT / "benchmarks" / f"{n}.py" for n in ("networks", "workloads", "contestants"))
KINDS = ("speed", "memory", "scaling", "noise")
PACKAGES = ("psac", "torch", "opacus", "transformers", "peft", "numpy")

Record = dict[str, Any]


def source_digest(sources: Sequence[Path] = SOURCES) -> str:
    """A fingerprint of the code that is measured: psac, and what it is measured on."""
    files = sorted(f for f in (ROOT / "psac").rglob("*") if f.suffix in (".py", ".c"))
    files += sources
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(ROOT).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    """Of the installed package, or of the one that lies beside this folder, as psac may."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        beside = importlib.import_module(package) if (ROOT / package).is_dir() else None
        return getattr(beside, "__version__", "not installed")


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """What a reader must know of the machine and the libraries; nothing that names the machine."""
    return {
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def command() -> str:
    """The command line as a person would type it."""
    return shlex.join(["python", "-m", "benchmarks", *map(without_folders, sys.argv[1:])])


def new_record(
    kind: str, name: str, *, settings: dict[str, Any], sources: Sequence[Path] = SOURCES
) -> Record:
    """An empty record; `key` tells whether an older file answers the same question."""
    digest, env = source_digest(sources), environment()
    question = json.dumps([kind, name, settings, digest, env], sort_keys=True)
    return {
        "kind": kind,
        "name": name,
        "key": hashlib.sha256(question.encode()).hexdigest()[:16],
        "command": command(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 2),
        "source_digest": digest,
        "environment": env,
        "settings": settings,
    }


def path_of(folder: Path, record: Record) -> Path:
    """Where a record lives: `<kind>-<name>.json`."""
    return folder / f"{record['kind']}-{record['name']}.json"


def is_done(folder: Path, record: Record) -> bool:
    """Whether the folder already answers this record's question about this very code."""
    path = path_of(folder, record)
    return path.exists() and json.loads(path.read_text()).get("key") == record["key"]


def write_text(path: Path, text: str) -> None:
    """Write atomically: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def save(folder: Path, record: Record) -> Path:
    """Write a record to its place."""
    path = path_of(folder, record)
    write_text(path, json.dumps(record, indent=1) + "\n")
    return path


def load(folder: Path, kind: str) -> dict[str, Record]:
    """All records of a kind in a folder, by name."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{kind}-*.json"))]
    return {record["name"]: record for record in records}


def error_text(error: BaseException) -> str:
    """One line that says why a contestant cannot run, without paths of this machine."""
    message = without_folders(" ".join(str(error).split()))
    return f"{type(error).__name__}: {message[:300]}"


def without_folders(text: str) -> str:
    """Absolute paths shortened to their last part: a result names no folder of a machine."""
    return re.sub(r"(?<![\w.:/])(?:/[\w.+-]+)+/", "", text)
