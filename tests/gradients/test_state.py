"""What a function leaves behind that follows from no record stays, or psac says it does not."""

from __future__ import annotations

import collections
import io
import itertools
import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import psac
from psac.gradients import ClippedSum, Evaluator
from psac.gradients.isolation.generators import own_numbers
from psac.gradients.isolation.reach import Reach
from tests.private_runs import private_run

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
WAYS = {  # by each, the function of a record's inputs that makes psac take it
    "vmap": lambda x: 1.0,
    "paths": lambda x: 2.0 if x.sum() > 0 else 1.0,
    "alone": lambda x: float(x.abs().max()),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def stepped(model: nn.Module, loss, steps: int = 4) -> list[str]:
    """The ledger's warnings."""
    total, notes = ClippedSum(Evaluator(model), psac.Abadi(bound=1.0)), []
    total.evaluator.on_warning = notes.append
    for _ in range(steps):
        total.add(loss, (X, Y))
        total.collect()
    return notes


GLOBAL = 0


class Counts(nn.Module):
    """Counts its calls wherever one can."""

    of_class = 0

    def __init__(self) -> None:
        super().__init__()
        self.network, self.of_instance, self.counter = network(), 0, collections.Counter()
        self.register_buffer("of_buffer", torch.zeros(()))
        self.of_closure, self.count = 0, self.counting()

    def counting(self):
        calls = 0

        def count() -> int:
            nonlocal calls
            calls += 1
            return calls

        return count

    def forward(self, x: Tensor) -> Tensor:
        global GLOBAL
        GLOBAL += 1
        Counts.of_class += 1
        self.of_instance += 1
        self.counter["calls"] += 1
        self.of_buffer += 1
        self.of_closure = self.count()
        return self.network(x)

    def all(self) -> list[float]:
        counts = [GLOBAL, Counts.of_class, self.of_instance, self.counter["calls"]]
        return [*counts, float(self.of_buffer), self.of_closure]


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_step_counts_once_wherever_the_count_is_kept(way):
    global GLOBAL
    GLOBAL = Counts.of_class = 0
    model, factor = Counts(), WAYS[way]
    notes = stepped(model, lambda m, x, y: cross_entropy(m, x, y) * factor(x))
    assert model.all() == [4] * 6
    assert not notes


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.parametrize("way", WAYS)
def test_the_iterations_of_spectral_norm_go_on(way):
    model, factor = network(), WAYS[way]
    nn.utils.parametrizations.spectral_norm(model[0])
    u = model[0].parametrizations.weight[0]._u
    before = u.clone()
    stepped(model, lambda m, x, y: cross_entropy(m, x, y) * factor(x))
    assert not torch.equal(u, before)


def test_what_all_records_leave_by_chance_is_undone_and_said():
    kept = {}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        kept["is_small"] = bool(x.abs().max() < 0.5)  # of none of the records
        return cross_entropy(model, x, y)

    with pytest.warns(UserWarning, match=r"changed loss .*is_small.*psac has undone it"):
        stepped(network(), loss, steps=1)
    assert kept == {}


@pytest.mark.parametrize("way", ["vmap", "paths"])
@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_numbers_of_numpy_and_python_differ_from_step_to_step(way, draw):
    factor, log = WAYS[way], io.StringIO()  # which psac does not see

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        number = float(draw())
        if way == "vmap" or x.sum() > 0:
            print(number, file=log)
        return cross_entropy(model, x, y) * factor(x)

    total = ClippedSum(Evaluator(network()), psac.Abadi(bound=1.0))
    last = []
    for _ in range(5):
        total.add(loss, (X, Y))
        total.collect()
        last.append(log.getvalue().split()[-1])
    assert len(set(last)) == 5


def test_own_numbers_leave_the_users_where_they_were():
    random.seed(1)
    np.random.seed(1)
    expected = [random.random(), np.random.rand(), random.random(), np.random.rand()]
    random.seed(1)
    np.random.seed(1)
    found = [random.random(), np.random.rand()]
    with own_numbers(7):
        first = [random.random(), np.random.rand(), random.gauss(0, 1)]
        with own_numbers(7):
            assert [random.random(), np.random.rand(), random.gauss(0, 1)] == first
    assert [*found, random.random(), np.random.rand()] == expected


@pytest.mark.parametrize("draw", [random.random, np.random.rand, np.random.randn])
def test_all_physical_batches_of_a_step_draw_the_same_numbers(draw):
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x * (1 + float(draw())), y)

    alike = TensorDataset(torch.ones(40, 4), torch.zeros(40, dtype=torch.long))
    settings = {"physical_batch_size": 3, "noise_multiplier": 1.0, "seed": None, "delta": 1e-5}
    private = private_run(network(), None, alike, **settings)
    by_step: dict[int, set[float]] = collections.defaultdict(set)
    for batch in private.loader:
        step = private.steps_taken
        private.step(loss, batch)
        by_step[step].update(round(float(value), 4) for value in private.sensitive.losses)
    assert all(len(numbers) == 1 for numbers in by_step.values())
    assert len(set.union(*by_step.values())) == len(by_step) > 1


def test_counts_in_physical_batches_raise_no_warning_about_privacy():
    calls = collections.Counter()

    def loss(model: nn.Module, x: Tensor, y: Tensor, number: Tensor) -> Tensor:
        calls["n"] += 1
        return cross_entropy(model, x, y) * min(1, calls["n"] / 3)

    private = private_run(network(), physical_batch_size=3, noise_multiplier=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", psac.PrivacyWarning)
        for batch in private.loader:
            private.step(loss, batch)
    assert not private.ledger.warnings
    assert calls["n"] == private.steps_taken


def test_a_change_between_physical_batches_is_still_named():
    scale = {"value": 1.0}
    loss = lambda m, x, y, number: cross_entropy(m, x, y) * scale["value"]  # noqa: E731
    private = private_run(network(), physical_batch_size=3, noise_multiplier=1.0)
    batches = iter(private.loader)
    private.step(loss, next(batches))
    scale["value"] = 2.0
    with pytest.warns(psac.PrivacyWarning, match="scale"):
        private.step(loss, next(batches))


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.parametrize("schedule", [itertools.count(1), (k for k in range(1, 999))])
def test_an_iterator_is_refused_with_the_remedy(schedule):
    with pytest.raises(psac.PrivacyError, match=r"pass the number in.*public_change"):
        stepped(network(), lambda m, x, y: cross_entropy(m, x, y) * (1 + 0.01 * next(schedule)))


def test_a_compiled_loss_function_is_the_one_that_it_was_made_of():
    loss = torch.compile(cross_entropy, backend="eager")
    assert not stepped(network(), loss, steps=2)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_observers_of_quantisation_are_refused_by_name():
    model = network()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    torch.ao.quantization.prepare_qat(model.train(), inplace=True)
    with pytest.raises(psac.PrivacyError, match="activation_post_process"):
        stepped(model, cross_entropy)


def test_what_is_nested_too_deep_to_be_walked_is_refused():
    nested: list = []
    for _ in range(300):
        nested = [nested]
    with pytest.raises(psac.PrivacyError, match="nested more than"):
        Reach({"loss": nested})


def test_the_momentum_and_the_rate_of_an_optimizer_on_the_model_are_no_news():
    model = network()
    model.trainer = optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    weight = model[0].weight

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        state = collections.defaultdict(int)  # the name of what an optimizer has, too
        return cross_entropy(m, x, y) + len(getattr(model, "state", state))

    optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    total, notes = ClippedSum(Evaluator(model), psac.Abadi(bound=1.0)), []
    total.evaluator.on_warning = notes.append
    for _ in range(3):
        total.add(loss, (X, Y))
        total.collect()
        optimizer.state[weight]["momentum_buffer"] += 1
        optimizer.param_groups[0]["lr"] *= 0.9
    assert not notes
