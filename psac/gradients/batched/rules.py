"""How operations on parameters run for all rows of a batch, and what rows add to parameters.

As in `gradients/rules/`, but rows of a record may lie anywhere: what was saved is sorted by
`Owners` when the output gradient is there.  A rule returns `NotImplemented` for a form that it does
not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from psac.gradients.batched import layers, products, recurrent, tables

BROADCASTS = ("add", "sub", "mul", "div", "truediv", "true_divide", "pow", "floordiv", "mod")
ELEMENTWISE = frozenset(
    {before + name for name in BROADCASTS for before in ("", "r", "i")}
    | {"subtract", "multiply", "divide", "where", "maximum", "minimum", "max", "min", "lerp"}
    | {"addcmul", "addcdiv", "atan2", "hypot", "logaddexp", "clamp", "xlogy", "masked_fill"}
)

# The torch functions that each rule serves; some are reached under several names.
FUNCTIONS: dict[Callable[..., Any], tuple[Any, ...]] = {
    products.linear: (F.linear,),
    products.matmul: (
        torch.matmul, torch.linalg.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm,
        torch.bmm, Tensor.bmm, torch.mv, Tensor.mv,
    ),
    products.reversed_matmul: (Tensor.__rmatmul__,),
    products.addmm: (torch.addmm, Tensor.addmm),
    products.grouped_mm: tuple(
        getattr(home, name)
        for home, name in ((F, "grouped_mm"), (torch, "_grouped_mm"))
        if hasattr(home, name)  # since torch 2.8
    ),
    products.einsum: (torch._C._VariableFunctions.einsum,),  # type: ignore[attr-defined]
    layers.convolution(1): (torch.conv1d,),
    layers.convolution(2): (torch.conv2d,),
    layers.convolution(3): (torch.conv3d,),
    layers.convolution(1, transposed=True): (torch.conv_transpose1d,),
    layers.convolution(2, transposed=True): (torch.conv_transpose2d,),
    layers.convolution(3, transposed=True): (torch.conv_transpose3d,),
    layers.layer_norm: (torch.layer_norm,),
    layers.rms_norm: (torch.rms_norm, F.rms_norm),
    layers.group_norm: (torch.group_norm,),
    layers.statistics_norm(torch.batch_norm): (torch.batch_norm,),
    layers.statistics_norm(torch.instance_norm): (torch.instance_norm,),
    layers.prelu: (torch.prelu,),
    tables.embedding: (torch.embedding,),
    tables.embedding_bag: (F.embedding_bag,),
    tables.getitem: (Tensor.__getitem__,),
    tables.index_select: (torch.index_select, Tensor.index_select),
    tables.setitem: (Tensor.__setitem__,),
    recurrent.lstm: (torch.lstm,),
    recurrent.gru: (torch.gru,),
    recurrent.rnn_tanh: (torch.rnn_tanh,),
    recurrent.rnn_relu: (torch.rnn_relu,),
    recurrent.lstm_cell: (torch.lstm_cell,),
    recurrent.gru_cell: (torch.gru_cell,),
    recurrent.rnn_tanh_cell: (torch.rnn_tanh_cell,),
    recurrent.rnn_relu_cell: (torch.rnn_relu_cell,),
}  # fmt: skip
RULES = {function: rule for rule, functions in FUNCTIONS.items() for function in functions}
