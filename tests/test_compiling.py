"""What was compiled is kept, and loaded only if nobody else can have written it."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from psac.native import compiling

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
SOURCE = "int psac_seven(void) { return 7; }\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source, and a compiler that writes down how often it is called."""
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\necho called >> "{tmp_path}/calls"\nexec cc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("PSAC_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "seven.c"
    path.write_text(SOURCE)
    return path


def compiled(source: Path) -> ctypes.CDLL:
    library = compiling.library.__wrapped__(source)
    assert library.psac_seven() == 7
    return library


def calls(source: Path) -> int:
    return len((source.parent / "calls").read_text().splitlines())


def kept(source: Path) -> Path:
    (path,) = (source.parent / "cache" / "compiled").iterdir()
    return path


def test_it_is_compiled_once(source):
    compiled(source)
    compiled(source)
    assert calls(source) == 1
    assert kept(source).parent.stat().st_mode & 0o777 == 0o700


def test_another_source_is_compiled_anew(source):
    compiled(source)
    source.write_text(SOURCE + "int psac_eight(void) { return 8; }\n")
    assert compiled(source).psac_eight() == 8


def test_a_file_that_others_may_write_to_is_not_loaded(source):
    compiled(source)
    kept(source).chmod(0o777)
    compiled(source)
    assert calls(source) == 2
    assert kept(source).stat().st_mode & 0o022 == 0


def test_a_link_is_not_loaded(source, tmp_path):
    compiled(source)
    elsewhere = tmp_path / "elsewhere.so"
    kept(source).rename(elsewhere)
    name = kept_name(source)
    (source.parent / "cache" / "compiled" / name).symlink_to(elsewhere)
    compiled(source)
    assert calls(source) == 2


def kept_name(source: Path) -> str:
    place = compiling.place_for(source, os.environ["CC"])
    assert place is not None
    return place.name


def test_nothing_is_kept_in_a_folder_that_others_may_write_to(source):
    folder = source.parent / "cache" / "compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    compiled(source)
    compiled(source)
    assert calls(source) == 2
    assert not list(folder.iterdir())


def test_a_damaged_file_is_compiled_anew(source):
    name = kept_name(source)
    damaged = source.parent / "cache" / "compiled" / name
    damaged.write_bytes(b"not a library")
    damaged.chmod(0o600)
    compiled(source)
    assert calls(source) == 1
    assert kept(source).read_bytes() != b"not a library"


def test_without_a_known_processor_nothing_is_kept(source, monkeypatch):
    monkeypatch.setattr(compiling, "PROCESSOR", source.parent / "missing")
    compiled(source)
    assert not list((source.parent / "cache" / "compiled").glob("*"))


def test_a_source_that_does_not_compile_is_none(source):
    source.write_text("this is no C\n")
    assert compiling.library.__wrapped__(source) is None
