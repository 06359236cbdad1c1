"""Workers are killed at random moments, and torchrun starts all of them again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.killed_run import STEPS

KILLS = 8
# Else gloo finds the addresses of workers that are dead in the store of torchrun.
FRESH_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def pids_of(folder: Path) -> list[int]:
    """Of the workers that train in the last session."""
    by_session: dict[int, list[int]] = {}
    for path in folder.glob("worker-*"):
        first, *rest = path.read_text().split("\n")
        if rest:
            by_session.setdefault(int(path.name.split("-")[1]), []).append(int(first))
    return by_session[max(by_session)] if by_session else []


@pytest.mark.slow
def test_the_ledger_is_never_behind_when_workers_are_killed(tmp_path: Path) -> None:
    chance = random.Random(0)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", f"--max-restarts={4 * KILLS}"]
    command += ["-m", "tests.distributed.killed_run", str(tmp_path)]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {FRESH_STORE: "1"}
        )
        try:
            killed: set[int] = set()
            while process.poll() is None and len(killed) < 2 * KILLS:
                pids = pids_of(tmp_path)
                if len(pids) == 2 and not killed & set(pids):
                    time.sleep(chance.uniform(0, 0.6))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(chance.choice(pids), signal.SIGKILL)
                    killed |= set(pids)
                time.sleep(0.05)
            assert process.wait(timeout=300) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            process.kill()
    sessions: dict[str, list[int]] = {}
    for path in tmp_path.glob("worker-*"):
        _, session, _ = path.name.split("-")
        sessions.setdefault(session, []).append(path.read_text().count("a step"))
    released = sum(max(counts) for counts in sessions.values())
    spent = int((tmp_path / "ledger").read_text())
    print(f"{len(sessions)} sessions, {released} steps seen, {spent} spent")
    assert len(sessions) > 2
    assert released <= spent == STEPS
