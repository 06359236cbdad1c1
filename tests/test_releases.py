"""A record of releases outside the run's folder: a backup that is restored forgets nothing."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import psac
from psac.checkpoint.journal import journal_of, spent_beside
from psac.checkpoint.releases import record_of, spent_on_record, state_directory
from tests.interrupted_run import make, step_through

pytestmark = [
    pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning"),
    pytest.mark.usefixtures("same_draws_each_time"),  # an empty draw would change the counts
]


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch) -> Path:
    """A state directory that is not there yet."""
    monkeypatch.setenv("PSAC_STATE_DIR", str(tmp_path / "state" / "psac"))
    return tmp_path / "state" / "psac"


@pytest.fixture(autouse=True)
def another_process(monkeypatch):
    """What the process remembers of its runs is gone, so that only the disk knows."""
    monkeypatch.setattr("psac.private.account.released", {})
    return lambda: psac.private.account.released.clear()


def begun(path: Path, steps: int = 0, seed: int | None = None):
    """A run that is saved after so many steps."""
    private, scheduler = make(seed)
    step_through(private, scheduler, until=steps)
    psac.save_checkpoint(path, private, scheduler=scheduler)
    return private, scheduler


def resumed(path: Path, seed: int | None = None):
    """The run that goes on from here, its scheduler, and the PrivacyWarnings of loading it."""
    private, scheduler = make(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        psac.load_checkpoint(path, private, scheduler=scheduler)
    told = [str(w.message) for w in caught if issubclass(w.category, psac.PrivacyWarning)]
    return private, scheduler, told


def restore_folder(copy: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def restore_files(copy: Path, folder: Path) -> None:
    """Into the files that are there, as `cp` does: all links to them change with them."""
    for file in copy.iterdir():
        shutil.copyfile(file, folder / file.name)


@pytest.mark.parametrize("restore", [restore_folder, restore_files])
def test_a_restored_backup_counts_what_was_released_since(tmp_path, another_process, restore):
    folder, copy = tmp_path / "run", tmp_path / "backup"
    path = folder / "checkpoint"
    private, scheduler = begun(path, steps=1)
    shutil.copytree(folder, copy)
    step_through(private, scheduler, until=3)
    psac.save_checkpoint(path, private, scheduler=scheduler)
    step_through(private, scheduler, until=4)
    another_process()
    restore(copy, folder)
    assert (
        spent_beside(path, private.account.id) == 1
    )  # the journal was restored with the checkpoint
    second, scheduler, told = resumed(path)
    assert len(told) == 1
    assert "3 steps ran after" in told[0]
    assert second.ledger.steps == 4
    before = second.ledger.steps
    step_through(second, scheduler, until=2)
    assert second.ledger.steps > before
    another_process()
    restore(copy, folder)  # and once more
    assert resumed(path)[0].ledger.steps == second.ledger.steps


def test_the_ordinary_case_does_not_warn(tmp_path, another_process):
    path = tmp_path / "checkpoint"
    begun(path, steps=2)
    another_process()
    private, _, told = resumed(path)
    assert told == []
    assert private.ledger.steps == 2


def test_a_machine_without_the_record_says_what_it_cannot_know(
    tmp_path, another_process, directory
):
    path = tmp_path / "run" / "checkpoint"
    private, scheduler = begun(path)
    step_through(private, scheduler, until=2)
    psac.save_checkpoint(path, private, scheduler=scheduler)
    shutil.rmtree(directory)
    another_process()
    second, _, told = resumed(path)
    assert told == [
        f"this machine has no record of run {private.account.id}: if the run went on elsewhere "
        "after this copy was made, count those steps with private.charge(steps)."
    ]
    assert second.ledger.steps == 2
    assert resumed(path)[2] == []  # it has one now


def test_one_warning_tells_that_journal_and_record_are_missing(
    tmp_path, another_process, directory
):
    path = tmp_path / "checkpoint"
    private, _ = begun(path)
    journal_of(path).unlink()
    shutil.rmtree(directory)
    another_process()
    (told,) = resumed(path)[2]
    assert f"no journal of this run beside {path}" in told
    assert f"no record of run {private.account.id}" in told


def test_a_seeded_run_has_no_record_and_no_warning(tmp_path, another_process, directory):
    path = tmp_path / "checkpoint"
    private, scheduler = begun(path, seed=0)
    step_through(private, scheduler, until=2)
    journal_of(path).unlink()
    another_process()
    assert resumed(path, seed=0)[2] == []
    assert not directory.exists()


def test_a_run_that_is_never_saved_leaves_nothing(directory):
    private, scheduler = make(seed=None)
    step_through(private, scheduler, until=2)
    assert not directory.exists()


def test_runs_are_not_mixed_up(tmp_path, another_process):
    first, scheduler = begun(tmp_path / "first")
    step_through(first, scheduler, until=4)
    second, scheduler = begun(tmp_path / "second")
    step_through(second, scheduler, until=1)
    another_process()
    assert (spent_on_record(first.account.id), spent_on_record(second.account.id)) == (4, 1)
    assert resumed(tmp_path / "second")[0].ledger.steps == 1
    assert resumed(tmp_path / "first")[0].ledger.steps == 4


def test_a_step_is_on_record_before_the_optimizer_sees_its_gradient(tmp_path):
    private, scheduler = begun(tmp_path / "checkpoint")
    counts = []
    private.optimizer.register_step_pre_hook(
        lambda *_: counts.append((spent_on_record(private.account.id), private.ledger.steps))
    )
    step_through(private, scheduler, until=3)
    assert {count for count, _ in counts} >= {1, 2, 3}
    assert all(count == steps for count, steps in counts)


KILLED = """
import os, shutil, signal, sys
import psac
from tests.interrupted_run import make, step_through

folder, copy = sys.argv[1:]
private, scheduler = make(seed=None)
psac.save_checkpoint(folder + "/checkpoint", private, scheduler=scheduler)
shutil.copytree(folder, copy)
written = private.account.on_release

def killed(steps):
    written(steps)
    if private.ledger.steps == 3:
        os.kill(os.getpid(), signal.SIGKILL)

private.account.on_release = killed
step_through(private, scheduler)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_kill_between_the_record_and_the_release_loses_no_step(tmp_path):
    folder, copy = tmp_path / "run", tmp_path / "backup"
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(copy)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
    )
    assert process.returncode == -signal.SIGKILL
    restore_folder(copy, folder)
    private, _, told = resumed(folder / "checkpoint")
    assert private.ledger.steps == 3
    assert "3 steps ran after" in told[0]


def test_processes_that_train_one_run_at_once_are_all_on_record(tmp_path, another_process):
    folder, copy = tmp_path / "run", tmp_path / "copy"
    first, scheduler = begun(folder / "checkpoint")
    shutil.copytree(folder, copy)
    another_process()
    second, other, _ = resumed(copy / "checkpoint")
    step_through(first, scheduler, until=2)
    step_through(second, other, until=1)
    psac.save_checkpoint(folder / "checkpoint", first, scheduler=scheduler)
    step_through(second, other, until=3)
    another_process()
    assert spent_on_record(first.account.id) == 5
    assert resumed(folder / "checkpoint")[0].ledger.steps == 5
    assert resumed(copy / "checkpoint")[0].ledger.steps == 5


def test_steps_that_were_charged_by_hand_are_on_record(tmp_path):
    private, _ = begun(tmp_path / "checkpoint")
    private.charge(5)
    assert spent_on_record(private.account.id) == 5


def test_the_record_is_a_file_of_its_own_in_a_directory_of_the_owner(tmp_path, directory):
    private, scheduler = begun(tmp_path / "first")
    psac.save_checkpoint(tmp_path / "second", private, scheduler=scheduler)
    record = record_of(private.account.id)
    assert list(directory.iterdir()) == [record]
    assert not record.samefile(journal_of(tmp_path / "first"))
    assert record.stat().st_nlink == 1
    if sys.platform != "win32":
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.fixture
def no_directory(tmp_path, monkeypatch):
    """A state directory that nobody can make, root included."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PSAC_STATE_DIR", str(tmp_path / "file" / "psac"))


def test_training_goes_on_without_a_record_and_says_so_once(tmp_path, no_directory):
    path = tmp_path / "checkpoint"
    private, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning, match="no record .* can be written.*PSAC_STATE_DIR"):
        psac.save_checkpoint(path, private, scheduler=scheduler)
    step_through(private, scheduler, until=2)
    psac.save_checkpoint(path, private, scheduler=scheduler)  # warnings are errors here
    assert spent_beside(path, private.account.id) == 2


def test_a_run_that_is_loaded_where_no_record_can_be_kept_warns_once(
    tmp_path, another_process, no_directory
):
    path = tmp_path / "checkpoint"
    private, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning):
        psac.save_checkpoint(path, private, scheduler=scheduler)
    another_process()
    (told,) = resumed(path)[2]
    assert f"this machine has no record of run {private.account.id}" in told
    assert "can be written" in told


def test_a_record_is_kept_as_soon_as_it_can_be(tmp_path, no_directory, monkeypatch, directory):
    path = tmp_path / "checkpoint"
    private, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning):
        psac.save_checkpoint(path, private, scheduler=scheduler)
    step_through(private, scheduler, until=2)
    monkeypatch.setenv("PSAC_STATE_DIR", str(directory))
    psac.save_checkpoint(path, private, scheduler=scheduler)
    step_through(private, scheduler, until=3)
    assert spent_on_record(private.account.id) == 3


def test_a_record_that_is_deleted_stops_no_training_and_is_made_again(tmp_path, directory):
    path = tmp_path / "checkpoint"
    private, scheduler = begun(path)
    shutil.rmtree(directory)
    step_through(private, scheduler, until=2)
    assert spent_on_record(private.account.id) is None
    psac.save_checkpoint(path, private, scheduler=scheduler)
    assert spent_on_record(private.account.id) == 2


def test_a_step_that_cannot_be_put_on_record_is_not_released(tmp_path):
    private, scheduler = begun(tmp_path / "checkpoint")
    before = [p.clone() for p in private.model.parameters()]
    for file in private.account.on_release.record._files.values():
        file.close()
    with pytest.raises(ValueError, match="closed file"):
        step_through(private, scheduler)
    assert all(map(torch.equal, before, private.model.parameters()))


def test_a_damaged_record_is_refused_before_anything_changes(tmp_path):
    private, _ = begun(tmp_path / "checkpoint")
    with open(record_of(private.account.id), "a") as file:
        file.write("1+1\n")
    second, scheduler = make(seed=None)
    with pytest.raises(ValueError, match=rf"{private.account.id} is damaged.*'1\+1'"):
        psac.load_checkpoint(tmp_path / "checkpoint", second, scheduler=scheduler)
    assert second.account.id != private.account.id


@pytest.mark.parametrize("run", ["", "..", "../../.bashrc", "0123456789abcdeF", "/etc/passwd"])
def test_an_id_that_was_made_up_leads_to_no_file(run):
    with pytest.raises(ValueError, match="16 hexadecimal digits"):
        record_of(run)


@pytest.mark.parametrize(
    "platform, variables, expected",
    [
        ("linux", {"PSAC_STATE_DIR": "/own", "XDG_STATE_HOME": "/xdg"}, "/own"),
        ("linux", {"PSAC_STATE_DIR": "~/own"}, "/home/me/own"),
        ("linux", {"XDG_STATE_HOME": "/xdg"}, "/xdg/psac"),
        ("linux", {"PSAC_STATE_DIR": "", "XDG_STATE_HOME": "xdg"}, "/home/me/.local/state/psac"),
        ("darwin", {}, "/home/me/Library/Application Support/psac"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/psac"),
        ("win32", {}, "/home/me/AppData/Local/psac"),
    ],
)
def test_records_are_where_the_platform_keeps_states(monkeypatch, platform, variables, expected):
    for name in ("PSAC_STATE_DIR", "XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("psac.checkpoint.releases.sys.platform", platform)
    assert state_directory() == Path(expected)


def test_a_user_without_a_home_has_no_record(monkeypatch):
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PSAC_STATE_DIR")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", nowhere)
    with pytest.raises(OSError, match="home"):
        state_directory()
    assert spent_on_record("0123456789abcdef") is None
