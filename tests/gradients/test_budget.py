"""Memory for gradients that are kept: what is lent, and what is held from one step to the next."""

from __future__ import annotations

import torch

from psac.gradients.contributions import Budget


def test_a_buffer_that_may_be_held_serves_the_next_step():
    spare, like = [], torch.empty(0)
    first = Budget(10**6, spare, held=4000)
    address = first.empty((10, 100), like).data_ptr()
    first.give_back()
    assert Budget(10**6, spare, held=4000).empty((20, 50), like).data_ptr() == address


def test_buffers_that_may_not_be_held_are_freed():
    spare, like = [], torch.empty(0)
    budget = Budget(10**6, spare, held=4000)
    for size in (500, 600, 400):
        budget.empty((size,), like)
    budget.give_back()
    assert [buffer.numel() for buffer in spare] == [500, 400]


def test_what_is_held_never_grows_beyond_its_share():
    spare, like = [], torch.empty(0)
    for size in (300, 900, 100, 1000, 2000, 50):
        budget = Budget(10**6, spare, held=4000)
        budget.empty((size,), like)
        budget.empty((size // 2,), like)
        budget.give_back()
        assert sum(buffer.nbytes for buffer in spare) <= 4000
