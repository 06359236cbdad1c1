"""Tasks of the GLUE benchmark, as it gives them: tables of texts with labels.

A record is {"text", "label"}, and for pairs {"text", "text_pair", "label"}: the names of the
arguments of a Hugging Face tokenizer.  GLUE keeps the labels of its test sets to itself, so "test"
here is its dev set, on which papers report; MNLI has two, "test" (matched) and "test-mismatched".

Tables are read as they are: columns end at a tab, records at a line feed, quotes mean nothing.  A
few lines of QQP are cut short, and are left out as everybody does; elsewhere that is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from psac.app.data.entry import DataNotFound, Entry, Files
from psac.app.data.files import text_of
from psac.app.data.records import TextRecords
from psac.app.data.sources import WebArchive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The columns of a table, and how it spells the classes."""

    tables: dict[str, str]  # by split
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    cut_lines: bool = False
    header: tuple[str, ...] | None = None  # if the table has none


TASKS = {
    "sst2": Task(
        tables={"train": "train.tsv", "test": "dev.tsv"},
        texts=("sentence",),
        label="label",
        labels=("0", "1"),
    ),
    "qnli": Task(
        tables={"train": "train.tsv", "test": "dev.tsv"},
        texts=("question", "sentence"),
        label="label",
        labels=("entailment", "not_entailment"),
    ),
    "qqp": Task(
        tables={"train": "train.tsv", "test": "dev.tsv"},
        texts=("question1", "question2"),
        label="is_duplicate",
        labels=("0", "1"),
        cut_lines=True,
    ),
    "mnli": Task(
        tables={
            "train": "train.tsv",
            "test": "dev_matched.tsv",
            "test-mismatched": "dev_mismatched.tsv",
        },
        texts=("sentence1", "sentence2"),
        label="gold_label",
        labels=("entailment", "neutral", "contradiction"),
    ),
    "cola": Task(
        tables={"train": "train.tsv", "test": "dev.tsv"},
        texts=("sentence",),
        label="label",
        labels=("0", "1"),
        header=("source", "label", "mark", "sentence"),
    ),
    "mrpc": Task(
        tables={"train": "train.tsv", "test": "dev.tsv"},
        texts=("#1 String", "#2 String"),
        label="Quality",
        labels=("0", "1"),
    ),
    "rte": Task(
        tables={"train": "train.tsv", "test": "dev.tsv"},
        texts=("sentence1", "sentence2"),
        label="label",
        labels=("entailment", "not_entailment"),
    ),
}


def read(entry: Entry, files: Files, split: str) -> TextRecords:
    task = TASKS[entry.name]
    table = task.tables[split]
    names = ("text", "text_pair")[: len(task.texts)]
    numbers = {label: number for number, label in enumerate(task.labels)}
    records = []
    for *texts, label in rows_in(text_of(files, table), task, table):
        if label not in numbers:
            raise DataNotFound(f"{table}: label {label!r} is not among {', '.join(task.labels)}.")
        records.append({**dict(zip(names, texts, strict=True)), "label": numbers[label]})
    return TextRecords(records, name=entry.name, classes=entry.classes)


def rows_in(text: str, task: Task, table: str) -> Iterator[list[str]]:
    """The columns that are needed, line by line."""
    # Not splitlines(), which would also cut at characters that occur within the texts.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    header = lines.pop(0).split("\t") if task.header is None else list(task.header)
    wanted = (*task.texts, task.label)
    if missing := [column for column in wanted if column not in header]:
        raise DataNotFound(
            f"{table} has no column {', '.join(missing)}; it has {', '.join(header)}. "
            "It should be the table of GLUE."
        )
    places = [header.index(column) for column in wanted]
    for number, line in enumerate(lines, start=2 if task.header is None else 1):
        fields = line.split("\t")
        if len(fields) > max(places):
            yield [fields[place] for place in places]
        elif line and not task.cut_lines:
            raise DataNotFound(f"{table}, line {number} is cut short: {line!r}. Download it again.")


def _entry(
    name: str,
    archive: str | None,
    sha256: str | None = None,
    *,
    folder: str,
    checksums: dict[str, str] | None = None,
    **facts,
) -> Entry:
    tables = TASKS[name].tables.values()
    source = WebArchive(
        address=f"https://dl.fbaipublicfiles.com/glue/data/{archive}",
        sha256=sha256,
        members={table: f"{folder}/{table}" for table in tables},
    )
    return Entry(
        name=name,
        page="https://gluebenchmark.com/tasks",
        files={table: (checksums or {}).get(table) for table in tables},
        read=read,
        sources=(source,) if archive else (),
        folders=(folder,),
        test_is_public=True,
        **facts,
    )


SST2 = _entry(
    "sst2",
    "SST-2.zip",
    "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
    folder="SST-2",
    checksums={
        "train.tsv": "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
        "dev.tsv": "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
    },
    title="SST-2: phrases of movie reviews, positive or negative",
    licence="none stated",
    reference="Socher et al. 2013, EMNLP; Wang et al. 2019, arXiv:1804.07461",
    classes=("negative", "positive"),
    records={"train": 67_349, "test": 872},
    megabytes=7,
)
QNLI = _entry(
    "qnli",
    "QNLIv2.zip",
    "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
    folder="QNLI",
    title="QNLI: does the sentence answer the question?",
    licence="CC BY-SA 4.0 (SQuAD)",
    reference="Rajpurkar et al. 2016, arXiv:1606.05250; Wang et al. 2019, arXiv:1804.07461",
    classes=("entailment", "not entailment"),
    records={"train": 104_743, "test": 5_463},
    megabytes=11,
)
QQP = _entry(
    "qqp",
    "QQP-clean.zip",
    "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
    folder="QQP",
    title="QQP: do two questions of Quora ask the same?",
    licence="Quora's terms of service, not for commercial use",
    reference="Iyer, Dandekar, Csernai 2017, Quora; Wang et al. 2019, arXiv:1804.07461",
    classes=("different", "duplicate"),
    records={"train": 363_846, "test": 40_430},
    megabytes=42,
)
MNLI = _entry(
    "mnli",
    "MNLI.zip",
    "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
    folder="MNLI",
    title="MNLI: does the second sentence follow from the first?",
    licence="OANC and others, see the paper",
    reference="Williams, Nangia, Bowman 2018, arXiv:1704.05426; Wang et al. 2019, arXiv:1804.07461",
    classes=("entailment", "neutral", "contradiction"),
    records={"train": 392_702, "test": 9_815, "test-mismatched": 9_832},
    megabytes=313,
)
COLA = _entry(
    "cola",
    "CoLA.zip",
    folder="CoLA",
    checksums={
        "train.tsv": "cb368ebeb9f27d7ad03720d27ddc95687a311bdb100781a2fe59a5f5b1bc0624",
        "dev.tsv": "8c013e21dc39957cac37378d87bebe225b694a0d5fe13eded66c2856628833fd",
    },
    title="CoLA: is the sentence grammatical?",
    licence="none stated",
    reference="Warstadt, Singh, Bowman 2019, arXiv:1805.12471; Wang et al. 2019, arXiv:1804.07461",
    classes=("unacceptable", "acceptable"),
    records={"train": 8_551, "test": 1_043},
    megabytes=0.4,
)
RTE = _entry(
    "rte",
    "RTE.zip",
    folder="RTE",
    checksums={
        "train.tsv": "41e3a9b063433392343fad9e962cf2f58b681c78d8f71592f4186f0837246c5c",
        "dev.tsv": "80230dfa1347282e7b532b06a1004a76a710087541189bf874223ddf0e3819fb",
    },
    title="RTE: does the second text follow from the first?",
    licence="none stated",
    reference="Dagan et al. 2005 and others; Wang et al. 2019, arXiv:1804.07461",
    classes=("entailment", "not entailment"),
    records={"train": 2_490, "test": 277},
    megabytes=0.7,
)
# GLUE publishes MRPC only as the lists of pairs in each split, so it cannot be fetched as one file.
MRPC = _entry(
    "mrpc",
    None,
    folder="MRPC",
    checksums={
        "train.tsv": "f178bcc72ab4c2c1c778b480912e0c8e1dba3ead150dc1d490d70682ab888c1e",
        "dev.tsv": "9e8f284788040f7c9ecde2e1b3c07237c756f926bd9ef8548ef5d34b56f69f17",
    },
    title="MRPC: do two sentences of the news say the same?",
    licence="Microsoft's terms, for research",
    reference="Dolan, Brockett 2005, IWP; Wang et al. 2019, arXiv:1804.07461",
    classes=("different", "equivalent"),
    records={"train": 3_667, "test": 408},
    megabytes=1.5,
)
