"""`make test` tries the same examples each time; `make test-slow` looks for new ones.

A build must not fail by the luck of a draw.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from psac.noise.generators import SecureGenerator

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("explore" if os.environ.get("PSAC_EXPLORE") else "steady")


@pytest.fixture(autouse=True, scope="session")
def records_of_runs_are_not_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of the session, since fixtures of modules train, too; subprocesses inherit it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PSAC_STATE_DIR", str(tmp_path_factory.mktemp("state") / "psac"))
        yield


@pytest.fixture
def same_draws_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the secure generator are counted, not drawn, for tests of how well something learns.

    What they show must not depend on luck, nor on the tests before.
    """
    numbers = itertools.count()

    def reserve(self: SecureGenerator, num_streams: int) -> tuple[bytes, int]:
        return hashlib.blake2b(str(next(numbers)).encode(), digest_size=16).digest(), 0

    monkeypatch.setattr(SecureGenerator, "reserve", reserve)
    torch.manual_seed(0)
