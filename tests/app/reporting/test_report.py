"""The page: complete, self-contained, honest; whatever state the folder is in."""

from __future__ import annotations

import json
import math
import re
import shutil

import pytest

import psac
from psac.app.reporting import NoRun, report
from psac.app.training.price import price
from tests.app.reporting.folders import make_run
from tests.app.reporting.pages import Tags, page_of, words_of

CARD = ["Guarantee", "Setting", "What is protected", "Neighbouring data", "Data covered",
        "Releases covered", "Tuning", "Accountant", "Sampling", "Noise", "Clipping", "Isolation",
        "Steps", "Random generator", "Not covered"]  # fmt: skip
FIGURES = ["Accuracy", "Evaluation loss", "Accuracy of each class", "Confusion matrix",
           "Examples of mistakes", "Training loss", "Gradient norms", "Weights",
           "Distribution of gradient norms", "The clipping rule over these norms", "Throughput",
           "Batch size"]  # fmt: skip


def edit(path, **values):
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps(content))


def edit_lines(folder, kind, **values):
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [line | values if line["kind"] == kind else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))


@pytest.fixture
def own(runs, tmp_path):
    """A copy of the secure run that a test may change."""
    return shutil.copytree(runs["secure"], tmp_path / "own")


PROVED = "proved for every attack"


def test_a_page_has_every_row_of_the_card_and_every_figure(runs, tmp_path):
    page = page_of(runs["secure"], tmp_path)
    for row in CARD:
        assert f"<dt>{row}</dt>" in page
    for title in FIGURES:
        assert f"<h3>{title}</h3>" in page
    assert "psac train fashion-mnist-cnn --epsilon 3" in page


def test_a_page_says_what_the_guarantee_rests_on(runs, tmp_path):
    words = words_of(page_of(runs["secure"], tmp_path))
    run = json.loads((runs["secure"] / "ledger.json").read_text())
    spent = price(psac.Ledger.from_json(run), 1 / 600_000)
    assert f"epsilon {math.ceil(spent * 100) / 100:.2f} at delta 1.67e-6" in words
    for fact in (
        "tuning is not included",
        "Add or remove one",
        "Poisson",
        "Rate 0.03413, which is 2,048 of 60,000",
        "Privacy loss distributions (PLD)",
        "noise multiplier 1.2",
        "PSAC(r=0.1, bound=0.1, scale=1.0)",
        "depends on that record only, by construction (vmap).",
        "88 of 88 planned",
        "cryptographic generator",
        "a person with several records",
    ):
        assert fact in words, fact
    assert "can hardly tell whether any one record was in the data" in words


def test_a_page_says_what_was_released_before_training(own, tmp_path):
    ledger = psac.Ledger.from_json(json.loads((own / "ledger.json").read_text()))
    what = "private ranges of 'age' (release 12ab34cd)"
    ledger.record(noise_multiplier=9.0, sampling_rate=1.0, num_records=60_000, what=what)
    (own / "ledger.json").write_text(json.dumps(ledger.to_json()))
    for publish in (False, True):
        words = words_of(page_of(own, tmp_path, publish=publish))
        assert "the optimizer state, private ranges of 'age', and the ledger." in words


def test_a_page_says_how_many_copies_of_a_picture_were_seen(own, tmp_path):
    assert "each seen as" not in words_of(page_of(own, tmp_path))
    recipe = own / "recipe.toml"
    recipe.write_text(recipe.read_text() + "copies = 2\nshift = 1\n")
    assert "60,000 records, each seen as 2 " in words_of(page_of(own, tmp_path))


@pytest.mark.parametrize("publish", [False, True])
def test_a_page_says_how_records_were_kept_apart_if_the_run_does(own, tmp_path, publish):
    edit(own / "ledger.json", isolation=["vmap", "alone"])
    words = words_of(page_of(own, tmp_path, publish=publish))
    assert "that record only, by construction (vmap, alone)." in words
    edit(own / "ledger.json", isolation=[])
    assert "Isolation unknown" in words_of(page_of(own, tmp_path, publish=publish))


@pytest.mark.parametrize("publish", [False, True])
def test_isolation_that_was_tested_is_not_called_proved(own, tmp_path, publish):
    assert PROVED in words_of(page_of(own, tmp_path, publish=publish))
    edit(own / "ledger.json", isolation=["vmap", "batched"])
    words = words_of(page_of(own, tmp_path, publish=publish))
    assert PROVED not in words
    assert "That was tested, not proved." in words


def test_the_page_needs_nothing_from_elsewhere(runs, tmp_path):
    page = page_of(runs["secure"], tmp_path)
    tags = Tags(page)
    assert not tags.of("script")
    assert not tags.of("link")
    assert not re.search(r"https?:|@import|url\(", page)
    assert all(str(image["src"]).startswith("data:image/png;base64,") for image in tags.of("img"))
    assert any("default-src 'none'" in str(meta.get("content")) for meta in tags.of("meta"))


def test_every_picture_is_described(runs, tmp_path):
    tags = Tags(page_of(runs["secure"], tmp_path))
    images = [a for _, a in tags.found if a.get("role") == "img"]
    assert len(images) >= 9
    assert all(len(str(image["aria-label"])) > 15 for image in images)
    assert all(image["alt"] for image in tags.of("img"))
    assert all(a.get("role") == "img" or a.get("aria-hidden") for a in tags.of("svg"))
    assert all("nan" not in str(path["d"]) for path in tags.of("path"))


def test_the_same_folder_gives_the_same_bytes(runs, tmp_path):
    assert page_of(runs["secure"], tmp_path) == page_of(runs["secure"], tmp_path)


def test_a_seeded_run_is_called_not_private_everywhere(runs, tmp_path):
    words = words_of(page_of(runs["seeded"], tmp_path))
    assert "Reproducible, hence not private." in words
    assert "(seed 7)" in words
    assert "This model protects nobody" in words
    assert "NOT secure: the generator was seeded" in words
    assert "None: the noise is reproducible." in words
    assert "can hardly tell" not in words
    assert "Learned scale" in words  # of its adaptive rule


@pytest.mark.parametrize(
    "name", ["environment.json", "ledger.json", "summary.json", "predictions.json", "recipe.toml"]
)
def test_a_missing_file_is_named_and_the_rest_is_shown(own, tmp_path, name):
    (own / name).unlink()
    words = words_of(page_of(own, tmp_path))
    assert f"{name} is missing." in words
    assert "Privacy card" in words
    assert "Learning" in words


@pytest.mark.parametrize("publish", [False, True])
@pytest.mark.parametrize("damage", [None, '{"format": '])
def test_without_a_ledger_nothing_is_promised(own, tmp_path, damage, publish):
    (own / "ledger.json").unlink()
    if damage is not None:
        (own / "ledger.json").write_text(damage)
    words = words_of(page_of(own, tmp_path, publish=publish))
    assert "Nothing in the folder proves how private this model is." in words
    assert "not shown as a guarantee: without ledger.json" in words
    assert "can hardly tell" not in words
    assert "Report of a training run" in words
    assert "Epsilon \N{EN DASH} unknown: there is no ledger" in words
    assert "Guarantee Unknown, because the ledger" in words
    assert "differential privacy." not in words
    assert "may be published" not in words
    assert "epsilon spent" not in words


def test_a_folder_with_a_recipe_alone_is_a_run_that_has_not_begun(own, tmp_path):
    for path in own.iterdir():
        if path.name != "recipe.toml":
            path.unlink()
    words = words_of(page_of(own, tmp_path))
    assert "This run is not finished." in words
    assert "The run has not been evaluated yet." in words


def test_a_run_killed_in_the_middle_of_a_line_is_reported(runs, tmp_path):
    own = shutil.copytree(runs["killed"], tmp_path / "own")
    metrics = own / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-30])
    words = words_of(page_of(own, tmp_path))
    assert "This run is not finished." in words
    assert "of 88 planned steps are done" in words
    assert "a damaged line was skipped" in words
    assert "summary.json is missing" not in words  # as it should be


def test_steps_after_the_last_ledger_are_charged(runs, tmp_path):
    own = shutil.copytree(runs["killed"], tmp_path / "own")
    before = words_of(page_of(own, tmp_path))
    ledger = json.loads((own / "ledger.json").read_text())
    ledger["entries"][0]["steps"] -= 10
    (own / "ledger.json").write_text(json.dumps(ledger))
    after = words_of(page_of(own, tmp_path))
    assert "The ledger was last written after 30 steps" in after
    spent = re.search(r"epsilon [\d.]+ at delta 1.67e-6 , so far", before)
    assert spent is not None
    assert spent[0] in after


def test_damaged_files_are_told_and_survived(own, tmp_path):
    (own / "summary.json").write_text('{"accuracy": 0.')
    (own / "ledger.json").write_text('{"format": "something"}')
    words = words_of(page_of(own, tmp_path))
    assert "summary.json cannot be read" in words
    assert "ledger.json cannot be read: this is no ledger" in words


def test_an_epsilon_that_is_not_the_ledgers_is_contradicted(own, tmp_path):
    edit(own / "summary.json", epsilon=0.5)
    assert "The run wrote epsilon 0.5, but its ledger costs" in words_of(page_of(own, tmp_path))


def test_no_noise_is_no_privacy(tmp_path):
    folder = make_run(tmp_path / "run", epochs=1, noise_multiplier=0.0)
    words = words_of(page_of(folder, tmp_path))
    assert "This model is not private: it was trained with no noise" in words
    assert "infinite" in words
    assert "Report of a training run" in words


def test_little_noise_is_called_weak(tmp_path):
    folder = make_run(tmp_path / "run", epochs=2, noise_multiplier=0.4)
    assert "the guarantee is weak" in words_of(page_of(folder, tmp_path))


def test_a_delta_that_lets_a_record_through_is_called_too_large(own, tmp_path):
    edit_lines(own, "start", delta=1 / 60_000)
    assert "Delta is too large." in words_of(page_of(own, tmp_path))


def test_mistakes_without_pictures_are_a_table(tmp_path):
    folder = make_run(tmp_path / "run", epochs=1, pixels=False)
    page = page_of(folder, tmp_path)
    assert "<summary>24 mistakes</summary>" in page
    assert not Tags(page).of("img")


def test_values_that_are_not_finite_leave_gaps(own, tmp_path):
    edit_lines(own, "step", loss=math.nan, norms={"quantiles": None})
    edit_lines(own, "evaluation", loss=None)
    page = page_of(own, tmp_path)
    assert "<h3>Training loss</h3>" not in page
    assert "<h3>Gradient norms</h3>" not in page
    assert "<h3>Accuracy</h3>" in page


def test_a_rule_of_the_users_own_has_a_name_and_no_curve(own, tmp_path):
    edit_lines(own, "start", rule="{'head.*': PSAC(r=0.1, bound=1.0), '*': Abadi(bound=0.5)}")
    words = words_of(page_of(own, tmp_path))
    assert "'head.*': PSAC(r=0.1" in words
    assert "no curve" in words


def test_texts_of_a_folder_cannot_become_code(tmp_path):
    evil = "</style><script>alert('x')</script><b title=\"y\">"
    folder = make_run(tmp_path / "run", epochs=1)
    recipe = (folder / "recipe.toml").read_text()
    folder.joinpath("recipe.toml").write_text(
        recipe.replace('"cnn"', json.dumps(evil)).replace('"sgd"', json.dumps(evil))
    )
    edit(folder / "environment.json", command=evil, platform=evil, date=evil)
    edit(folder / "summary.json", classes=[evil] * 10)
    edit_lines(folder, "start", rule=evil, sampling=evil)
    page = page_of(folder, tmp_path)
    tags = Tags(page)
    assert not tags.of("script")
    assert not any(a.get("title") == "y" for a in tags.of("b"))
    assert "&lt;script&gt;alert" in page


def test_many_classes_give_a_list_instead_of_a_matrix(own, tmp_path):
    size = 40
    matrix = [[9 if i == j else int(j == i + 1) for j in range(size)] for i in range(size)]
    edit(own / "summary.json", confusion_matrix=matrix, classes=None, per_class_accuracy=None)
    page = page_of(own, tmp_path)
    assert "Confusion matrix" not in page
    assert "Most frequent confusions" in page


def test_the_page_is_beside_the_run_unless_told_otherwise(own, tmp_path):
    assert report(own) == own.resolve() / "report.html"
    assert report(str(own), publish=True) == own.resolve() / "report-public.html"
    assert report([own], tmp_path) == tmp_path / "report.html"
    assert report(own, tmp_path / "new" / "page.html").is_file()


def test_several_runs_have_their_page_in_the_folder_that_holds_them(runs):
    folders = [runs["secure"], runs["again"]]
    assert report(folders) == runs["secure"].resolve().parent / "report.html"


def test_a_folder_that_is_no_run_is_refused_with_what_was_sought(runs, tmp_path):
    with pytest.raises(NoRun, match=r"does not exist.*recipe.toml, metrics.jsonl, summary.json"):
        report(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(NoRun, match=r"is a file"):
        report(tmp_path / "notes.txt")
    with pytest.raises(
        NoRun, match=r"is not a run: it has none of recipe.toml.*It holds notes.txt"
    ):
        report(tmp_path)
    with pytest.raises(NoRun, match=r"It contains runs.*killed.*secure"):
        report(runs["secure"].parent)


def test_no_folder_and_the_same_folder_twice_are_refused(own):
    with pytest.raises(ValueError, match="folders is empty"):
        report([])
    with pytest.raises(ValueError, match="listed twice"):
        report([own, own.parent / "x" / ".." / own.name])


def test_accuracy_is_held_against_the_same_answer_to_all_but_never_by_private_records(own):
    def words(**how):
        return words_of(report(str(own), **how).read_text())

    edit(own / "summary.json", constant_accuracy=0.747)
    assert "always predicting the most frequent class (74.7" in words(publish=True)
    edit(own / "summary.json", split="validation", private=False)
    assert "always predicting the most frequent class" not in words(publish=True)
