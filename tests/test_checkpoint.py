"""A run on disk: whole or not at all, never behind what was released, and equal when resumed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import psac
from psac.checkpoint.saving import CheckpointError, journal_of, packed, unpacked
from tests.interrupted_run import loss, make, step_through

pytestmark = [
    pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning"),
    pytest.mark.usefixtures("same_draws_each_time"),  # an empty draw would change the counts
]


def weights(private: psac.Private) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in private.model.parameters()])


def finished(private: psac.Private, scheduler) -> torch.Tensor:
    step_through(private, scheduler)
    return weights(private)


@pytest.mark.parametrize("stop", [0, 1, 5, 6])
def test_a_saved_run_goes_on_bit_by_bit(tmp_path, stop):
    path = tmp_path / "run" / "checkpoint.safetensors"
    whole, scheduler = make(seed=0)
    expected = finished(whole, scheduler)
    first, scheduler = make(seed=0)
    step_through(first, scheduler, until=stop)
    psac.save_checkpoint(path, first, scheduler=scheduler, extra={"epoch": 3})
    step_through(first, scheduler, until=stop + 2)  # lost
    torch.manual_seed(99), random.seed(99), np.random.seed(99)
    second, scheduler = make(seed=0)
    extra = psac.load_checkpoint(path, second, scheduler=scheduler)
    assert extra == {"epoch": 3}
    assert second.steps_taken == stop
    assert torch.equal(finished(second, scheduler), expected)
    assert second.ledger == whole.ledger
    assert second.optimizer.state_dict()["state"].keys() == (
        whole.optimizer.state_dict()["state"].keys()
    )


def test_steps_after_the_last_save_count_as_spent_in_a_secure_run(tmp_path):
    path = tmp_path / "checkpoint"
    first, scheduler = make(seed=None)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    step_through(first, scheduler, until=3)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    step_through(first, scheduler, until=5)
    second, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning, match="2 steps ran after"):
        psac.load_checkpoint(path, second, scheduler=scheduler)
    assert second.steps_taken == 3
    assert second.ledger.steps == first.ledger.steps == 5
    finished(second, scheduler)
    assert second.ledger.steps == second.planned_steps  # the budget holds
    assert second.steps_taken == second.planned_steps - 2


def test_a_step_is_in_the_journal_before_its_gradient_is_handed_on(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    private, scheduler = make(seed=None)
    psac.save_checkpoint(path, private, scheduler=scheduler)

    def broken(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("psac.private.run.add_noise_", broken)
    with pytest.raises(KeyboardInterrupt):
        step_through(private, scheduler)
    assert journal_of(path).read_text().split() == [private.account.id, "0", "+1"]


def test_steps_that_were_lost_twice_count_twice(tmp_path):
    path = tmp_path / "checkpoint"
    first, scheduler = make(seed=None)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    step_through(first, scheduler, until=3)
    second, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning, match="3 steps ran after"):
        psac.load_checkpoint(path, second, scheduler=scheduler)
    step_through(second, scheduler, until=1)
    third, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning, match="4 steps ran after"):
        psac.load_checkpoint(path, third, scheduler=scheduler)
    assert third.steps_taken == 0
    assert third.ledger.steps == 4


@pytest.fixture
def another_process(monkeypatch):
    """What the process remembers of its runs is gone, so that only the disk knows."""
    monkeypatch.setattr("psac.private.account.released", {})
    return lambda: psac.private.account.released.clear()


def spent_when_loaded(path: Path) -> int:
    """What the ledger of a run says that goes on from here; it is dropped."""
    private, scheduler = make(seed=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        psac.load_checkpoint(path, private, scheduler=scheduler)
    lost = private.ledger.steps - psac.checkpoint.saving.read(path)["private"]["step"]
    assert any(f"{lost} steps ran after" in str(w.message) for w in caught) == (lost > 0)
    return private.ledger.steps


@pytest.fixture(params=["links", "no links"])
def links(request, monkeypatch):
    """File systems differ, and so do those without links."""

    def refused(*_):
        raise OSError("no links here")

    if request.param == "no links":
        monkeypatch.setattr("os.link", refused)


def test_every_checkpoint_of_a_run_counts_what_was_released_after_it(
    tmp_path, another_process, links
):
    last, best, kept = tmp_path / "last", tmp_path / "best", tmp_path / "kept" / "at-2"
    first, scheduler = make(seed=None)
    psac.save_checkpoint(last, first, scheduler=scheduler)
    step_through(first, scheduler, until=2)
    for path in (last, kept, best):
        psac.save_checkpoint(path, first, scheduler=scheduler)
    step_through(first, scheduler, until=4)
    psac.save_checkpoint(last, first, scheduler=scheduler)
    step_through(first, scheduler, until=7)  # and killed
    another_process()
    assert [spent_when_loaded(path) for path in (last, best, kept)] == [7, 7, 7]
    second, scheduler = make(seed=None)
    with pytest.warns(psac.PrivacyWarning, match="3 steps ran after"):
        psac.load_checkpoint(last, second, scheduler=scheduler)
    step_through(second, scheduler, until=second.steps_taken + 2)  # and killed
    another_process()
    assert [spent_when_loaded(path) for path in (last, best, kept)] == [9, 9, 9]


def test_two_processes_that_go_on_from_one_checkpoint_are_both_counted(tmp_path, another_process):
    path = tmp_path / "checkpoint"
    first, scheduler = make(seed=None)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    another_process()
    second, other = make(seed=None)
    psac.load_checkpoint(path, second, scheduler=other)
    step_through(first, scheduler, until=3)
    another_process()
    step_through(second, other, until=2)
    another_process()
    assert spent_when_loaded(path) == 5


def test_steps_that_were_charged_by_hand_are_in_the_journal(tmp_path, another_process):
    path = tmp_path / "checkpoint"
    private, scheduler = make(seed=None)
    psac.save_checkpoint(path, private, scheduler=scheduler)
    private.charge(5)
    another_process()
    assert spent_when_loaded(path) == 5


@pytest.mark.parametrize(
    "how", ["renamed", "copied alone", "moved with its journal", "overwritten"]
)
def test_a_checkpoint_that_was_moved_while_the_run_goes_on_counts_its_steps(
    tmp_path, another_process, how
):
    last, best = tmp_path / "last", tmp_path / "best"
    private, scheduler = make(seed=None)
    psac.save_checkpoint(last, private, scheduler=scheduler)
    step_through(private, scheduler, until=1)
    if how == "renamed":
        os.replace(last, best)
    elif how == "copied alone":
        shutil.copyfile(last, best)
    elif how == "moved with its journal":
        best = tmp_path / "elsewhere" / "best"
        best.parent.mkdir()
        os.replace(last, best)
        os.replace(journal_of(last), journal_of(best))
    else:
        shutil.copyfile(last, best)
        psac.save_checkpoint(last, private, scheduler=scheduler)
    step_through(private, scheduler, until=3)
    another_process()
    assert spent_when_loaded(best) == 3


def test_a_checkpoint_without_its_journal_says_what_it_does_not_know(tmp_path, another_process):
    last, best = tmp_path / "last", tmp_path / "elsewhere" / "best"
    private, scheduler = make(seed=None)
    psac.save_checkpoint(last, private, scheduler=scheduler)
    best.parent.mkdir()
    shutil.copyfile(last, best)
    step_through(private, scheduler, until=2)
    another_process()
    second, scheduler = make(seed=None)
    with (
        pytest.warns(psac.PrivacyWarning, match=r"no journal.*best\.journal.*private\.charge"),
        pytest.warns(psac.PrivacyWarning, match="2 steps ran after"),  # by the record of releases
    ):
        psac.load_checkpoint(best, second, scheduler=scheduler)


def test_a_folder_that_is_deleted_stops_no_training(tmp_path, another_process):
    last, gone = tmp_path / "last", tmp_path / "gone" / "best"
    private, scheduler = make(seed=None)
    psac.save_checkpoint(gone, private, scheduler=scheduler)
    shutil.rmtree(gone.parent)
    step_through(private, scheduler, until=2)
    psac.save_checkpoint(last, private, scheduler=scheduler)
    psac.save_checkpoint(gone, private, scheduler=scheduler)
    shutil.rmtree(gone.parent)
    step_through(private, scheduler, until=3)
    psac.save_checkpoint(gone, private, scheduler=scheduler)
    step_through(private, scheduler, until=4)
    another_process()
    assert spent_when_loaded(last) == spent_when_loaded(gone) == 4


def test_a_journal_that_cannot_be_written_stops_the_release(tmp_path):
    private, scheduler = make(seed=None)
    psac.save_checkpoint(tmp_path / "last", private, scheduler=scheduler)
    for file in private.account.on_release.journal._files.values():
        file.close()
    before = weights(private)
    with pytest.raises(ValueError, match="closed file"):
        step_through(private, scheduler)
    assert torch.equal(weights(private), before)


def test_another_run_in_the_same_place_is_not_charged_for_the_first(tmp_path, another_process):
    path = tmp_path / "checkpoint"
    first, scheduler = make(seed=None)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    step_through(first, scheduler, until=4)
    second, scheduler = make(seed=None)
    psac.save_checkpoint(path, second, scheduler=scheduler)
    step_through(second, scheduler, until=1)
    another_process()
    assert spent_when_loaded(path) == 1


def test_many_checkpoints_cost_one_write_a_step(tmp_path):
    private, scheduler = make(seed=None)
    for k in range(20):
        psac.save_checkpoint(tmp_path / str(k), private, scheduler=scheduler)
    assert len(private.account.on_release.journal._files) == 1


def test_a_damaged_journal_is_refused(tmp_path):
    path = tmp_path / "checkpoint"
    first, scheduler = make(seed=None)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    with open(journal_of(path), "a") as file:
        file.write("1+1\n")
    second, scheduler = make(seed=None)
    with pytest.raises(ValueError, match=r"checkpoint\.journal is damaged.*'1\+1'"):
        psac.load_checkpoint(path, second, scheduler=scheduler)
    assert second.account.id != first.account.id  # nothing was changed


@pytest.mark.parametrize("lost", [2, 6, 7, 9])
def test_lost_bins_are_not_drawn_again(tmp_path, lost):
    path = tmp_path / "checkpoint"

    def bins() -> psac.Private:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.randn(56, 4), torch.arange(56) % 3)
        return psac.make_private(
            model,
            optimizer,
            data,
            batch_size=8,
            epochs=4,
            noise_multiplier=1.0,
            sampling=psac.BallsInBins(),
        )

    first, second = bins(), bins()
    psac.save_checkpoint(path, first)
    for batch in first.loader:
        if first.step(loss, batch):
            break
    psac.save_checkpoint(path, first)  # in the middle of an epoch of seven bins
    journal_of(path).write_text(f"{first.account.id}\n{1 + lost}\n")
    with pytest.warns(psac.PrivacyWarning, match=f"{lost} steps ran after"):
        psac.load_checkpoint(path, second)
    drawn = 1 + lost if lost <= 6 else 14
    assert second.loader.state_dict()["steps_drawn"] == drawn
    assert second.ledger.steps == drawn


def generator_states() -> list[bytes]:
    """What torch's, numpy's and Python's generators would leave in a checkpoint now."""
    state = np.random.get_state(legacy=True)[1]
    return [
        torch.get_rng_state().numpy().tobytes(),
        json.dumps(np.asarray(state).tolist()[:10])[1:-1].encode(),
        json.dumps(random.getstate()[1][:10])[1:-1].encode(),
    ]


@pytest.mark.parametrize("seed", [None, 0])
def test_only_a_seeded_run_saves_the_state_of_a_generator(tmp_path, seed):
    """With dropout, the states in two checkpoints would give away the sizes of the batches."""
    private, scheduler = make(seed)
    assert any(isinstance(module, nn.Dropout) for module in private.model.modules())
    for step in (1, 3):
        path = tmp_path / str(step)
        step_through(private, scheduler, until=step)
        psac.save_checkpoint(path, private, scheduler=scheduler)
        data = path.read_bytes()
        present = [state in data for state in generator_states()]
        assert present == [seed is not None] * 3
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        names = [name for name in header if name != "__metadata__"]
        assert any(name.startswith("/random") for name in names) == (seed is not None)
        content = header["__metadata__"]["content"]
        words = [word for word in ("random", "torch", "cuda", "MT19937") if word in content]
        assert bool(words) == (seed is not None)


def test_a_secure_checkpoint_holds_what_was_released_and_settings_alone(tmp_path):
    path = tmp_path / "checkpoint"
    private, scheduler = make(seed=None)
    step_through(private, scheduler, until=2)
    psac.save_checkpoint(path, private, scheduler=scheduler)
    content = psac.checkpoint.saving.read(path)
    known = {"private", "model", "optimizer", "optimizer_type", "others", "extra"}
    assert content.keys() == known
    assert content["private"]["noise"] is None
    assert content["private"]["run"]["seed"] is None
    sampler = content["private"]["sampler"]
    assert sampler.keys() == {
        "sampling", "num_records", "expected_batch_size", "steps_drawn", "rest"
    }  # fmt: skip
    assert sampler["steps_drawn"] == 2
    assert sampler["rest"] is None


def test_a_secure_checkpoint_leaves_the_generators_as_they_are(tmp_path):
    path = tmp_path / "checkpoint"
    first, scheduler = make(seed=None)
    psac.save_checkpoint(path, first, scheduler=scheduler)
    second, scheduler = make(seed=None)
    torch.manual_seed(99), random.seed(99), np.random.seed(99)
    before = generator_states()
    psac.load_checkpoint(path, second, scheduler=scheduler)
    assert generator_states() == before


def saved(tmp_path: Path) -> Path:
    private, scheduler = make(seed=0)
    step_through(private, scheduler, until=2)
    psac.save_checkpoint(tmp_path / "checkpoint", private, scheduler=scheduler)
    return tmp_path / "checkpoint"


def test_a_truncated_file_is_refused_at_every_length(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        private, scheduler = make(seed=0)
        with pytest.raises(CheckpointError, match="not a complete checkpoint"):
            psac.load_checkpoint(path, private, scheduler=scheduler)
        assert private.steps_taken == 0


@pytest.mark.parametrize("place", ["ledger", "weights"])
def test_an_edited_file_is_refused(tmp_path, place):
    path = saved(tmp_path)
    data = path.read_bytes()
    if place == "ledger":
        assert data.count(rb"\"step\", 2") >= 1
        data = data.replace(rb"\"step\", 2", rb"\"step\", 1")
    else:
        data = data[:-1] + bytes([data[-1] ^ 1])
    path.write_bytes(data)
    private, scheduler = make(seed=0)
    with pytest.raises(CheckpointError, match="was changed after it was written"):
        psac.load_checkpoint(path, private, scheduler=scheduler)


def test_other_files_and_other_runs_are_refused_before_anything_changes(tmp_path):
    path = saved(tmp_path)
    private, scheduler = make(seed=0)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        psac.load_checkpoint(tmp_path / "other", private, scheduler=scheduler)
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(CheckpointError, match="not written by psac"):
        psac.load_checkpoint(tmp_path / "other", private, scheduler=scheduler)
    with pytest.raises(CheckpointError, match=r"saved with \['scheduler'\]"):
        psac.load_checkpoint(path, private)
    own = private.optimizer
    private.optimizer = torch.optim.Adam(private.model.parameters())
    with pytest.raises(CheckpointError, match="the optimizer NAdam and is loaded into Adam"):
        psac.load_checkpoint(path, private, scheduler=scheduler)
    private.optimizer = own
    before = weights(private)
    private.model.append(nn.Linear(3, 3))
    with pytest.raises(CheckpointError, match=r"another model: \['4\.bias', '4\.weight'\]"):
        psac.load_checkpoint(path, private, scheduler=scheduler)
    assert torch.equal(weights(private)[: len(before)], before)
    assert private.steps_taken == private.ledger.steps == 0


def test_states_that_need_pickle_are_refused():
    with pytest.raises(TypeError, match=r"/a/1 is a set, which cannot be saved without pickle"):
        packed({"a": [1, {2}]}, "", {})


def test_trees_come_back_as_they_were():
    tree = {
        1: [True, None, 2.5, float("inf"), "text"],
        "t": (torch.arange(3), {"half": torch.ones(2, dtype=torch.bfloat16)}),
        "empty": {},
    }
    tensors: dict[str, torch.Tensor] = {}
    back = unpacked(json.loads(json.dumps(packed(tree, "", tensors))), tensors)
    assert back[1] == tree[1]
    assert isinstance(back["t"], tuple)
    assert torch.equal(back["t"][0], tree["t"][0])
    assert back["t"][1]["half"].dtype is torch.bfloat16
    assert back["empty"] == {}


def run_and_kill(folder: Path, seconds: float) -> int:
    """Runs until it ends or is killed; its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.interrupted_run", str(folder)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # it has begun to train
    process.stdout.close()
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def killed_again_and_again(folder: Path, kills: int) -> None:
    chance = random.Random(0)
    ends = [run_and_kill(folder, chance.uniform(0.0, 0.5)) for _ in range(kills)]
    assert -signal.SIGKILL in ends
    assert run_and_kill(folder, 600.0) == 0
    whole, scheduler = make(seed=0, slowly=True)
    expected = finished(whole, scheduler)
    last, scheduler = make(seed=0, slowly=True)
    psac.load_checkpoint(folder / "checkpoint", last, scheduler=scheduler)
    assert last.steps_taken == whole.steps_taken
    assert torch.equal(weights(last), expected)
    assert last.ledger == whole.ledger


def test_a_run_killed_at_random_moments_ends_bit_equal(tmp_path):
    killed_again_and_again(tmp_path, kills=3)


@pytest.mark.slow
def test_a_run_killed_many_times_ends_bit_equal(tmp_path):
    killed_again_and_again(tmp_path, kills=30)
