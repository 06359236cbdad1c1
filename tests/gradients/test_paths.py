"""Records that take different paths, and tensors that are written: nobody learns of the others."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import psac
from psac.gradients import ClippedSum, Evaluator
from psac.gradients.groups import TOGETHER
from tests import oracles
from tests.gradients.cases import CASES
from tests.gradients.models.recurrent import PACKED
from tests.gradients.models.selections import PARTED, SELECTED

X = torch.tensor([[1.0, 2.0], [-3.0, 1.0], [2.0, 2.0], [-1.0, -1.0]])


def norms_of(loss, x: Tensor = X, model: nn.Module | None = None) -> Tensor:
    torch.manual_seed(0)
    model = model or nn.Linear(2, 2)
    norms = psac.per_sample_norms(model, loss, (x,))
    expected = oracles.norms(oracles.gradients(model, loss, (x,)))
    torch.testing.assert_close(norms.double(), expected, rtol=1e-4, atol=1e-6)
    return norms


def test_a_function_cannot_see_whether_other_records_differ():
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        try:
            scale = 1.0 if x.sum() > 0 else 2.0
        except Exception:  # noqa: BLE001 - as a function would that wants to know
            scale = 100.0
        return scale * model(x).square().sum()

    together = norms_of(loss)
    assert torch.allclose(together[:1], norms_of(loss, X[:1]))


def test_records_of_all_paths_are_summed_with_their_own_weights():
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x[x > 0]).sum() if x.sum() > 2.5 else model(x).square().sum()

    def square(model: nn.Module, x: Tensor) -> Tensor:
        return loss(lambda a: model(a.reshape(1, 2)), x)

    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    gradients = oracles.gradients(model, square, (X,))
    weights = [oracles.psac_weight(float(norm)) for norm in oracles.norms(gradients)]
    sums = psac.weighted_gradient(model, square, (X,), psac.PSAC(r=0.1))
    for name, expected in oracles.weighted_sum(gradients, weights).items():
        torch.testing.assert_close(sums[name].double(), expected, rtol=1e-4, atol=1e-6)


def test_what_a_value_decided_may_not_be_remembered():
    class Remembers(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.flag = bool(x.sum() > 0)
            return super().forward(x)

    with pytest.raises(psac.PrivacyError, match=r"model\.flag"):
        norms_of(lambda m, x: m(x).sum(), model=Remembers(2, 2))


def test_what_a_value_decided_may_not_be_remembered_in_a_later_step():
    """The walk over what the function reaches is that of the step before."""
    remembers = torch.zeros(())

    class Remembers(nn.Linear):
        flag = None

        def forward(self, x: Tensor) -> Tensor:
            if remembers > 0 and x.sum() > 0:
                self.flag = "positive"
            return super().forward(x)

    model, loss = Remembers(2, 2), lambda m, x: m(x).sum()
    total = ClippedSum(Evaluator(model), psac.PSAC())
    for _ in range(3):
        total.add(loss, (X,))
    remembers.fill_(1)
    total.evaluator.outside.accept()
    with pytest.raises(psac.PrivacyError, match=r"model\.flag"):
        total.add(loss, (X,))
    assert model.flag is None


def test_every_path_sees_the_same_count_and_a_step_is_counted_once():
    class Counts(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x * 2 if x.sum() > 0 else x) * self.calls

    total = ClippedSum(Evaluator(model := Counts()), psac.PSAC())
    norms = [total.add(lambda m, x: m(x).sum(), (X,)).norms for _ in range(3)]
    torch.testing.assert_close(norms[2], 3 * norms[0])
    assert float(model.calls) == 3
    model.calls.add_(1)  # as the user may between steps: paths begin there now
    total.evaluator.outside.accept()
    torch.testing.assert_close(total.add(lambda m, x: m(x).sum(), (X,)).norms, 5 * norms[0])
    assert model.calls == 5


def test_counters_are_no_memory_of_a_path():
    class Counts(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x * 2 if x.sum() > 0 else x)

    norms_of(lambda m, x: m(x).sum(), model=Counts(2, 2))


def test_many_paths_are_announced_without_their_number():
    x = torch.randn(9, 12, 2)
    lengths = torch.arange(1, 10)

    def loss(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        return model(x[:, : int(lengths)]).sum()

    total = ClippedSum(Evaluator(nn.Linear(2, 2)), psac.PSAC())
    with pytest.warns(psac.SlowPathWarning) as told:
        assert total.add(loss, (x, lengths)).way == "vmap"
    text = str(told[0].message)
    place = re.search(r"test_paths\.py, line \d+", text)
    assert place is not None
    assert not re.search(r"\d", text.replace(place[0], ""))


def test_records_that_do_not_count_add_nothing():
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() if x.sum() > 0 else torch.zeros(())

    torch.manual_seed(0)
    norms = psac.per_sample_norms(nn.Linear(2, 2), loss, (X,))
    assert (norms > 0).tolist() == [True, False, True, False]


# Rows that a mask selects
def masked_mean(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    return model(x)[mask].exp().mean()


def some_masks() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 6, 2), torch.rand(4, 6).argsort(1) < torch.tensor([[2], [6], [1], [4]])


@pytest.mark.parametrize("name", [*SELECTED, *PARTED, *PACKED])
def test_only_functions_that_need_the_number_of_rows_are_evaluated_path_by_path(name):
    torch.manual_seed(0)
    model, batch, loss, _ = CASES[name]()
    evaluation = Evaluator(model)(loss, batch)
    assert evaluation.way == "vmap"
    assert bool(evaluation.paths) == (name in PARTED)


def test_how_many_rows_other_records_select_changes_nothing():
    (x, masks), model, norms = some_masks(), nn.Linear(2, 3), []
    for mask in (masks, torch.cat([masks[:1], ~masks[1:]])):
        norms.append(psac.per_sample_norms(model, masked_mean, (x, mask))[0])
    assert norms[0] == norms[1]


def test_steps_behind_the_last_change_nothing():
    model = nn.LSTM(2, 16, batch_first=True, bidirectional=True)

    def loss(model: nn.Module, x: Tensor, length: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, length, True, enforce_sorted=False)
        return torch.stack(model(packed)[1]).square().sum()

    x, lengths, norms = torch.randn(4, 6, 2), torch.tensor([2, 6, 3, 6]), []
    for filler in (0, 1e3):
        x[0, 2:], x[2, 3:] = filler, filler
        norms.append(psac.per_sample_norms(model, loss, (x, lengths)))
    assert torch.equal(*norms)


def test_rows_that_are_not_selected_are_not_computed_with():
    """Their logarithm would be NaN."""

    def loss(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        out = model(x) + 9.0 * (2 * mask.unsqueeze(-1) - 1)
        return out[mask].log().sum() + out[mask].sqrt().mean()

    (x, masks), model = some_masks(), nn.Linear(2, 3)
    evaluation = Evaluator(model)(loss, (x, masks))
    assert evaluation.way == "vmap"
    assert not evaluation.paths
    (squares,) = evaluation.measured.norms_squared(TOGETHER)
    assert squares is not None
    expected = oracles.norms(oracles.gradients(model, loss, (x, masks)))
    torch.testing.assert_close(squares.sqrt().double(), expected, rtol=1e-4, atol=1e-6)


def test_records_that_select_nothing_add_nothing():
    (x, masks), model = some_masks(), nn.Linear(2, 3)
    masks[1] = False
    total = ClippedSum(Evaluator(model), psac.PSAC())
    sensitive = total.add(lambda m, x, k: m(x)[k].square().sum(), (x, masks))
    assert sensitive.way == "vmap"
    assert (sensitive.norms > 0).tolist() == [True, False, True, True]


def test_code_that_no_mode_sees_finds_nothing_of_selected_rows():
    def center(values: Tensor) -> Tensor:
        return values.mean()

    def loss(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        return (scripted(model(x)[mask]) - 1).square()

    (x, masks), model = some_masks(), nn.Linear(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(center)
        norms = psac.per_sample_norms(model, loss, (x, masks))
    expected = oracles.norms(oracles.gradients(model, loss, (x, masks)))
    torch.testing.assert_close(norms.double(), expected, rtol=1e-4, atol=1e-6)


# Tensors that are written
def test_a_tensor_from_outside_is_not_written():
    store = torch.zeros(2)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        store[:] = x[0]
        return model(store[None]).sum()

    with pytest.raises(psac.PrivacyError, match="store"):
        norms_of(loss)
    assert not store.any()


def test_memory_of_numpy_is_not_taken_for_a_tensor_of_the_call():
    store = np.zeros(2, dtype=np.float32)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        torch.from_numpy(store).copy_(x[0])
        return model(x * float(store[0])).sum()

    with pytest.raises(psac.PrivacyError, match="store"):
        norms_of(loss)


def test_a_tensor_that_was_written_may_not_be_kept():
    kept = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out = torch.zeros(1, 2)
        kept.append(out)
        out[0] = model(x)[0]
        return out.sum()

    with pytest.raises(psac.PrivacyError, match="kept"):
        norms_of(loss)


def test_private_records_are_not_read_by_an_attribute():
    model = nn.Linear(2, 2)
    evaluator = Evaluator(model)
    evaluator.outside.protect([X])
    with pytest.raises(psac.PrivacyError, match="private batch or data set"):
        evaluator(lambda m, x: F.mse_loss(m(x), X.T[:, :1].T), (X.clone(),))


def test_torch_cond_is_a_branch():
    def by_cond(model: nn.Module, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda h: model(h).square().sum(), halved, (x,))

    def by_hand(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().sum() if x.sum() > 0 else halved(x)

    def halved(x: Tensor) -> Tensor:
        return model(x / 2).sum()

    model, x = nn.Linear(4, 3), torch.randn(6, 4)
    norms = [psac.per_sample_norms(model, loss, x) for loss in (by_cond, by_hand)]
    assert torch.equal(*norms)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_of_rows_is_added_in_single_precision(dtype):
    """70000 numbers are more than half precision can count."""

    def loss(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        return model(x).to(dtype)[mask].square().mean().float()

    torch.manual_seed(0)
    model, x, mask = nn.Linear(4, 256), torch.randn(3, 300, 4), torch.rand(3, 300) < 0.99
    evaluation = Evaluator(model)(loss, (x, mask))
    assert evaluation.way == "vmap"
    assert not evaluation.paths


@pytest.mark.filterwarnings("ignore:.*torch.jit.(script|trace)")
def test_what_was_selected_in_a_first_batch_does_not_decide_about_later_ones():
    """All rows count in the first batch, so that the self-check cannot see which do."""

    @torch.jit.script
    def mean(classes: Tensor) -> Tensor:
        return classes.float().mean()

    def derived(model: nn.Module, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return torch.func.grad(lambda rows: model(rows).sum())(x[mask]).square().sum()

    def scripted(model: nn.Module, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return model(x).exp().sum() * mean(y[mask])

    traced = torch.jit.trace(lambda rows: rows.relu().sum(), torch.randn(2, 3))

    def by_trace(model: nn.Module, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return model(x).exp().sum() + traced(model(x)[mask])

    (x, masks), model = some_masks(), nn.Linear(2, 3)
    y = torch.randint(1, 9, masks.shape)
    for loss in (derived, scripted, by_trace):
        evaluator = Evaluator(model)
        for mask in (torch.ones_like(masks), torch.ones_like(masks), masks):
            sensitive = ClippedSum(evaluator, psac.PSAC(r=0.1)).add(loss, (x, mask, y))
            assert sensitive.way == "vmap"
        expected = oracles.norms(oracles.gradients(model, loss, (x, masks, y)))
        torch.testing.assert_close(sensitive.norms.double(), expected, rtol=1e-4, atol=1e-6)


def test_a_hidden_state_of_any_size_opens_no_cell_behind_the_last_step():
    torch.manual_seed(0)
    model = nn.LSTM(2, 16, batch_first=True)
    with torch.no_grad():
        model.weight_hh_l0[:32] *= 1e6

    def loss(model: nn.Module, x: Tensor, length: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, length, True, enforce_sorted=False)
        _, (hidden, cell) = model(packed)
        return cell.square().sum() + hidden.sum()

    x, lengths = torch.randn(4, 6, 2), torch.tensor([2, 6, 3, 6])
    evaluator = Evaluator(model)
    evaluator(loss, (x, torch.full_like(lengths, 6)))
    losses = evaluator(loss, (x, lengths)).losses
    expected = [loss(model, x[k : k + 1], lengths[k : k + 1]).item() for k in range(4)]
    torch.testing.assert_close(losses, torch.tensor(expected), rtol=1e-3, atol=1e-3)


def test_numbers_on_the_edges_of_intervals_are_counted_as_torch_does():
    model, x = nn.Linear(1, 1), torch.arange(300).view(3, 100).remainder(301) / 100

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        counts = torch.histc(x, bins=20, min=0, max=3)
        return (model.weight * counts * torch.arange(20.0)).sum()

    evaluation = Evaluator(model)(loss, (x,))
    assert evaluation.way == "vmap"


def test_a_gradient_of_a_gradient_through_packed_sequences_is_not_left_out():
    def loss(model: nn.Module, x: Tensor, length: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        packed = nn.utils.rnn.pack_padded_sequence(x, length, True, enforce_sorted=False)
        (grad,) = torch.autograd.grad(model(packed)[1].sum(), x, create_graph=True)
        return grad.square().sum()

    model = nn.RNN(2, 4, batch_first=True)
    evaluator = Evaluator(model)
    with pytest.warns(psac.SlowPathWarning, match="Batching rule not implemented"):
        evaluator(loss, (torch.randn(4, 6, 2), torch.tensor([2, 6, 3, 6])))


def test_what_each_path_reads_is_known_from_the_first_step_on():
    """The self-check runs each path once more; what one of them reads is no news to another."""
    shares, net = (torch.ones(2), torch.full((2,), 2.0)), nn.Linear(2, 1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x * shares[int(x.sum() > 0)]).square().sum()

    evaluator, x = Evaluator(net), torch.randn(8, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            evaluator(loss, x)


def test_experts_compute_in_the_precision_that_torch_gives_them():
    found = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        ends = torch.tensor([3, 8], dtype=torch.int32) + 0 * x[0, :2, 0].int()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch._grouped_mm(x[0], model.weight.expand(2, 8, 8), offs=ends)
        found.append(y.dtype)
        return y.float().square().sum()

    model, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8, 8)
    loss(model, x[:1])
    Evaluator(model).vectorized.evaluate(loss, (x,))
    assert len(found) == 2
    assert len(set(found)) == 1
