"""Every claim of the paper, in its order, with how it is judged.

`judge` takes the evidence; a claim whose exhibits are not there yet is "not yet".  Claims about
proofs rest on tests of this project, which are named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from paper.claims import judging
from paper.claims.evidence import Evidence
from paper.claims.judging import CAVEAT, CONFIRMED, NOT_TESTABLE, NOT_YET, Judgement
from paper.figures.catalogue import EXHIBITS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """`needs` are the exhibits that it is judged by."""

    says: str
    place: str
    judge: Callable[[Evidence], Judgement]
    needs: tuple[str, ...] = ()

    def judged(self, evidence: Evidence) -> Judgement:
        missing = [name for name in self.needs if name not in evidence.exhibits]
        if missing:
            command = EXHIBITS[missing[0]].command
            return Judgement(NOT_YET, f"Needs {', '.join(missing)}: `{command}`.")
        return self.judge(evidence)


def fixed(verdict: str, reasons: str) -> Callable[[Evidence], Judgement]:
    """For claims that no number of ours decides."""
    return lambda _: Judgement(verdict, reasons)


CLAIMS = [
    Claim(
        says="The search for C costs privacy of its own.",
        place="Introduction",
        judge=fixed(
            CAVEAT,
            "So it does (`psac.tuned_epsilon` prices it). The learning rate, which every rule "
            "needs and which C is coupled with, costs the same.",
        ),
    ),
    Claim(
        says="Small gradients are almost orthogonal or opposed to the batch mean; larger ones have "
        "larger cosines.",
        place="Motivation, Fig. 1 and 6",
        needs=("fig1", "fig6"),
        judge=judging.small_gradients,
    ),
    Claim(
        says="Auto-S/NSGD weigh a small gradient up to 1/r times; DP-PSAC about 1 time, and large "
        "gradients like 1/norm.",
        place="Motivation, Fig. 2",
        needs=("fig2",),
        judge=judging.weights,
    ),
    Claim(
        says="With Auto-S/NSGD, updates stay as large as at the beginning when most gradients tend "
        "to zero.",
        place="Motivation",
        needs=("fig1", "fig6"),
        judge=judging.small_updates,
    ),
    Claim(
        says="The mean that DP-PSAC forms is closer to the true batch mean than Auto-S/NSGD's.",
        place="Fig. 3",
        needs=("fig3",),
        judge=judging.deviation,
    ),
    Claim(
        says="C needs no tuning: it is coupled with the learning rate.",
        place="Algorithm 1",
        judge=fixed(
            CONFIRMED,
            "Exactly: (C, lr) and (1, lr x C) with one seed give the same iterates for DP-PSAC and "
            "Auto-S (tests/paper/test_claims.py). So the learning rate must be tuned.",
        ),
    ),
    Claim(
        says="DP-PSAC has the sensitivity of DP-SGD, and so its privacy.",
        place="Theorem 1",
        judge=fixed(
            CAVEAT,
            "The norm bound holds for every weight, in floating point by a margin; audits of the "
            "training step find no leak (`psac audit`). The caveat: the accounting that is quoted "
            "is that of Poisson sampling, not of Algorithm 1 as written (E1 of the "
            "[errata](errata.md)).",
        ),
    ),
    Claim(
        says="The gradient norm is bounded with rate sqrt(sqrt(d log(1/delta)) / (N epsilon)), as "
        "in the best known results.",
        place="Theorem 2, Corollary 1",
        needs=("truth",),
        judge=judging.convergence,
    ),
    Claim(
        says="No assumption beyond smoothness and bounded variance, where Auto-S/NSGD needs "
        "r > tau0 or symmetric gradients.",
        place="Table 1, Remark 1",
        judge=fixed(
            CAVEAT,
            "True of DP-PSAC's proof. The same proof serves Auto-S without either assumption: "
            "Lemmas 2 to 5 with its constants are in `paper.theory.auto_s`, each with a property "
            "test. It is no difference between the rules.",
        ),
    ),
    Claim(
        says="What does not vanish in the bound is O(r^-1/2), against O(r^-1) of Auto-S/NSGD.",
        place="Table 1, Remark 2",
        needs=("bounds",),
        judge=judging.lower_bound,
    ),
    Claim(
        says="Accuracy changes very little with r at a given learning rate, and is very sensitive "
        "to C in DP-SGD.",
        place="Fig. 4",
        needs=("fig4",),
        judge=judging.sensitivity,
    ),
    Claim(
        says="r = 0.1 gives a near-optimal result.",
        place="Experiments",
        needs=("fig4",),
        judge=judging.good_r,
    ),
    Claim(
        says="DP-PSAC outperforms DP-SGD and Auto-S on the image tasks.",
        place="Table 2",
        judge=judging.better_accuracy,
    ),
    Claim(
        says="DP-PSAC has a lower variance than Auto-S/NSGD.",
        place="Table 2",
        judge=judging.lower_variance,
    ),
    Claim(
        says="The high performance does not depend on the network: logistic regression, CNN, "
        "ResNet.",
        place="Experiments",
        judge=judging.any_network,
    ),
    Claim(
        says="DP-PSAC performs better than or similar to the best baseline on GLUE, with "
        "roberta-base.",
        place="Table 3",
        judge=fixed(
            NOT_TESTABLE,
            "The weights of roberta-base and three of the four data sets cannot be had here, and "
            "the baselines of that table are copied from other papers. Sentence classification "
            "with other weights is in Table 3 of this page.",
        ),
    ),
    Claim(
        says="DP-PSAC solves the problem of the lazy region better than Auto-S.",
        place="Appendix C, Fig. 5",
        needs=("fig5",),
        judge=judging.lazy_region,
    ),
    Claim(
        says="DP-PSAC is closer to the original gradient than DP-SGD and Auto-S under all theta.",
        place="Appendix C, Fig. 5",
        needs=("fig5",),
        judge=judging.closest,
    ),
    Claim(
        says="New state of the art of private training on several data sets.",
        place="Contributions, Conclusion",
        judge=fixed(
            NOT_TESTABLE,
            "Whether a number was the best known when the paper was written is not a matter of "
            "experiments; ours stand beside the paper's in Table 2.",
        ),
    ),
]
