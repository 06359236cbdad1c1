"""The loss is proved too: it must treat a sample in its batch as it does the sample alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import psac


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data(n: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 4), torch.randint(3, (n,))


class Tagger(nn.Module):
    """Three tags for each of the tokens: [n, t, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens))


def tokens(n: int = 6, t: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(3, (n, t))
    labels[torch.arange(t) >= torch.randint(1, t, (n, 1))] = -100  # padding of different lengths
    return torch.randint(9, (n, t)), labels


def in_place(out, y):
    out = out.clone()
    out[:, 0] += 1.0
    return F.cross_entropy(out.mul_(2.0), y)


def hand_written(out, y):
    chosen = out.log_softmax(-1)[torch.arange(len(y)), y]
    print(-chosen.mean().item())  # a number to look at is not part of the loss
    return -chosen.mean()


def one_by_one(out, y):
    losses = torch.zeros(len(y))
    for k in range(len(y)):
        losses[k] = F.cross_entropy(out[k : k + 1], y[k : k + 1])
    return losses.mean()


def on_the_outputs(out, y):
    out /= 2.0
    return F.cross_entropy(out, y)


def weighted_without_gradient(out, y):
    with torch.no_grad():
        weights = 1 - out.softmax(1).gather(1, y[:, None])[:, 0]
    return (weights * F.cross_entropy(out, y, reduction="none")).mean()


def random_in_half(out, y):
    noise = torch.empty_like(out).normal_(generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(F.dropout(out, 0.5) @ torch.eye(3) + noise, y)


def masked(out, y):
    mask = torch.zeros(3, dtype=torch.bool)
    return F.cross_entropy(out.masked_fill(mask, float("-inf")), y)


ISOLATED = {
    "cross entropy": lambda out, y: F.cross_entropy(out, y),
    "module": lambda out, y: nn.CrossEntropyLoss(label_smoothing=0.1)(out, y),
    "class weights": lambda out, y: F.cross_entropy(
        out, y, weight=torch.tensor([1.0, 2.0, 3.0]), reduction="none"
    ).mean(),
    "in place": in_place,
    "hand written": hand_written,
    "batch size written in": lambda out, y: F.cross_entropy(out.view(len(y), 3) * 1.0, y),
    "times a constant": lambda out, y: 0.1 * F.cross_entropy(out, y),
    "divided by the batch": lambda out, y: F.cross_entropy(out, y, reduction="sum") / len(y),
    "random": lambda out, y: F.cross_entropy(F.dropout(out, 0.5), y),
    "one-hot": lambda out, y: (out.softmax(1) - F.one_hot(y, 3)).square().sum(1).mean(),
    "half": lambda out, y: F.cross_entropy(out.bfloat16(), y),
    "losses written one by one": one_by_one,
    "in place on the outputs": on_the_outputs,
    "weights without gradient": weighted_without_gradient,
    "random in half": random_in_half,
    "an infinite number": masked,
}


def hooked(out, y):
    out.register_hook(lambda grad: grad / grad.abs().max() / len(grad))
    return F.cross_entropy(out, y)


def scatter(out):
    return (out - out.mean(0)).square().sum(1).mean()


def scripted(out, y):
    return F.cross_entropy(out, y) + torch.jit.script(scatter)(out)


def vmapped(out, y):
    return F.cross_entropy(out, y) + torch.vmap(lambda c: c.var(), in_dims=1)(out).sum()


def through_a_buffer(out, y):
    buffer = torch.zeros(out.shape)
    buffer.copy_(out)
    return F.cross_entropy(out, y) + scatter(buffer)


def through_a_buffer_without_gradient(out, y):
    buffer = torch.zeros(out.shape)
    torch.mul(out.detach(), 1.0, out=buffer)
    return F.cross_entropy(out - buffer.mean(0), y)


def balanced_by_numbers(out, y):
    first, second = F.cross_entropy(out, y), out.square().sum(1).mean()
    return first + (first.item() / second.item()) * second


def above_the_median(out, y):
    losses = F.cross_entropy(out, y, reduction="none")
    return (losses * (losses >= losses.median().item())).mean()


def over_a_count(out, y):
    confident = (out.detach().softmax(1).amax(1) > 0.4).sum().item()
    return F.cross_entropy(out, y, reduction="sum") / (1 + confident)


MIXING = {
    "contrastive": lambda out, y: F.cross_entropy(out @ out.t(), torch.arange(len(out))),
    "softmax over the batch": lambda out, y: -out.log_softmax(0).mean(),
    "variance over the batch": lambda out, y: out.var(0).sum(),
    "hardest sample": lambda out, y: F.cross_entropy(out, y, reduction="none").max(),
    "top half": lambda out, y: F.cross_entropy(out, y, reduction="none").topk(3).values.mean(),
    "hinge between pairs": lambda out, y: (1 - out[:, 0] + out[:, 1].roll(1)).relu().mean(),
    "hinge that is open everywhere": lambda out, y: (
        (9 - out[:, 0] + out[:, 0].roll(1).detach()).relu().mean()
    ),
    "normalised by the batch": lambda out, y: F.cross_entropy(out / out.std(), y),
    "weighted mean over classes": lambda out, y: F.cross_entropy(
        out, y, weight=torch.tensor([1.0, 2.0, 3.0])
    ),
    "broadcast to [n, n]": lambda out, y: (out[:, :1] - y.float()).square().mean(),
    "a hook on the outputs": hooked,
    "a scripted term": scripted,
    "a vmapped term": vmapped,
    "through a buffer": through_a_buffer,
    "through a buffer without gradient": through_a_buffer_without_gradient,
    "balanced by numbers": balanced_by_numbers,
    "divided by a number": lambda out, y: F.cross_entropy(out, y) * (2 / out.norm().item()),
    "above the median": above_the_median,
    "over a count": over_a_count,
}


@pytest.mark.parametrize("name", ISOLATED)
def test_a_loss_that_keeps_samples_apart_passes(name, capsys):
    model, (x, y) = network(), data()
    with psac.Engine(model) as engine:
        for _ in range(3):
            ISOLATED[name](model(x), y).backward()
        assert engine.num_samples == 3 * len(x)


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_loss_that_mixes_samples_is_refused_before_anything_is_added_up(name):
    model, (x, y) = network(), data()
    y[:3] = torch.arange(3)  # all classes, so that a mean over classes is not one over samples
    with psac.Engine(model) as engine:
        with pytest.raises(psac.NotIsolated, match=r"private\.backward"):
            MIXING[name](model(x), y).backward()
        assert engine.num_samples == 0
        assert all(bool((s == 0).all()) for s in engine.collect().values())


@pytest.mark.parametrize("labels_are", ["matrix", "flat before the forward"])
def test_a_mean_over_tokens_is_refused_with_the_remedy(labels_are):
    model, (x, y) = Tagger(), tokens()
    flat = y.flatten()
    with psac.Engine(model):
        out = model(x).flatten(0, 1)
        loss = F.cross_entropy(out, y.flatten() if labels_are == "matrix" else flat)
        with pytest.raises(psac.NotIsolated, match="within each sample first"):
            loss.backward()


@pytest.mark.parametrize("labels_are", ["matrix", "flat before the forward"])
def test_a_mean_within_each_sample_passes(labels_are):
    model, (x, y) = Tagger(), tokens()
    flat = y.flatten()
    with psac.Engine(model) as engine:
        out = model(x)
        targets = y.flatten() if labels_are == "matrix" else flat
        losses = F.cross_entropy(out.flatten(0, 1), targets, reduction="none").view(6, -1)
        kept = (targets.view(6, -1) != -100).sum(1)
        (losses.sum(1) / kept).mean().backward()
        assert engine.num_samples == 6


@pytest.mark.parametrize("stated, given", [("mean", "sum"), ("sum", "mean")])
def test_a_reduction_other_than_the_stated_one_is_named(stated, given):
    model, (x, y) = network(), data()
    with (
        psac.Engine(model, loss_reduction=stated),
        pytest.raises(psac.NotIsolated, match=f"the loss is a {given} over samples"),
    ):
        F.cross_entropy(model(x), y, reduction=given).backward()


@pytest.mark.parametrize("n", [2, 6])
def test_constants_of_other_sizes_are_no_labels(n):
    model, (x, y) = network(), data(n)
    weights = torch.tensor([1.0, 2.0, 3.0])
    with psac.Engine(model) as engine:
        F.cross_entropy(model(x), y, weight=weights, reduction="none").mean().backward()
        (model(x) * weights).square().sum(1).mean().backward()
        assert engine.num_samples == 2 * n


def test_a_loss_that_changes_later_is_proved_again():
    model, (x, y) = network(), data()

    def train() -> None:
        for step in range(40):
            loss = ISOLATED["module"] if step < 5 else MIXING["contrastive"]
            loss(model(x), y).backward()

    with psac.Engine(model), pytest.raises(psac.NotIsolated):
        train()


def test_a_term_that_is_switched_on_late_is_refused_at_the_second_backward():
    model, (x, y) = network(), data()
    with psac.Engine(model) as engine:
        for step in range(40):
            out = model(x)
            loss = F.cross_entropy(out, y)
            if step == 21:
                with pytest.raises(psac.NotIsolated):
                    (loss + scatter(out)).backward()
                break
            (loss if step < 20 else loss + scatter(out)).backward()
        assert engine.num_samples == 21 * len(x)


def test_a_custom_function_after_the_outputs_is_refused_and_welcome_inside():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    class Inside(nn.Sequential):
        def forward(self, x):
            return Double.apply(super().forward(x))

    model, (x, y) = network(), data()
    with psac.Engine(model), pytest.raises(psac.PrivacyError, match="Double"):
        F.cross_entropy(Double.apply(model(x)), y).backward()
    model = Inside(*network())
    with psac.Engine(model) as engine:
        F.cross_entropy(model(x), y).backward()
        assert engine.num_samples == len(x)


def test_nothing_of_the_tape_stays_behind():
    model, (x, y) = network(), data()
    with psac.Engine(model):
        F.cross_entropy(model(x), y).backward()  # this tape is there until the next one is over
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        assert type(loss + 1) is type(out[0]) is torch.Tensor
        for _ in range(5):
            out = model(x)
            F.cross_entropy(out, y).backward()
        assert type(out) is torch.Tensor
    engine = psac.Engine(model).attach()
    out = model(x)  # the user thinks better of it
    engine.detach()
    assert type(out + 1) is torch.Tensor


def test_a_forward_that_was_given_up_does_not_count():
    model, (x, y) = network(), data()
    with psac.Engine(model) as engine:
        model(x.repeat(3, 1))
        F.cross_entropy(model(x), y).backward()
        assert engine.num_samples == len(x)


def test_a_gradient_that_no_backward_call_started_is_refused():
    model, (x, y) = network(), data()
    with psac.Engine(model), pytest.raises(psac.PrivacyError, match=r"Call loss\.backward"):
        torch.autograd.backward([F.cross_entropy(model(x), y)])


def test_autocast_around_the_loss_passes():
    model, (x, y) = network(), data()
    with psac.Engine(model) as engine:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        assert engine.num_samples == len(x)


def weighted(weights, out, y):
    return F.cross_entropy(out, y, weight=weights, reduction="none").mean()


def test_class_weights_that_are_known_stay_constants_when_a_batch_has_as_many_samples_as_classes():
    model, weights = network(), torch.tensor([1.0, 2.0, 3.0])
    with psac.Engine(model) as engine:
        for n in (7, 3, 3, 3):  # proved at the first, second and fourth
            x, y = data(n)
            weighted(weights, model(x), y).backward()
        assert engine.num_samples == 16


def test_a_tensor_that_was_changed_since_is_not_taken_for_a_constant():
    model, targets = network(), torch.zeros(3)

    def broadcast_to_n_by_3(n: int) -> None:
        (model(data(n)[0]).sum(1, keepdim=True) - targets).square().mean().backward()

    with psac.Engine(model):
        broadcast_to_n_by_3(5)
        targets.copy_(torch.randn(3))  # now the labels of a batch of three
        with pytest.raises(psac.NotIsolated):
            broadcast_to_n_by_3(3)


def test_a_gradient_given_to_backward_is_a_part_of_the_loss():
    model, (x, y) = network(), data()
    with psac.Engine(model) as engine:
        losses = F.cross_entropy(model(x), y, reduction="none")
        losses.backward(gradient=torch.ones(len(x)) / len(x))
        sums = engine.collect()
        F.cross_entropy(model(x), y).backward()
        torch.testing.assert_close(sums, engine.collect())
    for loss_reduction in ("mean", "sum"):
        with psac.Engine(model, loss_reduction=loss_reduction) as engine:
            losses = F.cross_entropy(model(x), y, reduction="none")
            with pytest.raises(psac.NotIsolated):
                losses.backward(losses.detach().softmax(0) * len(x))
            assert engine.num_samples == 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_loss_is_refused_with_the_reason():
    model, (x, _) = network(), data()
    with psac.Engine(model), pytest.raises(psac.PrivacyError, match=r"scripted.*model's forward"):
        torch.jit.script(scatter)(model(x)).backward()


def test_a_loss_over_a_tensor_is_not_advised_to_be_a_sum():
    model, (x, y) = network(), data()
    positive = (y > 0).float().sum() + 1
    with psac.Engine(model), pytest.raises(psac.NotIsolated) as refused:
        (F.cross_entropy(model(x), y, reduction="sum") / positive).backward()
    assert "divide by a public constant" in str(refused.value)
    assert "pass loss_reduction='sum'" not in str(refused.value)


def by_a_running_mean(state, loss):
    result = loss / state.setdefault("mean", torch.ones(()))
    state["mean"] = 0.5 * state["mean"] + 0.5 * loss.detach()
    return result


def by_a_number_read_twice(state, loss):
    number = state.setdefault("mean", 1.0)
    state["mean"] = 0.9 * number + 0.1 * loss.item()
    return loss / number


def by_a_running_mean_in_place(state, loss):
    result = loss / state.setdefault("mean", torch.ones(())).clone()
    state["mean"].mul_(0.5).add_(0.5 * loss.detach())
    return result


def by_the_last_number(state, loss):
    result = loss / state.get("last", 1.0)
    state["last"] = loss.item()
    return result


@pytest.mark.parametrize(
    "scaled",
    [
        by_a_running_mean,
        by_a_running_mean_in_place,
        by_the_last_number,
        by_a_number_read_twice,
    ],
)
def test_a_loss_that_uses_an_earlier_batch_is_refused(scaled):
    model, (x, y), state = network(), data(), {}
    with psac.Engine(model) as engine:
        scaled(state, F.cross_entropy(model(x), y)).backward()
        with pytest.raises(psac.NotIsolated, match="an earlier batch"):
            scaled(state, F.cross_entropy(model(x), y)).backward()
        assert engine.num_samples == len(x)


def test_a_running_mean_that_is_taken_after_backward_is_refused_too():
    model, (x, y) = network(), data()
    for read in (Tensor.detach, Tensor.item):
        with psac.Engine(model):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            mean = 0.9 + 0.1 * read(loss)
            with pytest.raises(psac.NotIsolated, match="an earlier batch"):
                (F.cross_entropy(model(x), y) / mean).backward()


def test_numbers_to_look_at_may_be_kept_and_are_ordinary_ones_in_the_end():
    model, (x, y), total, running = network(), data(), 0.0, torch.zeros(())
    with psac.Engine(model) as engine:
        for _ in range(4):
            loss = F.cross_entropy(model(x), y)
            total += loss.item()
            running += loss.detach()
            loss.backward()
        assert engine.num_samples == 4 * len(x)
    assert type(total + 0.0) is float
    assert type(running) is torch.Tensor
    assert total == pytest.approx(float(running))


def test_a_loss_with_parameters_of_its_own_is_announced():
    model, (x, y) = network(), data()
    centres = nn.Parameter(torch.zeros(3, 3))
    with psac.Engine(model) as engine:
        with pytest.warns(psac.gradients.errors.UnprotectedGradientWarning, match="trainable"):
            (model(x) - centres[y]).square().sum(1).mean().backward()
        (model(x) - centres[y]).square().sum(1).mean().backward()  # said once
        assert engine.num_samples == 2 * len(x)


def test_losses_of_two_batches_are_not_joined_in_one_backward():
    """A record of the earlier batch would add to a step that it was not drawn for."""
    model, (x, y) = network(), data()
    engine = psac.Engine(model).attach()
    for joined in (lambda first, second: first + second, lambda first, second: first):
        engine.expect(len(x))
        first = F.cross_entropy(model(x), y)
        engine.expect(len(x))
        second = F.cross_entropy(model(x), y)
        with pytest.raises(psac.PrivacyError, match="forward of an earlier batch"):
            joined(first, second).backward()
        assert engine.num_samples == 0
    engine.detach()
