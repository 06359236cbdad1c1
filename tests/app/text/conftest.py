"""One small language model for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.data.conftest import cache
from tests.app.text.small import model_folder, sst2_folder

__all__ = ["cache"]  # nothing here sees a network or the user's cache


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> Path:
    return model_folder(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="session")
def sst2(tmp_path_factory) -> Path:
    return sst2_folder(tmp_path_factory.mktemp("sst2"))
