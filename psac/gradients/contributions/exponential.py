"""Gradients through a matrix exponential, as sums of a few outer products.

The gradient of a function of exp(A), at G = l r^T, is

    integral over s from 0 to 1 of (exp(s A)^T l) (exp((1 - s) A) r)^T,

which a quadrature of a few nodes gives to rounding: one outer product for each node, where torch
takes the exponential of a matrix twice the size for each gradient.  A large A is cut into m parts,
exp(A) = exp(A / m)^m, each of which has nodes of its own.

Norms and sums are taken of the same outer products: what the quadrature leaves out changes the
gradient by a relative 1e-8, and no guarantee.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

NODES = 6  # exact for polynomials of degree 11
SMALL = 1.0  # the norm of A / m at most
TERM = 1e-9  # Taylor terms smaller than this are left out
MOST_PARTS = 64


def of_matrix_exp_rows(
    matrix: Tensor, left_nhpl: Tensor, right_nhpr: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Left and right factors of the gradient of A; None if that takes too many."""
    sizes = [torch.linalg.matrix_norm(matrix, kind) for kind in (1, math.inf, "fro")]
    size = min(map(float, sizes))
    if not size <= SMALL * MOST_PARTS:  # nor if it is not finite
        return None
    parts = max(1, math.ceil(size / SMALL))
    step = matrix / parts
    nodes, shares = np.polynomial.legendre.leggauss(NODES)
    times, shares = (nodes + 1) / 2, shares / 2 / parts
    terms = number_of_terms(size / parts)
    left = along(left_nhpl, step, times, terms)
    right = along(right_nhpr, step.t(), 1 - times, terms)
    right = [rows * share for rows, share in zip(right, shares.tolist(), strict=True)]
    lefts, rights = [torch.cat(left, 2)], [torch.cat(right, 2)]
    if parts > 1:
        whole = torch.matrix_exp(step)
        for _ in range(parts - 1):
            lefts.append(lefts[-1] @ whole)
            rights.append(rights[-1] @ whole.t())
    return torch.cat(lefts, 2), torch.cat(rights[::-1], 2)


def along(rows: Tensor, matrix: Tensor, times: np.ndarray, terms: int) -> list[Tensor]:
    """rows exp(t A) for each time, by Taylor's series."""
    results = [rows.clone() for _ in times]
    power = rows
    for k in range(1, terms):
        power = power @ matrix / k
        for value, time in zip(results, times.tolist(), strict=True):
            value.add_(power, alpha=time**k)
    return results


def number_of_terms(size: float) -> int:
    """Of exp, for a matrix of this norm."""
    count, term = 1, size
    while term > TERM:
        count += 1
        term *= size / count
    return count
