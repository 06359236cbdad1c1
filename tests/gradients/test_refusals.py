"""What cannot be private is refused, and the message names the place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import psac
from tests.gradients.cases import squares


def leaky(function):
    class Leaky(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(function(self.layer(x)))

    return Leaky()


LEAKS = {
    "batch_mean": lambda h: h - h.mean(0),
    "batch_norm_by_hand": lambda h: (h - h.mean(0)) / (h.std(0) + 1e-5),
    "functional_batch_norm": lambda h: F.batch_norm(h, None, None, training=True),
    "rolled_over_samples": lambda h: h + 0.5 * h.roll(1, 0),
    "attention_over_samples": lambda h: (h @ h.t()).softmax(-1) @ h,
    "softmax_over_samples": lambda h: h.softmax(0),
    "cumulative_over_samples": lambda h: h.cumsum(0),
    "sorted_over_samples": lambda h: h.sort(0).values,
    "shuffled_over_samples": lambda h: h + 0.5 * h[torch.randperm(len(h))],
    "mixed_up_with_constants": lambda h: h + 0.5 * h[torch.randperm(len(h))].detach(),
    "shuffled_by_sorting_noise": lambda h: h + 0.5 * h[torch.rand(len(h)).argsort()],
    "max_over_samples": lambda h: h - h.max(0).values.detach() * h,
}


@pytest.mark.parametrize("name", LEAKS)
def test_samples_that_leak_into_each_other_are_refused(name):
    model, x = leaky(LEAKS[name]), torch.randn(6, 4)
    with pytest.raises(psac.NotIsolated):
        psac.per_sample_norms(model, squares, x)
    with pytest.raises(psac.NotIsolated), psac.Engine(model, loss_reduction="sum") as engine:
        squares(model, x).sum().backward()
    assert engine.num_samples == 0


def test_a_lazy_model_is_refused_until_its_parameters_have_shapes():
    model, x = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyLinear(2)), torch.randn(6, 4)
    with pytest.raises(psac.PrivacyError, match=r"0\.weight.*no shape yet. Run the model once"):
        psac.Engine(model).attach()
    model(x)
    with psac.Engine(model) as engine:
        model(x).square().sum(1).mean().backward()
        assert engine.num_samples == 6


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_model_is_refused_unless_it_is_a_part_of_another():
    scripted, x = torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.Tanh())), torch.randn(6, 4)
    for _ in range(2):
        with pytest.raises(psac.PrivacyError, match=r"Put it into a module"):
            psac.Engine(scripted).attach()
    model = nn.Sequential(scripted)
    norms = psac.per_sample_norms(model, squares, x, method="loop")
    with psac.Engine(model, loss_reduction="sum") as engine:
        squares(model, x).sum().backward()
        torch.testing.assert_close(engine.norms, norms)


class Pairs(nn.Module):
    """How alike samples are, as contrastive losses compare them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        directions = F.normalize(self.layer(x))
        return directions @ directions.t()


def test_an_output_for_each_pair_of_samples_is_refused_with_the_reason():
    model, x = Pairs(), torch.randn(6, 4)
    reason = r"shape \[6, 6\] for 6 samples.*\[1, 1\].*pair"
    with pytest.raises(psac.NotIsolated, match=reason), psac.Engine(model):
        F.cross_entropy(model(x), torch.arange(6)).backward()


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), nn.SyncBatchNorm(3)]
)
def test_batch_norm_in_training_mode_is_refused_by_name(layer):
    model = nn.Sequential(nn.Linear(4, 3), nn.ModuleDict({"norm": layer})["norm"])
    with pytest.raises(psac.NotIsolated, match=r"BatchNorm.* at '1' mixes samples.*GroupNorm"):
        psac.Engine(model).attach()


def test_batch_norm_that_is_switched_to_training_later_is_noticed():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    with psac.Engine(model, loss_reduction="sum"):
        model(torch.randn(5, 4)).sum().backward()
        model.train()
        with pytest.raises(psac.NotIsolated, match="at '1'"):
            model(torch.randn(5, 4))


def test_running_statistics_of_private_samples_are_refused():
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.InstanceNorm1d(3, track_running_stats=True))
    before = model[1].running_mean.clone()
    with pytest.raises(psac.PrivacyError, match=r"buffer '1.running_mean'"):
        psac.per_sample_norms(model, squares, torch.randn(5, 2, 6))
    with psac.Engine(model), pytest.raises(psac.PrivacyError, match="running_mean"):
        model(torch.randn(5, 2, 6)).sum().backward()
    assert before.shape == model[1].running_mean.shape


def test_a_submodule_called_outside_the_forward_is_refused_by_name():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(5, 4)
    with psac.Engine(model), pytest.raises(psac.OutsideTheTape, match=r"'1\.(weight|bias)'"):
        (model(x).sum() + model[1](x).sum()).backward()
    assert all(p.grad is None for p in model[1].parameters())


def test_a_regulariser_outside_the_model_is_refused():
    model, x = nn.Linear(4, 4), torch.randn(5, 4)
    with psac.Engine(model), pytest.raises(psac.OutsideTheTape, match="weight_decay"):
        (model(x).sum() + model.weight.square().sum()).backward()


def test_a_regulariser_inside_the_model_is_refused_by_name():
    class Regularised(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x).square().mean() + self.layer.weight.square().sum()

    model = Regularised()
    with (
        psac.Engine(model),
        pytest.raises(psac.NotIsolated, match=r"'layer.weight' enters the loss without any sample"),
    ):
        model(torch.randn(5, 4)).backward()


def test_reentrant_checkpointing_is_refused():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return checkpoint(self.second, self.first(x), use_reentrant=True)

    model = Checkpointed()
    with psac.Engine(model), pytest.raises(psac.PrivacyError):
        model(torch.randn(5, 4)).sum().backward()


def test_a_second_backward_of_the_same_batch_is_refused():
    model, x = nn.Linear(4, 2), torch.randn(5, 4)
    with psac.Engine(model, loss_reduction="sum"):
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        with pytest.raises(psac.OutsideTheTape, match="second backward"):
            loss.backward()


def test_second_derivatives_are_refused():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(5, 4, requires_grad=True)
    with psac.Engine(model):
        with pytest.warns(psac.UnprotectedGradientWarning):
            out = model(x)
        with pytest.raises(psac.PrivacyError, match="create_graph"):
            torch.autograd.grad(out.sum(), x, create_graph=True)


def test_a_mean_over_tokens_inside_the_model_is_refused():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

        def forward(self, x):
            return F.cross_entropy(
                self.head(self.table(x)).flatten(0, 1), x.flatten(), ignore_index=0
            )

    torch.manual_seed(0)
    x = torch.randint(1, 7, (5, 6))
    x[0, 2:] = 0
    model = Tokens()
    with psac.Engine(model), pytest.raises(psac.NotIsolated, match="mean or sum over samples"):
        model(x).backward()


def test_a_loss_of_shape_n_1_is_refused_and_not_broadcast():
    model, x = nn.Linear(4, 1), torch.randn(5, 4)
    with pytest.raises(ValueError, match=r"shape \[5, 1\]; it must return one loss per sample"):
        psac.per_sample_norms(model, lambda m, x: m(x), x)
    with pytest.raises(ValueError, match=r"shape \[5, 5\]"):
        psac.per_sample_norms(model, lambda m, x: (m(x) - x[:, 0]).square(), x)


def test_forwards_of_different_samples_in_one_backward_are_refused():
    model = nn.Linear(4, 2)
    with psac.Engine(model), pytest.raises(psac.PrivacyError, match="same samples"):
        (model(torch.randn(5, 4)).sum() + model(torch.randn(3, 4)).sum()).backward()


def test_an_embedding_scaled_by_batch_frequency_is_refused():
    model = nn.Sequential(nn.Embedding(5, 3, scale_grad_by_freq=True), nn.Linear(3, 2))
    with pytest.raises(psac.PrivacyError, match="scale_grad_by_freq"):
        psac.per_sample_norms(model, squares, torch.randint(5, (4, 6)))


def test_an_embedding_with_max_norm_is_refused():
    model = nn.Sequential(nn.Embedding(5, 3, max_norm=0.5), nn.Linear(3, 2))
    with pytest.raises(psac.PrivacyError, match=r"max_norm at '0'"):
        psac.per_sample_norms(model, squares, torch.randint(5, (4, 6)))


def test_parameters_unfrozen_later_are_noticed():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.randn(5, 4)
    model[0].requires_grad_(False)
    with psac.Engine(model, loss_reduction="sum"):
        model(x).sum().backward()
        model[0].requires_grad_(True)
        with pytest.raises(psac.PrivacyError, match=r"0\.bias"):
            model(x)


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(psac.PrivacyError, match="nothing to train"):
        psac.Engine(nn.Linear(2, 2).requires_grad_(False)).attach()


@pytest.mark.parametrize("setting", [{"loss_reduction": "average"}, {"method": "fast"}])
def test_unknown_settings_are_refused(setting):
    with pytest.raises(ValueError, match=r"is unknown\. Known:"):
        psac.Engine(nn.Linear(2, 2), **setting)


def test_check_raises_nothing_and_says_why():
    report = psac.check(leaky(LEAKS["batch_mean"]), squares, torch.randn(6, 4))
    assert not report.ok
    assert not report.isolated
    assert "leak into each other" in str(report)
    report = psac.check(nn.Linear(4, 2), lambda m, x: 1 / 0, torch.randn(6, 4))
    assert not report.ok
    assert "ZeroDivisionError" in str(report)


def test_check_shows_every_parameter_its_rule_and_the_cost():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 10))
    report = psac.check(model, squares, torch.randn(6, 1, 6, 6))
    assert report.ok
    assert report.isolated
    assert report.error < 1e-4
    assert {row.rule for row in report.rows} == {"convolution", "group_norm", "addmm"}
    assert sum(row.count for row in report.rows) == len(list(model.parameters()))
    text = str(report)
    for part in (
        "0.weight",
        "4x1x3x3",
        "distance to a plain loop",
        "ordinary",
        "samples are isolated",
    ):
        assert part in text
