"""The clipping rules against plain formulas, their limits, and the bound that no rule may pass."""

import contextlib
import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psac import NSGD, PSAC, Abadi, AutoS, AutoV, ClippingRule, Custom, PrivacyError
from psac.clipping import rules as clipping
from psac.clipping.own_rules import probes
from psac.clipping.rules import SHRINK, safe_weights

FLOAT32_MAX = torch.finfo(torch.float32).max
PROBES = probes(torch.zeros(())).tolist()
GRID = torch.cat([torch.zeros(1, dtype=torch.float64), torch.logspace(-6, 6, 4001).double()])

# A rule, and the same function of one Python number as its paper prints it.
FORMULAS = [
    (PSAC(), lambda n: 1 / (n + 0.1 / (n + 0.1))),
    (PSAC(r=3.0, bound=0.5), lambda n: 0.5 / (n + 3 / (n + 3))),
    (PSAC(r=0.01, bound=2.0, scale=5.0), lambda n: 2 / (n + 25 * 0.01 / (n + 5 * 0.01))),
    (AutoS(), lambda n: 1 / (n + 0.01)),
    (AutoS(r=0.1, bound=3.0, scale=0.2), lambda n: 3 / 0.2 / (n / 0.2 + 0.1)),
    (NSGD(), lambda n: 1 / (n + 0.01)),
    (NSGD(r=0.1, bound=3.0), lambda n: 3 / (n + 0.1)),
    (AutoV(bound=2.0), lambda n: 2 / n if n else 0.0),
    (Abadi(bound=0.7), lambda n: min(1, 0.7 / n) if n else 1.0),
    (Custom(lambda norms: 1 / (1 + norms), bound=1.0), lambda n: 1 / (1 + n)),
]
RULES = [rule for rule, _ in FORMULAS]
NAMES = [f"{type(rule).__name__}-{k}" for k, rule in enumerate(RULES)]  # the same in each process


@dataclasses.dataclass(frozen=True)
class Broken:
    """A user's rule without any checks of its own."""

    answer: object
    bound: float = 1.0

    def weights(self, norms):
        return self.answer(norms) if callable(self.answer) else self.answer


def contributions(rule, norms):
    """Weight times norm in float64, where the product of two float32 numbers is exact."""
    return safe_weights(rule, norms).double() * norms.double()


# ---- The functions themselves


@pytest.mark.parametrize("rule, formula", FORMULAS, ids=NAMES)
def test_a_rule_is_the_formula_of_its_paper(rule, formula):
    expected = torch.tensor([formula(n) for n in GRID.tolist()], dtype=torch.float64)
    torch.testing.assert_close(rule.weights(GRID), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(
        rule.weights(GRID.float()), expected, rtol=1e-6, atol=0, check_dtype=False
    )


@pytest.mark.parametrize("rule, formula", FORMULAS, ids=NAMES)
def test_safe_weights_change_a_good_rule_by_less_than_the_margin(rule, formula):
    expected = torch.tensor([formula(n) for n in GRID.tolist()], dtype=torch.float64)
    torch.testing.assert_close(safe_weights(rule, GRID), expected, rtol=1.001 * SHRINK, atol=0)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_any_batch_size_gives_one_finite_weight_each(rule, size):
    weights = safe_weights(rule, torch.zeros(size))
    assert weights.shape == (size,)
    assert weights.isfinite().all()


def test_the_defaults_are_those_of_the_papers():
    assert PSAC() == PSAC(r=0.1, bound=1.0, scale=1.0)
    assert AutoS() == AutoS(r=0.01, bound=1.0, scale=1.0)
    assert NSGD() == NSGD(r=0.01, bound=1.0)
    assert (AutoV().bound, Abadi().bound) == (1.0, 1.0)


# ---- What is proved about PSAC


@pytest.mark.parametrize("r, norm, weight", [(0.01, 0.09, 5.263), (0.1, 0.216, 1.878)])
def test_psac_peak_has_the_known_values(r, norm, weight):
    assert PSAC(r=r).peak() == pytest.approx((norm, weight), abs=5e-4)


@pytest.mark.parametrize("r", [1e-6, 0.01, 0.1, 0.5, 0.999, 1.0, 1.001, 2.0, 4.0, 4.5, 100.0])
@pytest.mark.parametrize("bound, scale", [(1.0, 1.0), (0.3, 7.0)])
def test_no_psac_weight_exceeds_the_peak_and_the_peak_is_reached(r, bound, scale):
    rule = PSAC(r=r, bound=bound, scale=scale)
    norm, weight = rule.peak()
    assert rule.weights(torch.tensor([norm], dtype=torch.float64)).item() == pytest.approx(weight)
    assert rule.weights(GRID).max().item() <= weight * (1 + 1e-12)
    assert (norm > 0) == (r < 1)


@pytest.mark.parametrize("rule", [PSAC(), PSAC(r=5.0, bound=0.1), PSAC(r=1e-3, scale=40.0)])
def test_psac_contribution_rises_from_zero_towards_the_bound(rule):
    parts = rule.weights(GRID) * GRID
    assert parts[0] == 0
    assert (parts.diff() > 0).all()
    assert (parts < rule.bound).all()
    assert parts[-1].item() == pytest.approx(rule.bound, rel=1e-4)
    assert rule.weights(GRID[:1]).item() == pytest.approx(rule.bound / rule.scale)


def test_psac_with_r_to_zero_is_pure_normalisation():
    norms = GRID[1:]
    torch.testing.assert_close(
        PSAC(r=1e-24).weights(norms), AutoV().weights(norms), rtol=1e-11, atol=0
    )


def test_psac_with_r_to_infinity_is_auto_s_with_one():
    torch.testing.assert_close(
        PSAC(r=1e18).weights(GRID), AutoS(r=1).weights(GRID), rtol=1e-11, atol=0
    )


@pytest.mark.parametrize("r", [0.01, 0.1, 0.9, 1.0, 3.0])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_psac_weighs_more_than_auto_s_exactly_above_one_minus_r(r, scale):
    more = PSAC(r=r, scale=scale).weights(GRID) > AutoS(r=r, scale=scale).weights(GRID)
    distance = GRID - scale * (1 - r)
    decided = (distance.abs() > 1e-9) & (GRID < 1e4)  # Elsewhere the two differ by rounding alone.
    assert torch.equal(more[decided], distance[decided] > 0)


@pytest.mark.parametrize("r", [0.01, 0.1, 0.5])
def test_auto_s_with_the_matched_r_has_the_largest_weight_of_psac(r):
    matched = AutoS(r=2 * math.sqrt(r) - r)
    assert matched.weights(GRID).max().item() == pytest.approx(PSAC(r=r).peak()[1])


@pytest.mark.parametrize("rule", [PSAC(), PSAC(r=2.0), AutoS()], ids=repr)
def test_multiplying_norms_and_scale_by_k_divides_the_weights_by_k(rule):
    for k in (1e-3, 0.25, 3.0, 1e5):
        scaled = dataclasses.replace(rule, scale=k * rule.scale)
        torch.testing.assert_close(
            scaled.weights(k * GRID), rule.weights(GRID) / k, rtol=1e-13, atol=0
        )
    exact = dataclasses.replace(rule, scale=8.0)  # A power of two leaves no rounding.
    assert torch.equal(exact.weights(8 * GRID.float()), rule.weights(GRID.float()) / 8)


def iterates(rule, learning_rate, num_steps=30):
    """Noisy SGD on a logistic regression, with per-sample gradients written out."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 5, generator=generator, dtype=torch.float64)
    signs = torch.randn(64, generator=generator, dtype=torch.float64).sign()
    parameters = [torch.zeros(5, dtype=torch.float64)]
    for _ in range(num_steps):
        slopes = -signs * torch.sigmoid(-signs * (inputs @ parameters[-1]))
        gradients = slopes[:, None] * inputs
        total = safe_weights(rule, gradients.norm(dim=1)) @ gradients
        noise = torch.randn(5, generator=generator, dtype=torch.float64)
        parameters.append(parameters[-1] - learning_rate * (total + rule.bound * noise) / 64)
    return torch.stack(parameters)


@pytest.mark.parametrize("rule", [PSAC(), PSAC(r=0.01, scale=0.3), AutoS(), NSGD(), AutoV()])
def test_bound_and_learning_rate_are_one_setting_for_all_but_abadi(rule):
    eighth = iterates(dataclasses.replace(rule, bound=0.125), learning_rate=4.0)
    assert torch.equal(eighth, iterates(rule, learning_rate=0.5))
    tenth = iterates(dataclasses.replace(rule, bound=0.1), learning_rate=4.0)
    torch.testing.assert_close(tenth, iterates(rule, learning_rate=0.4), rtol=1e-10, atol=1e-12)


def test_bound_and_learning_rate_are_two_settings_for_abadi():
    apart = iterates(Abadi(0.125), learning_rate=4.0) - iterates(Abadi(1.0), learning_rate=0.5)
    assert apart.abs().max() > 0.01


def test_abadi_with_a_huge_bound_is_plain_sgd():
    norms = torch.tensor([0.0, 1e-30, 1.0, 1e20])
    for bound in (1e30, 1e300):
        assert torch.equal(safe_weights(Abadi(bound), norms), torch.ones(4))


# ---- The bound, whatever comes in

positive = st.floats(-45, 38).map(lambda exponent: 10.0**exponent)
norms32 = st.lists(
    st.floats(0, FLOAT32_MAX, width=32, allow_subnormal=True), min_size=1, max_size=30
)
norms64 = st.lists(st.floats(0, 1.7e308, allow_subnormal=True), min_size=1, max_size=30)
any_rule = st.one_of(
    st.builds(PSAC, r=positive, bound=positive, scale=positive),
    st.builds(AutoS, r=positive, bound=positive, scale=positive),
    st.builds(NSGD, r=positive, bound=positive),
    st.builds(AutoV, bound=positive),
    st.builds(Abadi, bound=positive),
    st.builds(Broken, st.just(lambda norms: torch.full_like(norms, math.inf)), positive),
)


@settings(deadline=None, max_examples=400)
@given(any_rule, norms32)
@example(AutoV(), [0.0, 1e-45, 1e-38, 1e-20, 1.0, FLOAT32_MAX])
@example(PSAC(r=1e-45), [0.0, 1e-45, 1e-30, FLOAT32_MAX])
@example(AutoV(bound=1e-5), [FLOAT32_MAX, 3e38, 2.9e38])  # The weights are denormal.
@example(AutoV(bound=1.01), [5.0, 10.0, 77.0])  # float32 rounds the limit up.
def test_float32_contributions_never_exceed_the_bound(rule, values):
    norms = torch.tensor(values)
    weights = safe_weights(rule, norms)
    assert weights.dtype == torch.float32
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    assert (contributions(rule, norms) <= rule.bound * (1 - SHRINK)).all()
    assert (weights * norms <= torch.tensor(rule.bound)).all()


@settings(deadline=None, max_examples=200)
@given(any_rule, norms64)
def test_float64_contributions_never_exceed_the_bound(rule, values):
    norms = torch.tensor(values, dtype=torch.float64)
    weights = safe_weights(rule, norms)
    assert weights.dtype == torch.float64
    assert weights.isfinite().all()
    assert (contributions(rule, norms) <= rule.bound * (1 - SHRINK)).all()


@settings(deadline=None, max_examples=200)
@given(
    st.builds(PSAC, r=positive, bound=positive, scale=positive),
    st.lists(st.floats(2**-20, 2**20, width=32), min_size=1, max_size=30),
)
@example(PSAC(scale=1e-35), [1e5])  # n / s is above float32
@example(PSAC(r=1e-30, scale=1e-10), [1e5])  # r / (n / s + r) is below it
def test_psac_in_float32_agrees_with_float64_for_any_settings(rule, values):
    norms = torch.tensor(values)
    expected = rule.weights(norms.double())
    exact = (expected > 1e-37) & (expected < 1e37) & (rule.bound > 1e-37) & (rule.bound < 1e37)
    torch.testing.assert_close(
        rule.weights(norms)[exact].double(), expected[exact], rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("rule", [AutoV(), AutoV(bound=0.1), Abadi(bound=0.1), PSAC(r=1e-9)])
def test_weighted_float32_gradients_pass_the_bound_without_the_shrink_and_not_with_it(rule):
    gradients = torch.randn(4000, 100, generator=torch.Generator().manual_seed(1))
    norms = gradients.norm(dim=1)

    def overshoot(weights):
        longest = (weights[:, None] * gradients).double().norm(dim=1).max().item()
        return longest / rule.bound - 1

    assert 0 < overshoot(rule.weights(norms)) < SHRINK / 2
    assert overshoot(safe_weights(rule, norms)) < 0


@pytest.mark.parametrize("magnitude", [1e-45, 1e-38, 1e-25, 1e-23, 1e-22, 1e-20, 1e-18, 1e-13])
def test_gradients_whose_squares_underflow_stay_below_the_bound(magnitude):
    gradients = torch.full((1, 10_000), magnitude)
    norms = gradients.square().sum(dim=1).sqrt()
    for rule in (AutoV(), Custom(lambda norms: 1 / norms, bound=1.0)):
        weighted = safe_weights(rule, norms).double() * gradients.double().norm(dim=1)
        assert weighted.item() <= rule.bound


@pytest.mark.parametrize("others", [[], [math.inf]])
def test_a_rule_that_writes_into_the_norms_is_held_to_its_bound_all_the_same(others):
    class Writes:
        bound = 1.0

        def weights(self, norms):
            return norms.fill_(0.5)

    norms = torch.tensor([0.1, 40.0, *others])
    assert (safe_weights(Writes(), norms) * norms)[:2].max() <= 1.0
    assert norms.tolist()[1:] == [40.0, *others]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_sample_that_is_not_finite_gets_weight_zero_and_spares_the_others(rule):
    norms = torch.tensor([0.5, math.inf, 2.0, math.nan])
    weights = safe_weights(rule, norms)
    assert weights[[1, 3]].tolist() == [0.0, 0.0]
    assert torch.equal(weights[[0, 2]], safe_weights(rule, norms[[0, 2]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, Custom)], ids=repr)
def test_half_precision_norms_are_weighed_in_float32(rule, dtype):
    norms = torch.tensor([0.0, 1e-3, 0.3, 1.0, 999.0], dtype=dtype)
    assert torch.equal(rule.weights(norms), rule.weights(norms.float()))
    assert torch.equal(safe_weights(rule, norms), safe_weights(rule, norms.float()))
    assert safe_weights(rule, norms).dtype == torch.float32


def test_a_rule_is_never_shown_a_norm_that_is_not_finite():
    seen = []
    rule = Broken(lambda norms: seen.append(float(norms)) or torch.ones_like(norms))
    safe_weights(rule, torch.tensor([0.5, math.inf, math.nan]))
    assert 0.5 in seen
    assert all(map(math.isfinite, seen))


def test_safe_weights_carry_no_gradient():
    assert not safe_weights(PSAC(), torch.ones(3, requires_grad=True)).requires_grad


# ---- A user's own rule


def test_any_object_with_a_bound_and_weights_is_a_rule():
    assert all(isinstance(rule, ClippingRule) for rule in [*RULES, Broken(1)])
    assert not isinstance(object(), ClippingRule)


@pytest.mark.parametrize("answer", [torch.ones_like, lambda norms: norms, lambda norms: 1 / norms])
def test_weights_that_are_too_large_are_cut_to_the_bound(answer):
    norms = torch.tensor([0.0, 1e-30, 0.5, 3.0, 1e30])
    for rule in (Broken(answer, bound=0.5), Custom(answer, bound=0.5)):
        assert safe_weights(rule, norms).isfinite().all()
        assert (contributions(rule, norms) <= 0.5 * (1 - SHRINK)).all()
        assert contributions(rule, norms)[-1].item() == pytest.approx(0.5, rel=1e-5)


def test_weights_of_another_dtype_are_converted():
    rule = Broken(lambda norms: torch.ones(norms.shape, dtype=torch.int64), bound=10.0)
    assert torch.equal(safe_weights(rule, torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize(
    "answer, message",
    [
        (
            lambda norms: norms * math.nan,
            r"gives NaN as the weight of a norm.*must be numbers >= 0",
        ),
        (lambda norms: -norms, r"gives a negative number as the weight.*must be numbers >= 0"),
        (lambda norms: norms.mean(), r"norms of shape \(1,\) into weights of shape \(\)"),
        (lambda norms: norms[:, None], r"weights of shape \(1, 1\)"),
        (lambda norms: 0.5, r"weights of 0\.5.*one weight for each norm"),
    ],
    ids=["nan", "negative", "scalar", "column", "number"],
)
def test_weights_that_make_no_sense_are_refused(answer, message):
    for rule in (Broken(answer), Custom(answer, bound=1.0)):
        with pytest.raises(ValueError, match=message):
            safe_weights(rule, torch.tensor([2.0, 3.0]))


LOOK_AROUND = {
    "mean": lambda norms: 1 / (norms + norms.mean()),
    "largest": lambda norms: torch.ones_like(norms) / norms.max(),
    "smallest": lambda norms: torch.ones_like(norms) * norms.min(),
    "quantile": lambda norms: 0.1 * (norms.quantile(0.9) / norms).clamp(max=1.0),
    "size": lambda norms: 1 / (norms * len(norms)),
    "place": lambda norms: 1 / (norms * (1 + torch.arange(len(norms)))),
    "neighbour": lambda norms: 1 / (norms + norms.roll(1)),
    "a little": lambda norms: (1 - 1e-3 * norms.mean() / norms.max()) / (1 + norms),
}


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 0.5, 7.0], [2.0, math.inf], [0.3], []])
@pytest.mark.parametrize("name", LOOK_AROUND)
def test_a_rule_that_looks_at_other_samples_is_refused(name, values):
    for rule in (Custom(LOOK_AROUND[name], bound=1.0), Broken(LOOK_AROUND[name])):
        with pytest.raises(PrivacyError, match=r"not the sensitivity.*from its own norm"):
            safe_weights(rule, torch.tensor(values))


def test_the_weight_of_a_norm_is_that_of_the_norm_alone():
    """Also for a rule that finds out when it is shown the public norms that it is tested on."""

    def looks_around_in_secret(norms):
        return 1 / (norms + (norms.mean() if len(norms) > len(PROBES) else norms))

    norms = torch.linspace(1, 40, 30)
    weights = safe_weights(Custom(looks_around_in_secret, bound=1.0), norms)
    torch.testing.assert_close(weights, 1 / (2 * norms))


class Attribute:
    """Remembers in itself; `step(memory, norm)` gives the memory after a norm."""

    bound = 1.0

    def __init__(self, step):
        self.step, self.memory = step, 1.0

    def weights(self, norms):
        self.memory = self.step(self.memory, norms)
        return 1 / (norms + self.memory)


def in_a_closure(step):
    memory = 1.0

    def weights(norms):
        nonlocal memory
        memory = step(memory, norms)
        return 1 / (norms + memory)

    return Custom(weights, bound=1.0)


everywhere = {}


def in_a_global(step):
    everywhere["memory"] = 1.0

    def weights(norms):
        everywhere["memory"] = step(everywhere["memory"], norms)
        return 1 / (norms + everywhere["memory"])

    return Custom(weights, bound=1.0)


def in_a_default(step):
    def weights(norms, memory=[1.0]):  # noqa: B006 - the point
        memory.append(step(memory[-1], norms))
        return 1 / (norms + memory[-1])

    return Custom(weights, bound=1.0)


MEMORIES = {
    "count": lambda memory, norms: memory + 1,
    "largest": lambda memory, norms: max(memory, float(norms)),
    "running mean": lambda memory, norms: 0.9 * memory + 0.1 * norms.item(),
    "largest as a tensor": lambda memory, norms: torch.as_tensor(memory).maximum(norms),
    "last as a tensor": lambda memory, norms: norms.detach().clone(),
}


@pytest.mark.parametrize("place", [Attribute, in_a_closure, in_a_global, in_a_default])
@pytest.mark.parametrize("name", MEMORIES)
def test_a_rule_with_a_memory_is_refused_before_it_sees_a_private_norm(name, place):
    shown = []

    def step(memory, norms):
        with contextlib.suppress(RuntimeError):  # under vmap there are no values to see
            shown.extend(norms.tolist())
        return MEMORIES[name](memory, norms)

    with pytest.raises(PrivacyError, match=r"has a memory|keeps a tensor"):
        safe_weights(place(step), torch.tensor([1.25, 2.25, 3.25]))
    assert shown
    assert not {1.25, 2.25, 3.25} & set(shown)


@pytest.mark.parametrize("as_a_tensor", [False, True])
def test_a_memory_that_shows_later_is_refused_when_it_does(as_a_tensor):
    class Patient:
        """Looks back after a hundred norms, and never at one that it was tested on."""

        bound, largest, seen = 1.0, 0.0, 0

        def weights(self, norms):
            self.seen += 1
            if self.seen > 200 and not as_a_tensor:
                self.largest = max(self.largest, float(norms))
            elif self.seen > 200:
                self.kept = norms
            return 1 / (1 + norms + self.largest)

    rule, released = Patient(), 0
    with pytest.raises(PrivacyError, match=r"has a memory|keeps a tensor"):  # noqa: PT012
        for _ in range(100):
            assert safe_weights(rule, torch.tensor([0.5, 3.0])).tolist() == pytest.approx(
                [1 / 1.5, 1 / 4]
            )
            released += 1
    assert 0 < released < 100


def test_a_memory_that_changes_no_public_norm_is_found_in_the_order_of_the_batch():
    largest = 1.0

    def weights(norms):
        nonlocal largest
        if float(norms) in PROBES:
            return 1 / (1 + norms)
        largest = max(largest, float(norms))
        return 1 / (largest + norms)

    with pytest.raises(PrivacyError, match="between two calls with the same norm"):
        safe_weights(Custom(weights, bound=1.0), torch.tensor([0.5, 3.0, 2.0]))


def test_a_rule_that_keeps_the_norms_for_a_plot_is_refused_with_the_place_to_find_them():
    history = []
    rule = Custom(lambda norms: history.append(norms) or 1 / (1 + norms), bound=1.0)
    with pytest.raises(PrivacyError, match=r"keeps a tensor.*private\.sensitive\.norms"):
        safe_weights(rule, torch.ones(3))


def test_a_setting_that_is_changed_within_a_run_is_refused():
    class Scheduled:
        bound, scale = 1.0, 1.0

        def weights(self, norms):
            return 1 / (self.scale + norms)

    rule = Scheduled()
    safe_weights(rule, torch.ones(3))
    rule.scale = 2.0
    with pytest.raises(PrivacyError, match="since the first step"):
        safe_weights(rule, torch.ones(3))
    assert safe_weights(Scheduled(), torch.ones(1)).tolist() == [0.5]


def by_cases(norms):
    if norms < 1:
        return norms.new_ones(1)
    return 0.5 / norms if norms < 10 else torch.zeros_like(norms)


INNOCENT = {
    "smooth": (lambda norms: 1 / (0.1 + norms.square()).sqrt(), lambda n: (0.1 + n**2) ** -0.5),
    "by where": (lambda norms: torch.where(norms < 2, 0.5, 1 / norms), lambda n: min(0.5, 1 / n)),
    "by cases": (by_cases, lambda n: 1.0 if n < 1 else 0.5 / n if n < 10 else 0.0),
    "by a list": (
        lambda norms: torch.tensor([math.tanh(n) / n for n in norms.tolist()]),
        lambda n: math.tanh(n) / n,
    ),
    "by numpy": (
        lambda norms: torch.from_numpy(np.minimum(1, 1 / norms.numpy())),
        lambda n: min(1, 1 / n),
    ),
    "by its length": (lambda norms: torch.ones(len(norms)) / 4, lambda n: 0.25),
    "by a table": (
        lambda norms: TABLE[torch.bucketize(norms, EDGES)],
        lambda n: 0.5 if n <= 1 else 0.1 if n <= 10 else 0.0,
    ),
}
TABLE, EDGES = torch.tensor([0.5, 0.1, 0.0]), torch.tensor([1.0, 10.0])


@pytest.mark.parametrize("name", INNOCENT)
def test_a_rule_of_single_norms_is_what_it_says_however_it_is_written(name):
    function, formula = INNOCENT[name]
    values = [0.25, 3.0, 0.75, 20.0, 0.5]
    expected = [min(formula(n), 1 / n) for n in values]
    for rule in (Custom(function, bound=1.0), Broken(function)):
        for _ in range(2):
            weights = safe_weights(rule, torch.tensor(values))
            assert weights.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_rule_without_branches_is_called_for_all_norms_at_once():
    calls = []
    rule = Custom(lambda norms: calls.append(tuple(norms.shape)) or 1 / (1 + norms), bound=1.0)
    safe_weights(rule, torch.ones(2))
    calls.clear()
    safe_weights(rule, torch.rand(5000))
    assert set(calls) == {(1,)}
    assert len(calls) == 1 + len(PROBES)


@settings(deadline=None)
@given(st.lists(st.floats(0, 2**100, width=32), min_size=1, max_size=40))
def test_a_rule_of_ones_own_that_looks_at_single_norms_is_accepted(values):
    for answer in (
        lambda norms: (1 - torch.exp(-norms)) / norms.clamp(min=1e-30),  # loses all its digits
        lambda norms: 1 / (0.1 + norms.square()).sqrt(),
        lambda norms: norms.pow(-0.7).clamp(max=100.0),
        lambda norms: (norms < 2.0).float(),
    ):
        assert len(safe_weights(Broken(answer), torch.tensor(values))) == len(values)


@pytest.mark.parametrize("bound", [math.nan, math.inf, 0.0, -1.0])
def test_the_bound_of_a_users_rule_is_checked_too(bound):
    with pytest.raises(ValueError, match="bound of Broken is "):
        safe_weights(Broken(torch.ones_like, bound), torch.ones(2))


# ---- Settings and names


@pytest.mark.parametrize("make", [PSAC, AutoS, NSGD, AutoV, Abadi])
def test_settings_must_be_finite_numbers_above_zero(make):
    for field in dataclasses.fields(make):
        for value in (0, 0.0, -1, -1e-9, math.nan, math.inf, -math.inf):
            with pytest.raises(ValueError, match=rf"{field.name} of {make.__name__} is "):
                make(**{field.name: value})
        for value in (True, "1", None, 1j, [1.0], torch.tensor(1.0)):
            with pytest.raises(TypeError, match="it must be a number"):
                make(**{field.name: value})


def test_settings_may_be_numpy_numbers():
    rule = PSAC(r=np.float64(0.1), bound=np.float32(0.5), scale=np.int64(2))
    assert rule == PSAC(r=0.1, bound=0.5, scale=2.0)
    assert type(rule.bound) is float


def test_a_custom_rule_needs_a_function_and_a_bound():
    with pytest.raises(TypeError, match=r"needs a function norms -> weights, not 0\.5"):
        Custom(0.5, bound=1.0)
    with pytest.raises(ValueError, match="bound of Custom is 0"):
        Custom(torch.ones_like, bound=0)


def test_rules_are_frozen_values():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PSAC().bound = 2.0
    assert len({PSAC(), PSAC(r=0.1), PSAC(r=0.2)}) == 2


def test_rules_are_found_by_name():
    assert list(clipping.RULES) == ["abadi", "auto_s", "auto_v", "nsgd", "psac"]
    assert clipping.get("psac", r=0.2, scale=3.0) == PSAC(r=0.2, scale=3.0)
    assert [clipping.get(name) for name in clipping.RULES] == [
        Abadi(), AutoS(), AutoV(), NSGD(), PSAC()
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name, rest",
    [
        ("psca", " Did you mean 'psac'?"),
        ("Auto-S", " Did you mean 'auto_s'?"),
        ("zzz", ""),
        (None, ""),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(name, rest):
    with pytest.raises(ValueError, match="unknown") as error:
        clipping.get(name)
    known = "Known: abadi, auto_s, auto_v, nsgd, psac."
    assert str(error.value) == f"clip rule {name!r} is unknown. {known}{rest}"


def test_an_unknown_setting_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"psac setting 'scala' is unknown.*Did you mean 'scale'"):
        clipping.get("psac", scala=2.0)
