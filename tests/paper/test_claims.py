"""The claims: the one that is exact, and how verdicts follow from evidence."""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import psac
from paper.claims import judging
from paper.claims.claims import CLAIMS
from paper.claims.evidence import Evidence, paper_p
from paper.claims.judging import CAVEAT, CONFIRMED, NOT_CONFIRMED, NOT_YET
from paper.claims.page import write_page
from paper.figures import fig3
from paper.tables.row import Percent
from paper.tables.table2 import TABLE2

RESULTS = Path(__file__).parents[2] / "results"


def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def trained(rule: psac.ClippingRule, learning_rate: float) -> torch.Tensor:
    """The weights of a small model after ten private steps with one seed."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 5, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", psac.InsecureNoiseWarning)
        torch.manual_seed(1)
        model = torch.nn.Linear(5, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
        settings = {"batch_size": 16, "steps": 10, "noise_multiplier": 1.0, "seed": 3}
        with psac.make_private(model, optimizer, data, clipping=rule, **settings) as private:
            while private.steps_taken < 10:
                for batch in private.loader:
                    private.step(loss, batch)
    return model.weight.detach()


@pytest.mark.parametrize("rule", [psac.PSAC, psac.AutoS])
def test_bound_and_learning_rate_are_coupled_exactly(rule):
    small = trained(rule(r=0.1, bound=0.25), learning_rate=4.0)
    one = trained(rule(r=0.1, bound=1.0), learning_rate=1.0)
    torch.testing.assert_close(small, one, rtol=1e-5, atol=1e-6)


def test_for_dp_sgd_bound_and_learning_rate_are_not_coupled():
    small = trained(psac.Abadi(bound=0.25), learning_rate=4.0)
    one = trained(psac.Abadi(bound=1.0), learning_rate=1.0)
    assert (small - one).abs().max() > 1e-2


def table(psac_mean: float, others: float, p: float) -> list[dict]:
    """Table 2 with all rows of the paper finished and equal."""
    entries = []
    for row in TABLE2.values():
        for rule, mean in (("abadi", others), ("auto_s", others), ("psac", psac_mean)):
            entries.append(
                {
                    "row": row.name,
                    "rule": rule,
                    "paper": {"mean": 90.0, "deviation": 0.1},
                    "accuracies": [mean - 0.1, mean + 0.1],
                    "mean": mean,
                    "deviation": 0.14 if rule == "psac" else 0.2,
                    "test": None if rule == "psac" else {"p": 0.4, "paired_p": p},
                    "learning_rate": 1.0,
                }
            )
    return entries


def evidence_of(entries: list[dict]) -> Evidence:
    return Evidence(exhibits={}, table2=entries)


@pytest.mark.parametrize(
    "means, p, verdict",
    [
        ((90.5, 90.0), 0.01, CONFIRMED),
        ((90.5, 90.0), 0.2, NOT_CONFIRMED),  # a difference that may be chance confirms nothing
        ((89.5, 90.0), 0.01, NOT_CONFIRMED),
    ],
)
def test_table_2_is_judged_by_differences_that_are_no_chance(means, p, verdict):
    assert judging.better_accuracy(evidence_of(table(*means, p))).verdict == verdict


def test_one_row_that_is_lost_decides_a_claim_about_all_rows():
    entries = table(90.5, 90.0, 0.01)
    lost = next(entry for entry in entries if entry["rule"] == "psac")
    lost["mean"] = 89.0
    judgement = judging.better_accuracy(evidence_of(entries))
    assert judgement.verdict == NOT_CONFIRMED
    assert "Of 18 comparisons" in judgement.reasons
    assert "DP-PSAC wins 16 and loses 2" in judgement.reasons


def test_one_row_that_is_a_tie_leaves_a_caveat():
    entries = table(90.5, 90.0, 0.01)
    for entry in entries[:2]:
        entry["test"] = {"p": 0.4, "paired_p": 0.6}
    assert judging.better_accuracy(evidence_of(entries)).verdict == CAVEAT


def test_rows_that_were_not_run_leave_a_caveat():
    entries = table(90.5, 90.0, 0.01)
    first = entries[0]["row"]
    some = [entry for entry in entries if entry["row"] == first]
    judgement = judging.better_accuracy(evidence_of(some))
    assert judgement.verdict == CAVEAT
    assert "not yet: MNIST, CIFAR10; not run here: Imagenette," in judgement.reasons


def test_no_claim_is_judged_by_a_recipe_of_our_own():
    entries = table(90.5, 90.0, 0.01)
    for entry in entries:
        if TABLE2[entry["row"]].own_recipe and entry["rule"] == "psac":
            entry["mean"], entry["deviation"] = 80.0, 9.0
    judgements = (judging.better_accuracy, judging.any_network, judging.lower_variance)
    verdicts = [judge(evidence_of(entries)).verdict for judge in judgements]
    assert verdicts == [CONFIRMED, CAVEAT, CAVEAT]


def test_what_stands_in_for_a_row_counts_for_its_network():
    entries = table(90.5, 90.0, 0.01)
    stand_in = [entry for entry in entries if entry["row"] == "cifar10-resnet9"]
    for entry in stand_in:
        entry["paper"] = None
    some = [entry for entry in entries if entry["row"] == "mnist"] + stand_in
    assert judging.any_network(evidence_of(some)).verdict == CAVEAT
    ours = next(entry for entry in stand_in if entry["rule"] == "psac")
    ours["mean"] = 89.0
    judgement = judging.any_network(evidence_of(some))
    assert judgement.verdict == NOT_CONFIRMED
    assert "CNN: 2 won, 0 lost, of 2; ResNet9: 0 won, 2 lost, of 2" in judgement.reasons
    assert judging.better_accuracy(evidence_of(some)).verdict == CAVEAT  # of the paper's rows


def test_a_lower_deviation_of_few_seeds_is_never_more_than_a_caveat():
    entries = table(90.5, 90.0, 0.01)
    assert judging.lower_variance(evidence_of(entries)).verdict == CAVEAT
    for entry in entries:
        entry["deviation"] = 0.3 if entry["rule"] == "psac" else 0.2
    assert judging.lower_variance(evidence_of(entries)).verdict == NOT_CONFIRMED


def test_a_claim_without_results_is_not_yet_judged(tmp_path):
    evidence = Evidence.read(tmp_path)
    for claim in CLAIMS:
        if claim.needs or claim.place == "Table 2":
            assert claim.judged(evidence).verdict == NOT_YET


@pytest.fixture(scope="module")
def committed() -> Evidence:
    return Evidence.read(RESULTS)


def test_r_is_judged_by_the_best_accuracy_at_each_r(committed):
    data = copy.deepcopy(committed.exhibits["fig4"])
    for behind, verdict in ((0.9, CAVEAT), (1.1, NOT_CONFIRMED)):
        for cell in data["cells"]:
            if cell["rule"] == "psac":
                cell["accuracy"] = 0.8 - (behind / 100 if cell["value"] == 0.1 else 0)
        assert judging.good_r(with_exhibit(committed, "fig4", data)).verdict == verdict


@pytest.mark.parametrize(
    "last, verdict",
    [((0.1, 0.1), CONFIRMED), ((0.1, 0.001), CAVEAT), ((0.001,) * 2, NOT_CONFIRMED)],
)
def test_updates_are_judged_by_what_the_median_gradient_contributes_at_the_end(last, verdict):
    def figure(norm):
        measured = [{"median_norm": 3.0}, {"median_norm": norm}]
        return {"curves": {"one": {"title": "Made up", "measured": measured}}}

    evidence = Evidence(
        exhibits=dict(zip(("fig1", "fig6"), map(figure, last), strict=True)), table2=[]
    )
    judgement = judging.small_updates(evidence)
    assert judgement.verdict == verdict
    if last[0] == 0.001:  # 0.001 / 0.011 by Auto-S, 0.0011 by DP-PSAC
        assert "falls to 9% by Auto-S and to 0.1% by DP-PSAC" in judgement.reasons


def test_a_flat_figure_4_for_dp_sgd_would_not_confirm_the_claim(committed):
    data = copy.deepcopy(committed.exhibits["fig4"])
    assert judging.sensitivity(committed).verdict == CAVEAT
    for cell in data["cells"]:
        cell["accuracy"] = 0.8
    assert judging.sensitivity(with_exhibit(committed, "fig4", data)).verdict == NOT_CONFIRMED


@pytest.mark.parametrize(
    "largest, alone, verdict",
    [(0.4, 0.39, CONFIRMED), (0.4, 0.2, CAVEAT), (-0.4, -0.4, NOT_CONFIRMED)],
)
def test_small_gradients_are_judged_by_the_rise_and_by_a_samples_own_part(largest, alone, verdict):
    deciles = {"all": [0.0] * 9 + [largest], "others": [0.0] * 9 + [alone]}
    data = {"curves": {"one": {"title": "Made up", "deciles": deciles}}, "missing": {}}
    evidence = Evidence(exhibits={"fig1": data, "fig6": data}, table2=[])
    assert judging.small_gradients(evidence).verdict == verdict


def test_if_middle_gradients_are_the_opposed_ones_that_is_a_caveat_and_said():
    deciles = [0.0, -0.1, -0.1, -0.1, -0.2, 0.1, 0.1, 0.2, 0.3, 0.4]
    curve = {"title": "Made up", "deciles": {"all": deciles, "others": deciles}}
    data = {"curves": {"one": curve}, "missing": {}}
    judgement = judging.small_gradients(Evidence(exhibits={"fig1": data, "fig6": data}, table2=[]))
    assert judgement.verdict == CAVEAT
    assert "Cosines fall up to tenth 5 and rise from there" in judgement.reasons


def test_a_weighted_curve_that_is_worse_would_not_confirm_the_lazy_region(committed):
    data = copy.deepcopy(committed.exhibits["fig5"])
    data["means"]["psac"] = list(np.zeros(len(data["thetas"])))
    assert judging.lazy_region(with_exhibit(committed, "fig5", data)).verdict == NOT_CONFIRMED
    assert judging.closest(with_exhibit(committed, "fig5", data)).verdict == NOT_CONFIRMED


def test_a_bound_below_the_truth_would_not_confirm_the_theorem(committed):
    data = copy.deepcopy(committed.exhibits["truth"])
    assert judging.convergence(committed).verdict == CAVEAT
    data["runs"][-1]["theorem_2"] = data["runs"][-1]["smallest"] / 2
    assert judging.convergence(with_exhibit(committed, "truth", data)).verdict == NOT_CONFIRMED


def test_the_order_in_r_is_judged_at_equal_r_and_at_equal_largest_weight(committed):
    data = copy.deepcopy(committed.exhibits["bounds"])
    assert judging.lower_bound(committed).verdict == CAVEAT
    for curve in data["curves"]:
        curve["matched"] = [2 * bound for bound in curve["psac"]]
    assert judging.lower_bound(with_exhibit(committed, "bounds", data)).verdict == CONFIRMED
    for curve in data["curves"]:
        curve["auto_s"] = [bound / 2 for bound in curve["psac"]]
    assert judging.lower_bound(with_exhibit(committed, "bounds", data)).verdict == NOT_CONFIRMED


@pytest.mark.parametrize(
    "own, elsewhere, matched, verdict",
    [
        (0.9, 0.9, 0.5, CONFIRMED),
        (0.9, 0.9, 0.95, CAVEAT),  # Auto-S of equal largest weight is closer still
        (0.8005, 0.9, 0.5, CAVEAT),  # batch by batch only: runs do not differ beyond chance
        (0.7, 0.7, 0.5, NOT_CONFIRMED),
    ],
)
def test_the_deviation_is_judged_by_runs_and_by_batches(own, elsewhere, matched, verdict):
    def seen(trainer, shift):
        found = dict.fromkeys(fig3.RULES, 0.8 + shift)
        found |= {"psac": (own if trainer == "psac" else elsewhere) + shift}
        found |= {"auto_s matched": matched + shift}
        if trainer == "psac" and elsewhere > 0.8:
            found["auto_s"] = 0.6 + shift
        return {"cosine": found, "noisy": found}

    # Runs of one seed move together, and a little on their own.
    runs = [
        {"rule": rule, "measured": [seen(rule, shift + 0.001 * k * (-1) ** i)]}
        for k, rule in enumerate(fig3.TRAINED)
        for i, shift in enumerate((-0.02, 0.0, 0.02))
    ]
    evidence = Evidence(exhibits={"fig3": {"runs": runs}}, table2=[])
    assert judging.deviation(evidence).verdict == verdict


def with_exhibit(evidence: Evidence, name: str, data: dict) -> Evidence:
    return dataclasses.replace(evidence, exhibits={**evidence.exhibits, name: data})


def test_p_values_of_the_papers_own_numbers():
    expected = {"mnist": 0.15, "fashion-mnist": 0.06}  # PSAC against Auto-S
    for name, p in expected.items():
        paper = TABLE2[name].paper
        assert paper_p(paper["psac"], paper["auto_s"]) == pytest.approx(p, abs=0.006)
    assert paper_p(Percent(90, 0.1), Percent(91, 0.1)) < 1e-4


def test_the_page_has_every_claim_and_says_what_is_missing(tmp_path):
    page = write_page(tmp_path / "results", tmp_path / "docs").read_text()
    for claim in CLAIMS:
        assert page.count(claim.says) == 2
    assert "Not here yet: `python -m paper fig3`." in page
    assert "Needs truth: `python -m paper theory`." in page
    assert page.count("not yet") > 5
    assert "Table 3" in page


def test_the_page_shows_the_pictures_that_are_there(tmp_path):
    page = write_page(RESULTS, tmp_path).read_text()
    for picture in ("fig2-light.svg", "fig2-dark.svg", "bounds-light.svg"):
        assert f"paper/{picture}" in page
        assert (tmp_path / "paper" / picture).exists()


def test_the_page_in_the_documentation_is_the_one_that_its_files_give(tmp_path):
    page = write_page(RESULTS, tmp_path).read_text()
    assert (RESULTS.parent / "docs" / "paper.md").read_text() == page
    for picture in (tmp_path / "paper").iterdir():
        kept = RESULTS.parent / "docs" / "paper" / picture.name
        assert kept.read_bytes() == picture.read_bytes()


def test_the_page_says_where_the_level_of_the_paper_is_reached(tmp_path):
    entries = table(98.2, 90.0, 0.01)
    (tmp_path / "table2").mkdir()
    (tmp_path / "table2" / "table.json").write_text(json.dumps(entries))
    page = write_page(tmp_path, tmp_path / "docs").read_text()
    reached, not_reached = (
        next(
            line
            for line in page.splitlines()
            if line.startswith(f"- The level of the paper is {how}")
        )
        for how in ("reached", "not reached")
    )
    assert "FashionMNIST (98.20, the paper 86.56)" in reached
    assert "MNIST (98.20, the paper 98.24)" in not_reached


def test_numbers_on_the_page_follow_the_result_files(tmp_path):
    folder = tmp_path / "table2"
    folder.mkdir()
    (folder / "table.json").write_text(json.dumps(table(91.37, 90.0, 0.0123)))
    page = write_page(tmp_path, tmp_path / "docs").read_text()
    assert "91.37" in page
    assert "+1.37" in page
    assert "0.012" in page


def test_the_page_says_what_other_epochs_and_learned_scales_gave(tmp_path):
    entries = [
        entry | {"best_epoch": entry["mean"] + 0.21, "learning_rate": 4.0}
        for entry in table(91.37, 90.0, 0.0123)
    ]
    learned = {"rule": "adaptive_psac", "mean": 91.0, "learning_rate": 8.0, "last_scale": 1.7}
    entries.append(entries[0] | learned)
    (tmp_path / "table2").mkdir()
    (tmp_path / "table2" / "table.json").write_text(json.dumps(entries))
    page = write_page(tmp_path, tmp_path / "docs").read_text()
    assert "FashionMNIST DP-SGD 90.21, Auto-S 90.21, DP-PSAC 91.58" in page
    assert "to 1.7 (FashionMNIST: -0.37 to DP-PSAC, learning rates 8 and 4)" in page
