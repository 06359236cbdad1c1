"""What `private.step` and a private model refuse, before anything is released."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import psac
from tests.private_runs import loss, network, private_run, records, sgd, train, trained, weights

pytestmark = pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")


def first_batch(*args, **settings):
    """A run, its first batch, which awaits its step, and those that follow."""
    private = private_run(*args, **{"noise_multiplier": 1.0} | settings)
    batches = iter(private.loader)
    return private, next(batches), batches


@contextlib.contextmanager
def refused(private, match, error=psac.PrivacyError):
    """What is done in here raises, costs nothing, and moves nothing."""
    before, spent = weights(private.model), private.ledger.steps
    with pytest.raises(error, match=match):
        yield
    assert private.ledger.steps == spent
    assert torch.equal(weights(private.model), before)
    assert all(p.grad is None for p in private.model.parameters())


# ---- Each batch once


@pytest.mark.parametrize("physical", [None, 3])
def test_a_second_step_on_a_batch_is_refused(physical):
    private, batch, _ = first_batch(physical_batch_size=physical)
    private.step(loss, batch)
    with refused(private, "without a batch to train on"):
        private.step(loss, batch)


def test_a_step_outside_the_loop_is_refused():
    for private in (private_run(), trained()):
        with refused(private, "without a batch to train on"):
            private.step(loss, records().tensors)


@pytest.mark.parametrize("physical", [None, 3])
def test_a_batch_that_is_left_out_is_refused(physical):
    private, _, batches = first_batch(physical_batch_size=physical)
    with refused(private, r"was not passed to private\.step"):
        next(batches)


def test_the_last_batch_of_an_epoch_is_missed_too():
    private = private_run()

    def all_but_the_last():
        for batch in private.loader:
            if private.steps_taken < 4:
                private.step(loss, batch)

    with pytest.raises(psac.PrivacyError, match=r"was not passed to private\.step"):
        all_but_the_last()
    assert private.steps_taken == private.ledger.steps == 4


@pytest.mark.parametrize("physical", [None, 3])
def test_who_gives_up_a_batch_is_dealt_the_same_one_again(physical):
    """Else batches could be chosen: by their labels, for example."""
    private, batch, _ = first_batch(physical_batch_size=physical)
    if physical:
        private.step(loss, batch)  # the first part of several
    for again in private.loader:
        assert again[-1].tolist() == batch[-1].tolist()
        break
    train(private)
    clean = private_run(noise_multiplier=1.0, physical_batch_size=physical)
    train(clean)
    assert private.steps_taken == private.ledger.steps == 5
    assert torch.equal(weights(private.model), weights(clean.model))


def test_a_second_pass_makes_the_first_one_void():
    private, _, first = first_batch()
    next(iter(private.loader))
    with refused(private, "a new pass"):
        next(first)


# ---- The batch as it came

ALTERED = {
    "written": lambda x, y, k: x.add_(1),
    "one value": lambda x, y, k: x[0, 0].fill_(7.0),
    "by .data": lambda x, y, k: x.data.mul_(2),
    "by .numpy()": lambda x, y, k: x.numpy().__setitem__(0, 3.0),
    "labels": lambda x, y, k: y.copy_((y + 1) % 3),
    "by set_": lambda x, y, k: x.set_(torch.zeros_like(x)),
    "reordered in place": lambda x, y, k: x.copy_(x.flip(0)),
}
OTHERS = {
    "computed": lambda x, y, k: (2 * x, y, k),
    "normalised": lambda x, y, k: (x - x.mean(0), y, k),
    "reordered": lambda x, y, k: (x.flip(0), y, k),
    "reordered as a whole": lambda x, y, k: (x.flip(0), y.flip(0), k.flip(0)),
    "a part": lambda x, y, k: (x[1:], y[1:], k[1:]),
    "one record twice": lambda x, y, k: tuple(torch.cat([t[:1], t]) for t in (x, y, k)),
    "other labels": lambda x, y, k: (x, (y + 1) % 3, k),
    "another type": lambda x, y, k: (x.double(), y, k),
    "from elsewhere": lambda x, y, k: records(len(x)).tensors,
    "one more tensor": lambda x, y, k: (x, y, k, torch.randn(len(x), 2)),
    "a record made unusable": lambda x, y, k: (x.index_fill(0, torch.tensor(0), math.nan), y, k),
    "nothing": lambda x, y, k: (),
    "a number": lambda x, y, k: (x, y, 3),
    "a text": lambda x, y, k: (x, y, "train"),
}
SAME = {
    "as it is": lambda x, y, k: (x, y, k),
    "a list": lambda x, y, k: [x, y, k],
    "by name": lambda x, y, k: {"number": k, "y": y, "x": x},
    "moved": lambda x, y, k: (x.clone(), y.to("cpu"), k),
    "in part": lambda x, y, k: (x, y),
}


def of_two(model, x, y, *rest, number=None):
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("name", ALTERED)
def test_a_batch_that_was_written_to_is_refused(name):
    private, batch, _ = first_batch(batch_size=20)
    ALTERED[name](*batch)
    with refused(private, r"was written to after private\.loader handed it out"):
        private.step(loss, batch)


@pytest.mark.parametrize("name", OTHERS)
def test_another_batch_is_refused_and_the_right_one_is_welcome_afterwards(name):
    private, batch, batches = first_batch(batch_size=20)
    with refused(private, "did not hand out|contains a|holds no tensor"):
        private.step(of_two, OTHERS[name](*batch))
    with refused(private, r"was not passed to private\.step"):
        next(batches)
    assert private.ledger.steps == 0


@pytest.mark.parametrize("name", SAME)
def test_the_batch_may_be_arranged_otherwise_and_moved(name):
    private, clean = private_run(), trained()
    for batch in private.loader:
        private.step(of_two, SAME[name](*batch))
    assert torch.equal(weights(private.model), weights(clean.model))


def test_the_batch_before_is_refused():
    private, before, batches = first_batch(batch_size=20)
    private.step(loss, before)
    batch = next(batches)
    with refused(private, "did not hand out"):
        private.step(loss, before)
    private.step(loss, batch)
    assert private.steps_taken == 2


# ---- The function


def test_the_result_of_the_function_is_refused_in_its_place():
    private, batch, _ = first_batch()
    with refused(private, r"loss is a Tensor: pass the function itself", TypeError):
        private.step(loss(private.model, *batch), batch)


WRONG_RESULTS = {
    "losses of classes": (lambda model, x, y, k: model(x), r"shape \[1, 3\].*one number"),
    "a number": (lambda model, x, y, k: 0.3, "returned a float"),
    "a tuple": (lambda model, x, y, k: (model(x).sum(), 1), "returned a tuple"),
    "nothing": (lambda model, x, y, k: None, "returned a NoneType"),
    "an integer": (lambda model, x, y, k: model(x).argmax(), "floating-point type"),
    "detached": (lambda model, x, y, k: model(x).sum().detach(), "no trainable parameter"),
}


@pytest.mark.parametrize("name", WRONG_RESULTS)
def test_a_function_that_returns_no_loss_is_refused_with_the_reason(name):
    function, message = WRONG_RESULTS[name]
    private, batch, _ = first_batch()
    with refused(private, message, (TypeError, ValueError, psac.PrivacyError)):
        private.step(function, batch)


def broken(model, x, y, number):
    model(x)
    raise KeyError("a typing mistake")


def fails_at_one_record(third):
    def loss(model, x, y, number):
        if int(number) == third:  # which makes them come one after the other
            raise KeyError("a typing mistake")
        return F.cross_entropy(model(x), y)

    return loss


@pytest.mark.filterwarnings("ignore::psac.SlowPathWarning")
@pytest.mark.parametrize("physical", [None, 3])
@pytest.mark.parametrize("when", ["always", "in the middle"])
def test_an_error_of_the_function_is_the_users_own_and_adds_no_record(when, physical):
    """Another function on the same batch would let its records choose; a new pass deals it anew."""
    settings = {"noise_multiplier": 1.0, "physical_batch_size": physical}
    private, batch, _ = first_batch(**settings)
    function = broken if when == "always" else fails_at_one_record(int(batch[-1][2]))
    with refused(private, "a typing mistake", KeyError):
        private.step(function, batch)
    with refused(private, "begin a new pass"):
        private.step(loss, batch)
    train(private)
    assert private.steps_taken == private.ledger.steps == 5
    assert torch.equal(weights(private.model), weights(trained(**settings).model))


# ---- Backwards and steps of the user's own


def test_a_backward_of_ones_own_is_refused_with_the_function_form():
    private, (x, y, _), _ = first_batch()
    for model in (private.model, private.model[2]):
        inputs = x if model is private.model else torch.randn(5, 6)
        target = y if model is private.model else torch.randint(3, (5,))
        value = F.cross_entropy(model(inputs), target)
        with refused(private, r"neither clipped nor noisy.*(?s:.)*private\.step\(loss, batch\)"):
            value.backward()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_backward_beside_the_step_is_refused_and_does_not_reach_the_optimizer(when):
    private, clean = private_run(), trained()
    for batch in private.loader:
        if when == "after":
            private.step(loss, batch)
        value = loss(private.model, *batch)
        with refused(private, "backward"):
            value.backward()
        if when == "before":
            private.step(loss, batch)
    assert torch.equal(weights(private.model), weights(clean.model))


def test_a_backward_inside_the_function_is_refused():
    private, batch, _ = first_batch()

    def impatient(model, x, y, number):
        value = F.cross_entropy(model(x), y)
        value.backward(retain_graph=True)
        return value

    with refused(private, r"backward(?s:.)*torch\.autograd\.grad"):
        private.step(impatient, batch)


def test_a_gradient_scaler_is_refused_at_its_backward():
    """It would divide the private gradient, noise and all, by a scale that was clipped away."""
    private, batch, _ = first_batch()
    scaler = torch.amp.GradScaler("cpu")
    value = scaler.scale(loss(private.model, *batch))
    with refused(private, "backward"):
        value.backward()
    with refused(private, "No inf checks", AssertionError):
        scaler.step(private.optimizer)


def test_a_step_of_ones_own_is_refused_with_the_function_form():
    private, _, _ = first_batch()
    for parameter in private.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with refused(private, r"optimizer\.step\(\) was called.*(?s:.)*private\.step\(loss, batch\)"):
        private.optimizer.step()


def test_closures_are_refused():
    private, batch, _ = first_batch()
    with refused(private, r"optimizer\.step\(\) was called"):
        private.optimizer.step(lambda: loss(private.model, *batch))
    with refused(private, r"optimizer\.step\(\) was called"):
        private.optimizer.step(closure=lambda: loss(private.model, *batch))


def test_a_zero_grad_of_habit_and_gradients_set_by_hand_change_nothing():
    private, clean = private_run(), trained()
    for batch in private.loader:
        private.optimizer.zero_grad()
        for parameter in private.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e6)
        private.step(loss, batch)
        private.optimizer.zero_grad()
    assert torch.equal(weights(private.model), weights(clean.model))


def test_a_step_that_raised_is_spent_and_leaves_nothing_open():
    class Fails(torch.optim.SGD):
        broken = True

        def step(self, closure=None):
            if self.broken:
                raise OSError("no disk")
            return super().step(closure)

    model = network()
    private, batch, _ = first_batch(model, Fails(model.parameters(), lr=0.1))
    before = weights(model)
    with pytest.raises(OSError, match="no disk"):
        private.step(loss, batch)
    assert private.ledger.steps == 1
    assert all(p.grad is None for p in model.parameters())
    private.optimizer.broken = False
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    with refused(private, r"optimizer\.step\(\) was called"):
        private.optimizer.step()
    assert torch.equal(weights(model), before)


# ---- The optimizer


def test_optimizers_that_take_several_gradients_a_step_are_refused():
    model = network()
    with pytest.raises(psac.PrivacyError, match="LBFGS"):
        private_run(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(TypeError, match=r"pass a torch\.optim\.Optimizer"):
        private_run(model, object())
    private_run(model)  # which is free


def scaled_in_place(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(2)


def replaced(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = 2 * parameter.grad


def one_is_replaced(optimizer, args, kwargs):
    parameter = optimizer.param_groups[0]["params"][-1]
    parameter.grad = parameter.grad.clone()


@pytest.mark.parametrize("where", ["before", "after", "everywhere"])
@pytest.mark.parametrize("hook", [scaled_in_place, replaced, one_is_replaced])
def test_a_hook_that_changes_the_gradient_before_the_step_is_refused(hook, where):
    model = network()
    optimizer = sgd(model)
    handle = None
    if where == "before":
        optimizer.register_step_pre_hook(hook)
    private, batch, _ = first_batch(model, optimizer)
    if where == "after":
        optimizer.register_step_pre_hook(hook)
    if where == "everywhere":
        handle = register_optimizer_step_pre_hook(hook)
    before = weights(model)
    try:
        with pytest.raises(psac.PrivacyError, match=r"a hook on optimizer\.step"):
            private.step(loss, batch)
    finally:
        if handle:
            handle.remove()
    assert torch.equal(weights(model), before)
    assert all(p.grad is None for p in model.parameters())


def test_hooks_that_only_look_are_welcome():
    private, clean = private_run(noise_multiplier=1.0), trained(noise_multiplier=1.0)
    lengths = []

    def look(optimizer, args, kwargs):
        lengths.append(float(optimizer.param_groups[0]["params"][0].grad.norm()))

    private.optimizer.register_step_pre_hook(look)
    private.optimizer.register_step_post_hook(look)
    train(private)
    assert len(lengths) == 10
    assert torch.equal(weights(private.model), weights(clean.model))


def test_an_optimizer_with_parameters_of_others_is_refused_now_and_later():
    model, other = network(), nn.Linear(2, 2)
    both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(psac.PrivacyError, match="2 parameters that are not the model's"):
        private_run(model, both)
    private, batch, _ = first_batch(network())
    private.optimizer.add_param_group({"params": other.parameters()})
    with refused(private, "not the model's"):
        private.step(loss, batch)


def test_a_parameter_that_came_to_the_model_later_is_refused():
    private, batch, _ = first_batch(network())
    private.model.register_parameter("later", nn.Parameter(torch.zeros(2)))
    with refused(private, "which parameters are trained was changed"):
        private.step(loss, batch)


def test_a_parameter_that_replaced_another_is_refused():
    private, batch, _ = first_batch(network())
    private.model[0].weight = nn.Parameter(torch.zeros(6, 4))
    with refused(private, "which parameters are trained was changed"):
        private.step(loss, batch)


@pytest.mark.parametrize("trainable", [True, False])
def test_parameters_frozen_or_unfrozen_later_are_noticed(trainable):
    model = network()
    model[0].requires_grad_(trainable)
    private, batch, _ = first_batch(model)
    model[0].requires_grad_(not trainable)
    with refused(private, "which parameters are trained was changed"):
        private.step(loss, batch)
    model[0].requires_grad_(trainable)
    assert private.step(loss, batch)


def test_parameters_that_the_optimizer_lacks_are_announced():
    model = network()
    with pytest.warns(UserWarning, match=r"\['0\.weight', '0\.bias'\] are trainable"):
        private_run(model, torch.optim.SGD(model[2].parameters(), lr=0.1))


def test_a_gradient_that_a_frozen_parameter_has_never_moves_it():
    model = network()
    x, y, _ = records().tensors
    F.cross_entropy(model(x), y).backward()
    model[0].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    private = private_run(model)
    assert all(parameter.grad is None for parameter in model.parameters())
    for batch in private.loader:
        model[0].weight.grad = torch.ones_like(frozen)  # or given later
        private.step(loss, batch)
    assert private.steps_taken == 5
    assert torch.equal(model[0].weight, frozen)


# ---- Clipping


@pytest.mark.parametrize("physical", [None, 2])
def test_a_bound_that_changes_within_a_run_is_refused(physical):
    class Loosens(psac.PSAC):
        pass

    rule = Loosens()
    private, batch, _ = first_batch(clipping=rule, physical_batch_size=physical)
    object.__setattr__(rule, "bound", 1000.0)
    with refused(private, "the noise would not fit the sum"):
        private.step(loss, batch)


def test_a_rule_that_remembers_the_norms_is_refused_before_anything_is_released():
    largest = [1.0]

    def remembers(norms):
        largest[0] = max(largest[0], float(norms))
        return 1 / (norms + largest[0])

    private, batch, _ = first_batch(clipping=psac.Custom(remembers, bound=1.0))
    with refused(private, "has a memory"):
        private.step(loss, batch)


def test_a_rule_of_ones_own_trains():
    rule = psac.Custom(lambda norms: 1 / (norms + 0.1 / (norms + 0.1)), bound=1.0)
    private = private_run(clipping={"0.*": rule, "*": rule}, physical_batch_size=3)
    clean = private_run(clipping={"0.*": psac.PSAC(), "*": psac.PSAC()}, physical_batch_size=3)
    for run in (private, clean):
        train(run)
    torch.testing.assert_close(weights(private.model), weights(clean.model))


# ---- Several runs


def test_a_model_and_a_part_of_it_are_not_private_twice():
    model = network()
    private_run(model)
    for other in (model, model[0], nn.Sequential(model, nn.Tanh())):
        with pytest.raises(psac.PrivacyError, match=r"shares the parameters"):
            private_run(other)


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


# ---- What was typed


@pytest.mark.parametrize(("size", "kind"), [(500, ValueError), (0, ValueError), (2.5, TypeError)])
def test_a_wrong_batch_size_is_named_as_it_was_typed(size, kind):
    with pytest.raises(kind, match=rf"^batch_size is {size}"):
        private_run(batch_size=size)


def test_a_delta_that_is_too_large_is_told_of_when_the_run_is_made():
    with pytest.warns(psac.PrivacyWarning, match=r"delta is 0\.5, which is not below 1 / 40"):
        private_run(noise_multiplier=1.0, delta=0.5)


def test_nobody_but_the_loader_hands_batches_out():
    assert not hasattr(private_run(), "hand_out")
