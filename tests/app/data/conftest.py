"""No test here but the slow ones sees a network, a package client or the user's cache."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from psac.app.data import sources


@pytest.fixture(autouse=True)
def cache(request, tmp_path, monkeypatch):
    """The folder of the cache, empty."""
    if request.node.get_closest_marker("slow"):
        return None
    monkeypatch.setenv("PSAC_CACHE", str(tmp_path / "cache"))

    def no_network(*_, **__):
        raise urllib.error.URLError("no network in tests")

    def no_client(command, folder):
        raise sources.SourceFailed(f"{command[0]} is not installed")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.setattr(sources, "run", no_client)
    return tmp_path / "cache"


@pytest.fixture
def served(monkeypatch):
    """A dict of address to content, which urlopen answers from."""
    pages: dict[str, bytes] = {}

    def answer(request, timeout):
        assert request.full_url.startswith("https://")
        if request.full_url not in pages:
            raise urllib.error.URLError("there is no such page")
        return Answer(pages[request.full_url])

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    return pages


class Answer:
    """What urlopen gives, with the length that was promised."""

    def __init__(self, content: bytes, promised: int | None = None) -> None:
        length = len(content) if promised is None else promised
        self.content, self.headers = content, {"Content-Length": str(length)}

    def read(self, count: int) -> bytes:
        chunk, self.content = self.content[:count], self.content[count:]
        return chunk

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass
