"""Parameters and buffers move by the optimizer alone: else private records could move them."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import psac
from tests.private_runs import loss, private_run, train, trained, weights

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")


class Centred(nn.Sequential):
    """With a buffer that is taken off the inputs."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.register_buffer("center", torch.zeros(4))

    def forward(self, x):
        return super().forward(x - self.center)


def by_no_grad(model, x):
    with torch.no_grad():
        model[0].weight[0] += x.mean(0)


def by_a_swap(model, x):
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight.flip(0))


CHANGES = {
    "a buffer": lambda model, x: model.center.copy_(x.mean(0)),
    "a buffer by .data": lambda model, x: model.center.data.add_(x.mean(0)),
    "a buffer by .numpy()": lambda model, x: model.center.numpy().__setitem__(0, float(x[0, 0])),
    "another buffer in its place": lambda model, x: setattr(model, "center", x.mean(0)),
    "one more buffer": lambda model, x: model.register_buffer("mean", x.mean(0)),
    "a buffer of a part": lambda model, x: model[1].register_buffer("mean", x.mean(0)),
    "a parameter": by_no_grad,
    "a parameter by .data": lambda model, x: model[2].bias.data.add_(x.mean()),
    "the data of a parameter": lambda model, x: setattr(model[2].bias, "data", x[0, :3].clone()),
    "all by load_state_dict": lambda model, x: model.load_state_dict(
        {name: 2 * value + 1 for name, value in model.state_dict().items()}
    ),
    "the order of a parameter": by_a_swap,
}


@pytest.mark.parametrize("physical", [None, 3])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_steps_is_refused_and_named(name, physical):
    private = private_run(Centred(), noise_multiplier=1.0, physical_batch_size=physical)
    batches = iter(private.loader)
    private.step(loss, next(batches))
    spent, batch = private.ledger.steps, next(batches)
    CHANGES[name](private.model, batch[0])
    with pytest.raises(psac.PrivacyError, match=r"was changed since the last step.*public_change"):
        private.step(loss, batch)
    assert private.ledger.steps == spent


def test_the_tensor_that_was_changed_is_named():
    private = private_run(Centred())
    for batch in private.loader:
        if private.steps_taken == 2:
            private.model[2].bias.data.add_(1)
            break
        private.step(loss, batch)
    with pytest.raises(psac.PrivacyError, match=r"^2\.bias was changed"):
        private.step(loss, batch)


@pytest.mark.parametrize("name", ["a buffer", "a parameter"])
def test_a_change_by_the_first_batch_is_refused_as_well(name):
    private = private_run(Centred(), noise_multiplier=1.0)
    batch = next(iter(private.loader))
    CHANGES[name](private.model, batch[0])
    with pytest.raises(psac.PrivacyError, match="was changed"):
        private.step(loss, batch)


def test_a_change_after_a_public_one_is_refused_as_well():
    private = private_run(Centred(), noise_multiplier=1.0)
    batches = iter(private.loader)
    private.step(loss, next(batches))
    with private.public_change():
        private.model.center.fill_(0.5)
    batch = next(batches)
    private.model.center.copy_(batch[0].mean(0))
    with pytest.raises(psac.PrivacyError, match="was changed"):
        private.step(loss, batch)


def test_a_change_before_a_public_one_is_not_covered_by_it():
    private = private_run(Centred(), noise_multiplier=1.0)
    batches = iter(private.loader)
    private.step(loss, next(batches))
    private.model.center.copy_(next(batches)[0].mean(0))
    with (
        pytest.raises(psac.PrivacyError, match="center was changed"),
        private.public_change(),
    ):
        pytest.fail("the change is taken for a public one")


def test_a_second_optimizer_that_moves_the_model_is_noticed():
    private = private_run(Centred(), noise_multiplier=1.0)
    other = torch.optim.SGD(private.model.parameters(), lr=0.1)
    batches = iter(private.loader)
    for batch in batches:
        private.step(loss, batch)
        other.step()  # without gradients it moves nothing
        if private.steps_taken == 2:
            break
    batch = next(batches)
    value = loss(private.model, *batch)
    for parameter, gradient in zip(
        private.model.parameters(),
        torch.autograd.grad(value, list(private.model.parameters())),
        strict=True,
    ):
        parameter.grad = gradient
    other.step()
    with pytest.raises(psac.PrivacyError, match="was changed since the last step"):
        private.step(loss, batch)
    assert private.ledger.steps == 2


# ---- What is innocent


def test_a_public_change_is_welcome_where_it_is_announced():
    private, plain = private_run(Centred()), Centred()
    for batch in private.loader:
        with private.public_change(), torch.no_grad():
            private.model[2].bias.clamp_(-0.01, 0.01)
        before = private.model[2].bias.detach().clone()
        assert float(before.abs().max()) <= 0.01
        private.step(loss, batch)
    assert private.steps_taken == 5
    assert not torch.equal(weights(private.model), weights(plain))


def test_weights_are_loaded_before_the_first_step():
    public = Centred()
    with torch.no_grad():
        public[0].weight.fill_(0.25)
    private = private_run(Centred())
    private.model.load_state_dict(public.state_dict())
    train(private)
    other = private_run(public)
    train(other)
    assert torch.equal(weights(private.model), weights(other.model))


@contextlib.contextmanager
def averaged_weights(model, average):
    """As libraries for moving averages evaluate: swapped in, and out again."""
    own = copy.deepcopy(model.state_dict())
    model.load_state_dict(average)
    yield
    model.load_state_dict(own)


def test_averaged_weights_may_be_swapped_in_for_an_evaluation():
    private, clean = private_run(Centred()), private_run(Centred())
    average = copy.deepcopy(private.model.state_dict())
    for batch in private.loader:
        private.step(loss, batch)
        for name, value in private.model.state_dict().items():
            average[name].lerp_(value, 0.1)
        with averaged_weights(private.model, average), torch.no_grad():
            private.model.eval()(batch[0])
        private.model.train()
    train(clean)
    assert torch.equal(weights(private.model), weights(clean.model))


@pytest.mark.parametrize(
    "kind",
    [
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=100),
    ],
    ids=["lambda", "cosine", "one cycle"],
)
def test_schedulers_change_the_optimizer_and_not_the_model(kind):
    model = Centred()
    private = private_run(model, torch.optim.Adam(model.parameters()))
    scheduler = kind(private.optimizer)
    for batch in private.loader:
        if private.step(loss, batch):
            scheduler.step()
    assert private.steps_taken == 5


def test_moving_the_model_between_training_and_evaluation_changes_nothing():
    private, clean = private_run(Centred()), private_run(Centred())
    for batch in private.loader:
        private.step(loss, batch)
        private.model.eval()
        F.cross_entropy(private.model(batch[0]), batch[1])
        private.model.requires_grad_(False).requires_grad_(True)
        private.model.train().zero_grad()
    train(clean)
    assert torch.equal(weights(private.model), weights(clean.model))


def test_the_state_of_the_optimizer_is_the_users_to_load():
    private = private_run(noise_multiplier=1.0)
    for batch in private.loader:
        private.step(loss, batch)
        private.optimizer.load_state_dict(copy.deepcopy(private.optimizer.state_dict()))
    assert torch.equal(weights(private.model), weights(trained(noise_multiplier=1.0).model))


# ---- What the optimizer keeps


def of_first(optimizer, name):
    return optimizer.state[optimizer.param_groups[0]["params"][0]][name]


STATES = {
    "momentum": lambda o, x: of_first(o, "exp_avg").add_(x.mean()),
    "by .data": lambda o, x: of_first(o, "exp_avg_sq").data.add_(x.mean()),
    "another in its place": lambda o, x: o.state[o.param_groups[0]["params"][0]].update(
        exp_avg=torch.full_like(of_first(o, "exp_avg"), float(x.mean()))
    ),
    "the number of steps": lambda o, x: of_first(o, "step").fill_(len(x)),
    "one more": lambda o, x: o.state[o.param_groups[0]["params"][0]].update(mean=x.mean(0)),
    "a number": lambda o, x: o.state[o.param_groups[0]["params"][0]].update(mean=float(x.mean())),
    "all": lambda o, x: o.state.clear(),
}


@pytest.mark.parametrize("name", STATES)
def test_a_change_of_the_optimizers_state_is_refused(name):
    model = Centred()
    adam = torch.optim.Adam(model.parameters())
    private = private_run(model, adam, noise_multiplier=1.0)
    batches = iter(private.loader)
    private.step(loss, next(batches))
    batch = next(batches)
    STATES[name](adam, batch[0])
    with pytest.raises(psac.PrivacyError, match=r"optimizer.* was changed since the last step"):
        private.step(loss, batch)
    assert private.ledger.steps == 1


def test_momentum_that_was_changed_is_named_and_may_be_changed_in_public():
    model = Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    private = private_run(model, optimizer, noise_multiplier=1.0)
    for batch in private.loader:
        if private.steps_taken == 2:
            with private.public_change():
                of_first(optimizer, "momentum_buffer").zero_()
        if private.steps_taken == 4:
            of_first(optimizer, "momentum_buffer").add_(batch[0].mean())
            break
        private.step(loss, batch)
    with pytest.raises(psac.PrivacyError, match=r"^the optimizer's momentum_buffer of 0\.weight w"):
        private.step(loss, batch)


def test_a_schedule_and_an_optimizer_that_keeps_lists_are_welcome():
    class Keeping(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    kept = self.state[p].setdefault("last", [])
                    kept.append(p.grad.clone())
                    self.state[p]["steps"] = len(kept)
            return super().step(closure)

    model = Centred()
    optimizer = Keeping(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    private = private_run(model, optimizer, noise_multiplier=1.0)
    for batch in private.loader:
        if private.step(loss, batch):
            schedule.step()
    assert private.ledger.steps == 5


def test_an_entry_of_a_large_buffer_that_is_written_by_data_is_noticed():
    model = Centred()
    model.register_buffer("bank", torch.zeros(100_000))
    private = private_run(model, noise_multiplier=1.0)
    batches = iter(private.loader)
    private.step(loss, next(batches))
    batch = next(batches)
    private.model.bank.data[0] = batch[0].mean()
    with pytest.raises(psac.PrivacyError, match=r"^bank was changed"):
        private.step(loss, batch)
