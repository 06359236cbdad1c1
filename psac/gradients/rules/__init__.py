"""One rule per family of operations.

(node, output gradients) -> contributions to the tensors it reads.

A rule is a function of an `Arrival`. It returns {input number: Contribution} for the inputs asked
for, or None for a form that it does not know; those go to the generic rule, which is slower and
never wrong.

To add an operation: one function here or in a new file, one line in RULES, one row in the tests'
table of cases.
"""

from __future__ import annotations

from collections.abc import Callable

from . import broadcast, convolution, embedding, generic, linear, normalization
from .arrival import Arrival, Contributions

Rule = Callable[[Arrival], Contributions | None]

RULES: dict[str, Rule] = {
    "MmBackward0": linear.mm,
    "AddmmBackward0": linear.addmm,
    "BmmBackward0": linear.bmm,
    "BaddbmmBackward0": linear.baddbmm,
    "ConvolutionBackward0": convolution.convolution,
    "EmbeddingBackward0": embedding.embedding,
    "NativeLayerNormBackward0": normalization.layer_norm,
    "NativeGroupNormBackward0": normalization.group_norm,
    "NativeBatchNormBackward0": normalization.batch_norm_with_fixed_statistics,
    "AddBackward0": broadcast.add,
    "SubBackward0": broadcast.sub,
    "MulBackward0": broadcast.mul,
    "DivBackward0": broadcast.div,
    "ExpandBackward0": broadcast.expand,
    "PreluKernelBackward0": broadcast.prelu,
}


def contributions(arrival: Arrival) -> Contributions:
    """Every asked-for contribution, by the family's rule or by the generic one."""
    is_complex = any(grad is not None and grad.is_complex() for grad in arrival.grads)
    rule = None if is_complex else RULES.get(arrival.name)  # rules are written for real numbers
    with arrival.reading:
        found = (rule(arrival) if rule else None) or {}
    missing = [k for k in arrival.inputs if k not in found]
    return found | generic.generic(arrival, missing) if missing else found
