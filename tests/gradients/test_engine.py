"""The engine on a model: what users rely on when they call backward themselves."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import psac
from tests import oracles
from tests.gradients.cases import CASES, squares

BIG = psac.Custom(lambda norms: torch.ones_like(norms), bound=1e9)  # weights of one: the plain sum


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data(n: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 4), torch.randint(3, (n,))


def close(first: dict, second: dict, tolerance: float = 1e-5) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=tolerance, atol=tolerance)


def reference(model, x, y, rule=None) -> dict[str, torch.Tensor]:
    def losses(m, batch):
        return F.cross_entropy(m(batch[0]), batch[1], reduction="none")

    return psac.weighted_gradient(model, losses, (x, y), rule or psac.PSAC(), method="loop")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_gives_the_sum_of_weighted_gradients(reduction):
    model, (x, y) = network(), data()
    with psac.Engine(model, loss_reduction=reduction) as engine:
        F.cross_entropy(model(x), y, reduction=reduction).backward()
        close(engine.collect(), reference(model, x, y))


def test_physical_batches_add_up_to_the_logical_batch():
    model, (x, y) = network(), data(11)
    with psac.Engine(model) as engine:
        for part in (slice(0, 4), slice(4, 5), slice(5, 11)):
            F.cross_entropy(model(x[part]), y[part]).backward()
        assert engine.num_samples == 11
        close(engine.collect(), reference(model, x, y))
        assert engine.num_samples == 0
        assert all(bool((g == 0).all()) for g in engine.collect().values())


def test_weights_of_one_give_the_ordinary_gradient():
    model, (x, y) = network(), data()
    with psac.Engine(model, clipping=BIG) as engine:
        F.cross_entropy(model(x), y).backward()
        sums = engine.collect()
    F.cross_entropy(model(x), y, reduction="sum").backward()
    close(sums, {name: p.grad for name, p in model.named_parameters()})


def test_the_model_is_the_users_own_and_is_given_back_untouched():
    model, (x, y) = network(), data()
    keys, before = list(model.state_dict()), copy.deepcopy(model.state_dict())
    engine = psac.Engine(model).attach()
    out = model(x)
    assert list(model.state_dict()) == keys
    assert isinstance(out, torch.Tensor)
    F.cross_entropy(out, y).backward()
    assert all(p.grad is None for p in model.parameters())
    engine.detach()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    F.cross_entropy(model(x), y).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_copy_of_the_model_is_an_ordinary_model():
    model, (x, y) = network(), data()
    with psac.Engine(model) as engine:
        F.cross_entropy(model(x), y).backward()
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            assert torch.equal(twin(x), model(x))
            F.cross_entropy(twin(x), y).backward()
            assert all(p.grad is not None for p in twin.parameters())
        assert engine.num_samples == len(x)


def test_evaluation_costs_and_records_nothing():
    model, (x, _) = network(), data()
    with psac.Engine(model) as engine:
        with torch.no_grad():
            model(x)
        model.eval()(x)
        assert engine.num_samples == 0
        assert not engine.plans


def test_two_forwards_in_one_backward_are_one_gradient_per_sample():
    model, (x, y) = network(), data()

    def both(m, batch):
        first, second = m(batch[0]), m(batch[0].flip(1))
        return F.cross_entropy(first, batch[1], reduction="none") + second.square().sum(1)

    expected = psac.weighted_gradient(model, both, (x, y), psac.PSAC(), method="loop")
    with psac.Engine(model, loss_reduction="sum") as engine:
        both(model, (x, y)).sum().backward()
        close(engine.collect(), expected)


def test_two_forwards_with_shared_general_sources_are_joined_too():
    torch.manual_seed(0)
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    x = torch.randn(6, 4)

    def both(m, x):
        return m(x).square().sum(1) + m(x.flip(1)).sin().sum(1)

    expected = psac.weighted_gradient(model, both, x, psac.PSAC(), method="loop")
    with psac.Engine(model, loss_reduction="sum") as engine:
        both(model, x).sum().backward()
        close(engine.collect(), expected)


def test_a_chain_of_two_forwards_is_one_gradient():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), torch.randn(6, 4)

    def chained(m, x):
        return m(m(x).tanh()).square().sum(1)

    expected = psac.weighted_gradient(model, chained, x, psac.PSAC(), method="loop")
    with psac.Engine(model, loss_reduction="sum") as engine:
        chained(model, x).sum().backward()
        close(engine.collect(), expected)


def test_gradients_pass_through_to_tensors_outside_the_model():
    model, (x, y) = network(), data()
    outside = nn.Linear(4, 4)
    F.cross_entropy(model(outside(x)), y).backward()
    expected = outside.weight.grad.clone()
    outside.zero_grad(), model.zero_grad()
    prompt = torch.randn(4, requires_grad=True)
    with psac.Engine(model) as engine:
        with pytest.warns(psac.UnprotectedGradientWarning, match="to 2 tensors outside it"):
            loss = F.cross_entropy(model(outside(x)), y)
        loss.backward()
        torch.testing.assert_close(outside.weight.grad, expected)
        F.cross_entropy(model(x + prompt), y).backward()
        assert prompt.grad is not None
        assert engine.num_samples == 2 * len(x)


def test_two_private_models_at_once_stay_apart():
    (x, y), generator, judge = data(), network(), nn.Linear(3, 2)
    with psac.Engine(generator) as first, psac.Engine(judge) as second:
        F.cross_entropy(judge(generator(x)), y % 2).backward()
        one, two = first.collect(), second.collect()

    def losses(m, batch):
        return F.cross_entropy(m[1](m[0](batch[0])), batch[1] % 2, reduction="none")

    both = nn.ModuleList([generator, judge])
    norms = psac.per_sample_norms(both, losses, (x, y), method="loop")
    assert norms.shape == (7,)
    judge.requires_grad_(False)
    close(
        {f"0.{k}": v for k, v in one.items()},
        psac.weighted_gradient(both, losses, (x, y), psac.PSAC(), method="loop"),
    )
    judge.requires_grad_(True), generator.requires_grad_(False)
    close(
        {f"1.{k}": v for k, v in two.items()},
        psac.weighted_gradient(both, losses, (x, y), psac.PSAC(), method="loop"),
    )


def test_a_sample_with_a_non_finite_gradient_adds_nothing_and_spoils_nothing():
    model, (x, y) = network(), data()
    clean = reference(model, x[1:], y[1:])
    for bad in (float("inf"), float("nan"), -float("inf")):
        spoilt = x.clone()
        spoilt[0, 0] = bad
        with psac.Engine(model) as engine:
            F.cross_entropy(model(x), y).backward()  # the plan is proved on clean data
            engine.discard()
            F.cross_entropy(model(spoilt), y).backward()
            close(engine.collect(), clean)
        functional = psac.weighted_gradient(
            model,
            lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"),
            (spoilt, y),
            psac.PSAC(),
        )
        close(functional, clean)


@pytest.mark.parametrize(
    "name", ["conv2d_groups", "embedding", "layer_norm", "linear_on_3d", "tied_embedding_and_head"]
)
def test_a_non_finite_sample_is_dropped_by_every_kind_of_contribution(name):
    torch.manual_seed(0)
    model, batch, loss_fn, _, n = CASES[name]()

    def loss(m, b):
        x, factor = b
        return loss_fn(m, x) * factor

    factor = torch.ones(n)
    factor[2] = float("inf")
    keep = [k for k in range(n) if k != 2]
    close(
        psac.weighted_gradient(model, loss, (batch, factor), psac.PSAC()),
        psac.weighted_gradient(
            model, loss, (batch[keep], factor[keep]), psac.PSAC(), method="loop"
        ),
    )


def test_no_sample_adds_more_than_the_bound_whatever_the_rule_says():
    model, (x, y) = network(), data()
    greedy = psac.Custom(lambda norms: norms * 1e6 + 1e6, bound=0.5)
    for k in range(len(x)):
        with psac.Engine(model, clipping=greedy) as engine:
            F.cross_entropy(model(x[k : k + 1]), y[k : k + 1]).backward()
            total = torch.cat([g.flatten() for g in engine.collect().values()]).norm()
        assert float(total) <= 0.5


def test_dropout_is_coped_with_and_each_sample_keeps_its_own_mask():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3)).train()
    x, y = data()
    with psac.Engine(model, clipping=BIG) as engine:
        F.cross_entropy(model(x), y).backward()
        engine.discard()
        torch.manual_seed(3)
        F.cross_entropy(model(x), y).backward()
        sums = engine.collect()
    torch.manual_seed(3)
    F.cross_entropy(model(x), y, reduction="sum").backward()
    close(sums, {name: p.grad for name, p in model.named_parameters()}, 1e-4)


def test_the_proof_leaves_the_random_stream_as_it_was():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    x, y = data()
    with psac.Engine(model):
        torch.manual_seed(1)
        F.cross_entropy(model(x), y).backward()
        after = torch.rand(3)
    torch.manual_seed(1)
    model(x)
    assert torch.equal(after, torch.rand(3))


def test_autocast_bfloat16_stays_within_the_bound_and_near_the_loop():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))
    x, y = torch.randn(6, 5, 16), torch.randint(3, (6,))

    def losses(m, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(m(batch[0]).mean(1), batch[1], reduction="none")

    gradients = oracles.loop_gradients(model, losses, (x, y), oracles.take_first, 6)
    norms = psac.per_sample_norms(model, losses, (x, y))
    assert norms.dtype == torch.float32
    torch.testing.assert_close(norms.double(), oracles.norms(gradients), rtol=2e-2, atol=1e-4)
    with psac.Engine(model) as engine:
        for k in range(6):
            losses(model, (x[k : k + 1], y[k : k + 1])).mean().backward()
            total = torch.cat([g.flatten() for g in engine.collect().values()]).norm()
            assert float(total) <= 1.0
        losses(model, (x, y)).mean().backward()
        assert engine.num_samples == 6


def test_inner_losses_of_a_model_are_served_when_they_are_means_over_samples():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    model, (x, y) = WithLoss(), data()
    with psac.Engine(model) as engine:
        model(x, labels=y)["loss"].backward()
        sums = engine.collect()
    close(sums, {f"net.{k}": v for k, v in reference(model.net, x, y).items()})


def test_batches_of_all_sizes_share_one_plan():
    model = network()
    with psac.Engine(model) as engine:
        for n in (1, 2, 3, 5, 64):
            x, y = data(n)
            F.cross_entropy(model(x), y).backward()
            close(engine.collect(), reference(model, x, y))
        assert len(engine.plans) == 1


def test_sequences_of_another_length_share_the_plan():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(9, 4), nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    )
    with psac.Engine(model, loss_reduction="sum") as engine:
        for length in (5, 3, 8):
            x = torch.randint(9, (4, length))
            squares(model, x).sum().backward()
            close(
                engine.collect(),
                psac.weighted_gradient(model, squares, x, psac.PSAC(), method="loop"),
                1e-4,
            )
        assert len(engine.plans) == 1


def test_the_batch_dimension_can_be_stated():
    torch.manual_seed(0)
    model, x = nn.GRU(4, 3), torch.randn(6, 5, 4)

    def losses(m, x):
        return m(x)[0].square().sum((0, 2))

    with psac.Engine(model, loss_reduction="sum", batch_dim=1) as engine:
        losses(model, x).sum().backward()
        assert engine.num_samples == 5
        close(
            engine.collect(),
            psac.weighted_gradient(model, losses, x, psac.PSAC(), method="loop"),
            1e-4,
        )


@pytest.mark.parametrize("name", ["packed_lstm", "mixture_of_experts"])
def test_the_loop_serves_what_no_plan_can_and_says_so(name):
    torch.manual_seed(0)
    model, batch, _, _, n = CASES[name]()
    inputs = batch if isinstance(batch, tuple) else (batch,)
    with psac.Engine(model, loss_reduction="sum") as engine:
        with pytest.warns(psac.SlowPathWarning):
            model(*inputs).flatten(1).square().sum().backward()
        assert engine.num_samples == n
        assert float(engine.norms.min()) > 0


def test_an_exception_in_a_backward_leaves_the_engine_usable():
    model, (x, y) = network(), data()

    def explode(_):
        raise KeyError("from the user's own hook")

    with psac.Engine(model) as engine:
        inner = x.clone().requires_grad_()
        inner.register_hook(explode)
        with pytest.warns(psac.UnprotectedGradientWarning):
            loss = F.cross_entropy(model(inner), y)
        with pytest.raises(KeyError):
            loss.backward()
        engine.discard()
        F.cross_entropy(model(x), y).backward()
        close(engine.collect(), reference(model, x, y))


# Groups of parameters, each with a rule of its own
GROUPED = {"0.*": psac.PSAC(bound=0.5), "*": psac.Abadi(bound=2.0)}


@pytest.mark.parametrize("method", ["auto", "loop"])
def test_groups_are_clipped_each_by_its_own_norm(method):
    model, (x, y) = network(), data()
    gradients = oracles.loop_gradients(
        model,
        lambda m, batch: F.cross_entropy(m(batch[0]), batch[1], reduction="none"),
        (x, y),
        oracles.take_first,
        len(x),
    )
    expected = {}
    for prefix, rule in (("0.", GROUPED["0.*"]), ("2.", GROUPED["*"])):
        parts = [{k: g for k, g in one.items() if k.startswith(prefix)} for one in gradients]
        norms = oracles.norms(parts).float()
        weights = [min(w, rule.bound / n) for w, n in zip(rule.weights(norms), norms, strict=True)]
        expected |= oracles.weighted_sum(parts, [float(w) for w in weights])
    with psac.Engine(model, clipping=GROUPED, method=method) as engine:
        F.cross_entropy(model(x), y).backward()
        assert engine.norms.shape == engine.weights.shape == (2, len(x))
        sums = engine.collect()
        assert engine.sensitivities == {
            "0.weight": 0.5,
            "0.bias": 0.5,
            "2.weight": 2.0,
            "2.bias": 2.0,
        }
    close(sums, {name: expected[name].float() for name in sums})


def test_groups_that_leave_a_parameter_out_or_fit_none_are_refused():
    with pytest.raises(ValueError, match=r"no clipping rule is given for .*2\.bias"):
        psac.Engine(network(), clipping={"0.*": psac.PSAC()}).attach()
    with pytest.raises(ValueError, match=r"\['head\.\*'\] fit no parameter"):
        psac.Engine(network(), clipping={"*": psac.PSAC(), "head.*": psac.PSAC()}).attach()


def test_parameters_that_are_measured_together_must_be_in_one_group():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    rules = {"*original0": psac.PSAC(), "*": psac.PSAC()}
    with (
        psac.Engine(model, clipping=rules, loss_reduction="sum"),
        pytest.raises(psac.PrivacyError, match="Clip them by one rule"),
    ):
        model(torch.randn(5, 4)).square().sum().backward()


def test_a_sample_that_is_not_finite_in_one_group_is_dropped_from_all():
    model, (x, y) = network(), data()
    with psac.Engine(model, clipping=GROUPED) as engine:
        F.cross_entropy(model(x[1:]), y[1:]).backward()
        expected = engine.collect()
        x[0] = float("inf")
        F.cross_entropy(model(x), y).backward()
        close(engine.collect(), expected)


# What a loader has handed out
def test_the_expected_samples_have_one_backward_and_no_others():
    model, (x, y) = network(), data()
    with psac.Engine(model) as engine:
        engine.expect(len(x))
        F.cross_entropy(model(x), y).backward()
        loss = F.cross_entropy(model(x), y)
        with pytest.raises(psac.PrivacyError, match="a second backward on the same batch"):
            loss.backward()
        engine.expect(len(x))
        loss = F.cross_entropy(model(x.repeat(2, 1)), y.repeat(2))
        with pytest.raises(psac.PrivacyError, match=r"given 14 samples, private\.loader"):
            loss.backward()
        engine.expect(0)
        loss = F.cross_entropy(model(x), y)
        with pytest.raises(psac.PrivacyError, match=r"outside the loop over private\.loader"):
            loss.backward()
        assert engine.num_samples == len(x)


def test_the_expected_number_finds_the_samples_behind_a_mask():
    class Masked(nn.Linear):
        def forward(self, mask, x):
            return super().forward(x @ mask)

    model, (x, y) = Masked(4, 3), data()
    with psac.Engine(model) as engine:
        engine.expect(len(x))
        F.cross_entropy(model(torch.eye(4), x), y).backward()
        assert engine.num_samples == len(x)
