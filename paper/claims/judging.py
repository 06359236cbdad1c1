"""How each claim about numbers is judged: from the evidence to a verdict and its reasons.

A verdict is computed, never typed.  The thresholds are here to be seen, each beside its claim.
"""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np

from paper import theory
from paper.claims.evidence import Evidence
from paper.figures import bounds, cosine_by_norm, fig3, fig4, fig5
from paper.tables.row import COLUMNS, OF_THE_PAPER, OURS
from paper.tables.table2 import TABLE2
from psac.app.reporting.statistics import paired

CONFIRMED = "confirmed"
CAVEAT = "confirmed with a caveat"
NOT_CONFIRMED = "not confirmed"
NOT_TESTABLE = "not testable here"
NOT_YET = "not yet"
SIGNIFICANT = 0.05
RIVALS = tuple(rule for rule in OF_THE_PAPER if rule != OURS)


@dataclasses.dataclass(frozen=True)
class Judgement:
    verdict: str
    reasons: str


def small_gradients(evidence: Evidence) -> Judgement:
    """On every data set.

    A caveat where a quarter of the rise or more is a sample's own part, or where it is not the
    small gradients (the first three tenths) that point along the mean least.
    """
    curves = _measured_curves(evidence)
    rising = all(cosine_by_norm.rise(curve) > 0 for curve in curves)
    low = all(curve["deciles"]["all"][0] < cosine_by_norm.NEAR for curve in curves)
    small_are_lowest = all(cosine_by_norm.lowest_tenth(curve) <= 3 for curve in curves)
    verdict = NOT_CONFIRMED
    if rising:
        apart = all(cosine_by_norm.own_part(curve) < 0.25 for curve in curves)
        verdict = CONFIRMED if low and small_are_lowest and apart else CAVEAT
    missing = evidence.exhibits["fig6"]["missing"]
    said = [cosine_by_norm.verdict(curve) for curve in curves]
    return Judgement(verdict, " ".join([*said, *(f"Not yet: {name}." for name in missing)]))


def _measured_curves(evidence: Evidence) -> list[dict]:
    return [c for name in ("fig1", "fig6") for c in evidence.exhibits[name]["curves"].values()]


def weights(evidence: Evidence) -> Judgement:
    """At the smallest norm that is drawn; half of 1/r is near it."""
    curves = evidence.exhibits["fig2"]["curves"]
    huge = all(c["weights"]["auto_s"][0] > 0.5 / c["r"] for c in curves)
    near_one = all(0.9 < c["weights"]["psac"][0] < 1.1 for c in curves)
    peaks = ", ".join(f"{c['largest']:.3g} at r = {c['r']:g}" for c in curves)
    return Judgement(
        CONFIRMED if huge and near_one else NOT_CONFIRMED,
        f"The formulas say so. DP-PSAC's weight still has a peak of {peaks}.",
    )


def small_updates(evidence: Evidence) -> Judgement:
    """What the median gradient contributes at the end of training, over the beginning.

    "As large" is more than half; confirmed on all data, or with a caveat on some.
    """
    r, said, large = 0.01, [], []
    for curve in _measured_curves(evidence):
        ends = np.array([curve["measured"][k]["median_norm"] for k in (0, -1)])
        auto_s, psac = (
            float(pair[1] / pair[0])
            for pair in (ends * theory.auto_s_weight(ends, r), ends * theory.weight(ends, r))
        )
        large.append(auto_s > 0.5)
        said.append(
            f"{curve['title']}: the median norm goes from {ends[0]:.2g} to {ends[1]:.2g}, and what "
            f"it contributes falls to {auto_s:.0%} by Auto-S and to {psac:.1%} by DP-PSAC"
        )
    verdict = CONFIRMED if all(large) else CAVEAT if any(large) else NOT_CONFIRMED
    return Judgement(
        verdict,
        f"At r = {r:g}, in the runs of Figures 1 and 6. {'; '.join(said)}. Below a norm of r the "
        "contribution of Auto-S falls to 0 too, so that its updates do vanish, only later.",
    )


def deviation(evidence: Evidence) -> Judgement:
    """Runs against runs as in the paper, paired by seed, and batch by batch on equal gradients.

    Confirmed if both hold; a caveat if one does, or if Auto-S of equal largest weight does better.
    """
    data = evidence.exhibits["fig3"]
    runs = fig3.own_runs(data, "cosine")
    *_, p = paired(runs["psac"], runs["auto_s"])
    higher = statistics.fmean(runs["psac"]) > statistics.fmean(runs["auto_s"])
    between_runs, on_batches = higher and p < SIGNIFICANT, fig3.won(data, "cosine", "auto_s") > 0.5
    verdict = NOT_CONFIRMED
    if between_runs or on_batches:
        matched = fig3.won(data, "cosine", "auto_s matched") > 0.5
        verdict = CONFIRMED if between_runs and on_batches and matched else CAVEAT
    return Judgement(verdict, fig3.verdict(data))


def sensitivity(evidence: Evidence) -> Judgement:
    """r may move accuracy by at most half of what C does; the caveat is the ridge."""
    data = evidence.exhibits["fig4"]
    moved = {rule: 100 * fig4.spread(data, rule) for rule in fig4.GRIDS}
    ridge = 100 * fig4.spread_at_equal_product(data)
    little = max(moved["psac"], moved["auto_s"]) < moved["abadi"] / 2
    verdict = NOT_CONFIRMED
    if little:
        verdict = CAVEAT if ridge < moved["abadi"] / 2 else CONFIRMED
    return Judgement(
        verdict,
        f"At the best learning rate r moves accuracy by {moved['psac']:.1f} points (DP-PSAC) and "
        f"{moved['auto_s']:.1f} (Auto-S), C by {moved['abadi']:.1f} (DP-SGD). But with C times the "
        f"learning rate held, C moves DP-SGD by {ridge:.1f} points only: what is sensitive is the "
        "product, one number to tune, as for the other rules.",
    )


def good_r(evidence: Evidence) -> Judgement:
    """r = 0.1 within one point of the best r, each at its best learning rate.

    The caveats are the short schedule, and other values of r that do as well.
    """
    data = evidence.exhibits["fig4"]
    best = [100 * max(row) for row in fig4.accuracies(data, "psac")]
    own = best[fig4.REGULARISERS.index(0.1)]
    as_good = [r for r, value in zip(fig4.REGULARISERS, best, strict=True) if value > max(best) - 1]
    error = 100 * fig4.standard_error(data, "psac")
    return Judgement(
        CAVEAT if 0.1 in as_good else NOT_CONFIRMED,
        f"Best accuracy over learning rates: {own:.1f} at r = 0.1, {max(best):.1f} at the best r, "
        f"{min(best):.1f} at the worst, each the mean of {len(data['settings']['seeds'])} seeds "
        f"with a standard error of {error:.1f}, on the short schedule of Figure 4. Within a point "
        f"of the best: r = {', '.join(f'{r:g}' for r in as_good)}.",
    )


def lazy_region(evidence: Evidence) -> Judgement:
    """The distance of the whole curve to SGD's, each at its best scale."""
    curves = fig5.view(evidence.exhibits["fig5"], "best_scale")
    psac, auto_s = (fig5.distance(curves, rule) for rule in ("psac", "auto_s"))
    return Judgement(
        CONFIRMED if psac < auto_s else NOT_CONFIRMED,
        f"At its best scale the curve of DP-PSAC is {psac:.3f} from that of SGD, that of Auto-S "
        f"{auto_s:.3f}; Auto-V has no gradient at all.",
    )


def closest(evidence: Evidence) -> Judgement:
    """For all theta, in the view that is the paper's and in the fair ones."""
    data = evidence.exhibits["fig5"]
    holds = {
        name: not any(fig5.where_closer(data, name, rule) for rule in ("abadi", "auto_s"))
        for name in fig5.VIEWS
    }
    verdict = CONFIRMED if all(holds.values()) else CAVEAT if holds["raw"] else NOT_CONFIRMED
    return Judgement(verdict, fig5.verdict(data))


def lower_bound(evidence: Evidence) -> Judgement:
    """Lower at equal and small r; the caveat is the comparison at equal largest weight."""
    data = evidence.exhibits["bounds"]
    equal = all(curve["psac"][0] < curve["auto_s"][0] for curve in data["curves"])
    matched = all(
        a < b for c in data["curves"] for a, b in zip(c["matched"], c["psac"], strict=True)
    )
    verdict = NOT_CONFIRMED
    if equal:
        verdict = CAVEAT if matched else CONFIRMED
    return Judgement(verdict, bounds.verdict(data) + " See E14 of the [errata](errata.md).")


def convergence(evidence: Evidence) -> Judgement:
    """The bound must hold on the problem whose truth is known; the caveats are how far it is."""
    data = evidence.exhibits["truth"]
    runs = [run for run in data["runs"] if run["steps"] >= data["smallest_num_steps"]]
    holds = all(run["smallest"] < run["theorem_2"] for run in runs)
    last = runs[-1]
    return Judgement(
        CAVEAT if holds else NOT_CONFIRMED,
        "The theorem holds after corrections of its proof and constants (E3 to E12 of the "
        f"[errata](errata.md)). It asks for {data['smallest_num_steps']:,.0f} steps on a toy "
        f"problem with much noise, more in practice (E13); there it bounds a gradient of "
        f"{last['smallest']:.3g} by {last['theorem_2']:.3g}, and a shorter proof by "
        f"{last['simple']:.3g}.",
    )


def better_accuracy(evidence: Evidence) -> Judgement:
    """Row by row and rival by rival, by the test that is paired by seed.

    Confirmed if all comparisons are won; with a caveat if some are and none is lost.
    """
    rows = evidence.finished_rows()
    if not rows:
        return Judgement(NOT_YET, "No row of Table 2 is finished: `python -m paper table2`.")
    said = "; ".join(f"{TABLE2[name].title}: {_differences(row)}" for name, row in rows.items())
    results = [_beaten(row, rule) for row in rows.values() for rule in RIVALS]
    absent = {
        name: row
        for name, row in TABLE2.items()
        if row.paper and not row.own_recipe and name not in rows
    }
    for why, here in (("not yet", True), ("not run here", False)):
        titles = [row.title for row in absent.values() if row.run_here is here]
        said += f"; {why}: {', '.join(titles)}" if titles else ""
    verdict = NOT_CONFIRMED
    if any(result > 0 for result in results) and not any(result < 0 for result in results):
        verdict = CONFIRMED if all(result > 0 for result in results) and not absent else CAVEAT
    return Judgement(verdict, f"{said}. {_counted(results)}")


def _beaten(row: dict, rule: str) -> int:
    """1 if DP-PSAC is better than the rule, -1 if worse, 0 if that may be chance."""
    if not row[rule]["test"]["paired_p"] < SIGNIFICANT:
        return 0
    return 1 if row[OURS]["mean"] > row[rule]["mean"] else -1


def _differences(row: dict) -> str:
    return ", ".join(
        f"{row[OURS]['mean'] - row[rule]['mean']:+.2f} over {COLUMNS[rule].title} "
        f"(p = {row[rule]['test']['paired_p']:.2g})"
        for rule in RIVALS
    )


def _counted(results: list[int]) -> str:
    won, lost = results.count(1), results.count(-1)
    return (
        f"Of {len(results)} comparisons, paired by seed and not corrected for their number, "
        f"DP-PSAC wins {won} and loses {lost}; the others cannot be told from chance at 5 %."
    )


def any_network(evidence: Evidence) -> Judgement:
    """For each kind of network, over its rows, stand-ins among them, and both rivals.

    Confirmed, with the caveat of the stand-ins, if some comparison is won on every kind, and none
    is lost.
    """
    rows = evidence.finished_rows(stand_ins=True)
    by_network: dict[str, list[int]] = {}
    for name, row in rows.items():
        results = [_beaten(row, rule) for rule in RIVALS]
        by_network.setdefault(TABLE2[name].network, []).extend(results)
    if len(by_network) < 2:
        return Judgement(NOT_YET, f"Finished rows have {len(by_network)} kinds of network so far.")
    holds = all(any(r > 0 for r in some) and min(some) >= 0 for some in by_network.values())
    said = "; ".join(
        f"{network}: {some.count(1)} won, {some.count(-1)} lost, of {len(some)}"
        for network, some in by_network.items()
    )
    return Judgement(
        CAVEAT if holds else NOT_CONFIRMED,
        f"Comparisons of DP-PSAC with DP-SGD and Auto-S, stand-ins among them, that can be told "
        f"from chance at 5 %, paired by seed: {said}.",
    )


def lower_variance(evidence: Evidence) -> Judgement:
    """Standard deviation between seeds below that of Auto-S in every finished row."""
    rows = evidence.finished_rows()
    if not rows:
        return Judgement(NOT_YET, "No row of Table 2 is finished: `python -m paper table2`.")
    pairs = {n: (r[OURS]["deviation"], r["auto_s"]["deviation"]) for n, r in rows.items()}
    lower = [psac < auto_s for psac, auto_s in pairs.values()]
    said = "; ".join(
        f"{TABLE2[name].title}: {psac:.2f} against {auto_s:.2f}"
        for name, (psac, auto_s) in pairs.items()
    )
    seeds = min(len(row[rule]["accuracies"]) for row in rows.values() for rule in (OURS, "auto_s"))
    ratio = _ratio_by_chance(seeds)
    return Judgement(
        CAVEAT if all(lower) else NOT_CONFIRMED,
        f"Deviations between seeds of DP-PSAC and Auto-S: {said}. With {seeds} seeds a ratio of "
        f"deviations must exceed {ratio:.1f} to be told from chance at 5 % (F-test, two-sided).",
    )


def _ratio_by_chance(seeds: int) -> float:
    """The ratio of two deviations that chance exceeds in 5 % of cases."""
    from scipy import stats

    return float(stats.f.ppf(1 - SIGNIFICANT / 2, seeds - 1, seeds - 1)) ** 0.5
