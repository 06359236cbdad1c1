"""Locks between processes: held while they live, and not a moment longer."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from psac.checkpoint import locking
from psac.checkpoint.locking import Locked, locked

ROOT = Path(__file__).parents[1]
HOLD = """
import sys, time, pathlib
sys.path.insert(0, {root!r})
from psac.checkpoint.locking import locked
with locked(pathlib.Path({path!r})):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that has the lock."""
    code = HOLD.format(root=str(ROOT), path=str(tmp_path / ".lock"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_and_told_who_has_the_lock(tmp_path, holder):
    with pytest.raises(Locked) as refusal, locked(tmp_path / ".lock", wait=False):
        pytest.fail("two have the lock")
    assert refusal.value.process == holder.pid


def test_a_killed_process_leaves_no_lock(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert (tmp_path / ".lock").read_text() == str(holder.pid)  # stale, and no obstacle
    with locked(tmp_path / ".lock", wait=False):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    assert (tmp_path / ".lock").read_text() == ""


def test_who_waits_gets_the_lock_when_the_other_ends(tmp_path, holder):
    threading.Timer(0.2, holder.kill).start()
    with locked(tmp_path / ".lock"):
        assert holder.wait() != 0


def test_where_there_are_no_locks_there_is_a_warning(tmp_path, monkeypatch):
    def take(file, wait):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locking, "_take", take)
    with (
        pytest.warns(UserWarning, match="cannot be locked here .No locks available"),
        locked(tmp_path / ".lock", wait=False),
    ):
        pass
