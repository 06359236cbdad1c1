"""The names of Opacus on its page are those of the version that the page speaks of."""

from __future__ import annotations

import inspect

import pytest

from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "opacus.md").read_text()
ENGINE = [
    "make_private",
    "make_private_with_epsilon",
    "get_epsilon",
    "save_checkpoint",
    "load_checkpoint",
]
KEYWORDS = ["noise_multiplier", "max_grad_norm", "clipping", "poisson_sampling", "loss_reduction"]
KEYWORDS += ["batch_first", "grad_sample_mode", "noise_generator"]


@pytest.fixture(scope="module")
def opacus():
    return pytest.importorskip("opacus")


def test_the_page_is_about_the_installed_version(opacus):
    assert f"Opacus](https://opacus.ai) {opacus.__version__}" in PAGE


@pytest.mark.parametrize("method", ENGINE)
def test_methods_of_the_engine_are_on_the_page(opacus, method):
    assert method in PAGE
    assert hasattr(opacus.PrivacyEngine, method)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_keywords_of_make_private_are_on_the_page(opacus, keyword):
    assert keyword in PAGE
    assert keyword in inspect.signature(opacus.PrivacyEngine.make_private).parameters


def test_other_names_are_where_the_page_has_them(opacus):
    from opacus.accountants import create_accountant
    from opacus.accountants.utils import get_noise_multiplier
    from opacus.grad_sample import GradSampleModule, register_grad_sampler
    from opacus.layers import DPLSTM, DPMultiheadAttention
    from opacus.optimizers import DPOptimizer
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    from opacus.validators import ModuleValidator

    named = [get_noise_multiplier, GradSampleModule, register_grad_sampler, DPLSTM]
    named += [DPMultiheadAttention, DPOptimizer, BatchMemoryManager]
    assert all(found.__name__ in PAGE for found in named)
    assert hasattr(ModuleValidator, "fix")
    assert hasattr(ModuleValidator, "validate")
    assert hasattr(DPOptimizer, "signal_skip_step")
    assert hasattr(create_accountant("prv"), "history")
