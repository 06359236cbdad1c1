"""The recipe `adult` at several budgets: `python -m paper adult`, about half an hour.

DP-PSAC and DP-SGD at epsilon 1, 3 and 8, and the same network without privacy, five seeds each;
beside them logistic regression and gradient boosting of scikit-learn on the same features, and what
the publishers of the data report (literature.json, which is copied, not computed).  For each rule
and budget, the learning rate is the best of three on a tenth of the training records, held out,
with a seed that is not reported; test records choose nothing.

Each run becomes a file in results/adult, and the table is written at its mark in
docs/guides/tabular.md.  What has a file is not made again.  The runs are seeded, hence repeatable
and NOT private: the data are public.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from paper.result_files import name_of, read_result, write_result
from paper.tables.row import TUNING_SEED, VALIDATION_FRACTION
from psac.app.training import Recipe, load_recipe, train
from psac.app.training.run import read_json, write_json
from psac.checkpoint.atomic import write_atomically

RESULTS, PAGE = Path("results/adult"), Path("docs/guides/tabular.md")
BEGIN, END = "<!-- adult:begin -->", "<!-- adult:end -->"
BUDGETS = (1.0, 3.0, 8.0)
RATES = (2.0, 4.0, 8.0)
SEEDS = (0, 1, 2, 3, 4)
RULES = {
    "DP-PSAC": {"rule": "psac", "r": 0.1, "bound": 0.1},
    "DP-SGD": {"rule": "abadi", "bound": 0.1},
}
# A bound that no gradient reaches: ordinary SGD, which takes smaller learning rates.
OPEN = {"rule": "abadi", "bound": 1e6, "noise_multiplier": 0.0}
OPEN_RATES = (0.25, 0.5, 1.0)
BASELINES = {
    "LogisticRegression": "logistic regression, scikit-learn",
    "HistGradientBoostingClassifier": "gradient boosting, scikit-learn",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    settings: dict[str, Any]
    rates: tuple[float, ...]

    @property
    def folder(self) -> Path:
        epsilon = self.settings.get("epsilon")
        return RESULTS / ("not-private" if epsilon is None else f"epsilon{epsilon:g}")

    def recipe(self, rate: float, seed: int, **more: Any) -> Recipe:
        return load_recipe("adult", **self.settings, learning_rate=rate, seed=seed, **more)

    def result(self, recipe: Recipe) -> dict[str, Any]:
        """That of this recipe, trained if there is none yet."""
        path = self.folder / f"{name_of(recipe)}.json"
        found = read_result(path, recipe)
        if found is None:
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of seeds, and of a run without noise
                write_result(train(recipe, Path(folder) / "run"), path)
            found = read_json(path)
        print(f"{path}: {found['accuracy']:.4f}", flush=True)
        return found

    def results(self) -> list[dict[str, Any]]:
        """Of all seeds, at the learning rate that was best on held-out records."""
        tried = {}
        for rate in self.rates:
            recipe = self.recipe(rate, TUNING_SEED, validation_fraction=VALIDATION_FRACTION)
            tried[rate] = self.result(recipe)["accuracy"]
        best = min(tried, key=lambda rate: (-tried[rate], rate))
        return [self.result(self.recipe(best, seed)) for seed in SEEDS]


def rows() -> list[Row]:
    private = [
        Row(title=title, settings={**settings, "epsilon": epsilon}, rates=RATES)
        for epsilon in BUDGETS
        for title, settings in RULES.items()
    ]
    return [*private, Row(title="SGD, the same network", settings=OPEN, rates=OPEN_RATES)]


def baselines() -> dict[str, Any]:
    """Accuracies of scikit-learn's models, with their settings as they come."""
    path = RESULTS / "baselines.json"
    if not path.exists():
        import sklearn
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression

        from psac.app import data

        tensors = [data.load("adult", split).tensors for split in ("train", "test")]
        (inputs, labels), (test, expected) = [[t.numpy() for t in pair] for pair in tensors]
        models = [LogisticRegression(max_iter=2000), HistGradientBoostingClassifier(random_state=0)]
        found = {
            type(model).__name__: float(model.fit(inputs, labels).score(test, expected))
            for model in models
        }
        most = float(torch.bincount(tensors[1][1]).max()) / len(expected)
        versions = {"scikit-learn": sklearn.__version__}
        write_json(path, {"accuracy": found, "most_frequent": most, "versions": versions})
    return read_json(path)


def literature() -> tuple[list[str], str]:
    """Rows of what others report, and where."""
    content = read_json(RESULTS / "literature.json")
    rows = [
        f"| {name}, reported in 1996 | none | {100 - error:.2f} % |  |  |"
        for name, error in content["error"].items()
    ]
    note = (
        "Results of 1996 are from `adult.names`, which the UCI repository publishes with the data "
        f"({content['reference']}): default settings, on the {content['records']['test']:,} test "
        "records without unknown values."
    )
    return rows, note


def table() -> str:
    """In Markdown, from the result files."""
    lines = [
        "| method | epsilon | test accuracy | seeds | learning rate |",
        "|---|---|---|---|---|",
    ]
    for row in rows():
        results = row.results()
        accuracies = [100 * result["accuracy"] for result in results]
        spread = f"{statistics.fmean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f} %"
        epsilon = row.settings.get("epsilon", math.inf)
        budget = "none" if math.isinf(epsilon) else f"{epsilon:g}"
        rate = results[0]["recipe"]["learning_rate"]
        lines.append(f"| {row.title} | {budget} | {spread} | {len(results)} | {rate:g} |")
    versions = results[0]["versions"]
    beside = baselines()
    for name, title in BASELINES.items():
        lines.append(f"| {title} | none | {100 * beside['accuracy'][name]:.2f} % | 1 |  |")
    reported, source = literature()
    lines += reported
    lines.append(
        f"| always the most frequent answer |  | {100 * beside['most_frequent']:.2f} % |  |  |"
    )
    note = (
        f"Delta is 1e-6. Mean and standard deviation over seeds, on the {16_281:,} test records. "
        f"psac {versions['psac']}, torch {versions['torch']}, "
        f"scikit-learn {beside['versions']['scikit-learn']}; made by "
        f"`python -m paper adult` from the files in `results/adult`. {source}"
    )
    return "\n".join([*lines, "", note])


def write_page() -> None:
    torch.set_num_threads(1)
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    whole = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    write_atomically(PAGE, whole.encode())
