"""Several workers, as real processes over gloo: what they release is what one process releases."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import psac
from psac.distributed.generators import SharedGenerator
from psac.distributed.meeting import FACTS, Meeting
from psac.distributed.wrappers import unwrapped
from psac.errors import PrivacyError
from psac.sampling import physical_batches
from tests.distributed import programs
from tests.distributed.world import Raised, on_each, returned

# A draw of two records on average: workers without records, and steps without any.
FEW = {"batch_size": 2, "physical_batch_size": 1}
RUNS = {
    "noise 0": {},
    "with noise": {"noise_multiplier": 1.0},
    "few records": {**FEW, "noise_multiplier": 1.0, "epochs": 1},
    "physical batches": {"physical_batch_size": 2, "noise_multiplier": 1.0},
    "adaptive": {"clipping": psac.AdaptivePSAC(), "noise_multiplier": 1.0},
    "groups": {
        "clipping": {"0.*": psac.PSAC(), "*": psac.Abadi(bound=0.5)},
        "noise_multiplier": 1.0,
    },
    "balls in bins": {"sampling": psac.BallsInBins(), "noise_multiplier": 1.0},
}


def all_runs() -> dict[str, dict]:
    return {name: programs.trained(settings) for name, settings in RUNS.items()}


@pytest.fixture(scope="module")
def of_one() -> dict[str, dict]:
    with pytest.warns(psac.InsecureNoiseWarning):
        return all_runs()


@pytest.mark.parametrize("size", [2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_sums_noise_ledger_and_scale_are_those_of_one_process(size: int, of_one: dict) -> None:
    workers = returned(size, all_runs)
    for name, one in of_one.items():
        results = [worker[name] for worker in workers]
        for result in results:
            assert result["weights"] == results[0]["weights"], name  # bit for bit
            assert result["steps"] == one["steps"], name
            assert result["ledger"]["entries"] == one["ledger"]["entries"], name
            assert result["ledger"]["isolation"] == one["ledger"]["isolation"], name
            assert result["lr"] == one["lr"], name
            assert result["scale"] == pytest.approx(one["scale"], rel=1e-6)
            assert len(result["counted"]) == len(results[0]["counted"]), name
        np.testing.assert_allclose(results[0]["weights"], one["weights"], rtol=1e-5, atol=1e-6)
        assert sorted(itertools.chain(*(r["seen"] for r in results))) == sorted(one["seen"]), name
    few = [worker["few records"]["counted"] for worker in workers]
    assert any(0 in counts for counts in few)


def test_noise_is_added_once_with_the_stated_size_and_is_new_at_each_step() -> None:
    steps, size = 4, 20_000
    first, *others = returned(3, programs.noise_alone, size, steps)
    assert all(other == first for other in others)
    releases = np.array(first)
    assert releases.shape == (steps, size)
    stds = releases.std(axis=1)  # z C = 1
    assert np.all(np.abs(stds - 1) < 5 / np.sqrt(2 * size)), stds
    correlations = np.corrcoef(releases) - np.eye(steps)
    assert np.abs(correlations).max() < 5 / np.sqrt(size)


@pytest.mark.parametrize("seed", [None, 0])
def test_masks_differ_between_workers_and_other_numbers_do_not(seed: int | None) -> None:
    norms, of_numpy, of_python = zip(*returned(2, programs.numbers_drawn, seed), strict=True)
    assert norms[0][:8] != norms[1][:8]
    assert len(set(of_numpy)) == len(set(of_python)) == 1


def test_all_begin_with_the_parameters_and_buffers_of_worker_0() -> None:
    first, *others = returned(3, programs.other_weights_at_first)
    assert all(other == first for other in others)
    assert first[-1] == 0


DIFFERENCES = {
    "noise": "settings",
    "seed": "seed",
    "model": "parameters",
    "records": "the order of the records",
    "contents": "every worker needs the whole data set",
    "rate": "settings of the optimizer",
    "refusal": "BatchNorm1d",
    "step": "the step",
    "ledger": "the ledger",
    "later rate": "settings of the optimizer",
    "draw": "the draw",
    "noise stream": "the stream of noise",
    "parameters": "the parameters",
}


@pytest.fixture(scope="module")
def refusals() -> list[list[Raised]]:
    return returned(2, programs.with_differences, list(DIFFERENCES))


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_refused_on_all_workers_and_named(
    name: str, refusals: list[list[Raised]]
) -> None:
    for result in [worker[list(DIFFERENCES).index(name)] for worker in refusals]:
        assert DIFFERENCES[name] in result.text


def test_a_difference_between_records_shows_no_record(refusals: list[list[Raised]]) -> None:
    for worker in refusals:
        text = worker[list(DIFFERENCES).index("contents")].text
        assert re.search(r"in one order\) \d{6} \(worker 0\)", text)
        assert "Tensor" not in text


def test_who_goes_on_alone_ends_when_the_others_have() -> None:
    first, _ = on_each(2, programs.with_a_difference, "a pass too many")
    assert "has ended or does not answer" in first.text


def test_one_that_saves_while_others_step_stops_all(tmp_path: Path) -> None:
    for result in on_each(2, programs.one_saves, str(tmp_path)):
        assert isinstance(result, Raised)
        assert "psac.save_checkpoint, too, is called on every worker" in result.text


def test_a_refusal_of_one_is_one_of_all_and_nothing_is_released() -> None:
    first, second = returned(2, programs.refused_by_one, 1)
    assert second[0] == "ValueError: the function of worker 1 fails"
    assert first[0].startswith("WorkersDiffer: worker 1 of 2 has refused")
    assert first[0].endswith("ValueError: the function of worker 1 fails")
    assert first[1] == second[1] == 0
    assert first[2:] == second[2:]
    assert first[2] > 0


def test_a_step_that_is_not_written_down_is_released_on_no_worker() -> None:
    for raised, steps, is_unchanged in returned(2, programs.full_disk):
        assert "the disk is full" in raised
        assert steps == 1
        assert is_unchanged


def test_a_worker_that_is_gone_ends_the_others_with_what_was_spent() -> None:
    results = on_each(3, programs.one_is_gone)
    assert results[1] is None
    for text in (results[0], results[2]):
        assert "has ended or does not answer" in text
        assert "1 steps were spent, epsilon " in text


@pytest.mark.parametrize("alone", [True, False])
def test_a_loss_function_cannot_talk_to_other_workers(alone: bool) -> None:
    for result in on_each(2, programs.talking, alone):
        assert isinstance(result, Raised)
        assert "talks to other workers" in result.text


def test_a_seeded_run_goes_on_with_two_three_and_one_workers(tmp_path: Path) -> None:
    settings = {"noise_multiplier": 1.0, "clipping": psac.AdaptivePSAC(), "physical_batch_size": 3}
    for size, until in ((2, 3), (3, 6)):
        results = returned(size, programs.saved, str(tmp_path), settings, until)
        assert len({r["id"] for r in results}) == 1
        assert all(r["weights"] == results[0]["weights"] for r in results)
    with pytest.warns(psac.InsecureNoiseWarning):
        last = programs.saved(str(tmp_path), settings, 8)
    (tmp_path / "other").mkdir()
    with pytest.warns(psac.InsecureNoiseWarning):
        one = programs.saved(str(tmp_path / "other"), settings, 8)
    np.testing.assert_allclose(last["weights"], one["weights"], rtol=1e-5, atol=1e-6)
    assert last["spent"] == one["spent"] == 8


def test_steps_after_the_save_count_at_another_world_size(tmp_path: Path) -> None:
    taken = returned(2, programs.lost_and_found, str(tmp_path), 3)
    assert taken == [(3, 3), (3, 3)]
    for steps, spent, warned in returned(3, programs.found, str(tmp_path)):
        assert (steps, spent) == (0, 3)
        assert any("3 steps ran after" in text for text in warned)


def test_a_wrapped_model_is_unwrapped_with_a_word_or_refused(of_one: dict) -> None:
    for values, warned in returned(2, programs.wrapped, "plain"):
        np.testing.assert_allclose(values, programs_weights_of_one(), rtol=1e-5, atol=1e-6)
        assert any("psac takes off" in text for text in warned)
    for result in on_each(2, programs.wrapped, "hook"):
        assert isinstance(result, Raised)
        assert "comm_hooks" in result.text


SPLIT = {
    "mixed precision": "fully_shard at '' has a MixedPrecisionPolicy",
    "offload": "fully_shard at '' offloads parameters",
    "hsdp": "over a mesh of several dimensions",
    "several": "was given several modules at once",
    "lengths": "Leave one of them out",
    "engine": "parameters that are split between processes",
    "fsdp1": "FullyShardedDataParallel (FSDP1). Give make_private the plain model",
    "tensor parallel": "'0.weight' is a DTensor",
}


@pytest.mark.parametrize("kind", SPLIT)
def test_models_that_are_split_otherwise_are_refused_with_the_remedy(kind: str) -> None:
    for result in on_each(2, programs.split, kind):
        assert isinstance(result, Raised), result
        assert SPLIT[kind] in result.text


def test_records_are_read_by_processes_of_each_worker() -> None:
    with pytest.warns(psac.InsecureNoiseWarning):
        one = programs.loaded_by_processes(0)
    first, second = returned(2, programs.loaded_by_processes, 2)
    assert sorted(first + second) == sorted(one)


def programs_weights_of_one() -> list[float]:
    with pytest.warns(psac.InsecureNoiseWarning):
        private = programs.private_run()
    for batch in private.loader:
        private.step(programs.loss, batch)
    return programs.weights(private.model).tolist()


# Without processes


def test_parts_of_a_draw_are_the_draw_in_equally_many_batches() -> None:
    for n, workers, largest in itertools.product(range(8), (1, 2, 3, 5), (None, 1, 2, 3)):
        parts = [physical_batches(range(n), largest, k, workers) for k in range(workers)]
        assert len({len(part) for part in parts}) == 1
        assert [i for part in parts for batch in part for i in batch] == list(range(n))
        assert all(len(batch) <= (largest or n) for part in parts for batch in part)


def test_shared_generators_agree_and_never_repeat() -> None:
    one, other = SharedGenerator(bytes(32)), SharedGenerator(bytes(32))
    children = one.spawn("noise"), other.spawn("noise")
    assert one.secure
    drawn = [children[0].random_bytes(16) for _ in range(3)]
    assert drawn == [children[1].random_bytes(16) for _ in range(3)]
    assert children[0].position() == children[1].position()
    again, sampling = one.spawn("noise"), one.spawn("sampling")
    drawn += [again.random_bytes(16), sampling.random_bytes(16), one.random_bytes(16)]
    one.take(bytes([1] * 32))
    assert children[0].position() != children[1].position()
    drawn += [g.random_bytes(16) for g in (one, children[0], sampling)]
    assert len(set(drawn)) == len(drawn)
    with pytest.raises(TypeError, match="never saved"):
        one.state_dict()


def test_a_meeting_has_one_length_everywhere_and_shows_no_secret() -> None:
    few = Meeting("here", {"secret: the draw": 12345678}, error=None, news=False)
    many = Meeting("there", {str(k): k for k in range(FACTS)}, error=None, news=True)
    assert len(few.vector()) == len(many.vector())
    assert "12345678" not in str(few.account())
    with pytest.raises(ValueError, match="at most"):
        Meeting("there", {str(k): k for k in range(FACTS + 1)}, error=None, news=True)


def test_a_process_of_several_without_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(PrivacyError, match="init_process_group"):
        programs.private_run()


def test_data_parallel_and_split_parameters_are_refused() -> None:
    with pytest.raises(PrivacyError, match="DataParallel"):
        unwrapped(nn.DataParallel(nn.Linear(1, 1)))
    model = nn.Linear(1, 1)
    model.weight.tensor_model_parallel = True
    with pytest.raises(PrivacyError, match="Megatron"):
        unwrapped(model)
    engine = type("DeepSpeedEngine", (nn.Module,), {"__module__": "deepspeed.runtime.engine"})
    with pytest.raises(PrivacyError, match="a DeepSpeed engine"):
        unwrapped(engine())
    assert torch.is_tensor(model.bias)
