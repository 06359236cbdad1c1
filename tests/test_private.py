"""`make_private` on the user's own objects: Algorithm 1, its plan, and nothing lost.

What it refuses is in test_private_refusals.py, changes of the model in test_private_changes.py.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import psac
from tests import oracles
from tests.private_runs import loss, network, private_run, records, sgd, train, trained, weights

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")


def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


# ---- The algorithm


def test_without_noise_it_is_algorithm_1_step_by_step():
    private, model = private_run(epochs=3), network()
    x, y, _ = private.loader.dataset.tensors
    for numbers in train(private, epochs=3):
        batch = x[numbers], y[numbers]
        gradients = oracles.loop_gradients(model, losses, batch, oracles.take_first, len(numbers))
        factors = [oracles.psac_weight(float(n)) for n in oracles.norms(gradients)]
        for name, total in oracles.weighted_sum(gradients, factors).items():
            with torch.no_grad():  # B = 8 whatever was drawn
                model.get_parameter(name).sub_(0.1 * total.float() / 8)
    assert private.steps_taken == 15
    torch.testing.assert_close(weights(private.model), weights(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("physical", [1, 2, 3, 100])
def test_physical_batches_change_memory_only(physical):
    whole, parts = (
        private_run(noise_multiplier=1.0, physical_batch_size=size) for size in (None, physical)
    )
    first, second = train(whole, 2), train(parts, 2)
    assert list(itertools.chain(*first)) == list(itertools.chain(*second))
    assert all(len(numbers) <= physical for numbers in second)
    assert whole.ledger == parts.ledger
    assert whole.steps_taken == parts.steps_taken == 10
    torch.testing.assert_close(weights(whole.model), weights(parts.model), rtol=1e-4, atol=1e-5)


def test_an_empty_draw_is_a_step_of_noise_alone_that_the_user_never_sees():
    optimizer_steps = []
    private = private_run(batch_size=1, epochs=1, noise_multiplier=1.0, data=records(60))
    private.optimizer.register_step_post_hook(lambda *_: optimizer_steps.append(1))
    seen = train(private)
    assert all(seen)
    assert len(seen) < 60
    assert private.steps_taken == private.ledger.steps == len(optimizer_steps) == 60


def test_logical_steps_are_those_of_a_pass_and_empty_draws_are_among_them():
    settings = {"batch_size": 1, "epochs": 2, "data": records(60), "physical_batch_size": 1}
    plain, stepped = (private_run(noise_multiplier=1.0, **settings) for _ in range(2))
    seen, spent, steps = train(plain, 2), [], []
    for _ in range(2):
        for batches in stepped.loader.steps():
            steps.append([])
            for batch in batches:
                released = stepped.step(loss, batch)
                steps[-1].append(batch[-1].tolist())
            assert not steps[-1] or released
            spent.append(stepped.steps_taken)
    assert spent == list(range(1, 121))
    assert [] in steps
    assert list(itertools.chain(*steps)) == seen
    assert torch.equal(weights(stepped.model), weights(plain.model))


def test_a_logical_step_that_is_passed_over_counts_or_raises():
    private = private_run(batch_size=1, epochs=1, data=records(60), noise_multiplier=1.0)
    steps = enumerate(private.loader.steps())  # nothing asks for the batches
    with pytest.raises(psac.PrivacyError, match=r"not passed to private\.step"):
        assert all(private.steps_taken == number for number, _ in steps)  # empty ones: released
    assert private.steps_taken > 0


def test_a_parameter_that_no_loss_reaches_is_named_in_the_first_step():
    model = network()
    model.append(nn.Identity()).register_parameter("adapter", nn.Parameter(torch.zeros(3)))
    private = private_run(model, batch_size=20)
    batches = iter(private.loader)
    with pytest.warns(UserWarning, match="depends on 4 of 5 .* first step.* adapter"):
        private.step(loss, next(batches))
    private.step(loss, next(batches))  # once is enough


def test_an_empty_draw_moves_the_parameters_by_noise_of_the_full_size():
    moves = []
    for seed in range(30):
        private = private_run(
            Constant(500), batch_size=1, steps=1, epochs=None, noise_multiplier=2.0, seed=seed
        )
        before = weights(private.model)
        if next(iter(private.loader), None) is None:
            moves.append(weights(private.model) - before)
    assert len(moves) >= 5
    assert_std(torch.cat(moves), 0.1 * 2.0)


def assert_std(values: torch.Tensor, std: float) -> None:
    """Accepts this standard deviation of a centred normal law, and rejects 0.9 and 1.1 of it."""
    total, n = float(values.double().square().sum()), values.numel()
    accepted = [
        1e-4 < stats.chi2.cdf(total / (factor * std) ** 2, n) < 1 - 1e-4
        for factor in (0.9, 1.0, 1.1)
    ]
    assert accepted == [False, True, False]


class Constant(nn.Module):
    """A model whose gradients are zero: what comes out is noise."""

    def __init__(self, size: int = 4000) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(size)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0 * (x @ self.first[:4]) + 0 * (x @ self.second[:4])


def output(model, x, y, number):
    return model(x)


@pytest.mark.parametrize("physical", [None, 2])
def test_noise_is_added_once_per_logical_step_with_the_stated_size(physical):
    private = private_run(
        Constant(),
        clipping=psac.PSAC(bound=0.3),
        noise_multiplier=1.5,
        physical_batch_size=physical,
        steps=1,
        epochs=None,
    )
    train(private, loss=output)
    assert_std(weights(private.model), 0.1 * 1.5 * 0.3 / 8)


def test_groups_get_noise_by_their_bounds_for_the_same_guarantee():
    model = Constant()
    rules = {"first": psac.PSAC(bound=0.3), "second": psac.Abadi(bound=5.0)}
    private = private_run(model, clipping=rules, noise_multiplier=1.5, steps=1, epochs=None)
    train(private, loss=output)
    for parameter, bound in ((model.first, 0.3), (model.second, 5.0)):
        assert_std(parameter.detach(), 0.1 * 1.5 * math.sqrt(2) * bound / 8)


def test_each_group_is_clipped_by_its_own_rule():
    model, reference = network(), network()
    rules = {"0.*": psac.Abadi(bound=0.05), "*": psac.PSAC()}
    private = private_run(model, clipping=rules, steps=1, epochs=None)
    (batch,) = one_pass(private)
    sums = psac.weighted_gradient(reference, loss, batch, rules)
    with torch.no_grad():
        for name, total in sums.items():
            reference.get_parameter(name).sub_(0.1 * total / 8)
    torch.testing.assert_close(weights(model), weights(reference))
    assert private.sensitive.norms.shape == (2, len(batch[0]))
    assert not re.search(r"\d", repr(private.sensitive))  # which may end up in a log
    parts = private.sensitive.norms * private.sensitive.weights
    assert (parts <= torch.tensor([[0.05], [1.0]])).all()


def one_pass(private):
    """The batches of a pass, each after its step."""
    for batch in private.loader:
        private.step(loss, batch)
        yield batch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_half_precision_are_summed_and_noised_in_float32(dtype):
    model = network().to(dtype)

    def cast(model, x, y, number):
        return F.cross_entropy(model(x.to(dtype)).float(), y)

    private = private_run(model, noise_multiplier=1.0, steps=3, epochs=None)
    collect, kinds = private._sums.collect, set()

    def collected():
        sums = collect()
        kinds.update(total.dtype for total in sums.values())
        return sums

    private._sums.collect = collected
    train(private, loss=cast)
    assert private.steps_taken == 3
    assert kinds == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert weights(model).isfinite().all()


def test_a_record_that_is_not_finite_adds_nothing_and_spares_the_others():
    x, y, numbers = records().tensors
    x = x.clone()
    x[::2] = math.nan
    data = torch.utils.data.TensorDataset(x, y, numbers)
    model, reference = network(), network()
    private = private_run(model, data=data, batch_size=40, steps=1, epochs=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", psac.SlowPathWarning)
        (chosen,) = train(private)
    odd = torch.tensor([k for k in chosen if k % 2])
    assert len(odd) < len(chosen)
    sums = psac.weighted_gradient(reference, loss, (x[odd], y[odd], numbers[odd]), psac.PSAC())
    with torch.no_grad():
        for name, total in sums.items():
            reference.get_parameter(name).sub_(0.1 * total / 40)
    torch.testing.assert_close(weights(model), weights(reference))


# ---- What a step says


@pytest.mark.parametrize("physical", [None, 3])
def test_a_step_says_when_it_was_released_and_the_loop_counts_on_it(physical):
    private = private_run(noise_multiplier=1.0, physical_batch_size=physical)
    scheduler = torch.optim.lr_scheduler.StepLR(private.optimizer, 1, gamma=0.5)
    answers = []
    for batch in private.loader:
        before = weights(private.model)
        answers.append(private.step(loss, batch))
        assert torch.equal(weights(private.model), before) != answers[-1]
        if answers[-1]:
            scheduler.step()
    assert sum(answers) == private.steps_taken == private.ledger.steps == 5
    assert (len(answers) > 5) == (physical is not None)
    assert private.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**5


def test_losses_and_norms_of_the_last_batch_are_at_hand_for_the_owner_of_the_data():
    private = private_run()
    assert private.sensitive is None
    model = network()
    for batch in private.loader:
        gradients = oracles.loop_gradients(
            model, losses, batch[:2], oracles.take_first, len(batch[0])
        )
        private.step(loss, batch)
        torch.testing.assert_close(private.sensitive.losses, losses(model, batch).detach())
        norms = oracles.norms(gradients)
        torch.testing.assert_close(private.sensitive.norms.double(), norms, rtol=1e-4, atol=1e-6)
        expected = [oracles.psac_weight(norm) for norm in norms.tolist()]
        assert private.sensitive.weights.tolist() == pytest.approx(expected, rel=1e-4)
        assert private.sensitive.way == "vmap"
        break


def test_a_step_needs_no_gradient_mode_of_its_own():
    private = private_run()
    for batch in private.loader:
        with torch.no_grad():
            private.step(loss, batch)
    assert torch.equal(weights(private.model), weights(trained().model))


def test_no_gradient_is_left_on_the_parameters():
    private = private_run(noise_multiplier=1.0, physical_batch_size=3)
    for batch in private.loader:
        private.step(loss, batch)
        assert all(p.grad is None for p in private.model.parameters())


# ---- The user's own objects

OPTIMIZERS = {
    "momentum": lambda model: sgd(model, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda model: torch.optim.Adam(model.parameters()),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), foreach=True),
    "nadam": lambda model: torch.optim.NAdam(model.parameters()),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters()),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), fused=True),
    "upwards": lambda model: sgd(model, maximize=True),
    "groups": lambda model: torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}], lr=0.1
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("physical", [None, 3])
def test_any_optimizer_steps_once_per_logical_batch(name, physical):
    model, reference = network(), network()
    private = private_run(model, OPTIMIZERS[name](model), physical_batch_size=physical)
    own = OPTIMIZERS[name](reference)
    keys = [list(model.state_dict()), list(private.optimizer.state_dict())]
    parts = []
    for batch in private.loader:
        parts.append(batch)
        if private.step(loss, batch):
            whole = tuple(torch.cat(column) for column in zip(*parts, strict=True))
            sums = psac.weighted_gradient(reference, loss, whole, psac.PSAC())
            for parameter_name, total in sums.items():
                reference.get_parameter(parameter_name).grad = total / 8
            own.step()
            parts.clear()
    assert private.steps_taken == 5
    assert keys == [list(model.state_dict()), list(private.optimizer.state_dict())]
    torch.testing.assert_close(weights(model), weights(reference), rtol=1e-4, atol=1e-5)


class Inherits(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class InheritsTwice(Inherits):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad * 1.0  # what is released may be changed
        return super().step(closure)


class LooksAhead(torch.optim.Optimizer):
    """Steps by another optimizer, and then on its own."""

    def __init__(self, parameters, lr):
        self.inner = torch.optim.SGD(parameters, lr)
        super().__init__(self.inner.param_groups, {"lr": lr})

    def step(self, closure=None):
        self.inner.step()


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("physical", [None, 3])
@pytest.mark.parametrize(
    "kind",
    [
        Inherits,
        InheritsTwice,
        LooksAhead,
    ],
)
def test_a_step_that_calls_another_step_moves_the_weights_once(kind, physical, scheduled):
    def trained_by(kind):
        model = network()
        optimizer = kind(model.parameters(), lr=0.1)
        settings = {"noise_multiplier": 1.0, "physical_batch_size": physical}
        private = private_run(model, optimizer, **settings)
        if scheduled:  # it puts a wrapper around step
            torch.optim.lr_scheduler.StepLR(optimizer, 100)
        train(private)
        return private

    for parent in (torch.optim.SGD, Inherits):  # torch puts hooks into a class at its first object
        parent(network().parameters(), lr=0.1)
    expected, private = trained_by(torch.optim.SGD), trained_by(kind)
    assert private.steps_taken == private.ledger.steps == expected.steps_taken
    assert torch.equal(weights(private.model), weights(expected.model))


@pytest.mark.parametrize("first", ["scheduler", "private"])
def test_schedulers_work_made_before_or_after(first):
    model = network()
    optimizer = sgd(model)

    def schedule():
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    scheduler = schedule() if first == "scheduler" else None
    private = private_run(model, optimizer)
    scheduler = scheduler or schedule()
    train(private)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_close_gives_model_and_optimizer_back_without_a_trace(steps):
    model = network()
    optimizer = sgd(model)
    before = traces(model, optimizer)
    with private_run(model, optimizer) as private:
        assert traces(model, optimizer) != before
        for batch in private.loader if steps else ():
            private.step(loss, batch)
            if private.steps_taken == steps:
                break
    assert traces(model, optimizer) == before
    x, y, _ = records().tensors
    start = weights(model)
    F.cross_entropy(model(x), y).backward()
    expected = start - 0.1 * torch.cat([p.grad.flatten() for p in model.parameters()])
    optimizer.step()
    torch.testing.assert_close(weights(model), expected)
    with pytest.raises(psac.PrivacyError, match="closed"):
        next(iter(private.loader))


def traces(model, optimizer):
    """All that can hang on the user's objects, but for values."""
    hooks = [
        {key: len(value) for key, value in vars(thing).items() if "hooks" in key}
        for thing in (*model.modules(), optimizer)
    ]
    names = [sorted(vars(thing)) for thing in (*model.modules(), optimizer)]
    of_parameters = [
        (
            type(p),
            p.grad is None,
            p.requires_grad,
            len(p._post_accumulate_grad_hooks or ()),
            len(p._backward_hooks or ()),
            vars(p),
        )
        for p in model.parameters()
    ]
    steps = type(optimizer).step, vars(optimizer).get("step")
    return hooks, names, of_parameters, steps, list(model.state_dict())


def test_a_batch_that_was_handed_out_before_the_close_is_refused():
    private = private_run()
    batch = next(iter(private.loader))
    private.close()
    with pytest.raises(psac.PrivacyError, match="closed"):
        private.step(loss, batch)


@pytest.mark.parametrize("when", ["open", "closed"])
def test_a_model_that_was_trained_can_be_copied_and_pickled(when):
    private = private_run(seed=None, noise_multiplier=1.0)
    train(private)
    if when == "closed":
        private.close()
    x, y, _ = records().tensors
    for twin in (copy.deepcopy(private.model), pickle.loads(pickle.dumps(private.model))):
        assert torch.equal(weights(twin), weights(private.model))
        F.cross_entropy(twin(x), y).backward()
        assert all(p.grad is not None for p in twin.parameters())
    states = [private.optimizer.state_dict(), copy.deepcopy(private.optimizer).state_dict()]
    assert states[0] == states[1]


def test_a_copy_for_averaging_or_for_keeping_the_best_can_be_made_at_any_time():
    private = private_run(seed=None, noise_multiplier=1.0)
    train(private)
    averaged = torch.optim.swa_utils.AveragedModel(private.model)
    train(private)
    averaged.update_parameters(private.model)
    assert averaged(records().tensors[0]).shape == (40, 3)
    assert private.steps_taken == 10


@pytest.mark.parametrize("how", ["before", "around", "in place"])
def test_a_compiled_model_trains_as_the_plain_one_whenever_it_was_compiled(how):
    torch.compiler.reset()
    plain, model = private_run(), network()
    called = torch.compile(model, backend="eager") if how == "before" else model
    private = private_run(called)
    if how == "around":
        called = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    train(plain)
    train(private, loss=lambda _, *batch: loss(called, *batch))
    torch.testing.assert_close(weights(model), weights(plain.model))


def test_evaluation_costs_and_records_nothing():
    private = private_run()
    x, y, _ = records().tensors
    for model in (private.model, private.model.eval()):
        with torch.no_grad():
            model(x)
        F.cross_entropy(model(x), y)
    assert private.steps_taken == private.ledger.steps == 0
    private.model.train()
    for batch in private.loader:
        private.step(loss, batch)
        private.model.eval()
        F.cross_entropy(private.model(x), y)
        private.model.train()
    assert private.steps_taken == 5
    torch.testing.assert_close(weights(private.model), weights(trained().model))


def test_two_private_models_train_side_by_side():
    first, second = private_run(), private_run(seed=1)
    for a, b in zip(first.loader, second.loader, strict=False):
        first.step(loss, a)
        second.step(loss, b)
    assert first.steps_taken == second.steps_taken == 5
    torch.testing.assert_close(weights(first.model), weights(trained().model))


def test_a_generator_learns_from_a_private_discriminator_that_is_paused():
    discriminator, generator = nn.Linear(4, 1), nn.Linear(2, 4)
    private = private_run(discriminator)

    def adversarial(model, x, y, number):
        fake = generator(torch.randn(1, 2)).detach()
        return F.softplus(model(fake) - model(x)).sum()

    for batch in private.loader:
        with private.public_change():  # of the generator, which learns from what was released
            generator.zero_grad()
            with private.paused():
                F.softplus(-discriminator(generator(torch.randn(8, 2)))).mean().backward()
            assert generator.weight.grad.norm() > 0
            with torch.no_grad():
                generator.weight -= 0.1 * generator.weight.grad
        assert all(p.requires_grad and p.grad is None for p in discriminator.parameters())
        private.step(adversarial, batch)
    assert private.steps_taken == 5
    with pytest.raises(psac.PrivacyError, match=r"private\.paused\(\)"):
        F.softplus(-discriminator(generator(torch.randn(8, 2)))).mean().backward()


# ---- Data


class Dictionaries(Dataset):
    """As a data set of the `datasets` library: numbers or lists of numbers in, dicts out."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> dict:
        x, y, k = records()[number]
        return {"x": x, "y": int(y), "k": int(k)}

    def __getitems__(self, numbers: list[int]) -> list[dict]:
        return [self[number] for number in numbers]


def as_dictionaries(rows: list[dict]) -> dict:
    return {key: torch.stack([torch.as_tensor(row[key]) for row in rows]) for key in rows[0]}


def by_name(model, x, y, k):
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("kind", ["data set", "loader", "workers", "collate"])
def test_dictionaries_workers_and_collate_functions_are_kept(kind):
    data = {
        "data set": lambda: Dictionaries(),
        "loader": lambda: DataLoader(Dictionaries(), batch_size=8, shuffle=True),
        "workers": lambda: DataLoader(Dictionaries(), num_workers=2, persistent_workers=True),
        "collate": lambda: DataLoader(Dictionaries(), collate_fn=as_dictionaries),
    }[kind]()
    private = private_run(data=data, batch_size=None if kind == "loader" else 8)
    seen = []
    for _ in range(2):
        for batch in private.loader:
            private.step(by_name, batch)
            seen.append(batch["k"].tolist())
    reference = private_run()
    assert seen == train(reference, 2)
    torch.testing.assert_close(weights(private.model), weights(reference.model))


def test_data_without_a_law_are_refused_with_the_reason():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from records()

    weighted = torch.utils.data.WeightedRandomSampler(torch.ones(40), 40)
    for data in (Stream(), DataLoader(records(), sampler=weighted)):
        with pytest.raises((TypeError, ValueError)):
            private_run(data=data)


# ---- The plan


def test_steps_follow_the_plan_exactly_and_more_are_refused_until_it_is_extended():
    private = private_run(data=records(43), epochs=3, noise_multiplier=1.0, delta=1e-5)
    assert private.planned_steps == 16  # floor(3 * 43 / 8)
    assert sum(len(private.loader) for _ in range(3) if train(private)) == 16
    assert private.steps_taken == 16
    spent = private.epsilon()
    assert spent == pytest.approx(private.planned_epsilon())
    with pytest.raises(psac.PrivacyError, match=r"private\.extend"):
        next(iter(private.loader))
    assert private.extend(epochs=1) == pytest.approx(private.planned_epsilon())
    assert private.planned_epsilon() > spent
    train(private)
    assert private.steps_taken == 21
    assert private.epsilon() == pytest.approx(private.planned_epsilon())


def test_calibrated_noise_spends_the_stated_epsilon_and_no_more():
    private = private_run(data=records(200), epsilon=2.0, delta=1e-4, noise_multiplier=None)
    assert private.epsilon() == 0.0
    train(private, epochs=2)
    assert 0.998 * 2.0 <= private.epsilon() <= 2.0
    assert private.epsilon(delta=1e-6) > 2.0
    assert "NOT private" in repr(private)


WRONG = {
    "no length": ({"epochs": None}, "epochs or steps"),
    "two lengths": ({"steps": 3}, "epochs or steps"),
    "no noise": ({"noise_multiplier": None}, "give either epsilon or noise_multiplier"),
    "both": ({"epsilon": 1.0, "delta": 1e-5}, "give either epsilon or noise_multiplier"),
    "no delta": ({"epsilon": 1.0, "noise_multiplier": None}, "needs a delta, such as 2.5e-03"),
    "negative noise": ({"noise_multiplier": -1.0}, "noise_multiplier is -1.0"),
    "no batch size": ({"batch_size": None}, "batch_size is missing"),
    "batch too large": ({"batch_size": 41}, "41"),
    "batch of zero": ({"batch_size": 0}, "0"),
    "fractional batch": ({"batch_size": 8.5}, "8.5"),
    "physical zero": ({"physical_batch_size": 0}, "physical_batch_size is 0"),
    "steps": ({"steps": 0, "epochs": None}, "steps is 0"),
    "clipping by name": ({"clipping": "psac"}, r"clipping is 'psac'.*psac\.PSAC\(\)"),
    "clipping of Opacus": ({"clipping": "per_layer"}, r"'per_layer'.*'head\.\*': psac\.Abadi"),
    "clipping by another name": ({"clipping": "psca"}, r"'psca'.*pass a rule such as psac\.PSAC"),
    "clipping by a number": ({"clipping": 1.0}, r"clipping is 1\.0.*psac\.Abadi\(1\.0\)"),
    "clipping by a function": ({"clipping": lambda n: 1 / (1 + n)}, r"psac\.Custom\(function"),
    "clipping by a class": ({"clipping": psac.PSAC}, r"the class PSAC: call it, PSAC\(\)"),
    "adaptive by its class": ({"clipping": psac.AdaptivePSAC}, "the class AdaptivePSAC: call it"),
    "groups by a number": ({"clipping": {"*": 1.0}}, r"clipping\['\*'\] is 1\.0.*Abadi"),
    "groups by name": ({"clipping": {"*": "psac"}}, r"clipping\['\*'\] is 'psac'.*PSAC\(\)"),
    "groups by a class": ({"clipping": {"*": psac.Abadi}}, r"clipping\['\*'\] is the class Abadi"),
    "groups that adapt": ({"clipping": {"*": psac.AdaptivePSAC()}}, "one scale for the whole"),
    "groups by numbers": ({"clipping": {0: psac.PSAC()}}, "the key 0: it must be a pattern"),
    "no groups": ({"clipping": {}}, "an empty mapping"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused_and_leave_the_model_alone(name):
    settings, message = WRONG[name]
    model = network()
    optimizer = sgd(model)
    before = traces(model, optimizer)
    with pytest.raises((ValueError, TypeError), match=message):
        private_run(model, optimizer, **settings)
    assert traces(model, optimizer) == before
    private_run(model, optimizer)  # which is free for another run


def test_a_step_is_in_the_ledger_before_it_is_released(monkeypatch):
    private = private_run(noise_multiplier=1.0)

    def broken(*_, **__):
        raise OSError("no more randomness")

    monkeypatch.setattr("psac.private.run.add_noise_", broken)
    before = weights(private.model)
    with pytest.raises(OSError, match="randomness"):
        train(private)
    assert private.ledger.steps == 1
    assert torch.equal(weights(private.model), before)
    assert all(p.grad is None for p in private.model.parameters())


def test_whoever_asked_is_told_of_a_step_before_the_optimizer_sees_it():
    private = private_run(noise_multiplier=1.0)
    before, told = weights(private.model), []

    def tell(steps):
        told.append((steps, torch.equal(weights(private.model), before)))

    private.account.on_release = tell
    for batch in private.loader:
        private.step(loss, batch)
        break
    assert told == [(1, True)]
    assert not torch.equal(weights(private.model), before)
    private.charge(3)
    assert told[1:] == [(3, False)]


def test_charged_steps_are_spent_and_not_taken():
    private = private_run(noise_multiplier=1.0, delta=1e-4)
    expected = private.planned_epsilon()
    private.charge(4)
    assert (private.steps_taken, private.ledger.steps) == (0, 4)
    train(private)
    train(private)
    assert (private.steps_taken, private.ledger.steps) == (6, 10)
    assert private.epsilon() == pytest.approx(expected)
    with pytest.raises(psac.PrivacyError, match=r"private\.extend"):
        train(private)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="steps"):
            private.charge(wrong)
    with pytest.raises(TypeError, match=r"steps is 1\.5"):
        private.charge(1.5)


# ---- Randomness


def test_runs_are_secure_unless_a_seed_is_given():
    runs = [private_run(seed=None, noise_multiplier=1.0) for _ in range(2)]
    assert train(runs[0]) != train(runs[1])
    assert not torch.equal(weights(runs[0].model), weights(runs[1].model))
    assert runs[0].ledger.secure
    assert runs[0].state_dict()["noise"] is None
    with pytest.warns(psac.InsecureNoiseWarning):
        seeded = private_run(seed=3)
    assert not seeded.ledger.secure


def test_sampling_and_noise_have_streams_of_their_own():
    quiet, noisy = private_run(), private_run(noise_multiplier=1.0)
    assert train(quiet) == train(noisy)


# ---- The adaptive scale


class Scaled(nn.Module):
    """A model whose gradients have the norms that it is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, norms):
        return norms * self.weight


def scaled(model, norms):
    return model(norms)


def fitted(model, norms):
    return model(1e-6 * norms)


@pytest.mark.parametrize("median", [0.02, 1e-5, 1e5])
def test_the_adaptive_scale_finds_the_median_of_the_norms(median):
    norms = torch.exp(torch.randn(2000, generator=torch.Generator().manual_seed(0))) * median
    rule = psac.AdaptivePSAC(r=0.1)
    private = private_run(
        Scaled(), data=norms, clipping=rule, batch_size=256, steps=120, epochs=None,
        noise_multiplier=1.0, delta=1e-4,
    )  # fmt: skip
    assert private.scale == 1.0
    while private.steps_taken < 120:
        for batch in private.loader:
            private.step(scaled, batch)
    assert 0.8 * median < private.scale < 1.25 * median
    assert private._sums.clipping == psac.PSAC(r=0.1, scale=private.scale)
    # The count is paid for out of the same noise multiplier.
    gradient, count = private._noise_over_bound(), 256 / 10
    assert gradient > 1.0
    assert gradient**-2 + count**-2 == pytest.approx(1.0)
    assert private.epsilon() == pytest.approx(
        psac.epsilon(noise_multiplier=1.0, sampling_rate=256 / 2000, steps=120, delta=1e-4)
    )


def test_the_adaptive_scale_stays_when_the_norms_vanish():
    # As they do when most samples are fitted: a scale that followed them would blow those up.
    private = private_run(
        Scaled(), data=torch.full((2000,), 3.0), clipping=psac.AdaptivePSAC(), batch_size=256,
        steps=600, epochs=None, noise_multiplier=1.0, delta=1e-4,
    )  # fmt: skip
    found = None
    while private.steps_taken < 600:
        for batch in private.loader:
            if private.steps_taken == 100 and found is None:
                with private.public_change():  # another function, by the number of steps
                    found = private.scale
            private.step(scaled if found is None else fitted, batch)
    assert found == pytest.approx(3.0, rel=0.3)
    assert private.scale == pytest.approx(found, rel=0.5)


def test_the_count_of_the_adaptive_scale_is_noisy():
    rule, scales = psac.AdaptivePSAC(), set()
    for seed in range(5):  # every sample is below the scale, so that the count itself is the same
        private = private_run(
            Constant(), clipping=rule, noise_multiplier=1.0, steps=1, epochs=None,
            batch_size=40, seed=seed,
        )  # fmt: skip
        train(private, loss=output)
        scales.add(private.scale)
    assert len(scales) > 2  # Noise that lets the count exceed the batch is cut off.


def test_the_adaptive_scale_does_not_change_with_physical_batches():
    runs = [
        private_run(clipping=psac.AdaptivePSAC(), noise_multiplier=1.0, physical_batch_size=size)
        for size in (None, 3)
    ]
    for run in runs:
        train(run)
    assert runs[0].scale == pytest.approx(runs[1].scale)
    assert runs[0].scale != 1.0


def test_no_learned_scale_can_pass_the_bound():
    norms = torch.logspace(-12, 12, 200)
    rule = psac.AdaptivePSAC(r=0.1, bound=0.5)
    scale = 1.0
    for released in (-1e9, 1e9, *[-1.0] * 100, *[1.0] * 300):
        scale = rule.next_scale(scale, released, step=1)
        assert math.isfinite(scale)
        assert scale > 0
        weight = psac.clipping.rules.safe_weights(rule.rule(scale), norms)
        assert bool((weight * norms <= 0.5).all())


# ---- Nothing lost

SCHEMES = [psac.Poisson(), psac.FixedSize(replacement=False), psac.FixedSize(replacement=True),
           psac.BallsInBins()]  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("stop", [1, 4, 5, 7])
def test_a_resumed_run_equals_an_uninterrupted_one(scheme, stop):
    settings = {
        "sampling": scheme,
        "noise_multiplier": 1.0,
        "clipping": psac.AdaptivePSAC(),
        "physical_batch_size": 5,
    }
    whole = private_run(**settings)
    train(whole, 2)
    first = private_run(**settings)
    while first.steps_taken < stop:
        for batch in first.loader:
            first.step(loss, batch)
            if first.steps_taken == stop:
                break
    model = network()
    model.load_state_dict(first.model.state_dict())
    second = private_run(model, **settings)
    second.load_state_dict(first.state_dict())
    assert second.steps_taken == stop
    while second.steps_taken < whole.steps_taken:
        train(second)
    assert second.ledger == whole.ledger
    assert torch.equal(weights(second.model), weights(whole.model))


def test_balls_in_bins_takes_every_record_once_an_epoch():
    private = private_run(sampling=psac.BallsInBins(), physical_batch_size=4)
    for _ in range(2):
        assert sorted(itertools.chain(*train(private))) == list(range(40))


def test_a_step_that_was_interrupted_before_its_release_is_not_added_to_the_next(monkeypatch):
    private = private_run()

    def interrupted() -> None:
        raise KeyboardInterrupt

    batches = iter(private.loader)
    first = next(batches)
    monkeypatch.setattr(private, "release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        private.step(loss, first)
    monkeypatch.undo()
    with pytest.raises(psac.PrivacyError, match="interrupted before it was released"):
        next(batches)
    reference = private_run()
    assert train(private) == train(reference)
    assert torch.equal(weights(private.model), weights(reference.model))


@pytest.mark.parametrize("sampling", [psac.Poisson(), psac.BallsInBins(), psac.FixedSize()])
@pytest.mark.parametrize("seed", [None, 0])
def test_a_pass_that_is_begun_anew_has_the_batch_that_was_not_released(sampling, seed):
    """Else a batch could be drawn until a record is in it."""
    private = private_run(sampling=sampling, seed=seed, noise_multiplier=1.0)
    released: list[int] = []
    while private.steps_taken < 5:
        offered = [next(iter(private.loader))[2].tolist() for _ in range(3)]
        assert offered == [offered[0]] * 3
        for batch in private.loader:
            assert batch[2].tolist() == offered[0]
            private.step(loss, batch)
            released += offered[0]
            break
    if isinstance(sampling, psac.BallsInBins):
        assert sorted(released) == list(range(40))


def test_loading_into_another_run_is_refused():
    state = trained().state_dict()
    with pytest.raises(ValueError, match=r"expected_batch_size: 8 -> 10"):
        private_run(batch_size=10).load_state_dict(state)
    with pytest.raises(ValueError, match=r"clipping: 'PSAC"):
        private_run(clipping=psac.Abadi()).load_state_dict(state)
    with pytest.raises(ValueError, match="version"):
        private_run().load_state_dict({})
    with pytest.raises(psac.PrivacyError, match="has released 5 steps"):
        trained().load_state_dict(state)
    charged = private_run()
    charged.charge(7)
    with pytest.raises(psac.PrivacyError, match="has released 7 steps"):
        charged.load_state_dict(charged.state_dict())


def test_an_old_state_that_is_loaded_again_counts_what_was_released_since():
    settings = {"seed": None, "noise_multiplier": 1.0}
    first = private_run(**settings)
    state = first.state_dict()
    train(first)
    second = private_run(**settings)
    with pytest.warns(psac.PrivacyWarning, match="5 steps ran after this state was saved"):
        second.load_state_dict(state)
    assert (second.steps_taken, second.ledger.steps) == (0, 5)
    train(second)
    third = private_run(**settings)
    with pytest.warns(psac.PrivacyWarning, match="10 steps ran after this state was saved"):
        third.load_state_dict(state)
