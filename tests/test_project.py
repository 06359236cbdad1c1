"""What packaging and CI say about Python versions and packages fits together."""

from __future__ import annotations

import re

from packaging.requirements import Requirement

from psac.app.toml import tomllib
from tests.docs.markdown import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
SET_UP = ("cli", "plots", "data", "hf", "docs", "dev")  # extras that `make setup` installs


def supported() -> list[str]:
    found = [re.search(r":: (3\.\d+)$", line) for line in PROJECT["classifiers"]]
    return [match[1] for match in found if match]


def test_ci_tests_every_python_that_is_supported():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"[\d.]+", matrix) == supported()
    assert PROJECT["requires-python"] == f">={supported()[0]}"


def test_make_setup_installs_pinned_versions_only():
    extras = [text for name in SET_UP for text in PROJECT["optional-dependencies"][name]]
    wanted = {Requirement(text).name for text in [*PROJECT["dependencies"], *extras]}
    assert wanted - {pin.name for pin in PINS} == {"tomli"}  # Python 3.10 only


def test_a_pin_is_one_version_and_holds_on_the_newest_python():
    for pin in PINS:
        assert re.fullmatch(r"==[\d.]+", str(pin.specifier)), pin
        newest = {"python_version": supported()[-1], "python_full_version": supported()[-1] + ".0"}
        assert pin.marker is None or pin.marker.evaluate(newest), pin
