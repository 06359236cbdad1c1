"""`make_private` on the user's own objects: Algorithm 1, and everything that would break it."""

from __future__ import annotations

import copy
import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import psac
from tests import oracles

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def records(n: int = 40) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator)
    return TensorDataset(x, torch.randint(3, (n,), generator=generator), torch.arange(n))


def sgd(model: nn.Module, **settings) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, **settings)


def private_run(model=None, optimizer=None, data=None, **settings) -> psac.Private:
    model = network() if model is None else model
    settings = {"batch_size": 8, "epochs": 2, "noise_multiplier": 0.0, "seed": 0} | settings
    return psac.make_private(
        model, optimizer or sgd(model), records() if data is None else data, **settings
    )


def train(private: psac.Private, epochs: int = 1) -> list[list[int]]:
    """The loop that everybody writes; returns who was in each physical batch."""
    seen = []
    for _ in range(epochs):
        for x, y, numbers in private.loader:
            private.optimizer.zero_grad()
            F.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
            seen.append(numbers.tolist())
    return seen


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


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
    assert private.step == 15
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
    assert whole.step == parts.step == 10
    torch.testing.assert_close(weights(whole.model), weights(parts.model), rtol=1e-4, atol=1e-5)


def test_an_empty_draw_is_a_step_of_noise_alone_that_the_user_never_sees():
    optimizer_steps = []
    private = private_run(batch_size=1, epochs=1, noise_multiplier=1.0, data=records(60))
    private.optimizer.register_step_post_hook(lambda *_: optimizer_steps.append(1))
    seen = train(private)
    assert all(seen)
    assert len(seen) < 60
    assert private.step == private.ledger.steps == len(optimizer_steps) == 60


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


@pytest.mark.parametrize("physical", [None, 2])
def test_noise_is_added_once_per_logical_step_with_the_stated_size(physical):
    model = Constant()
    private = private_run(
        model,
        clipping=psac.PSAC(bound=0.3),
        noise_multiplier=1.5,
        physical_batch_size=physical,
        steps=1,
        epochs=None,
    )
    for x, _, _ in private.loader:
        private.backward(model(x))
        private.optimizer.step()
    assert_std(weights(model), 0.1 * 1.5 * 0.3 / 8)


def test_groups_get_noise_by_their_bounds_for_the_same_guarantee():
    model = Constant()
    rules = {"first": psac.PSAC(bound=0.3), "second": psac.Abadi(bound=5.0)}
    private = private_run(model, clipping=rules, noise_multiplier=1.5, steps=1, epochs=None)
    for x, _, _ in private.loader:
        private.backward(model(x))
        private.optimizer.step()
    for parameter, bound in ((model.first, 0.3), (model.second, 5.0)):
        assert_std(parameter.detach(), 0.1 * 1.5 * math.sqrt(2) * bound / 8)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions_and_the_vector_of_losses_give_the_same(reduction):
    runs = [private_run(loss_reduction=reduction) for _ in range(2)]
    train_reduced, train_vector = runs
    for x, y, _ in train_reduced.loader:
        F.cross_entropy(train_reduced.model(x), y, reduction=reduction).backward()
        train_reduced.optimizer.step()
    for x, y, _ in train_vector.loader:
        train_vector.backward(losses(train_vector.model, (x, y)))
        train_vector.optimizer.step()
    torch.testing.assert_close(*(weights(run.model) for run in runs))
    torch.testing.assert_close(weights(runs[0].model), weights(trained().model))


def trained() -> psac.Private:
    private = private_run()
    train(private)
    return private


# ---- The user's own objects

OPTIMIZERS = {
    "momentum": lambda model: sgd(model, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda model: torch.optim.Adam(model.parameters()),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), foreach=True),
    "nadam": lambda model: torch.optim.NAdam(model.parameters()),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters()),
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
    for x, y, _ in private.loader:
        private.optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        parts.append((x, y))
        step = private.step
        private.optimizer.step()
        if private.step > step:
            batch = tuple(torch.cat(column) for column in zip(*parts, strict=True))
            sums = psac.weighted_gradient(reference, losses, batch, psac.PSAC())
            for parameter_name, total in sums.items():
                reference.get_parameter(parameter_name).grad = total / 8
            own.step()
            parts.clear()
    assert keys == [list(model.state_dict()), list(private.optimizer.state_dict())]
    torch.testing.assert_close(weights(model), weights(reference), rtol=1e-4, atol=1e-5)


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


def test_close_gives_model_and_optimizer_back_untouched():
    model = network()
    optimizer = sgd(model)
    hooks = copy.copy(optimizer._optimizer_step_pre_hooks)
    with private_run(model, optimizer) as private:
        train(private)
    assert optimizer._optimizer_step_pre_hooks == hooks
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())
    x, y, _ = records().tensors
    before = weights(model)
    F.cross_entropy(model(x), y).backward()
    expected = before - 0.1 * torch.cat([p.grad.flatten() for p in model.parameters()])
    optimizer.step()
    torch.testing.assert_close(weights(model), expected)
    with pytest.raises(psac.PrivacyError, match="closed"):
        next(iter(private.loader))


def test_a_copy_for_averaging_or_for_keeping_the_best_can_be_made_at_any_time():
    private = private_run(seed=None, noise_multiplier=1.0)
    train(private)
    twin = copy.deepcopy(private.model)
    averaged = torch.optim.swa_utils.AveragedModel(private.model)
    train(private)
    averaged.update_parameters(private.model)
    x, y, _ = records().tensors
    F.cross_entropy(twin(x), y).backward()
    assert all(p.grad is not None for p in twin.parameters())
    assert averaged(x).shape == (40, 3)
    assert private.step == 10


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler reads
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
    for x, y, _ in private.loader:
        F.cross_entropy(called(x), y).backward()
        private.optimizer.step()
    torch.testing.assert_close(weights(model), weights(plain.model))


def test_evaluation_costs_and_records_nothing():
    private = private_run()
    x = records().tensors[0]
    for model in (private.model, private.model.eval()):
        with torch.no_grad():
            model(x)
        model(x).sum()
    assert private.step == private.ledger.steps == 0
    private.model.train()
    train(private)
    assert private.step == 5


def test_two_private_models_train_side_by_side():
    first, second = private_run(), private_run(seed=1)
    for a, b in zip(first.loader, second.loader, strict=False):
        for private, (x, y, _) in ((first, a), (second, b)):
            F.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
    assert first.step == second.step == 5
    torch.testing.assert_close(weights(first.model), weights(trained().model))


def test_a_generator_learns_from_a_private_discriminator_that_is_paused():
    discriminator, generator = nn.Linear(4, 1), nn.Linear(2, 4)
    private = private_run(discriminator)
    for x, _, _ in private.loader:
        fake = generator(torch.randn(len(x), 2))
        both = discriminator(x) - discriminator(fake.detach())
        private.backward(F.softplus(-both).squeeze(1))
        private.optimizer.step()
        generator.zero_grad()
        with private.paused():
            F.softplus(-discriminator(fake)).mean().backward()
        assert generator.weight.grad.norm() > 0
        assert all(p.requires_grad for p in discriminator.parameters())
    assert private.step == 5
    for x, _, _ in private.loader:
        private.backward(discriminator(x).squeeze(1))
        with pytest.warns(psac.UnprotectedGradientWarning):
            loss = F.softplus(-discriminator(generator(torch.randn(len(x), 2)))).mean()
        with pytest.raises(psac.PrivacyError, match="second backward"):
            loss.backward()
        break


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
            F.cross_entropy(private.model(batch["x"]), batch["y"]).backward()
            private.optimizer.step()
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
    assert private.step == 16
    spent = private.epsilon()
    assert spent == pytest.approx(private.planned_epsilon())
    with pytest.raises(psac.PrivacyError, match=r"private\.extend"):
        next(iter(private.loader))
    assert private.extend(epochs=1) == pytest.approx(private.planned_epsilon())
    assert private.planned_epsilon() > spent
    train(private)
    assert private.step == 21
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
    "no noise": ({"noise_multiplier": None}, "epsilon .* or noise_multiplier"),
    "both": ({"epsilon": 1.0, "delta": 1e-5}, "epsilon .* or noise_multiplier"),
    "no delta": ({"epsilon": 1.0, "noise_multiplier": None}, "needs a delta, such as 2.5e-03"),
    "negative noise": ({"noise_multiplier": -1.0}, "noise_multiplier is -1.0"),
    "no batch size": ({"batch_size": None}, "batch_size is missing"),
    "batch too large": ({"batch_size": 41}, "41"),
    "batch of zero": ({"batch_size": 0}, "0"),
    "fractional batch": ({"batch_size": 8.5}, "8.5"),
    "physical zero": ({"physical_batch_size": 0}, "physical_batch_size is 0"),
    "reduction": ({"loss_reduction": "none"}, "'none' is unknown"),
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
    with pytest.raises((ValueError, TypeError), match=message):
        private_run(model, **settings)
    assert not model._forward_hooks


# ---- What would break it


def test_a_batch_without_a_step_is_refused():
    private = private_run()
    batches = iter(private.loader)
    x, y, _ = next(batches)
    F.cross_entropy(private.model(x), y).backward()
    with pytest.raises(psac.PrivacyError, match=r"optimizer\.step\(\) was not called"):
        next(batches)
    assert private.step == private.ledger.steps == 0


def test_a_step_on_part_of_a_batch_does_nothing():
    private = private_run(physical_batch_size=1, noise_multiplier=1.0)
    before = weights(private.model)
    for x, y, _ in private.loader:
        F.cross_entropy(private.model(x), y).backward()
        private.optimizer.step()
        break
    assert private.step == 0
    assert torch.equal(weights(private.model), before)


@pytest.mark.parametrize("physical", [None, 3])
def test_a_step_without_a_backward_spends_nothing(physical):
    """Else a forgotten backward turns the whole budget into noise."""
    private = private_run(physical_batch_size=physical, noise_multiplier=1.0)
    before = weights(private.model)
    batches = iter(private.loader)
    x, y, _ = next(batches)
    F.cross_entropy(private.model(x), y)  # no backward
    with pytest.raises(psac.PrivacyError, match=f"{len(x)} of the samples .* had no backward"):
        private.optimizer.step()
    assert private.step == private.ledger.steps == 0
    assert torch.equal(weights(private.model), before)
    F.cross_entropy(private.model(x), y).backward()  # it can be made good
    private.optimizer.step()
    assert private.step == (1 if physical is None else 0)


def test_a_part_of_a_batch_without_a_backward_is_noticed_at_the_step():
    private = private_run(physical_batch_size=3, noise_multiplier=1.0)
    batches = iter(private.loader)
    next(batches)  # forgotten
    x, y, _ = next(batches)
    F.cross_entropy(private.model(x), y).backward()
    with pytest.raises(psac.PrivacyError, match="3 of the samples"):
        private.optimizer.step()
    assert private.step == private.ledger.steps == 0
    train(private)  # a new pass is free of it
    assert private.step == 5


def test_samples_that_are_not_finite_and_passes_given_up_are_no_forgotten_backwards():
    private = private_run(noise_multiplier=1.0, physical_batch_size=3, batch_size=2, epochs=1)
    for x, y, _ in private.loader:
        F.cross_entropy(private.model(x * math.nan), y).backward()
        private.optimizer.step()
        break
    for _ in private.loader:
        break  # before its backward
    train(private)  # with empty draws, which the loader steps by itself
    assert private.step == private.ledger.steps == 20


def test_a_second_step_on_the_same_batch_does_nothing():
    private = private_run(noise_multiplier=1.0)
    for x, y, _ in private.loader:
        F.cross_entropy(private.model(x), y).backward()
        private.optimizer.step()
        after = weights(private.model)
        private.optimizer.step()
        assert torch.equal(weights(private.model), after)
    assert private.step == 5


def test_copies_of_samples_and_second_backwards_are_refused():
    private = private_run()
    for x, y, _ in private.loader:
        loss = F.cross_entropy(private.model(x.repeat(3, 1)), y.repeat(3))
        with pytest.raises(psac.PrivacyError, match="exactly once"):
            loss.backward()
        F.cross_entropy(private.model(x), y).backward()
        loss = F.cross_entropy(private.model(x), y)
        with pytest.raises(psac.PrivacyError, match="second backward"):
            loss.backward()
        break
    assert private.engine.num_samples == len(x)


def test_samples_from_elsewhere_are_refused():
    private = private_run()
    x, y, _ = records().tensors
    loss = F.cross_entropy(private.model(x), y)
    with pytest.raises(psac.PrivacyError, match=r"outside the loop over private\.loader"):
        loss.backward()
    train(private)
    loss = F.cross_entropy(private.model(x), y)
    with pytest.raises(psac.PrivacyError, match=r"outside the loop over private\.loader"):
        loss.backward()


def test_losses_of_another_shape_are_refused():
    private = private_run()
    for x, y, _ in private.loader:
        given = losses(private.model, (x, y))
        for wrong in (given.mean(), given.unsqueeze(1), given[1:], 0.3):
            with pytest.raises(ValueError, match="one loss per sample"):
                private.backward(wrong)
        break


def test_a_mean_over_tokens_is_refused_with_the_remedy():
    private = private_run()
    for x, y, _ in private.loader:
        target = torch.where(torch.arange(len(y)) == 0, -100, y)
        loss = F.cross_entropy(private.model(x), target)
        with pytest.raises(psac.NotIsolated, match=r"private\.backward"):
            loss.backward()
        break


def test_gradients_from_elsewhere_never_reach_the_optimizer():
    private, clean = private_run(), private_run()
    for x, y, _ in private.loader:
        F.cross_entropy(private.model(x), y).backward()
        for parameter in private.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e6)
        private.optimizer.step()
    train(clean)
    torch.testing.assert_close(weights(private.model), weights(clean.model))
    with pytest.raises(psac.OutsideTheTape):
        private.model[0].weight.square().sum().backward()


def test_parameters_frozen_later_are_noticed():
    private = private_run()
    private.model[0].requires_grad_(False)
    with pytest.raises(psac.PrivacyError, match=r"0\.weight"):
        train(private)


def test_an_optimizer_with_parameters_of_others_is_refused_now_and_later():
    model, other = network(), nn.Linear(2, 2)
    both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(psac.PrivacyError, match="2 parameters that are not the model's"):
        private_run(model, both)
    private = private_run(network())
    private.optimizer.add_param_group({"params": other.parameters()})
    with pytest.raises(psac.PrivacyError, match="not the model's"):
        train(private)
    assert private.ledger.steps == 0


def test_a_parameter_that_came_to_the_model_later_is_refused():
    private = private_run(network())
    private.model.register_parameter("later", nn.Parameter(torch.zeros(2)))
    private.optimizer.add_param_group({"params": [private.model.later]})
    with pytest.raises(psac.PrivacyError, match="were not when make_private was called"):
        train(private)
    assert private.ledger.steps == 0


def test_parameters_that_the_optimizer_lacks_are_announced():
    model = network()
    with pytest.warns(UserWarning, match=r"\['0\.weight', '0\.bias'\] are trainable"):
        private_run(model, torch.optim.SGD(model[2].parameters(), lr=0.1))


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
@pytest.mark.parametrize("kind", [Inherits, InheritsTwice, LooksAhead])
def test_a_step_that_calls_another_step_moves_the_weights_once(kind, physical, scheduled):
    def trained_by(kind):
        model = network()
        optimizer = kind(model.parameters(), lr=0.1)
        settings = {"noise_multiplier": 1.0, "physical_batch_size": physical}
        private = private_run(model, optimizer, **settings)
        if scheduled:  # it puts a wrapper around step
            torch.optim.lr_scheduler.StepLR(optimizer, 100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(private)
        return private

    for parent in (torch.optim.SGD, Inherits):  # torch puts hooks into a class at its first object
        parent(network().parameters(), lr=0.1)
    expected, private = trained_by(torch.optim.SGD), trained_by(kind)
    assert private.step == private.ledger.steps == expected.step
    assert torch.equal(weights(private.model), weights(expected.model))


def test_a_step_that_raised_leaves_nothing_open():
    class Fails(torch.optim.SGD):
        broken = True

        def step(self, closure=None):
            if self.broken:
                raise OSError("no disk")
            return super().step(closure)

    model = network()
    private = private_run(model, Fails(model.parameters(), lr=0.1), noise_multiplier=1.0)
    for x, y, _ in private.loader:
        F.cross_entropy(model(x), y).backward()
        with pytest.raises(OSError, match="no disk"):
            private.optimizer.step()
        break
    private.optimizer.broken = False
    before = weights(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    private.optimizer.step()
    assert torch.equal(weights(model), before)


def test_a_backward_after_the_step_is_refused():
    private = private_run()

    def train_too_often():
        for x, y, _ in private.loader:
            F.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
            F.cross_entropy(private.model(x), y).backward()

    with pytest.raises(psac.PrivacyError, match=r"outside the loop over private\.loader"):
        train_too_often()


def test_a_gradient_that_a_frozen_parameter_has_never_moves_it():
    model = network()
    x, y, _ = records().tensors
    F.cross_entropy(model(x), y).backward()
    model[0].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    private = private_run(model)
    assert all(parameter.grad is None for parameter in model.parameters())
    for x, y, _ in private.loader:
        F.cross_entropy(model(x), y).backward()
        model[0].weight.grad = torch.ones_like(frozen)  # or given later
        private.optimizer.step()
    assert private.step == 5
    assert torch.equal(model[0].weight, frozen)


@pytest.mark.parametrize("when", ["between parts", "before the step", "and back"])
def test_a_bound_that_changes_within_a_run_is_refused(when):
    model = network()
    private = private_run(model, physical_batch_size=2, clipping=psac.Abadi(1.0))
    before = weights(model)

    def train_with_another_bound():
        for x, y, _ in private.loader:
            if when != "between parts" or private.engine.num_samples:
                private.engine.clipping = psac.Abadi(1000.0)
            F.cross_entropy(model(x), y).backward()
            if when == "and back":
                private.engine.clipping = psac.Abadi(1.0)
            private.optimizer.step()

    with pytest.raises(psac.PrivacyError, match=r"bounds.*(no noise fits|noise would not fit)"):
        train_with_another_bound()
    assert private.ledger.steps == 0
    assert not private.engine._sums or when == "between parts"
    assert torch.equal(weights(model), before)


def test_a_scale_that_changes_within_a_run_is_welcome():
    private = private_run(clipping=psac.PSAC())
    private.engine.clipping = psac.PSAC(scale=3.0)
    train(private)
    assert private.step == 5


def test_a_model_and_a_part_of_it_are_not_private_twice():
    model = network()
    private_run(model)
    for other in (model[0], nn.Sequential(model, nn.Tanh())):
        with pytest.raises(psac.PrivacyError, match=r"shares the parameters.*Sequential"):
            private_run(other)
        assert not other._forward_hooks


def test_a_second_run_on_a_model_says_that_it_counts_itself_alone():
    model = network()
    settings = {"seed": None, "noise_multiplier": 2.0, "delta": 1e-4}
    with private_run(model, **settings) as first:
        pass  # nothing is spent
    with private_run(model, **settings) as first:
        train(first)
    whole = nn.Sequential(model, nn.Linear(3, 3))
    with pytest.warns(psac.PrivacyWarning, match=r"by 5 private steps.*earlier\.ledger \+"):
        second = private_run(whole, **settings)
    train(second)
    both = first.ledger + second.ledger
    assert both.steps == 10
    assert both.epsilon(1e-4) > max(first.epsilon(), second.epsilon())
    second.close()
    with pytest.warns(psac.PrivacyWarning, match="by 5 and 5 private steps"):
        private_run(model, **settings)


def test_parts_that_are_not_trained_say_nothing_of_other_runs():
    public, activation = nn.Linear(4, 4).requires_grad_(False), nn.Tanh()
    for _ in range(2):
        model = nn.Sequential(public, activation, nn.Linear(4, 3))
        with private_run(model, seed=None, noise_multiplier=1.0) as private:
            train(private)


def test_closures_are_refused():
    private = private_run()
    with pytest.raises(psac.PrivacyError, match="closure"):
        private.optimizer.step(lambda: 0.0)
    with pytest.raises(psac.PrivacyError, match="closure"):
        private.optimizer.step(closure=lambda: 0.0)


def test_a_second_pass_makes_the_first_one_void():
    private = private_run()
    first = iter(private.loader)
    next(first)
    next(iter(private.loader))
    with pytest.raises(psac.PrivacyError, match="another pass"):
        next(first)


def test_a_step_is_in_the_ledger_before_it_is_released(monkeypatch):
    private = private_run(noise_multiplier=1.0)

    def broken(*_, **__):
        raise OSError("no more randomness")

    monkeypatch.setattr("psac.private.add_noise_", broken)
    before = weights(private.model)
    with pytest.raises(OSError, match="randomness"):
        train(private)
    assert private.ledger.steps == 1
    assert torch.equal(weights(private.model), before)


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


@pytest.mark.parametrize("median", [0.02, 1e-5, 1e5])
def test_the_adaptive_scale_finds_the_median_of_the_norms(median):
    norms = torch.exp(torch.randn(2000, generator=torch.Generator().manual_seed(0))) * median
    model = Scaled()
    rule = psac.AdaptivePSAC(r=0.1)
    private = private_run(
        model, data=norms, clipping=rule, batch_size=256, steps=120, epochs=None,
        noise_multiplier=1.0, delta=1e-4,
    )  # fmt: skip
    assert private.scale == 1.0
    while private.step < 120:
        for x in private.loader:
            private.backward(model(x))
            private.optimizer.step()
    assert 0.8 * median < private.scale < 1.25 * median
    assert private.engine.clipping == psac.PSAC(r=0.1, scale=private.scale)
    # The count is paid for out of the same noise multiplier.
    gradient, count = private._gradient_noise, 256 / 10
    assert gradient > 1.0
    assert gradient**-2 + count**-2 == pytest.approx(1.0)
    assert private.epsilon() == pytest.approx(
        psac.epsilon(noise_multiplier=1.0, sampling_rate=256 / 2000, steps=120, delta=1e-4)
    )


def test_the_adaptive_scale_stays_when_the_norms_vanish():
    # As they do when most samples are fitted: a scale that followed them would blow those up.
    model, norms = Scaled(), torch.full((2000,), 3.0)
    private = private_run(
        model, data=norms, clipping=psac.AdaptivePSAC(), batch_size=256, steps=600, epochs=None,
        noise_multiplier=1.0, delta=1e-4,
    )  # fmt: skip
    found = None
    while private.step < 600:
        for x in private.loader:
            if private.step == 100:
                found = private.scale
            private.backward(model(x if found is None else 1e-6 * x))
            private.optimizer.step()
    assert found == pytest.approx(3.0, rel=0.3)
    assert private.scale == pytest.approx(found, rel=0.5)


def test_the_count_of_the_adaptive_scale_is_noisy():
    rule, scales = psac.AdaptivePSAC(), set()
    for seed in range(5):  # every sample is below the scale, so that the count itself is the same
        private = private_run(
            Constant(), clipping=rule, noise_multiplier=1.0, steps=1, epochs=None,
            batch_size=40, seed=seed,
        )  # fmt: skip
        for x, _, _ in private.loader:
            private.backward(private.model(x))
            private.optimizer.step()
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
        weight = psac.clipping.safe_weights(rule.rule(scale), norms)
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
    while first.step < stop:
        for x, y, _ in first.loader:
            F.cross_entropy(first.model(x), y).backward()
            first.optimizer.step()
            if first.step == stop:
                break
    model = network()
    model.load_state_dict(first.model.state_dict())
    second = private_run(model, **settings)
    second.load_state_dict(first.state_dict())
    assert second.step == stop
    while second.step < whole.step:
        train(second)
    assert second.ledger == whole.ledger
    assert torch.equal(weights(second.model), weights(whole.model))


def test_balls_in_bins_takes_every_record_once_an_epoch():
    private = private_run(sampling=psac.BallsInBins(), physical_batch_size=4)
    for _ in range(2):
        assert sorted(itertools.chain(*train(private))) == list(range(40))


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
    assert (second.step, second.ledger.steps) == (0, 5)
    train(second)
    third = private_run(**settings)
    with pytest.warns(psac.PrivacyWarning, match="10 steps ran after this state was saved"):
        third.load_state_dict(state)
