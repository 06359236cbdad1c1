"""E2E NLG (Novikova et al. 2017, arXiv:1706.09254): facts about a restaurant, and a text of them.

`examples(e2e-dataset.zip, "train")` reads the file as its authors give it; nothing is fetched.  The
file is checked by its SHA-256.  A record is one pair; a set of facts has several texts.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple

SHA256 = "1261064c01907af27e8cc39e0a29a81541f6ab69208c1cbfc1be95afbb49dfac"
TABLES = {"train": "trainset.csv", "dev": "devset.csv", "test": "testset_w_refs.csv"}


class Example(NamedTuple):
    facts: str
    text: str


def checked(archive: Path) -> Path:
    """The archive; raises if it is not the published one."""
    if not archive.is_file():
        raise FileNotFoundError(
            f"{archive} does not exist. Give e2e-dataset.zip of the E2E NLG challenge by --data."
        )
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise ValueError(f"{archive} is not the published e2e-dataset.zip (SHA-256 {SHA256}).")
    return archive


def examples(archive: Path, split: str) -> list[Example]:
    """All pairs of a split."""
    with zipfile.ZipFile(archive) as files:
        content = files.read(f"e2e-dataset/{TABLES[split]}").decode("utf-8-sig")
    rows = csv.DictReader(io.StringIO(content, newline=""))
    return [Example(row["mr"], row["ref"]) for row in rows]


def references(pairs: list[Example]) -> dict[str, list[str]]:
    """All texts of each set of facts."""
    texts: dict[str, list[str]] = {}
    for pair in pairs:
        texts.setdefault(pair.facts, []).append(pair.text)
    return texts
