"""The compiled loops against the same in torch operations, and the rules without them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import psac
from psac.gradients.contributions import base as contributions
from psac.gradients.contributions import lookup, ragged, routed, single
from psac.gradients.kernels import loops
from psac.gradients.kernels.loops import CANCELLATION, Geometry
from psac.gradients.rules import normalization, patches, plane, recurrence
from psac.native import compiling as _compiling
from tests.gradients.cases import CASES
from tests.gradients.test_against_the_loop import IGNORED, hold_to_the_loop

compiled = loops.loops()
needs_a_compiler = pytest.mark.skipif(compiled is None, reason="no C compiler here")
small, pairs = st.integers(1, 4), st.tuples(st.integers(1, 3), st.integers(1, 3))


@needs_a_compiler
@given(
    samples=st.sampled_from([1, 2, 4, 33]),
    frames=st.integers(1, 3),
    groups=st.integers(1, 3),
    channels=small,
    out_channels=st.sampled_from([1, 3, 16, 17, 33, 40]),
    kernel=pairs,
    stride=pairs,
    dilation=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    room=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_convolutions_equal_the_ordinary_weight_gradient_of_each_sample(
    samples, frames, groups, channels, out_channels, kernel, stride, dilation, padding, room
):
    height, width = (d * (k - 1) + 1 + more for d, k, more in zip(dilation, kernel, room, strict=1))
    inputs = torch.randn(samples * frames, groups * channels, height, width)
    weight = torch.randn(groups * out_channels, channels, *kernel)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    grad = torch.randn_like(F.conv2d(inputs, weight, **settings))
    expected = torch.stack(
        [
            torch.nn.grad.conv2d_weight(its_inputs, weight.shape, its_grad, **settings)
            for its_inputs, its_grad in zip(inputs.split(frames), grad.split(frames), strict=True)
        ]
    )
    geometry = Geometry(
        channels, height, width, out_channels, *grad.shape[2:], groups,
        kernel, stride, padding, dilation, frames,
    )  # fmt: skip
    kept = torch.empty(samples, groups, geometry.lines, compiled.padded(out_channels))
    sums = torch.empty(samples, grad.shape[1])
    norms = compiled.convolution(inputs, grad, geometry, kept, sums)
    its_sums = grad.unflatten(0, (samples, frames)).sum((1, 3, 4))
    torch.testing.assert_close(sums, its_sums, rtol=1e-4, atol=1e-4)
    assert torch.equal(norms, compiled.convolution(inputs, grad, geometry))
    torch.testing.assert_close(norms, expected.flatten(1).square().sum(1), rtol=1e-4, atol=1e-4)
    formed = kept[..., :out_channels].transpose(2, 3).reshape(expected.shape)
    torch.testing.assert_close(formed, expected, rtol=1e-4, atol=1e-4)
    assert not kept[..., out_channels:].any()
    weights = torch.rand(2 * samples)[::2]
    total = compiled.convolution_sum(inputs, grad, geometry, weights)
    weighted = (kept * weights.view(samples, 1, 1, 1)).sum(0)
    torch.testing.assert_close(total, weighted, rtol=1e-4, atol=1e-4)
    last = [side.contiguous(memory_format=torch.channels_last) for side in (inputs, grad)]
    for one, other in ((last[0], grad), (inputs, last[1]), last):  # as they lie, and as they come
        assert torch.equal(compiled.convolution(one, other, geometry), norms)
        assert torch.equal(compiled.convolution_sum(one, other, geometry, weights), total)


@needs_a_compiler
@given(
    samples=st.sampled_from([1, 2, 4, 33]),
    frames=st.integers(1, 3),
    groups=st.integers(1, 3),
    out_channels=small,
    kernel=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    stride=pairs,
    dilation=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    room=st.tuples(st.integers(0, 4), st.integers(0, 20)),
)
def test_depthwise_convolutions_equal_the_ordinary_weight_gradient_of_each_sample(
    samples, frames, groups, out_channels, kernel, stride, dilation, padding, room
):
    height, width = (d * (k - 1) + 1 + more for d, k, more in zip(dilation, kernel, room, strict=1))
    inputs = torch.randn(samples * frames, groups, height, width)
    weight = torch.randn(groups * out_channels, 1, *kernel)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    grad = torch.randn_like(F.conv2d(inputs, weight, **settings))
    expected = torch.stack(
        [
            torch.nn.grad.conv2d_weight(its_inputs, weight.shape, its_grad, **settings)
            for its_inputs, its_grad in zip(inputs.split(frames), grad.split(frames), strict=True)
        ]
    )
    geometry = Geometry(
        1, height, width, out_channels, *grad.shape[2:], groups,
        kernel, stride, padding, dilation, frames,
    )  # fmt: skip
    kept = torch.full((samples, *weight.shape), torch.nan)
    norms = compiled.depthwise(inputs, grad, geometry, kept)
    torch.testing.assert_close(kept, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norms, expected.flatten(1).square().sum(1), rtol=1e-4, atol=1e-4)


@needs_a_compiler
def test_depthwise_gradients_do_not_depend_on_the_samples_before():
    inputs, grad = torch.randn(5, 2, 9, 20), torch.randn(5, 2, 9, 20)
    geometry = Geometry(1, 9, 20, 1, 9, 20, 2, (5, 5), (1, 1), (2, 2), (1, 1))
    after, alone = torch.empty(5, 2, 25), torch.empty(1, 2, 25)
    inputs[:4], grad[:4] = torch.inf, torch.nan
    compiled.depthwise(inputs, grad, geometry, after)
    compiled.depthwise(inputs[4:], grad[4:], geometry, alone)
    assert torch.equal(after[4:], alone)


@needs_a_compiler
@given(
    samples=small,
    groups=st.integers(1, 3),
    channels=small,
    out_channels=small,
    kernel=pairs,
    dilation=pairs,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    room=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_grams_of_pixels_equal_the_norm_of_the_weight_gradient(
    samples, groups, channels, out_channels, kernel, dilation, padding, room
):
    height, width = (d * (k - 1) + 1 + more for d, k, more in zip(dilation, kernel, room, strict=1))
    inputs = torch.randn(samples, groups * channels, height, width)
    weight = torch.randn(groups * out_channels, channels, *kernel)
    settings = {"padding": padding, "dilation": dilation, "groups": groups}
    grad = torch.randn_like(F.conv2d(inputs, weight, **settings))
    geometry = Geometry(
        channels, height, width, out_channels, *grad.shape[2:], groups,
        kernel, (1, 1), padding, dilation,
    )  # fmt: skip
    norms, mass, cancelled = compiled.pixels(inputs, grad, geometry)
    assert cancelled == bool((norms < CANCELLATION * mass).any())
    expected = torch.stack(
        [
            torch.nn.grad.conv2d_weight(one[None], weight.shape, its_grad[None], **settings)
            for one, its_grad in zip(inputs, grad, strict=True)
        ]
    )
    torch.testing.assert_close(norms, expected.flatten(1).square().sum(1), rtol=1e-4, atol=1e-3)
    pixels = F.unfold(inputs.square(), kernel, dilation, padding).unflatten(1, (groups, -1)).sum(2)
    squares = grad.square().flatten(2).unflatten(1, (groups, -1)).sum(2)
    torch.testing.assert_close(mass, (pixels * squares).sum((1, 2)), rtol=1e-4, atol=1e-3)


@needs_a_compiler
def test_a_gram_of_pixels_reads_no_memory_that_was_not_written():
    """What a buffer held before shows in the norm of no sample."""
    inputs, grad = torch.randn(2, 3, 11, 7), torch.randn(2, 5, 11, 7)
    geometry = Geometry(3, 11, 7, 5, 11, 7, 1, (3, 3), (1, 1), (1, 1), (1, 1))
    expected = compiled.pixels(inputs, grad, geometry)[0]
    true = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *a, **k: true(*a, **k).fill_(float("nan")))
        found = compiled.pixels(inputs, grad, geometry)[0]
    assert torch.equal(found, expected)


@needs_a_compiler
def test_a_gram_of_pixels_that_cancels_is_formed_directly(monkeypatch):
    """Two positions whose patches are alike and whose gradients are opposite."""
    monkeypatch.setattr(patches, "cheapest", lambda *_: ("gram of pixels", None))
    conv = nn.Conv2d(8, 8, 1, bias=False)
    image = torch.randn(3, 8, 1, 1).expand(3, 8, 1, 2) + 1e-4 * torch.randn(3, 8, 1, 2)

    def loss(model, x):
        return (model(x) * torch.tensor([1.0, -1.0])).sum()

    found = psac.per_sample_norms(conv, loss, image)
    expected = 8**0.5 * (image[..., 0].double() - image[..., 1].double()).flatten(1).norm(dim=1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)


@needs_a_compiler
@given(
    samples=small,
    positions=st.integers(1, 11),
    left=st.sampled_from([1, 5, 16, 31, 32, 48, 70]),
    right=st.sampled_from([1, 2, 3, 4, 16, 32]),
)
def test_gram_sums_equal_the_norm_of_the_product_however_rows_lie(samples, positions, left, right):
    first, second = torch.randn(samples, positions, left), torch.randn(positions, samples, right)
    second = second.transpose(0, 1)  # batch second, as some recurrent models have it
    norms, mass, cancelled = compiled.gram(first, second)
    assert cancelled == bool((norms < CANCELLATION * mass).any())
    product = torch.matmul(first.transpose(1, 2), second)
    torch.testing.assert_close(norms, product.flatten(1).square().sum(1), rtol=1e-4, atol=1e-4)
    diagonal = first.square().sum(2) * second.square().sum(2)
    torch.testing.assert_close(mass, diagonal.sum(1), rtol=1e-4, atol=1e-4)
    known = torch.empty(samples, compiled.gram_numbers(positions))
    for filled in (False, True):
        sums, squares = torch.empty(samples, right), torch.empty(samples)
        again = compiled.gram(first, second, known, filled, sums, squares)
        assert torch.equal(torch.stack(again[:2]), torch.stack([norms, mass]))
        torch.testing.assert_close(sums, second.sum(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(squares, sums.square().sum(1), rtol=1e-5, atol=0)


@needs_a_compiler
@given(samples=small, left=st.integers(1, 150), right=st.integers(1, 150))
def test_the_norm_of_one_outer_product_is_the_product_of_norms(samples, left, right):
    first, second = torch.randn(samples, left), torch.randn(right, samples).t()
    products, squares = compiled.pairs(first, second)
    formed = first.unsqueeze(2) * second.unsqueeze(1)
    torch.testing.assert_close(products, formed.flatten(1).square().sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(squares, second.square().sum(1), rtol=1e-5, atol=0)


@needs_a_compiler
@given(samples=st.integers(0, 200), width=st.integers(1, 70))
def test_rows_are_scaled_where_they_lie_and_summed(samples, width):
    rows, weights = torch.randn(samples, width), torch.rand(2 * samples)[::2]
    expected = rows.double() * weights.double().unsqueeze(1)
    total = compiled.scaling(rows, weights)
    torch.testing.assert_close(rows.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(total.double(), expected.sum(0), rtol=1e-5, atol=1e-5)


@needs_a_compiler
@given(
    alive=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4),
    left=st.sampled_from([1, 5, 16, 70]),
    right=st.sampled_from([1, 3, 16, 100]),
)
def test_rows_that_are_zero_are_left_out_and_nothing_else(alive, left, right):
    expected = torch.tensor(alive, dtype=torch.uint8)
    inputs, grads = torch.randn(len(alive), 6, left), torch.randn(len(alive), 6, right)
    grads = torch.where(expected.bool().unsqueeze(-1), grads, -0.0)
    grads[..., :-1] *= torch.rand(()) > 0.5  # all but the last number of a row may be zero
    assert torch.equal(compiled.alive(grads), expected)
    if len(set(expected.flatten().tolist())) == 1:
        assert compiled.some_alive(grads) == expected[0, 0].item()
    starts = torch.cat([torch.zeros(1), expected.sum(1).cumsum(0)]).long()
    gathered = [compiled.gather(side, expected, starts) for side in (inputs, grads)]
    assert torch.equal(gathered[0], inputs[expected.bool()])
    sums = torch.empty(len(alive), right)
    first, second = (side.unsqueeze(0) for side in gathered)
    parts, whole_rows = (
        compiled.gram(first, second, sums_nr=sums, starts=starts),
        compiled.gram(inputs, grads),
    )
    for found, whole in zip(parts[:2], whole_rows[:2], strict=True):
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums, grads.sum(1), rtol=1e-4, atol=1e-4)


@needs_a_compiler
@given(
    index=st.lists(st.lists(st.integers(-1, 6), min_size=7, max_size=7), min_size=1, max_size=4),
    width=st.sampled_from([1, 5, 16, 70, 150]),
    batch_second=st.booleans(),
)
def test_lookups_equal_the_table_that_each_sample_makes(index, width, batch_second):
    n, index_np = len(index), torch.tensor(index)
    values = torch.randn(7, n, width).transpose(0, 1) if batch_second else torch.randn(n, 7, width)
    values[index_np < 0] = float("nan")  # nobody reads them
    tables = torch.zeros(n, 7, width, dtype=torch.float64)
    for sample, position in (index_np >= 0).nonzero().tolist():
        tables[sample, index[sample][position]] += values[sample, position]
    norms, mass = compiled.lookup(index_np, values)
    torch.testing.assert_close(norms.double(), tables.square().sum((1, 2)), rtol=1e-5, atol=1e-6)
    alone = values.masked_fill((index_np < 0).unsqueeze(-1), 0).double().square().sum((1, 2))
    torch.testing.assert_close(mass.double(), alone, rtol=1e-5, atol=1e-6)
    weights = torch.rand(2 * n)[::2]
    total = compiled.lookup_sum(index_np.int(), values, weights, 7).double()
    expected = (tables * weights.double().view(n, 1, 1)).sum(0)
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)


@needs_a_compiler
@given(samples=small, groups=small, each=small, positions=st.integers(1, 40))
def test_group_norm_equals_the_sums_of_each_sample(samples, groups, each, positions):
    grad, inputs = torch.randn(2, samples, groups * each, positions)
    mean, rstd = torch.randn(2, samples, groups)
    by_channel = (t.repeat_interleave(each, 1).unsqueeze(-1) for t in (mean, rstd))
    normalised = (inputs - next(by_channel)) * next(by_channel)
    expected = torch.stack([grad.sum(2), (grad * normalised).sum(2)])
    found = compiled.group_norm(grad, inputs, mean, rstd)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@needs_a_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_nothing(threads):
    before = torch.get_num_threads()
    rows = torch.randn(21, 9, 40, generator=torch.Generator().manual_seed(0))
    long, weights = torch.randn(500, 33), torch.rand(500)
    index = torch.randint(5, (21, 9))
    expected, total = compiled.gram(rows, rows)[0], compiled.scaling(long.clone(), weights)
    table = compiled.lookup_sum(index, rows, weights[:21], 5)
    images, grad = torch.randn(50, 2, 5, 5), torch.randn(50, 3, 4, 4)
    shape = Geometry(2, 5, 5, 3, 4, 4, 1, (2, 2), (1, 1), (0, 0), (1, 1))
    filters = compiled.convolution_sum(images, grad, shape, weights[:50])
    try:
        torch.set_num_threads(threads)
        assert torch.equal(compiled.gram(rows, rows)[0], expected)
        assert torch.equal(compiled.scaling(long.clone(), weights), total)
        assert torch.equal(compiled.lookup_sum(index, rows, weights[:21], 5), table)
        again = compiled.convolution_sum(images, grad, shape, weights[:50])
        assert torch.equal(again, filters)
    finally:
        torch.set_num_threads(before)


@needs_a_compiler
def test_the_default_dtype_plays_no_part():
    """Buffers are float32 even where torch would make them float64."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.LayerNorm(12))
    inputs = torch.randn(5, 2, 4, 4)

    def loss(model, x):
        return model(x).square().sum()

    expected = psac.per_sample_norms(model, loss, inputs)
    torch.set_default_dtype(torch.float64)
    try:
        found = psac.per_sample_norms(model, loss, inputs)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)


def more(found):
    return tuple(map(more, found)) if isinstance(found, tuple) else 1.01 * found


@needs_a_compiler
def test_loops_that_miscount_are_not_trusted(monkeypatch):
    assert loops._agree(compiled)
    names = ("gram", "pixels", "pairs", "scaling", "gather", "some_alive", "layer_norm")
    for name in (*names, "group_norm", "convolution", "convolution_sum", "lookup", "lookup_sum"):
        true = getattr(loops.Loops, name)

        def miscounting(*given, true=true, **named):
            return more(true(*given, **named))

        with monkeypatch.context() as patch:
            patch.setattr(loops.Loops, name, miscounting)
            assert not loops._agree(compiled)


def test_without_a_compiler_there_are_none(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(_compiling, "library", _compiling.library.__wrapped__)
    assert loops.loops.__wrapped__() is None


# Where there is a compiler, the whole table runs with the loops; these are the rules they replace.
SERVED = ("conv", "linear", "norm", "embedding", "positions", "lstm", "routed")
PASSING = list(CASES)


@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("name", [k for k in PASSING if any(word in k for word in SERVED)])
def test_rules_do_without_the_loops(name, monkeypatch):
    users = contributions, lookup, plane, normalization, ragged, recurrence, routed, single
    for module in users:
        monkeypatch.setattr(module, "loops", lambda: None)
    torch.manual_seed(0)
    model, batch, loss, way = CASES[name]()
    hold_to_the_loop(model, loss, batch, way, 1e-4)


@needs_a_compiler
@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("directly", [True, False])
@pytest.mark.parametrize("name", [name for name in PASSING if "conv" in name])
def test_convolutions_whose_gradients_are_not_kept_sum_up_either_way(name, directly, monkeypatch):
    monkeypatch.setattr(contributions.Budget, "allows", lambda *_: False)
    monkeypatch.setattr(patches, "sums_directly", lambda *_: directly)
    torch.manual_seed(0)
    model, batch, loss, way = CASES[name]()
    hold_to_the_loop(model, loss, batch, way, 1e-4)


@needs_a_compiler
@given(
    records=st.sampled_from([1, 2, 4, 7]),
    sequences=st.integers(1, 3),
    steps=st.integers(1, 5),
    vectors=st.integers(1, 3),
    size=st.sampled_from([1e-3, 1.0, 40.0]),
)
def test_an_lstm_and_its_gradients_equal_those_of_torch(records, sequences, steps, vectors, size):
    width = vectors * compiled.lanes
    layer, rows = torch.nn.LSTM(4 * width, width, bias=False), records * sequences
    torch.nn.init.eye_(layer.weight_ih_l0)
    gates = (size * torch.randn(records, steps, sequences, 4 * width)).requires_grad_()
    first = torch.randn(2, 1, rows, width, requires_grad=True)
    out, (_, last) = layer(gates.transpose(0, 1).flatten(1, 2), (first[0], first[1]))
    d_outputs, d_cell = torch.randn(records, steps, sequences, width), torch.randn(rows, width)
    given = d_outputs.transpose(0, 1).flatten(1, 2), d_cell.unsqueeze(0)
    of_gates, of_first = torch.autograd.grad([out, last], [gates, first], given)
    values, hidden = gates.detach().clone(), layer.weight_hh_l0.detach()
    states, cells = first.detach().repeat(1, steps + 1, 1, 1)
    squashed = torch.empty_like(cells[1:])
    compiled.lstm(values, states, cells, squashed, hidden)
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(states[1:], out.detach(), **close)
    torch.testing.assert_close(cells[-1:], last.detach(), **close)
    found = compiled.lstm_backward(values, cells, squashed, hidden, d_outputs, d_cell)
    torch.testing.assert_close(found[0], of_gates, **close)
    torch.testing.assert_close(torch.stack(found[1:]), of_first[:, 0], **close)


@needs_a_compiler
def test_rows_of_an_lstm_do_not_see_each_other():
    width = compiled.lanes
    gates, hidden = torch.randn(5, 3, 1, 4 * width), torch.randn(4 * width, width)
    results = []
    for spoiled in (False, True):
        values, states = gates.clone(), torch.zeros(2, 4, 5, width)
        if spoiled:
            values[1], states[0, 0, 3], d_outputs = torch.nan, torch.inf, torch.ones(5, 3, 1, width)
            d_outputs[2] = torch.inf
        else:
            d_outputs = torch.ones(5, 3, 1, width)
        squashed = torch.empty(3, 5, width)
        compiled.lstm(values, *states, squashed, hidden)
        found = compiled.lstm_backward(
            values, states[1], squashed, hidden, d_outputs, torch.ones(5, width)
        )
        results.append([states[0][:, [0, 4]], *(part[[0, 4]] for part in found)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@needs_a_compiler
@pytest.mark.parametrize("size", [(1, 9), (5, 7), (12, 12), (33, 40)])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 2), (3, 2), (1, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
def test_max_pooling_takes_the_places_that_torch_takes(size, kernel, dilation):
    if any(d * (k - 1) >= s for s, k, d in zip(size, kernel, dilation, strict=True)):
        pytest.skip("the window is larger than the image")
    images = torch.randn(3, 4, *size)
    images[torch.rand_like(images) < 0.3] = 0  # the first of equal numbers counts
    images[0, 0], images[1][torch.rand(4, *size) < 0.1] = -math.inf, math.nan
    compiled = loops.loops()
    assert compiled is not None
    outputs, places = compiled.max_pool(images, kernel, dilation)
    expected = F.max_pool2d(images, kernel, 1, 0, dilation, return_indices=True)
    assert torch.equal(places, expected[1])
    torch.testing.assert_close(outputs, expected[0], rtol=0, atol=0, equal_nan=True)


def test_a_sum_that_cancels_is_noticed():
    rows = torch.randn(3, 1, 40).repeat(1, 2, 1)
    opposed = torch.stack([rows[:, 0], -rows[:, 0]], 1) + 1e-4 * torch.randn(3, 2, 40)
    assert not compiled.gram(rows, rows).cancelled
    assert compiled.gram(rows, opposed).cancelled


def test_a_sum_that_cancels_only_before_it_is_rounded_is_kept():
    whole = contributions.GramSum(torch.ones(3), torch.ones(3), cancelled=True)
    found = contributions.Outer.guarded(whole, lambda samples: torch.stack([*samples.float()]))
    assert torch.equal(found, torch.ones(3))
