"""Models under fully_shard: what they release is what a plain model in one process releases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import psac
from tests.distributed import programs
from tests.distributed.world import returned

RUNS = {
    "without noise": {"physical_batch_size": 3},
    "few records": {"batch_size": 2, "physical_batch_size": 1, "epochs": 1},
    "groups": {"clipping": {"layer.*": psac.PSAC(), "*": psac.Abadi(bound=0.5)}},
}


def all_runs(kind: str) -> dict[str, list[float]]:
    return {name: programs.sharded(settings, kind) for name, settings in RUNS.items()}


@pytest.fixture(scope="module")
def of_one() -> dict[str, list[float]]:
    with pytest.warns(psac.InsecureNoiseWarning):
        return all_runs("plain")


@pytest.mark.parametrize(
    "size, kind", [(2, "whole"), (2, "a layer"), (3, "whole"), (4, "whole")], ids=str
)
def test_sums_are_those_of_the_plain_model_in_one_process(
    size: int, kind: str, of_one: dict[str, list[float]]
) -> None:
    for result in returned(size, all_runs, kind):
        for name, expected in of_one.items():
            np.testing.assert_allclose(result[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_noise_on_shards_is_independent_and_of_the_stated_size() -> None:
    size = 30_000
    noises = returned(3, programs.noise_on_shards, size)
    assert all(noise == noises[0] for noise in noises)
    noise = np.array(noises[0])
    assert abs(noise.std() - 1) < 5 / np.sqrt(2 * size)
    shards = noise.reshape(3, -1)
    correlations = np.corrcoef(shards) - np.eye(3)
    assert np.abs(correlations).max() < 5 / np.sqrt(size / 3)


def test_a_run_goes_on_in_other_shards_and_without(tmp_path: Path) -> None:
    path = str(tmp_path / "run.safetensors")
    first = returned(2, programs.sharded, {}, "whole", path)
    assert all(result == first[0] for result in first)
    with pytest.warns(psac.InsecureNoiseWarning):
        expected = programs.sharded({}, "plain")
    with pytest.warns(psac.InsecureNoiseWarning):
        alone = programs.sharded({}, "plain", path)
    np.testing.assert_allclose(alone, expected, rtol=1e-4, atol=1e-5)
    for result in returned(3, programs.sharded, {}, "whole", path):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_what_writes_to_shards_between_steps_is_refused() -> None:
    for text in returned(2, programs.changed_shards):
        assert text.startswith("2: 0.weight was changed since the last step"), text


def test_the_function_sees_the_users_own_class_and_no_hooks() -> None:
    for seen in returned(2, programs.rival_class):
        assert seen == ["FSDPSequential", "Sequential", "0"]
