"""Copies of pictures: which they are, and that a record with copies is still one sample."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import psac
from psac.app.models import ShiftedCopies
from psac.app.models.copies import moved
from psac.app.training.evaluation import losses_of
from tests.oracles import loop_gradients, norms, psac_weight, take_first, weighted_sum


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 3 * 5, 3))


def window(picture: Tensor, down: int, right: int) -> Tensor:
    """The picture moved by hand; what comes in is 0."""
    out = torch.zeros_like(picture)
    _, height, width = picture.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y + down < height and 0 <= x + right < width:
                out[:, y, x] = picture[:, y + down, x + right]
    return out


def test_copies_are_the_picture_and_windows_of_it():
    torch.manual_seed(0)
    pictures = torch.rand(6, 2, 5, 7)
    moves = torch.randint(5, (6, 4, 2))
    found = moved(pictures, moves, 2)
    for n in range(6):
        for k in range(4):
            down, right = (moves[n, k] - 2).tolist()
            assert torch.equal(found[n, k], window(pictures[n], down, right))


def test_the_first_copy_is_not_moved_and_the_others_are_moved_in_every_way():
    torch.manual_seed(0)
    pictures = torch.rand(40, 2, 5, 7)
    model = ShiftedCopies(nn.Identity(), copies=4, shift=1)
    seen = model(pictures)
    assert torch.equal(seen[:, 0], pictures)
    ways = {(down, right): 0 for down in (-1, 0, 1) for right in (-1, 0, 1)}
    for n in range(40):
        for k in range(1, 4):
            fits = [way for way in ways if torch.equal(seen[n, k], window(pictures[n], *way))]
            assert len(fits) == 1
            ways[fits[0]] += 1
    assert all(3 < count < 30 for count in ways.values())  # 13.3 on average


def test_in_evaluation_scores_are_the_mean_over_five_places():
    torch.manual_seed(0)
    inner, pictures = network(), torch.rand(3, 2, 5, 7)
    model = ShiftedCopies(inner, copies=2, shift=2)
    assert model(pictures).shape == (3, 2, 3)
    places = [(0, 0), (2, 0), (-2, 0), (0, 2), (0, -2)]
    each = [inner(torch.stack([window(one, *place) for one in pictures])) for place in places]
    torch.testing.assert_close(model.eval()(pictures), sum(each) / 5)


def test_a_record_with_copies_is_one_sample():
    """Norms and weighted sum are those of the mean loss over copies, by a loop over records."""
    torch.manual_seed(0)
    inner, pictures, labels = network(), torch.rand(9, 2, 5, 7), torch.arange(9) % 3
    model = ShiftedCopies(inner, copies=3, shift=1)

    def loss(model, inputs, labels):
        return losses_of(model(inputs), labels)

    torch.manual_seed(1)
    sums = psac.weighted_gradient(model, loss, (pictures, labels), psac.PSAC())
    torch.manual_seed(1)
    moves = torch.randint(3, (9, 3, 2))
    moves[:, 0] = 1
    seen = moved(pictures, moves, 1)

    def of_one(inner, batch):
        return F.cross_entropy(inner(batch[0][0]), batch[1].expand(3))

    gradients = loop_gradients(inner, of_one, (seen, labels), take_first, 9)
    weights = [psac_weight(float(norm)) for norm in norms(gradients)]
    for name, wanted in weighted_sum(gradients, weights).items():
        torch.testing.assert_close(sums[f"network.{name}"].double(), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")
def test_a_record_adds_at_most_the_bound_however_many_copies_it_has():
    torch.manual_seed(0)
    model = ShiftedCopies(network(), copies=5, shift=1)
    records = [(1e6 * torch.rand(2, 5, 7), k % 3) for k in range(4)]
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = psac.make_private(
        model, optimizer, records, batch_size=4, steps=1, noise_multiplier=0.0, seed=0
    )
    for batch in private.loader:
        assert private.step(lambda m, x, y: losses_of(m(x), y), batch)
        assert private.sensitive is not None
        assert len(private.sensitive.norms) == len(batch[0]) == 4
    step = [(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)]
    assert 4 * torch.cat(step).norm() <= 4 * (1 + 1e-5)


@pytest.mark.parametrize(("copies", "shift"), [(1, 1), (2, 0), (0, 3)])
def test_copies_that_would_not_differ_are_refused(copies, shift):
    with pytest.raises(ValueError, match=f"copies is {copies} and shift is {shift}: use 2"):
        ShiftedCopies(network(), copies=copies, shift=shift)


def test_what_is_no_picture_is_refused():
    with pytest.raises(ValueError, match=r"inputs have the shape \[3, 8\]: copies need images"):
        ShiftedCopies(nn.Identity(), copies=2, shift=1)(torch.rand(3, 8))
