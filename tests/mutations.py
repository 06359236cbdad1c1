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

WORKERS = "tests/distributed/test_workers.py"
WORKERS_SUMS = f"{WORKERS}::test_sums_noise_ledger_and_scale_are_those_of_one_process"
WORKERS_NOISE = f"{WORKERS}::test_noise_is_added_once_with_the_stated_size_and_is_new_at_each_step"

CAUSES = "tests/privacy/test_causes.py::test_one_record_moves_the_sums_by_its_bound_at_most"
MUTATIONS = (
    Mutation(
        "no clipping",
        (
            (
                "gradients/clipped.py",
                "[safe_weights(rule, x) for rule, x in zip(self.rules, weighed, strict=True)]",
                "[torch.ones_like(x) for x in weighed]",
            ),
        ),
        (
            AUDIT,
            BY_HAND,
        ),
    ),
    Mutation(
        "a rule's weights are not held to its bound",
        (
            (
                "clipping/rules.py",
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
        (("gradients/contributions/ragged.py", "self.starts), pattern\n", "self.starts)\n"),),
        (
            "tests/gradients/test_against_the_loop.py::"
            "test_norms_and_sums_equal_the_loop[float32-other_positions_for_each_layer]",
        ),
    ),
    Mutation(
        "a gradient that several layers have is scaled more than once",
        (
            (
                "gradients/contributions/single.py",
                "return count is not None and count == ",
                "return True or ",
            ),
        ),
        (
            "tests/gradients/test_single.py::test_a_gradient_that_several_layers_have_is_scaled_for_each",
        ),
    ),
    Mutation(
        "a bias is summed by the weights of another group",
        (("gradients/contributions/single.py", " and (self.bias is None or weights.of_all)", ""),),
        ("tests/gradients/test_single.py::test_a_bias_may_have_another_rule_than_its_weight",),
    ),
    Mutation(
        "the bound is applied twice",
        (
            (
                "private/run.py",
                "std=self._noise_over_bound() * bound,",
                "std=self._noise_over_bound() * bound * bound,",
            ),
        ),
        (AUDIT, NOISE_ONCE),
    ),
    Mutation(
        "half the noise",
        (
            (
                "private/run.py",
                "std=self._noise_over_bound() * bound",
                "std=0.5 * self._noise_over_bound() * bound",
            ),
        ),
        (AUDIT, NOISE_ONCE),
    ),
    Mutation(
        "noise, and a step, for each physical batch",
        (
            (
                "private/run.py",
                "if handed.is_last:\n                unreached",
                "if True:\n                unreached",
            ),
        ),
        ("tests/test_private.py::test_physical_batches_change_memory_only",),
    ),
    Mutation(
        "no noise on empty draws",
        (
            (
                "loading/loader.py",
                "            self._private.release()\n",
                "            self._private.account.spend(1)\n"
                "            self.advance()\n"
                "            self._private.steps_taken += 1\n",
            ),
        ),
        (
            "tests/test_private.py::test_an_empty_draw_moves_the_parameters_by_noise_of_the_full_size",
        ),
    ),
    Mutation(
        "division by the number that was drawn",
        (
            (
                "private/run.py",
                "scale=1 / self.plan.expected_batch_size,",
                "scale=1 / len(self.sensitive.losses),",
            ),
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
                "private/run.py",
                "            self.account.spend(1)\n",
                "            if self.steps_taken % 2 == 0:\n"
                "                self.account.spend(1)\n",
            ),
        ),
        (
            "tests/auditing/test_step.py::test_several_steps_and_physical_batches_keep_the_promise",
            "tests/test_private.py::test_steps_follow_the_plan_exactly_and_more_are_refused_until_it_is_extended",
        ),
    ),
    Mutation(
        "a step is recorded after it is released",
        (
            ("private/run.py", "            self.account.spend(1)\n", ""),
            (
                "private/run.py",
                "        self.guard.step(sums)\n",
                "        self.guard.step(sums)\n        self.account.spend(1)\n",
            ),
        ),
        ("tests/test_private.py::test_a_step_is_in_the_ledger_before_it_is_released",),
    ),
    Mutation(
        "weights of the wrong sample",
        (
            (
                "gradients/clipped.py",
                "part.weights, self.groups\n",
                "[w.roll(1) for w in part.weights], self.groups\n",
            ),
        ),
        (BY_HAND,),
    ),
    Mutation(
        "padding counts",
        (
            (
                "gradients/rules/embedding.py",
                "index.masked_fill(index == padding_idx, -1) if padding_idx >= 0 else index",
                "index",
            ),
        ),
        (
            "tests/gradients/test_clipped_sums.py::test_the_padding_row_of_an_embedding_gets_no_gradient",
            "tests/gradients/test_against_the_loop.py::test_norms_and_sums_equal_the_loop[float32-embedding_padding_idx]",
        ),
    ),
    Mutation(
        "a step takes any batch",
        (("private/run.py", "        handed.refuse_other(batch, loss, self._arrangements)\n", ""),),
        (
            "tests/test_private_refusals.py::test_another_batch_is_refused_and_the_right_one_is_welcome_afterwards",
        ),
    ),
    Mutation(
        "two steps on one batch",
        (
            (
                "private/run.py",
                "self._has_failed, self._handed = False, None",
                "self._has_failed = False",
            ),
        ),
        ("tests/test_private_refusals.py::test_a_second_step_on_a_batch_is_refused",),
    ),
    Mutation(
        "a batch that was written to is not noticed",
        (
            (
                "private/handed.py",
                "if checksums(leaf for _, leaf in self._leaves) != self._prints:",
                "if False:",
            ),
        ),
        ("tests/test_private_refusals.py::test_a_batch_that_was_written_to_is_refused",),
    ),
    Mutation(
        "the function sees the whole batch",
        (
            (
                "gradients/vectorized/evaluate.py",
                "losses = torch.vmap(one, randomness=randomness)(*inputs)",
                "losses = one(*leaves).expand(len(leaves[0]))",
            ),
        ),
        (
            "tests/gradients/test_against_the_loop.py::test_norms_and_sums_equal_the_loop[float32-linear]",
            "tests/test_user_functions.py::test_records_that_are_taken_away_change_no_other",
        ),
    ),
    Mutation(
        "records are centred by the mean of their batch",
        (
            (
                "gradients/vectorized/evaluate.py",
                "torch.vmap(one, randomness=randomness)(*inputs)",
                "torch.vmap(one, randomness=randomness)(*(x - x.mean(0) for x in inputs))",
            ),
        ),
        (
            "tests/gradients/test_against_the_loop.py::test_norms_and_sums_equal_the_loop[float32-linear]",
        ),
    ),
    Mutation(
        "all records have the same random numbers",
        (
            (
                "gradients/vectorized/evaluate.py",
                'randomness: str = "different"',
                'randomness: str = "same"',
            ),
        ),
        ("tests/gradients/test_randomness.py::test_equal_records_have_draws_of_their_own",),
    ),
    Mutation(
        "nothing is compared with plain autograd",
        (("gradients/evaluator.py", "evaluation.signature not in self._trusted:", "False:"),),
        (
            "tests/gradients/test_selfcheck.py::test_norms_that_are_wrong_by_a_hundredth_are_not_used",
            "tests/gradients/test_selfcheck.py::test_a_rule_that_mixes_records_is_found_out",
        ),
    ),
    Mutation(
        "the comparison with plain autograd accepts any difference",
        (("gradients/vectorized/selfcheck.py", "return 5e-2 if is_half else 5e-3", "return 10.0"),),
        (
            "tests/gradients/test_selfcheck.py::test_norms_that_are_wrong_by_a_hundredth_are_not_used",
            "tests/gradients/test_selfcheck.py::test_sums_that_are_wrong_while_norms_are_right_are_not_used",
        ),
    ),
    Mutation(
        "gradients that the recorder missed are not noticed",
        (("gradients/vectorized/evaluate.py", "        if escapes:\n", "        if False:\n"),),
        (
            "tests/gradients/test_selfcheck.py::test_parameters_that_the_recorder_does_not_see_are_noticed_and_served",
        ),
    ),
    Mutation(
        "a function may keep what it computed from its records",
        (
            (
                "gradients/isolation/watch.py",
                "    if not tensors:\n        return\n",
                "    return\n",
            ),
        ),
        (
            "tests/test_user_functions.py::test_a_function_that_keeps_what_it_computed_is_refused_at_the_first_step",
        ),
    ),
    Mutation(
        "what changes outside of the function is not written down",
        (("gradients/evaluator.py", "self.on_warning(CHANGED)", "pass"),),
        (
            "tests/test_ledger_notes.py::test_what_changes_outside_is_in_the_ledger_though_warnings_are_ignored",
        ),
    ),
    Mutation(
        "how records were isolated is not written down",
        (
            (
                "private/run.py",
                'self.ledger.note_way("batched" if batched else self.sensitive.way)\n',
                "pass\n",
            ),
        ),
        ("tests/test_ledger_notes.py::test_the_ways_are_in_the_ledger_when_the_gradient_arrives",),
    ),
    Mutation(
        "attributes of a tensor from outside are not looked at",
        (
            (
                "gradients/vectorized/recorder.py",
                "if not is_wrapped(source) and id(source) not in self.watch.known:",
                "if False:",
            ),
        ),
        (f"{CAUSES}[N7-a_shape]",),
    ),
    Mutation(
        "an autograd.Function is not looked into",
        (
            (
                "gradients/vectorized/libraries.py",
                "self._usual(interpreter, under(self._within, function), *operands, **kwargs)",
                "self._usual(interpreter, function, *operands, **kwargs)",
            ),
        ),
        (f"{CAUSES}[N1-a_function]",),
    ),
    Mutation(
        "operators with a kernel in Python are taken for torch's own",
        (
            (
                "gradients/vectorized/libraries.py",
                "if name in kernels().in_python:",
                "if False:",
            ),
            (
                "gradients/vectorized/libraries.py",
                "set_vmap_fallback_enabled(self._with_loops)",
                "set_vmap_fallback_enabled(True)",
            ),
        ),
        (f"{CAUSES}[N2-an_operator_of_a_library]",),
    ),
    Mutation(
        "records that are computed one at a time are computed once",
        (
            (
                "gradients/alone.py",
                "twice, order = self._again.is_due(loss), shuffled(n)",
                "twice, order = False, shuffled(n)",
            ),
        ),
        (f"{CAUSES}[N2-a_file]", f"{CAUSES}[N2-a_thread]"),
    ),
    Mutation(
        "paths are computed once",
        (
            (
                "gradients/vectorized/evaluate.py",
                "if len(paths) > 1 and self._again.is_due(loss, len(paths)):",
                "if False:",
            ),
        ),
        (f"{CAUSES}[N10-a_file]", f"{CAUSES}[N10-an_event]"),
    ),
    Mutation(
        "each physical batch draws numbers of numpy and Python of its own",
        (
            (
                "private/run.py",
                "if self._seed is None:\n            chance",
                "if True:\n            chance",
            ),
        ),
        (
            "tests/gradients/test_state.py::test_all_physical_batches_of_a_step_draw_the_same_numbers",
        ),
    ),
    Mutation(
        "what all records have left is kept, whatever made-up ones leave",
        (
            (
                "gradients/isolation/beginning.py",
                "if self._difference() != difference:",
                "if False:",
            ),
        ),
        (
            "tests/gradients/test_state.py::test_what_all_records_leave_by_chance_is_undone_and_said",
        ),
    ),
    Mutation(
        "nobody probes for what no walk reaches",
        (
            (
                "gradients/isolation/probe.py",
                "return not are_equal(before,",
                "return False and are_equal(before,",
            ),
        ),
        (f"{CAUSES}[N7-a_file]",),
    ),
    Mutation(
        "records that are not finite are not set apart",
        (
            (
                "gradients/clipped.py",
                "if not math.isfinite(float(sum(map(torch.sum, weighed)))):",
                "if False:",
            ),
        ),
        (
            "tests/gradients/test_edges.py::test_a_record_that_is_not_finite_adds_nothing_and_spoils_no_other[linear-nan]",
            "tests/gradients/test_edges.py::test_a_record_whose_norm_overflows_adds_what_it_adds_alone[linear]",
        ),
    ),
    Mutation(
        "a record that is not finite is weighed, and not left out",
        (("gradients/clipped.py", "            measured.zero_samples(~finite)\n", ""),),
        (
            "tests/gradients/test_edges.py::test_a_record_that_is_not_finite_adds_nothing_and_spoils_no_other[linear-nan]",
            "tests/gradients/test_edges.py::test_a_record_that_is_not_finite_adds_nothing_and_spoils_no_other[experts_that_pick_tokens-inf]",
        ),
    ),
    Mutation(
        "a record that is not finite counts in groups where it is",
        (
            (
                "gradients/clipped.py",
                "weighed = [torch.where(finite, x, math.inf) for x in weighed]",
                "weighed = list(weighed)",
            ),
        ),
        (
            "tests/gradients/test_clipped_sums.py::test_a_record_whose_gradient_overflows_in_one_group_only_is_dropped_from_all",
        ),
    ),
    Mutation(
        "what a path has written stays for the next one",
        (
            (
                "gradients/isolation/beginning.py",
                "            self._state.restore_values()\n            return {}",
                "            return {}",
            ),
            (
                "gradients/isolation/beginning.py",
                "        difference = self._difference()\n        self._state.restore()\n",
                "        difference = self._difference()\n",
            ),
        ),
        (
            "tests/gradients/test_paths.py::test_every_path_sees_the_same_count_and_a_step_is_counted_once",
            "tests/gradients/test_paths.py::test_what_a_value_decided_may_not_be_remembered_in_a_later_step",
        ),
    ),
    Mutation(
        "rows that a mask leaves out are summed",
        (
            (
                "gradients/rules/selection.py",
                "counted = torch.where(of_rows, values, 0)",
                "counted = values",
            ),
        ),
        (
            "tests/gradients/test_against_the_loop.py::test_norms_and_sums_equal_the_loop[float32-selected_mean_of_rows]",
        ),
    ),
    Mutation(
        "rows that a mask leaves out are computed with",
        (
            (
                "gradients/rules/selection.py",
                "rec.of_records(torch.where(of_rows, rows, stand_in))",
                "rec.of_records(rows)",
            ),
        ),
        ("tests/gradients/test_paths.py::test_rows_that_are_not_selected_are_not_computed_with",),
    ),
    Mutation(
        "a packed sequence goes on behind its last step",
        (("gradients/rules/recurrence.py", "if ended is not None:", "if False:"),),
        ("tests/gradients/test_paths.py::test_steps_behind_the_last_change_nothing",),
    ),
    Mutation(
        "an expert is given the rows of other records",
        (("gradients/rules/routing.py", ".long().clamp(0, m).cummax(1).values", ".long()"),),
        (
            "tests/gradients/test_rules.py::test_rows_of_other_records_cannot_be_routed_to_an_expert",
        ),
    ),
    Mutation(
        "the uses of a tied weight are measured one by one",
        (
            (
                "gradients/contributions/joined.py",
                "squares = alone + 2 * torch.stack([value for value, _ in crossed]).sum(0)",
                "squares = alone",
            ),
        ),
        (
            "tests/gradients/test_against_the_loop.py::test_norms_and_sums_equal_the_loop[float32-tied_embedding_and_head]",
        ),
    ),
    Mutation(
        "slices that overlap are measured one by one",
        (
            (
                "gradients/contributions/joint.py",
                "return all(bool((grad <= 1).all()) for grad in covered.values())",
                "return True",
            ),
        ),
        (
            "tests/gradients/test_against_the_loop.py::test_norms_and_sums_equal_the_loop[float32-weight_slices_overlap]",
        ),
    ),
    Mutation(
        "a layer whose output is written in place is lost",
        (
            (
                "gradients/rules/physical.py",
                "unsafe_view(output, list(shape))",
                "output.view(list(shape))",
            ),
        ),
        (
            "tests/gradients/test_against_the_loop.py::test_norms_and_sums_equal_the_loop[float32-relu_in_place]",
        ),
    ),
    Mutation(
        "the bias of a convolution counts one frame",
        (
            (
                "gradients/rules/convolution.py",
                "return by_frame.reshape(n, -1, by_frame.shape[1]).sum(1)",
                "return by_frame.reshape(n, -1, by_frame.shape[1])[:, 0]",
            ),
        ),
        (
            "tests/gradients/test_against_the_loop.py::test_norms_and_sums_equal_the_loop[float64-conv_over_frames]",
        ),
    ),
    Mutation(
        "the norm of a complex gradient is that of its real part",
        (
            (
                "gradients/precision.py",
                "(torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()",
                "tensor.real.double()",
            ),
        ),
        ("tests/gradients/test_clipped_sums.py::test_complex_parameters_that_are_computed_alone",),
    ),
    Mutation(
        "a run is seeded although nobody asked for it",
        (
            (
                "private/making.py",
                "generator=workers.generator(seed),",
                "generator=workers.generator(seed or 0),",
            ),
        ),
        ("tests/test_private.py::test_runs_are_secure_unless_a_seed_is_given",),
    ),
    Mutation(
        "sums are not rounded to the grid",
        (
            (
                "noise/loops.py",
                "total.sub_(anchor).add_(noise.add_(anchor))",
                "total.add_(noise)",
            ),
            ("native/compiling.py", "if compiler is None or", "if True or"),
        ),
        (
            "tests/test_noise.py::"
            "test_what_is_released_is_rounded_sum_plus_noise_that_does_not_know_the_sum",
        ),
    ),
    Mutation(
        "groups share the noise of one",
        (
            (
                "private/run.py",
                "return self.noise_multiplier * math.sqrt(groups)",
                "return self.noise_multiplier",
            ),
        ),
        ("tests/test_private.py::test_groups_get_noise_by_their_bounds_for_the_same_guarantee",),
    ),
    Mutation(
        "the adaptive scale is not paid for",
        (
            (
                "private/scale.py",
                "return accounting.without_side_query(self._noise_multiplier, self._side_noise())",
                "return self._noise_multiplier",
            ),
        ),
        ("tests/test_private.py::test_the_adaptive_scale_finds_the_median_of_the_norms",),
    ),
    Mutation(
        "the adaptive scale reads the count without noise",
        (("private/scale.py", "add_noise_([noisy], std=std, generator=generator)", "pass"),),
        ("tests/test_private.py::test_the_count_of_the_adaptive_scale_is_noisy",),
    ),
    Mutation(
        "lost steps are forgotten",
        (
            (
                "private/account.py",
                "self.ledger.record(**self.plan.event(), steps=skipped)",
                "self.ledger.record(**self.plan.event(), steps=1)",
            ),
        ),
        (
            "tests/test_checkpoint.py::"
            "test_steps_after_the_last_save_count_as_spent_in_a_secure_run",
        ),
    ),
    Mutation(
        "only the last checkpoint of a run counts its steps",
        (
            (
                "checkpoint/journal.py",
                "        self._forget_deleted()\n",
                "        self._files = {}\n",
            ),
        ),
        (
            "tests/test_checkpoint.py::"
            "test_every_checkpoint_of_a_run_counts_what_was_released_after_it[no links]",
        ),
    ),
    Mutation(
        "a rule may compute a weight from other samples",
        (("clipping/rules.py", "read = type(rule) in _READ", "read = True"),),
        ("tests/test_clipping.py::test_a_rule_that_looks_at_other_samples_is_refused",),
    ),
    Mutation(
        "the bound of a rule may change within a run",
        (("gradients/clipped.py", "if bounds != self.bounds:", "if False:"),),
        (
            "tests/gradients/test_clipped_sums.py::test_a_bound_that_changes_is_refused",
            "tests/test_private_refusals.py::test_a_bound_that_changes_within_a_run_is_refused",
        ),
    ),
    Mutation(
        "a gradient from before training moves a frozen parameter",
        (
            ("private/guard.py", ", *optimized.values()]", "]"),
            ("private/guard.py", "p.grad = None  # it would move all the same", "pass"),
        ),
        (
            "tests/test_private_refusals.py::test_a_gradient_that_a_frozen_parameter_has_never_moves_it",
        ),
    ),
    Mutation(
        "attributes of the model's objects that only the function names are not compared",
        (
            (
                "gradients/isolation/outside.py",
                "Reach({name: root, **HOOKS_ON_ALL}, names=names)",
                "Reach({name: root, **HOOKS_ON_ALL})",
            ),
            (
                "gradients/isolation/outside.py",
                "known is None or len(known.names) < len(self._named)",
                "known is None",
            ),
        ),
        ("tests/gradients/test_outside.py::test_a_change_is_noticed[an entry of a list]",),
    ),
    Mutation(
        "the attributes of an object may be replaced as a whole",
        (
            (
                "gradients/isolation/outside.py",
                "and all(map(operator.is_, map(vars, self._owners), self._attributes))",
                "",
            ),
        ),
        (
            "tests/gradients/test_outside.py::"
            "test_the_attributes_of_a_module_may_not_be_replaced_unnoticed",
        ),
    ),
    # Several workers
    Mutation(
        "workers draw the same dropout masks",
        (
            (
                "distributed/workers.py",
                'return SecureGenerator() if generator.secure else generator.spawn(f"worker '
                '{self.rank}")',
                "return generator",
            ),
        ),
        (f"{WORKERS}::test_masks_differ_between_workers_and_other_numbers_do_not",),
    ),
    Mutation(
        "every worker adds noise of its own to its sum",
        (
            (
                "private/run.py",
                "            self._hand_on(self.shards.add_up(sums, counts), counts)\n",
                "            for own in sums.values():\n"
                "                std = self._noise_over_bound() * self._sums.bounds[0]\n"
                "                generator = self.workers.own(self.noise)\n"
                "                add_noise_([own], std=std, generator=generator)\n"
                "            self._hand_on(self.shards.add_up(sums, counts), counts)\n",
            ),
        ),
        (WORKERS_NOISE,),
    ),
    Mutation(
        "workers draw different noise for the same sum",
        (
            (
                "private/run.py",
                'self.noise, self._chance = generator.spawn("noise")',
                'self.noise, self._chance = workers.own(generator).spawn("noise")',
            ),
        ),
        (WORKERS_NOISE,),
    ),
    Mutation(
        "only one worker adds noise",
        (
            (
                "private/run.py",
                "std=self._noise_over_bound() * bound,",
                "std=self._noise_over_bound() * bound * (self.workers.rank == 0),",
            ),
        ),
        (WORKERS_NOISE,),
    ),
    Mutation(
        "a worker is left out of the sum",
        (
            (
                "distributed/sums.py",
                "flat = flattened(bucket)",
                "flat = flattened(bucket) * (dist.get_rank() != 1)",
            ),
        ),
        (f"{WORKERS_SUMS}[2]",),
    ),
    Mutation(
        "each worker counts the steps of all of them",
        (
            (
                "private/run.py",
                "self.account.spend(1)",
                "self.account.spend(self.workers.size)",
            ),
        ),
        (f"{WORKERS_SUMS}[2]",),
    ),
    Mutation(
        "workers with more records weigh theirs less",
        (
            (
                "private/run.py",
                "            self._hand_on(self.shards.add_up(sums, counts), counts)\n",
                "            mine = len(self.sensitive.losses) if self.sensitive else 1\n"
                "            share = self.expected_batch_size / self.workers.size\n"
                "            for own in sums.values():\n"
                "                own *= share / max(1, mine)\n"
                "            self._hand_on(self.shards.add_up(sums, counts), counts)\n",
            ),
        ),
        (f"{WORKERS_SUMS}[2]",),
    ),
    Mutation(
        "each worker draws its own batch",
        (
            (
                "distributed/workers.py",
                "return secret.numpy().tobytes()",
                "return os.urandom(KEY_BYTES)",
            ),
        ),
        (WORKERS_NOISE,),
    ),
    Mutation(
        "a record that stands in counts",
        (("private/run.py", "        if handed.stands_in:\n", "        if not batch:\n"),),
        (f"{WORKERS_SUMS}[4]",),
    ),
    Mutation(
        "workers have the sum before the step is written down",
        (
            (
                "private/run.py",
                '            self.workers.meet("the ledger")  # before anybody has the sum\n',
                "",
            ),
        ),
        (f"{WORKERS}::test_a_step_that_is_not_written_down_is_released_on_no_worker",),
    ),
    Mutation(
        "records may have other numbers on another worker",
        (
            (
                "private/facts.py",
                '"the order of the records": order_of(private.loader.dataset),',
                "",
            ),
            ("private/facts.py", "    return first == again, first", "    return False, first"),
        ),
        (f"{WORKERS}::test_a_difference_is_refused_on_all_workers_and_named[records]",),
    ),
    Mutation(
        "workers add the same noise to their shards",
        (
            (
                "distributed/sharded.py",
                "self.group.own(noise.spawn(purpose))",
                "noise.spawn(purpose)",
            ),
        ),
        (
            "tests/distributed/test_sharded.py::"
            "test_noise_on_shards_is_independent_and_of_the_stated_size",
        ),
    ),
    Mutation(
        "shards of the sum are those of one worker",
        (
            (
                "distributed/sharded.py",
                "import DTensor, Partial\n",
                "import DTensor\n    from torch.distributed.tensor import Replicate as Partial\n",
            ),
        ),
        (
            "tests/distributed/test_sharded.py::"
            "test_sums_are_those_of_the_plain_model_in_one_process[2-whole]",
        ),
    ),
    Mutation(
        "a loss function may talk to other workers",
        (("distributed/silence.py", "setattr(kind, name, refuse)", "pass"),),
        (f"{WORKERS}::test_a_loss_function_cannot_talk_to_other_workers[True]",),
    ),
    Mutation(
        "test records of your own count as public",
        (
            (
                "app/training/splits.py",
                "return recipe.test_is_public or as_published",
                "return True",
            ),
        ),
        (
            "tests/app/training/test_splits.py::"
            "test_records_of_the_users_own_are_private_unless_the_recipe_says_otherwise",
            "tests/app/reporting/test_hostile_reader.py::"
            "test_no_picture_and_no_name_of_one_is_in_any_file_that_may_be_published",
        ),
    ),
    Mutation(
        "mistakes on private records are written to a file",
        (
            (
                "app/training/results.py",
                "    if splits.public:\n        mistakes",
                "    if True:\n        mistakes",
            ),
        ),
        (
            "tests/app/reporting/test_hostile_reader.py::"
            "test_no_cell_of_a_table_is_in_any_file_that_may_be_published",
            "tests/app/text/test_runs.py::test_no_text_of_a_private_record_is_in_the_folder",
        ),
    ),
    Mutation(
        "classes are read off the records unasked",
        (
            (
                "app/data/classes.py",
                "    if not unsafe:\n        raise",
                "    if False:\n        raise",
            ),
        ),
        (
            "tests/app/data/test_folders_and_arrays.py::"
            "test_classes_of_folders_are_stated_or_refused_with_the_line_to_add",
            "tests/app/data/test_folders_and_arrays.py::"
            "test_classes_of_arrays_are_stated_or_refused_with_the_line_to_add",
        ),
    ),
    Mutation(
        "columns of a table are read off the records unasked",
        (
            (
                "app/data/tables/resolve.py",
                "    if not schema.unsafe:\n        _refuse_open(table, schema, open_columns)\n",
                "",
            ),
        ),
        (
            "tests/app/data/test_tables.py::"
            "test_what_is_not_stated_is_refused_with_lines_that_can_be_pasted",
        ),
    ),
    Mutation(
        "values that nobody has confirmed are trained with",
        (
            (
                "app/data/tables/schema.py",
                "if schema.unconfirmed and not schema.unsafe:",
                "if False:",
            ),
        ),
        (
            "tests/app/data/test_tables.py::"
            "test_unconfirmed_values_do_not_train_unless_it_is_said_to_be_unsafe",
        ),
    ),
    Mutation(
        "what was read off the records is not told",
        (
            (
                "app/training/trainer.py",
                "for sentence in (*self.splits.unsafe, *doubts(facts)):",
                "for sentence in doubts(facts):",
            ),
            ("app/data/classes.py", "        ledger.note_warning(sentence)\n", "        pass\n"),
        ),
        (
            "tests/app/training/test_privacy_warnings.py::"
            "test_what_was_read_off_private_records_is_said_everywhere",
        ),
    ),
    Mutation(
        "ranges are released without an entry in the ledger",
        (
            (
                "app/data/tables/private_release.py",
                "        ledger.record(**spent, steps=len(numbers), what=what)\n",
                "",
            ),
        ),
        (
            "tests/app/data/test_private_release.py::"
            "test_a_release_is_in_the_ledger_before_its_noise_is_drawn",
        ),
    ),
    Mutation(
        "settings of your own data are published",
        (
            (
                "app/reporting/publishing.py",
                "(*SETTINGS, *OF_NAMED_DATA) if run.on_named_data else SETTINGS",
                "(*SETTINGS, *OF_NAMED_DATA)",
            ),
        ),
        (
            "tests/app/reporting/test_publishing.py::"
            "test_folders_and_the_settings_of_own_data_are_not_published",
        ),
    ),
    Mutation(
        "private results are among the files to publish",
        (
            (
                "app/reporting/publishing.py",
                "*(OF_PUBLIC_RECORDS if read(folder).on_public_records else ())",
                "*OF_PUBLIC_RECORDS",
            ),
        ),
        (
            "tests/app/reporting/test_publishing.py::"
            "test_files_that_name_folders_or_private_results_stay_with_the_data",
        ),
    ),
    Mutation(
        "a random search leaves out what each run releases before training",
        (("app/cli/sweep_plan.py", "if ends and asks_for_noise(recipe):", "if False:"),),
        (
            "tests/app/cli/test_several_runs.py::"
            "test_a_random_search_does_not_leave_out_what_each_run_releases_before_training",
        ),
    ),
    Mutation(
        "results of several runs on private records are marked as public",
        (("app/cli/several_runs.py", 'else {"private": False}', 'else {"public": True}'),),
        (
            "tests/app/cli/test_several_runs.py::"
            "test_results_on_private_records_are_marked_in_every_line_and_file",
        ),
    ),
    Mutation(
        "texts are padded to the longest one of their batch",
        (("app/training/assembly.py", "lengths=splits.training.lengths,", "lengths=None,"),),
        ("tests/app/text/test_runs.py::test_texts_are_padded_to_public_lengths_only",),
    ),
    Mutation(
        "pretrained weights are not checked by their SHA-256",
        (
            (
                "app/data/store.py",
                "return content if hashlib.sha256(content).hexdigest() == checksum else None",
                "return content",
            ),
        ),
        (
            "tests/app/text/test_classifier.py"
            "::test_weights_that_were_changed_in_the_cache_are_not_used",
        ),
    ),
    Mutation(
        "an interrupted step is added to the next one",
        (("private/run.py", "        if self._is_due:\n", "        if False:\n"),),
        (
            "tests/test_private.py::"
            "test_a_step_that_was_interrupted_before_its_release_is_not_added_to_the_next",
        ),
    ),
    Mutation(
        "an unreleased batch is drawn again in the next pass",
        (("loading/loader.py", "if number not in self._draws:", "if True:"),),
        (
            "tests/test_private.py::test_a_pass_that_is_begun_anew_has_the_batch_that_was_not_released",
        ),
    ),
    Mutation(
        "errors of one record are not noticed if the function catches them",
        (
            (
                "gradients/vectorized/evaluate.py",
                "    if watch.caught is not None:",
                "    if False:",
            ),
        ),
        (
            f"{CAUSES}[N13-caught_cholesky]",
            f"{CAUSES}[N13-caught_in_the_backward]",
        ),
    ),
    Mutation(
        "a refused tensor may be read at the second attempt",
        (
            (
                "gradients/isolation/watch.py",
                "        if self._refused is not None:",
                "        if False:",
            ),
            (
                "gradients/isolation/watch.py",
                "        if storage_of(tensor) in self._private:",
                "        self.known.add(id(tensor))\n"
                "        if storage_of(tensor) in self._private:",
            ),
        ),
        (f"{CAUSES}[N13-caught_refusal]",),
    ),
    Mutation(
        "the text of a tensor shows all records",
        (("gradients/vectorized/evaluate.py", "            without_texts(),\n", ""),),
        (f"{CAUSES}[N13-text_of_a_tensor]",),
    ),
    Mutation(
        "strides count all records",
        (
            (
                "gradients/rules/layout.py",
                "tuple(size // n if size > step > 0 else size for size in given)",
                "tuple(given)",
            ),
        ),
        (f"{CAUSES}[N13-strides]",),
    ),
    Mutation(
        "attention folds tensors of different axes",
        (
            (
                "gradients/rules/attention.py",
                "t.dim() != q.dim() or t.shape[: len(leading)] != leading for t in (k, v)",
                "False for t in (k, v)",
            ),
        ),
        (f"{CAUSES}[N13-keys_of_fewer_axes]",),
    ),
    Mutation(
        "offsets of bags are not compared with the record's own rows",
        (
            (
                "gradients/rules/embedding.py",
                "            refuse_other_starts(starts_nb, index_np.shape[1])\n",
                "",
            ),
        ),
        (f"{CAUSES}[N13-bag_of_another]",),
    ),
    Mutation(
        "many records are read at once by any __getitems__",
        (
            (
                "loading/dataset.py",
                "records if keeps_apart(records) else OneAtATime(records)",
                "records",
            ),
        ),
        (f"{CAUSES}[N13-centred_by_getitems]",),
    ),
    Mutation(
        "default_collate is trusted with any class",
        (
            (
                "loading/collation/default.py",
                "    kinds = set(map(type, samples))\n",
                "    return True\n    kinds = set()\n",
            ),
        ),
        (
            f"{CAUSES}[N13-centred_by_a_tuple]",
            f"{CAUSES}[N13-centred_by_update]",
        ),
    ),
    Mutation(
        "classes of tensors keep their code",
        (
            (
                "gradients/trees.py",
                "    if all(type(leaf) is Tensor for leaf in leaves(tree)):",
                "    if True:",
            ),
            (
                "gradients/vectorized/recorder.py",
                "type(value) not in PLAIN and has_operations(type(value))",
                "False",
            ),
        ),
        (
            f"{CAUSES}[N13-inputs_of_a_class]",
            f"{CAUSES}[N13-parameter_of_a_class]",
        ),
    ),
    Mutation(
        "data sets are not seen behind torch's wrappers",
        (
            (
                "gradients/isolation/reach.py",
                "    if isinstance(value, OF_RECORDS):",
                "    if False:",
            ),
        ),
        (
            f"{CAUSES}[N13-read_by_a_subset]",
            f"{CAUSES}[N13-read_by_a_loader]",
        ),
    ),
    Mutation(
        "a logical step that is passed over is not released",
        (
            (
                "loading/loader.py",
                "for _ in batches:  # the draw counts",
                "for _ in ():  # the draw",
            ),
        ),
        ("tests/test_private.py::test_a_logical_step_that_is_passed_over_counts_or_raises",),
    ),
    Mutation(
        "experts whose bias is added in place are lost",
        (
            (
                "gradients/rules/routing.py",
                "shaped(Reordered.apply(y, back), (n, m, weight.shape[2]))",
                "Reordered.apply(y, back).view(n, m, -1)",
            ),
        ),
        (
            "tests/gradients/test_against_the_loop.py::"
            "test_norms_and_sums_equal_the_loop[float32-routed_rows_with_a_bias_in_place]",
        ),
    ),
    Mutation(
        "a Trainer logs the loss of private records",
        (
            (
                "integrations/transformers/trainer.py",
                "        if not self.privacy.show_training_loss:\n",
                "        if False:\n",
            ),
        ),
        (
            "tests/integrations/test_private_trainer.py::"
            "test_logs_and_files_say_nothing_of_private_records",
        ),
    ),
    Mutation(
        "a Trainer saves how far its generators have come",
        (
            (
                "integrations/transformers/trainer.py",
                "if self.privacy.seed is not None:",
                "if True:",
            ),
        ),
        (
            "tests/integrations/test_private_trainer.py::"
            "test_logs_and_files_say_nothing_of_private_records",
        ),
    ),
    Mutation(
        "a Trainer resumes weights with the ledger of an earlier step",
        (
            (
                "integrations/transformers/saving.py",
                "if weights != digests(path.parent):",
                "if False:",
            ),
        ),
        (
            "tests/integrations/test_private_trainer_resumes.py::"
            "test_weights_of_another_step_are_not_resumed",
        ),
    ),
    Mutation(
        "a Trainer stops early by private records",
        (
            (
                "integrations/transformers/refusals.py",
                "    if not privacy.public_evaluation:\n",
                "    if False:\n",
            ),
        ),
        (
            "tests/integrations/test_private_trainer_refusals.py::"
            "test_early_stopping_needs_public_records",
        ),
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
            "in a copy of the package and runs the named tests on it. All of them must fail.",
            "The command writes this page.",
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
