"""Rules serve what they are there for: none is dead, and no layer of torch does without."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from torch import nn

from psac.gradients import Evaluator
from psac.gradients.groups import TOGETHER
from psac.gradients.rules import FUNCTIONS, RULES
from psac.gradients.vectorized.recorder import Recorder
from tests.gradients.cases import CASES
from tests.gradients.test_randomness import MODELS, OF_WEIGHTS
from tests.gradients.test_randomness import loss as loss_of_random

# The parameters of these may be large: a copy for each record would take too much memory.
LARGE = (
    *(nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
)
# Forms that rules leave to torch: complex numbers, transforms of the user's own, old settings,
# gradients that are differentiated once more.
LEFT_TO_TORCH = {
    "complex_linear",
    "embedding_bag_max_by_offsets",
    "embedding_bag_to_the_last_offset",
    "embedding_by_frequency",
    "embedding_by_frequency_and_padding",
    "embedding_in_a_function_and_slope",
    "embedding_padding_and_a_step",
    "embedding_padding_and_slope",
    "gradient_of_the_input",
    "gru_inside_a_gradient",
    "inner_vmap",
    "jacobian",
    "product_with_the_hessian",
    "slopes_of_slopes",
    "selected_in_a_gradient",  # another transform
    "selected_words_by_frequency",  # its rows are divided by how often a record has them
}


@dataclasses.dataclass
class Notes:
    """Of one evaluation: functions whose rule answered, and parameters that were copied."""

    functions: set = dataclasses.field(default_factory=set)
    copied: set[int] = dataclasses.field(default_factory=set)
    large: dict[int, str] = dataclasses.field(default_factory=dict)  # parameters, by id

    def large_and_copied(self) -> set[str]:
        return {name for key, name in self.large.items() if key in self.copied}


def large_parameters(model: nn.Module) -> dict[int, str]:
    layers = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, LARGE)]
    return {id(p): f"{path}.{key}" for path, m in layers for key, p in m.named_parameters()}


@pytest.fixture(scope="module")
def notes() -> dict[str, Notes]:
    """For each row of the table that is evaluated under vmap, and models with random layers."""
    found, now, copies = {}, [Notes()], Recorder.copies

    def noting(function, rule):
        def run(*given, **named):
            result = rule(*given, **named)
            if result is not NotImplemented:
                now[0].functions.add(function)
            return result

        return run

    def noting_copies(self, source, rule):
        now[0].copied.add(id(source))
        return copies(self, source, rule)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch has to say about models is no matter here
        patch.setattr(Recorder, "copies", noting_copies)
        for function, rule in RULES.items():
            patch.setitem(RULES, function, noting(function, rule))
        for name, build in CASES.items():
            torch.manual_seed(0)
            model, batch, loss, way = build()
            if way == "vmap":
                now[0] = found[name] = Notes(large=large_parameters(model))
                Evaluator(model).vectorized.evaluate(loss, batch)
        for name, build in {**MODELS, **OF_WEIGHTS}.items():
            model, now[0] = build(), found.setdefault(name, Notes())
            vectorized = Evaluator(model).vectorized
            vectorized.evaluate(loss_of_random, torch.randn(5, 3, 8), randomness="same")
    return found


def name_of(function) -> str:
    home = getattr(function, "__objclass__", None) or getattr(function, "__self__", None)
    return f"{getattr(home, '__name__', 'functional')}.{function.__name__}"


@pytest.mark.parametrize("function", RULES, ids=name_of)
def test_every_function_that_has_a_rule_is_served_by_it_in_some_row(function, notes):
    assert any(function in row.functions for row in notes.values())


def test_no_function_has_two_rules():
    assert len(RULES) == sum(map(len, FUNCTIONS.values()))


def test_parameters_of_large_layers_are_not_copied_for_each_record(notes):
    copied = {name: row.large_and_copied() for name, row in notes.items()}
    assert {
        name: names for name, names in copied.items() if names and name not in LEFT_TO_TORCH
    } == {}
    assert {name for name in LEFT_TO_TORCH if not copied[name]} == set()


def test_rows_of_other_records_cannot_be_routed_to_an_expert():
    """Ends behind a record's own rows are cut; torch would read on in memory."""

    def loss(model: nn.Module, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x[0], model.weight[None], offs=ends[0]).square().sum()

    model = nn.Linear(4, 4, bias=False)
    x, ends = torch.randn(3, 5, 4), torch.tensor([[9], [5], [-7]], dtype=torch.int32)
    vectorized = Evaluator(model).vectorized
    norms = []
    for factor in (1, 100):
        x[1] *= factor
        (squares,) = vectorized.evaluate(loss, (x, ends)).measured.norms_squared(TOGETHER)
        norms.append(squares)
    assert torch.equal(norms[0][0], norms[1][0])
    assert norms[0][0] > 0
    assert norms[0][2] == norms[1][2] == 0
