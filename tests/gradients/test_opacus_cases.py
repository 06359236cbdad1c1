"""The layer cases that Opacus ships for its own tests, held to the loop over records.

Each of its tests builds a layer and an input and hands both to `run_test`; here psac takes them.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pad_packed_sequence,
    pad_sequence,
)

import psac
from psac.gradients import trees
from tests import oracles
from tests.gradients.table import uneven

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::psac.SlowPathWarning"),
]
opacus = pytest.importorskip("opacus", reason="comes with the extra `slow`")
OF_ITS_HOOKS = "test_asymetric_dilation_and_kernel_size"  # it calls backward itself
EXAMPLES = 6  # of each of its tests


def layer_tests() -> list[Any]:
    """Class and name of each test that goes through `run_test`."""
    from opacus.tests import grad_samples
    from opacus.tests.grad_samples.common import GradSampleHooks_test

    hypothesis.settings.register_profile("few", max_examples=EXAMPLES, derandomize=True)
    before = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile("few")  # its decorators read this when they are imported
    found = []
    for module in pkgutil.iter_modules(grad_samples.__path__):
        contents = vars(importlib.import_module(f"{grad_samples.__name__}.{module.name}"))
        for name, value in contents.items():
            if not isinstance(value, type) or value is GradSampleHooks_test:
                continue
            if issubclass(value, GradSampleHooks_test):
                tests = [
                    test
                    for test in vars(value)
                    if test.startswith("test_") and test != OF_ITS_HOOKS
                ]
                found += [pytest.param(value, t, id=f"{module.name}-{name}-{t}") for t in tests]
    hypothesis.settings.load_profile(before)
    return found


def held_to_the_loop(self: Any, x: Any, module: nn.Module, batch_first: bool = True, **more: Any):
    """In the place of `run_test`."""
    batch, loss = as_records(x, batch_first, more.get("chunk_method", iter))
    if not trees.num_records(batch):
        assert psac.per_sample_norms(module, loss, batch).shape == (0,)
        return
    gradients = oracles.gradients(module, loss, batch)
    norms = oracles.norms(gradients)
    torch.testing.assert_close(
        psac.per_sample_norms(module, loss, batch).double(), norms, rtol=1e-3, atol=1e-5
    )
    sums = psac.weighted_gradient(module, loss, batch, psac.Abadi(bound=0.5))
    weights = [min(1.0, 0.5 / max(float(norm), 1e-12)) for norm in norms]
    for name, expected in oracles.weighted_sum(gradients, weights).items():
        torch.testing.assert_close(sums[name].double(), expected, rtol=1e-3, atol=1e-5)


def as_records(x: Any, batch_first: bool, chunks: Any) -> tuple[Any, Any]:
    """A batch with records along the first axis, and the loss of one."""
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x, batch_first=True)

        def of_packed(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return uneven(model(packed).data)

        return (padded, lengths), of_packed
    if isinstance(x, tuple) and chunks is not iter:  # words and offsets
        rows = [words for words, _ in chunks(x)]
        lengths = torch.tensor([len(words) for words in rows])

        def of_words(model: nn.Module, words: Tensor, lengths: Tensor) -> Tensor:
            return uneven(model(words[:, : int(lengths)]))

        return (pad_sequence(rows, batch_first=True), lengths), of_words
    parts = x if isinstance(x, (tuple, list)) else (x,)
    if batch_first:
        return tuple(parts), lambda model, *one: uneven(model(*one))
    turned = tuple(part.transpose(0, 1) for part in parts)
    return turned, lambda model, *one: uneven(model(*(part.transpose(0, 1) for part in one)))


@pytest.mark.parametrize("case, name", layer_tests())
def test_a_layer_of_opacus_is_held_to_the_loop(case, name, monkeypatch):
    monkeypatch.setattr(case, "run_test", held_to_the_loop)
    torch.manual_seed(0)
    getattr(case(name), name)()
