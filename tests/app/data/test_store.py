"""The cache: whole files or none, whatever happens."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import psac
from psac.app.data import store
from psac.app.data.entry import DataNotFound, Entry
from psac.app.data.sets.mnist import MNIST
from psac.app.data.sources import SourceFailed
from tests.app.data.small_files import sha256

FILES = {"a.bin": b"alpha", "b.bin": b"beta"}


@dataclasses.dataclass
class Shelf:
    """A source that counts how often it is asked."""

    contents: dict[str, bytes] | None = None
    asked: int = 0
    seconds: float = 0.0

    def fetch(self, scratch: Path, progress) -> dict[str, bytes]:
        self.asked += 1
        (scratch / "part").write_bytes(b"half")
        time.sleep(self.seconds)
        progress("shelf", 1, 2)
        if self.contents is None:
            raise SourceFailed("it is empty")
        return dict(self.contents)

    def __str__(self) -> str:
        return "the shelf"


def entry_of(*shelves: Shelf, pinned: bool = True) -> Entry:
    files = {file: sha256(content) if pinned else None for file, content in FILES.items()}
    return dataclasses.replace(MNIST, name="made", files=files, sources=shelves)


def test_fetched_files_are_in_the_cache_and_nothing_else(cache):
    shelf = Shelf(FILES)
    folder = store.fetch(entry_of(shelf))
    assert folder == cache / "made"
    assert {file: (folder / file).read_bytes() for file in FILES} == FILES
    assert sorted(os.listdir(folder)) == [".lock", "a.bin", "b.bin", "obtained.json"]


def test_what_is_there_is_not_fetched_again():
    shelf = Shelf(FILES)
    for _ in range(3):
        store.fetch(entry_of(shelf))
    assert shelf.asked == 1


def test_sources_are_asked_in_order_until_one_gives(cache):
    empty, wrong, right, unused = Shelf(), Shelf({**FILES, "a.bin": b"?"}), Shelf(FILES), Shelf()
    store.fetch(entry_of(empty, wrong, right, unused))
    assert [shelf.asked for shelf in (empty, wrong, right, unused)] == [1, 1, 1, 0]
    assert store.obtained(entry_of()) == "the shelf"


def test_if_no_source_gives_the_error_says_what_where_why_and_what_to_do(cache):
    with pytest.raises(DataNotFound) as caught:
        store.fetch(entry_of(Shelf(), Shelf({**FILES, "b.bin": b"?"})))
    message = str(caught.value)
    assert f"looked for a.bin, b.bin in {cache / 'made'}" in message
    assert "the shelf: it is empty" in message
    assert "the shelf: b.bin does not have the SHA-256" in message
    assert "`psac data get made`" in message
    assert "root=" in message
    assert not (cache / "made" / "a.bin").exists()


@pytest.mark.parametrize("pinned", [True, False])
def test_a_damaged_file_is_noticed_and_fetched_again(cache, pinned):
    shelf = Shelf(FILES)
    entry = entry_of(shelf, pinned=pinned)
    folder = store.fetch(entry)
    (folder / "b.bin").write_bytes(b"bets")
    assert store.stored(entry, "b.bin") is None
    with pytest.warns(UserWarning, match=r"b\.bin is damaged"):
        store.fetch(entry)
    assert store.stored(entry, "b.bin") == b"beta"
    assert shelf.asked == 2


def test_without_its_note_a_file_of_unknown_checksum_is_fetched_again(cache):
    shelf = Shelf(FILES)
    entry = entry_of(shelf, pinned=False)
    (store.fetch(entry) / "obtained.json").write_text("{")
    with pytest.warns(UserWarning, match="damaged"):
        store.fetch(entry)
    assert shelf.asked == 2
    assert json.loads((cache / "made" / "obtained.json").read_text())["source"] == "the shelf"


def test_threads_that_fetch_at_once_fetch_once():
    shelf = Shelf(FILES, seconds=0.1)
    entry = entry_of(shelf)
    threads = [threading.Thread(target=store.fetch, args=(entry,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shelf.asked == 1
    assert store.stored(entry, "a.bin") == b"alpha"


def test_progress_is_told():
    calls = []
    store.fetch(entry_of(Shelf(FILES)), lambda *call: calls.append(call))
    assert calls == [("shelf", 1, 2)]


def test_an_interrupt_leaves_nothing_behind(cache):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.fetch(entry_of(Shelf(FILES)), interrupt)
    assert os.listdir(cache / "made") == [".lock"]
    store.fetch(entry_of(Shelf(FILES)))


KILLED = """
import pathlib, time
from psac.app.data import sources, store
from psac.app.data.catalogue import ENTRIES

def stalls(command, folder):
    (folder / "half.tgz").write_bytes(b"half")
    time.sleep(60)

def fails(*_):
    raise sources.SourceFailed("no network in tests")

sources.run, sources.download = stalls, fails
store.fetch(ENTRIES["mnist"])
"""


def test_a_process_that_is_killed_in_a_download_blocks_nobody(cache):
    process = subprocess.Popen([sys.executable, "-c", KILLED])
    scratch = cache / "mnist" / ".scratch" / "half.tgz"
    try:
        for _ in range(600):
            if scratch.exists():
                break
            time.sleep(0.05)
        assert scratch.exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    entry = dataclasses.replace(entry_of(Shelf(FILES)), name="mnist")
    folder = store.fetch(entry)
    assert not (folder / ".scratch").exists()
    assert store.stored(entry, "a.bin") == b"alpha"


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("PSAC_CACHE", str(tmp_path / "own"))
    assert store.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("PSAC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert store.cache_folder() == tmp_path / "shared" / "psac"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.cache_folder() == tmp_path / ".cache" / "psac"


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PSAC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataNotFound, match="Set PSAC_CACHE"):
        store.fetch(entry_of(Shelf(FILES)))


def test_what_no_source_has_is_not_fetched():
    with pytest.raises(DataNotFound, match="img_align_celeba"):
        psac.data.fetch("celeba")
