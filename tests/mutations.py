"""Broken versions of the library, each with the tests that must catch it.

`python -m tests.mutations` breaks a copy of the package in one way after the other, runs the tests
named here on it, and writes docs/mutations.md; it ends with 1 if a broken version passes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "mutations.md"
FAILED = 1  # the exit code of pytest when tests ran and some failed


class Mutation(NamedTuple):
    name: str
    changes: tuple[tuple[str, str, str], ...]  # file of psac, text, its replacement
    tests: tuple[str, ...]


AUDIT = (
    "tests/auditing/test_step.py::test_the_shipped_step_keeps_its_promise_and_the_attack_is_strong"
)
BY_HAND = "tests/test_private.py::test_without_noise_it_is_algorithm_1_step_by_step"
NOISE_ONCE = "tests/test_private.py::test_noise_is_added_once_per_logical_step_with_the_stated_size"

MUTATIONS = (
    Mutation(
        "no clipping",
        (
            (
                "gradients/engine.py",
                "[safe_weights(rule, x) for rule, x in zip(self.rules, weighed, strict=True)]",
                "[torch.ones_like(x) for x in weighed]",
            ),
        ),
        (AUDIT, BY_HAND),
    ),
    Mutation(
        "a rule's weights are not held to its bound",
        (
            (
                "clipping.py",
                "safe = weights.minimum(_largest(bound, norms))",
                "safe = weights",
            ),
        ),
        (
            "tests/auditing/test_step.py::"
            "test_a_rule_that_breaks_its_bound_is_held_to_it_by_the_engine",
        ),
    ),
    Mutation(
        "rows that count for one layer are taken for another's",
        (("gradients/ragged.py", "self.starts), pattern\n", "self.starts)\n"),),
        (
            "tests/gradients/test_against_the_loop.py::"
            "test_norms_and_sums_equal_the_loop[float32-other_positions_for_each_layer]",
        ),
    ),
    Mutation(
        "a gradient that several layers have is scaled more than once",
        (("gradients/single.py", "return found is not None and found == ", "return True or "),),
        (
            "tests/gradients/test_single.py::"
            "test_a_gradient_that_several_layers_have_is_scaled_for_each",
            "tests/gradients/test_single.py::test_a_gradient_that_the_user_keeps_stays_as_it_is",
        ),
    ),
    Mutation(
        "a bias is summed by the weights of another group",
        (("gradients/single.py", " and (self.bias is None or weights.of_all)", ""),),
        ("tests/gradients/test_single.py::test_a_bias_may_have_another_rule_than_its_weight",),
    ),
    Mutation(
        "the bound is applied twice",
        (
            (
                "private.py",
                "std=self._gradient_noise * bound,",
                "std=self._gradient_noise * bound * bound,",
            ),
        ),
        (AUDIT, NOISE_ONCE),
    ),
    Mutation(
        "half the noise",
        (
            (
                "private.py",
                "std=self._gradient_noise * bound",
                "std=0.5 * self._gradient_noise * bound",
            ),
        ),
        (AUDIT, NOISE_ONCE),
    ),
    Mutation(
        "noise, and a step, for each physical batch",
        (("private.py", "self._complete = last", "self._complete = True"),),
        ("tests/test_private.py::test_physical_batches_change_memory_only",),
    ),
    Mutation(
        "no noise on empty draws",
        (
            (
                "batches.py",
                "        self._private.optimizer.step()\n",
                "        self._private.ledger.record(**self._private.plan.event())\n"
                "        self._private.step += 1\n",
            ),
        ),
        (
            "tests/test_private.py::"
            "test_an_empty_draw_moves_the_parameters_by_noise_of_the_full_size",
        ),
    ),
    Mutation(
        "division by the number that was drawn",
        (
            (
                "private.py",
                "        below, self._below, self._unseen = self._below, 0.0, 0\n",
                "        below, self._below, self._unseen = self._below, 0.0, 0\n"
                "        drawn = max(1, self.engine.num_samples)\n",
            ),
            ("private.py", "scale=1 / self.plan.expected_batch_size,", "scale=1 / drawn,"),
        ),
        (BY_HAND,),
    ),
    Mutation(
        "the same mask at every step",
        (("sampling.py", 'spawn(f"step {block * self.bins}")', 'spawn("step")'),),
        ("tests/test_sampling.py::test_poisson_draws_are_independent_coins_of_the_stated_rate",),
    ),
    Mutation(
        "every record is drawn too often",
        (
            (
                "sampling.py",
                "return [_heads(num_records, chance, generator)]",
                "return [_heads(num_records, min(1.0, 1.1 * chance), generator)]",
            ),
        ),
        ("tests/test_sampling.py::test_poisson_draws_are_independent_coins_of_the_stated_rate",),
    ),
    Mutation(
        "every other step is missing in the ledger",
        (
            (
                "private.py",
                "        self._spend(1)\n",
                "        if self.step % 2 == 0:\n            self._spend(1)\n",
            ),
        ),
        (
            "tests/auditing/test_step.py::test_several_steps_and_physical_batches_keep_the_promise",
            "tests/test_private.py::"
            "test_steps_follow_the_plan_exactly_and_more_are_refused_until_it_is_extended",
        ),
    ),
    Mutation(
        "a step is recorded after it is released",
        (
            (
                "private.py",
                "        self._spend(1)\n",
                "",
            ),
            (
                "private.py",
                "            self._adapt(below)\n        return sums",
                "            self._adapt(below)\n        self._spend(1)\n        return sums",
            ),
        ),
        ("tests/test_private.py::test_a_step_is_in_the_ledger_before_it_is_released",),
    ),
    Mutation(
        "weights of the wrong sample",
        (
            (
                "gradients/engine.py",
                "scaled = [w * factor for w in weights]",
                "scaled = [w.roll(1) * factor for w in weights]",
            ),
        ),
        (BY_HAND,),
    ),
    Mutation(
        "padding counts",
        (("gradients/rules/embedding.py", "if padding >= 0:", "if False:"),),
        ("tests/gradients/test_against_the_loop.py",),
    ),
    Mutation(
        "the mean of the loss is forgotten",
        (
            (
                "gradients/engine.py",
                'factor = float(n) if self.loss_reduction == "mean" else 1.0',
                "factor = 1.0",
            ),
        ),
        (BY_HAND,),
    ),
    Mutation(
        "a loss that mixes samples is not looked at",
        (
            (
                "gradients/engine.py",
                "prove_loss(tape, n, ",
                "(lambda *_: [])(tape, n, ",
            ),
        ),
        ("tests/gradients/test_losses.py",),
    ),
    Mutation(
        "labels that were written into an old tensor pass for a constant",
        (("gradients/losses.py", " and tensor._version == version", ""),),
        (
            "tests/gradients/test_losses.py::"
            "test_a_tensor_that_was_changed_since_is_not_taken_for_a_constant",
        ),
    ),
    Mutation(
        "a part of the loss that is not on the tape is not missed",
        (("gradients/losses.py", "all(map(self._is_same, self.arrived, drawn))", "True"),),
        (
            "tests/gradients/test_losses.py::"
            "test_a_loss_that_mixes_samples_is_refused_before_anything_is_added_up",
        ),
    ),
    Mutation(
        "the loader's batch is not watched",
        (("batches.py", "yield private.engine.handed_out(batch)", "yield batch"),),
        ("tests/test_user_loops.py::test_a_loop_that_mixes_the_batch_of_the_loader_is_refused",),
    ),
    Mutation(
        "losses of two batches are joined in one backward",
        (("gradients/call.py", "if self.batch != self.engine.batch:", "if False:"),),
        (
            "tests/gradients/test_losses.py::"
            "test_losses_of_two_batches_are_not_joined_in_one_backward",
        ),
    ),
    Mutation(
        "two backward passes on one batch",
        (("gradients/call.py", "        if self.engine._served:\n", "        if False:\n"),),
        ("tests/test_private.py::test_copies_of_samples_and_second_backwards_are_refused",),
    ),
    Mutation(
        "copies of samples in a batch",
        (("gradients/call.py", "        if expected not in found:\n", "        if False:\n"),),
        ("tests/test_private.py::test_copies_of_samples_and_second_backwards_are_refused",),
    ),
    Mutation(
        "a fixed seed unasked",
        (
            (
                "private.py",
                "generator = SecureGenerator() if seed is None else SeededGenerator(seed)",
                "generator = SeededGenerator(seed or 0)",
            ),
        ),
        ("tests/test_private.py::test_runs_are_secure_unless_a_seed_is_given",),
    ),
    Mutation(
        "sums are not rounded to the grid",
        (
            (
                "_noise_loops.py",
                "total.sub_(anchor).add_(noise.add_(anchor))",
                "total.add_(noise)",
            ),
            ("_compiling.py", "if compiler is None or", "if True or"),
        ),
        (
            "tests/test_noise.py::"
            "test_what_is_released_is_rounded_sum_plus_noise_that_does_not_know_the_sum",
        ),
    ),
    Mutation(
        "groups share the noise of one",
        (("private.py", "return total * math.sqrt(groups)", "return total"),),
        ("tests/test_private.py::test_groups_get_noise_by_their_bounds_for_the_same_guarantee",),
    ),
    Mutation(
        "the adaptive scale is not paid for",
        (("private.py", "return accounting.without_side_query(total, side)", "return total"),),
        ("tests/test_private.py::test_the_adaptive_scale_finds_the_median_of_the_norms",),
    ),
    Mutation(
        "the adaptive scale reads the count without noise",
        (("private.py", "add_noise_([released], std=std, generator=self._noise)", "pass"),),
        ("tests/test_private.py::test_the_count_of_the_adaptive_scale_is_noisy",),
    ),
    Mutation(
        "lost steps are forgotten",
        (("private.py", "steps=self._skipped(lost))", "steps=1)"),),
        (
            "tests/test_checkpoint.py::"
            "test_steps_after_the_last_save_count_as_spent_in_a_secure_run",
        ),
    ),
    Mutation(
        "only the last checkpoint of a run counts its steps",
        (("journal.py", "        self._forget_deleted()\n", "        self._files = {}\n"),),
        (
            "tests/test_checkpoint.py::"
            "test_every_checkpoint_of_a_run_counts_what_was_released_after_it[no links]",
        ),
    ),
    Mutation(
        "a rule may weigh a sample by the others",
        (("clipping.py", "if type(rule) not in _READ and", "if False and"),),
        ("tests/test_clipping.py::test_a_rule_that_looks_at_other_samples_is_refused",),
    ),
    Mutation(
        "the bound of a rule may change within a step",
        (
            ("gradients/engine.py", "        self._hold_bounds()\n", ""),
            ("private.py", "if bounds != self._bounds:", "if False:"),
        ),
        ("tests/test_private.py::test_a_bound_that_changes_within_a_run_is_refused",),
    ),
    Mutation(
        "a gradient from before training moves a frozen parameter",
        (
            ("private.py", ", *self._optimized().values()]", "]"),
            ("private.py", "p.grad = None  # it would move all the same", "pass"),
        ),
        ("tests/test_private.py::test_a_gradient_that_a_frozen_parameter_has_never_moves_it",),
    ),
)


def is_caught(mutation: Mutation) -> bool:
    """Whether each of the named tests fails on the broken package."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("psac", "tests"):
            shutil.copytree(ROOT / name, copy / name)
        shutil.copy(ROOT / "pyproject.toml", copy)
        for file, text, replacement in mutation.changes:
            path = copy / "psac" / file
            path.write_text(path.read_text().replace(text, replacement))
        codes = [
            subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test],
                cwd=copy,
                env=os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
                capture_output=True,
            ).returncode
            for test in mutation.tests
        ]
    return all(code == FAILED for code in codes)


def page(mutations: tuple[Mutation, ...] = MUTATIONS) -> str:
    rows = [
        f"| {m.name} | {', '.join(sorted({f'`psac/{file}`' for file, _, _ in m.changes}))} | "
        f"{'<br>'.join(f'`{test}`' for test in m.tests)} |"
        for m in mutations
    ]
    return "\n".join(
        [
            "# What happens when the library is broken",
            "",
            "Each row is a way to break the privacy of training. `make mutations` makes the change",
            "in a copy of the package and runs the tests on it: all of the named ones must fail.",
            "This page is written by that command.",
            "",
            "| broken | where | caught by |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these (default: all, and the page)")
    names = parser.parse_args().names
    chosen = [m for m in MUTATIONS if not names or m.name in names]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(is_caught, chosen))
    for mutation, caught in zip(chosen, results, strict=True):
        print(f"{'caught' if caught else 'NOT CAUGHT':>10}  {mutation.name}", flush=True)
    if not names and all(results):
        PAGE.write_text(page())
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
