"""Who has written to a tensor, in sight of torch's counter or not, is seen within a stated time."""

from __future__ import annotations

import pytest
import torch

from psac.gradients.isolation import checksums
from psac.gradients.isolation.checksums import SLICES, Marks, Prints, window

LARGE = checksums.LARGE // 4 + 7  # numbers: cut into slices that are not all of one length


@pytest.fixture(autouse=True)
def no_secret_turns(monkeypatch):
    monkeypatch.setattr(checksums.secrets, "randbelow", lambda n: n - 1)


@pytest.mark.parametrize("place", [0, 1, LARGE // 16, LARGE // 2, LARGE - 2, LARGE - 1])
@pytest.mark.parametrize("kind", [Prints, Marks])
def test_a_write_to_an_entry_is_seen_at_exactly_one_of_sixteen_turns(kind, place):
    tensors = [torch.zeros(LARGE)] + [torch.zeros(3)] * (SLICES - 1)
    seen = []
    for turn in range(1000, 1000 + SLICES):
        prints = kind(tensors, turn)
        tensors[0].data[place] += 1
        seen.append(prints.changed(tensors))
    assert sorted(map(len, seen)) == [0] * (SLICES - 1) + [1]


def test_the_slices_of_a_tensor_are_all_of_it():
    tensor = torch.arange(LARGE)
    assert torch.equal(torch.cat([window(tensor, turn) for turn in range(SLICES)]), tensor)


@pytest.mark.parametrize("kind", [Prints, Marks])
def test_everything_is_read_at_the_first_turns_and_at_secret_ones(kind, monkeypatch):
    tensors = [torch.zeros(3), torch.zeros(LARGE)]
    for settings in ({"reads_all": True}, {}):
        prints = kind(tensors, 5, **settings)
        tensors[1].data[0] += 1
        assert prints.changed(tensors) == {1}
        monkeypatch.setattr(checksums.secrets, "randbelow", lambda n: 0)


@pytest.mark.parametrize("size", [3, LARGE, 400_000, 5_000_000])
def test_what_was_not_written_to_is_read_in_part_alone(size, monkeypatch):
    tensors = [torch.ones(size), torch.ones(400_000), torch.ones(2)]
    prints, read = Prints(tensors, 3), []
    real = checksums.checksums

    def counted(some):
        some = list(some)
        read.extend(t.numel() for t in some)
        return real(some)

    monkeypatch.setattr(checksums, "checksums", counted)
    assert prints.changed(tensors) == set()
    assert sum(read) <= sum(max(-(-t.numel() // SLICES), 3) for t in tensors) + 3


@pytest.mark.parametrize("size", [3, LARGE])
def test_a_tensor_in_the_place_of_another_is_compared(size):
    tensors = [torch.zeros(size)]
    prints = Prints(tensors)
    assert prints.changed([torch.zeros(size)]) == set()
    other = torch.zeros(size)
    other[-1] = 1
    assert prints.changed([other]) == {0}
    tensors[0].data = other
    assert prints.changed(tensors) == {0}
    tensors[0].zero_()  # its content again
    assert prints.changed(tensors) == set()
