"""Run folders that several tests read; a test that changes one makes its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.reporting.folders import make_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    settings = {
        "secure": {},
        "seeded": {"seed": 7, "rule": "adaptive_psac"},
        "killed": {"stop": 0.45},
        "held-out": {"validation_fraction": 0.1},
        "again": {"luck": 1},
        "auto_s": {"rule": "auto_s", "luck": 2},
        "auto_s-again": {"rule": "auto_s", "luck": 3},
    }
    return {name: make_run(base / name, epochs=3, **given) for name, given in settings.items()}
