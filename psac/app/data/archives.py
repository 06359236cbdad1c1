"""Reads single files from archives: zip and wheel, tar in any compression, Debian packages.

Only the wanted files are read, into memory; no path of an archive is ever written to.
"""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO


class Damaged(ValueError):
    """The archive cannot be read, or lacks a file; the message says which."""


def members_of(archive: Path, wanted: set[str]) -> dict[str, bytes]:
    """The contents of the wanted files, by their paths in the archive."""
    reader = {".zip": _zip, ".whl": _zip, ".deb": _deb}.get(archive.suffix, _tar)
    try:
        with open(archive, "rb") as file:
            contents = reader(file, wanted)
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise Damaged(f"{archive.name} cannot be read ({error})") from error
    except (lzma.LZMAError, zlib.error) as error:
        raise Damaged(f"{archive.name} cannot be unpacked ({error})") from error
    if missing := sorted(wanted - contents.keys()):
        raise Damaged(f"{archive.name} does not contain {', '.join(missing)}")
    return contents


def _zip(file: IO[bytes], wanted: set[str]) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name in wanted}


def _tar(file: IO[bytes], wanted: set[str]) -> dict[str, bytes]:
    contents = {}
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            content = archive.extractfile(member) if name in wanted else None
            if content is not None:
                contents[name] = content.read()
    return contents


def _deb(file: IO[bytes], wanted: set[str]) -> dict[str, bytes]:
    """A Debian package is an `ar` archive: a signature, then for each file a header of 60 bytes."""
    if file.read(8) != b"!<arch>\n":
        raise ValueError("it is not a Debian package")
    while len(header := file.read(60)) == 60:
        name, size = header[:16].decode().strip(" /"), int(header[48:58])
        content = file.read(size + size % 2)[:size]
        if len(content) < size:
            raise ValueError("it is truncated")
        if name.startswith("data.tar"):
            return _tar(io.BytesIO(content), wanted)
    raise ValueError("it has no data")
