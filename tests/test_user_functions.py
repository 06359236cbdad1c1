"""Loss functions as users write them: each is vectorised, and trains as a plain loop would."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import psac
from psac.gradients import trees
from tests.private_runs import weights
from tests.user_functions import CASES, Case, vectors

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")
STEPS, EXPECTED, RATE = 3, 8, 0.1
DETERMINISTIC = [name for name, make in CASES.items() if not make().random]
RANDOM = [name for name in CASES if name not in DETERMINISTIC]


def trained(case: Case, **settings) -> tuple[psac.Private, list]:
    """A few steps without noise or clipping; returns the batches too."""
    optimizer = torch.optim.SGD((p for p in case.model.parameters() if p.requires_grad), lr=RATE)
    settings = {
        "batch_size": EXPECTED,
        "steps": STEPS,
        "noise_multiplier": 0.0,
        "clipping": psac.Abadi(1e6),
        "seed": 0,
    } | settings
    private, batches = psac.make_private(case.model, optimizer, case.data, **settings), []
    around = case.around or contextlib.nullcontext
    while private.steps_taken < STEPS:
        for batch in private.loader:
            with around():
                private.step(case.loss, batch)
            assert private.sensitive.way == "vmap"
            batches.append(batch)
            if case.after:
                with private.public_change():
                    case.after(case.model)
    return private, batches


def by_a_plain_loop(case: Case, batches: list) -> nn.Module:
    """One record after the other, by plain autograd, and plain SGD."""
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    around = case.around or contextlib.nullcontext
    for batch in batches:
        total = [torch.zeros_like(p) for p in parameters]
        for k in range(trees.num_records(batch)):
            with around():
                value = trees.call(case.loss, case.model, trees.record(batch, k))
            grads = torch.autograd.grad(value, parameters, materialize_grads=True)
            total = [t + g for t, g in zip(total, grads, strict=True)]
        with torch.no_grad():
            for parameter, gradient in zip(parameters, total, strict=True):
                parameter -= RATE / EXPECTED * gradient
        if case.after:
            case.after(case.model)
    return case.model


def test_there_are_functions_enough():
    assert len(DETERMINISTIC) >= 30
    assert len(RANDOM) >= 5


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_function_trains_under_vmap_as_in_a_plain_loop(name):
    private, batches = trained(CASES[name]())
    plain = by_a_plain_loop(CASES[name](), batches)
    tolerance = 1e-2 if "autocast" in name else 1e-4
    start = weights(CASES[name]().model)
    moved = weights(plain) - start
    assert moved.norm() > 1e-3
    assert (weights(private.model) - start - moved).norm() <= tolerance * moved.norm()


@pytest.mark.parametrize("name", RANDOM)
def test_a_function_that_draws_random_numbers_trains_and_draws_for_each_record(name):
    private, batches = trained(CASES[name]())
    assert not torch.equal(weights(private.model), weights(CASES[name]().model))
    case = CASES[name]()
    one = trees.record(batches[0], 0)
    copies = trees.map_tensors(one, lambda leaf: leaf.repeat(32, *[1] * (leaf.dim() - 1)))
    assert len(psac.per_sample_norms(case.model, case.loss, copies).unique()) > 2
    report = psac.check(case.model, case.loss, batches[0])
    assert report.way == "vmap"
    assert report.error < 1e-4  # with the same numbers drawn for each


@pytest.mark.parametrize("scheme", [psac.FixedSize(), psac.BallsInBins()])
def test_any_sampling_takes_any_function(scheme):
    for name in DETERMINISTIC[:8]:
        private, _ = trained(CASES[name](), sampling=scheme, physical_batch_size=3)
        assert private.steps_taken == STEPS


@pytest.mark.slow
def test_a_data_set_of_the_datasets_library_trains_as_its_tensors_do():
    datasets = pytest.importorskip("datasets")
    x, y = vectors()

    def loss(model, inputs, labels):
        return F.cross_entropy(model(inputs), labels)

    ends = []
    for data in (
        datasets.Dataset.from_dict({"inputs": x.tolist(), "labels": y.tolist()}).with_format(
            "torch"
        ),
        [{"inputs": a, "labels": b} for a, b in zip(x, y, strict=True)],
    ):
        torch.manual_seed(0)
        private, _ = trained(Case(nn.Linear(6, 3), loss, data), noise_multiplier=1.0)
        ends.append(weights(private.model))
    assert torch.equal(*ends)


def stepped(private, loss):
    """The batches of a pass, each after its step."""
    for batch in private.loader:
        private.step(loss, batch)
        yield batch


# ---- What cannot be vectorised is computed alone, and says where


def by_value(model, x, y):
    scale = 2.0 if x.sum() > 0 else 1.0
    return scale * F.cross_entropy(model(x), y)


def printed(model, x, y):
    value = F.cross_entropy(model(x), y)
    print(f"{value.item():.2f}")
    return value


def scaled_by_a_float(model, x, y):
    return F.cross_entropy(model(x) * float(x.mean()), y)


def test_a_function_that_branches_runs_path_by_path_under_vmap():
    case = CASES["a lambda"]()
    private, batches = trained(Case(case.model, by_value, case.data))  # which holds it to be vmap
    plain = by_a_plain_loop(Case(CASES["a lambda"]().model, by_value), batches)
    torch.testing.assert_close(weights(private.model), weights(plain), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [printed, scaled_by_a_float])
def test_a_function_of_values_is_computed_record_by_record_and_says_where(function):
    case = CASES["a lambda"]()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=RATE)
    private = psac.make_private(
        case.model, optimizer, case.data, batch_size=EXPECTED, steps=STEPS,
        noise_multiplier=0.0, clipping=psac.Abadi(1e6), seed=0,
    )  # fmt: skip
    with pytest.warns(psac.SlowPathWarning, match=r"test_user_functions\.py, line \d+") as caught:
        batches = list(stepped(private, function))
    assert private.sensitive.way == "alone"
    assert len(caught) == 1  # once, not at every step
    plain = by_a_plain_loop(Case(CASES["a lambda"]().model, function), batches)
    torch.testing.assert_close(weights(private.model), weights(plain), rtol=1e-4, atol=1e-5)


# ---- What lets one record see another


def private_run() -> psac.Private:
    torch.manual_seed(0)
    model, (x, y) = nn.Linear(6, 3), vectors()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    return psac.make_private(
        model, optimizer, TensorDataset(x, y), batch_size=EXPECTED, steps=STEPS,
        noise_multiplier=1.0, sampling=psac.FixedSize(), seed=0,
    )  # fmt: skip


def assert_refused(private, loss, batch, match):
    before = weights(private.model)
    with pytest.raises(psac.PrivacyError, match=match):
        private.step(loss, batch)
    assert private.ledger.steps == 0
    assert torch.equal(weights(private.model), before)


def the_mean_of_the_batch(x, y):
    return lambda model, a, b: F.cross_entropy(model(a - x.mean(0)), b)


def another_record(x, y):
    other = x[1:2]
    return lambda model, a, b: F.cross_entropy(model(a + other), b)


def a_label_of_another(x, y):
    return lambda model, a, b: F.cross_entropy(model(a), b) * (1 + (y[0] == b).float().sum())


def a_default(x, y):
    def loss(model, a, b, everything=x.T):
        return F.cross_entropy(model(a @ (everything @ everything.T)), b)

    return loss


OTHERS = [the_mean_of_the_batch, another_record, a_label_of_another, a_default]


@pytest.mark.parametrize("make", OTHERS)
def test_a_closure_over_the_batch_or_the_data_set_is_refused(make):
    for of_the_batch in (True, False):
        private = private_run()
        batch = next(iter(private.loader))
        loss = make(*(batch if of_the_batch else private.loader.dataset.tensors))
        assert_refused(private, loss, batch, "private batch or data set")


kept: list = []


def keeps_its_output(model, x, y):
    out = model(x)
    kept.append(out)
    return F.cross_entropy(out, y)


def keeps_a_sum(model, x, y):
    model.total = getattr(model, "total", 0) + x.sum()
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("loss", [keeps_its_output, keeps_a_sum])
def test_a_function_that_keeps_what_it_computed_is_refused_at_the_first_step(loss):
    kept.clear()
    private = private_run()
    assert_refused(private, loss, next(iter(private.loader)), "still holds")
    kept.clear()


largest = [0.0]


def remembers_a_number(model, x, y):
    largest[0] = max(largest[0], float(x.max()))
    return F.cross_entropy(model(x), y) / (1 + largest[0])


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
def test_a_function_that_remembers_a_number_is_refused():
    largest[0], private = 0.0, private_run()
    match = "writes what it computed from a record"
    assert_refused(private, remembers_a_number, next(iter(private.loader)), match)


def test_what_would_mix_a_batch_meets_one_record_alone():
    """A mean over the batch is that of one record; neighbours are the record itself."""

    def pairs(model, x, y):
        return F.cross_entropy(model(x - x.mean(0) + 0.5 * x.flip(0) + x.roll(1, 0)), y)

    def alone(model, x, y):
        return F.cross_entropy(model(1.5 * x), y)

    ends = [trained(Case(CASES["a lambda"]().model, loss))[0] for loss in (pairs, alone)]
    torch.testing.assert_close(*(weights(private.model) for private in ends))


def test_records_that_are_taken_away_change_no_other():
    model, (x, y) = CASES["a lambda"]().model, vectors()

    def mixing(model, x, y):
        weight = 1 / (1 + F.one_hot(y, 3).sum(0))
        out = model((x - x.mean(0)) / len(x) + x / (1 + x.abs().max()))
        return F.cross_entropy(out, y, weight=weight, reduction="sum") / (1 + (y > 0).sum())

    whole = psac.per_sample_norms(model, mixing, (x, y))
    torch.testing.assert_close(whole[::2], psac.per_sample_norms(model, mixing, (x[::2], y[::2])))
    assert len(whole.unique()) > 10
