"""Recurrent layers and cells run as one function; other forms are written out step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from psac.gradients import Evaluator
from psac.gradients.rules import recurrence
from tests.gradients.cases import CASES
from tests.gradients.models.recurrent import CELLS, KINDS
from tests.gradients.test_against_the_loop import IGNORED

AT_ONCE = ("recurrent",)
FUNCTIONS = (recurrence.Lstm, recurrence.Gru, recurrence.Plain)


def rules_of(name: str) -> set[tuple[str, ...]]:
    torch.manual_seed(0)
    model, batch, loss, _ = CASES[name]()
    return set(Evaluator(model)(loss, batch).rules.values())


@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("name", [*KINDS, *CELLS, "lstm_projection", "gru_of_several_sequences"])
def test_all_weights_of_a_layer_are_served_at_once(name):
    assert rules_of(name) == {AT_ONCE}


def test_a_layer_inside_a_transform_is_written_out():
    assert AT_ONCE not in rules_of("gru_inside_a_gradient")


def test_a_layer_under_autocast_is_written_out():
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)[0].float().square().sum()

    model, x = nn.LSTM(4, 3, batch_first=True), torch.randn(5, 6, 4)
    assert set(Evaluator(model)(loss, x).rules.values()) == {("linear",)}


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_is_one_node_of_the_graph(monkeypatch, name):
    calls = []
    for function in FUNCTIONS:
        apply = function.apply
        monkeypatch.setattr(
            function, "apply", lambda *given, apply=apply: (calls.append(1), apply(*given))[1]
        )
    torch.manual_seed(0)
    model, batch, loss, _ = CASES[name]()
    Evaluator(model).vectorized.evaluate(loss, batch)
    assert len(calls) == 1
