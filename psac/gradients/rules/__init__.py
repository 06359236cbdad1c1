"""One rule per family of operations: how it runs for all records, and what parameters get of it.

A rule is a function of the recorder and of the arguments of the torch function.  It folds the
record axis into the operation's own batch axis, runs the operation with its parameters cut off, and
taps the output: when the output gradient is there, it says what each parameter's per-sample
gradients gain.  It returns `NotImplemented` for a form that it does not know; there the recorder
gives every record a copy of the parameter, which is slower for large parameters and never wrong.

To add an operation: one function here or in a new file, its names in RULES, one row in the tests'
table of cases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from psac.gradients.rules import (
    attention,
    chance,
    convolution,
    derivatives,
    embedding,
    layout,
    losses,
    matrix,
)
from psac.gradients.rules import normalization, pooling, recurrent, routing, selection
from psac.gradients.rules import values, writing

Rule = Callable[..., Any]
FUNCTIONS_OF_TORCH: Any = torch._C._VariableFunctions  # type: ignore[attr-defined]

# The torch functions that each rule serves; some are reached under several names.
FUNCTIONS: dict[Rule, tuple[Any, ...]] = {
    matrix.linear: (torch.nn.functional.linear,),
    matrix.matmul: (
        torch.matmul, Tensor.matmul, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm,
        torch.mv, Tensor.mv, torch.linalg.matmul,
    ),
    matrix.addmm: (torch.addmm, Tensor.addmm),
    matrix.bilinear: (torch.bilinear,),
    matrix.einsum: (FUNCTIONS_OF_TORCH.einsum,),
    convolution.conv1d: (torch.conv1d,),
    convolution.conv2d: (torch.conv2d,),
    convolution.conv3d: (torch.conv3d,),
    convolution.conv_transpose1d: (torch.conv_transpose1d,),
    convolution.conv_transpose2d: (torch.conv_transpose2d,),
    convolution.conv_transpose3d: (torch.conv_transpose3d,),
    normalization.layer_norm: (torch.layer_norm,),
    normalization.group_norm: (torch.group_norm,),
    normalization.instance_norm: (torch.instance_norm,),
    normalization.batch_norm: (torch.batch_norm,),
    embedding.embedding: (
        torch.embedding, torch.ops.aten.embedding, torch.ops.aten.embedding.default,
    ),
    embedding.index_select: (torch.index_select, Tensor.index_select),
    embedding.embedding_bag: (torch.nn.functional.embedding_bag,),
    pooling.max_pool2d: (torch.nn.functional.max_pool2d, torch.max_pool2d),
    attention.attention: (torch.nn.functional.scaled_dot_product_attention,),
    attention.is_packed: (FUNCTIONS_OF_TORCH._nested_tensor_from_mask_left_aligned,),
    chance.rand: (torch.rand,),
    chance.randn: (torch.randn,),
    chance.randint: (torch.randint,),
    chance.rand_like: (torch.rand_like,),
    chance.randn_like: (torch.randn_like,),
    chance.randint_like: (torch.randint_like,),
    chance.dropout: (torch.nn.functional.dropout,),
    values.value_of: (Tensor.item,),
    values.as_bool: (Tensor.__bool__, torch.is_nonzero, Tensor.is_nonzero),
    values.as_int: (Tensor.__int__, Tensor.__index__),
    values.as_float: (Tensor.__float__,),
    values.formatted: (Tensor.__format__,),
    values.sized(torch.arange): (torch.arange,),
    values.sized(torch.zeros): (torch.zeros,),
    values.sized(Tensor.new_zeros, first=1): (Tensor.new_zeros,),
    values.sized(Tensor.view, first=1): (Tensor.view,),
    values.sized(torch.narrow, first=1): (torch.narrow, Tensor.narrow),
    values.tolist: (Tensor.tolist,),
    values.masked_select: (torch.masked_select, Tensor.masked_select),
    values.getitem: (Tensor.__getitem__,),
    values.setitem: (Tensor.__setitem__,),
    values.where: (torch.where,),
    values.one_hot: (torch.nn.functional.one_hot,),
    writing.select_scatter: (torch.select_scatter, Tensor.select_scatter),
    writing.scatter_: (Tensor.scatter_,),
    writing.clamp_: (Tensor.clamp_,),
    writing.masked_fill: (torch.masked_fill, Tensor.masked_fill),
    values.pack: (FUNCTIONS_OF_TORCH._pack_padded_sequence,),
    **{
        values.decided(function): (function,)
        for function in (
            torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere,
            torch.unique, Tensor.unique, torch.unique_consecutive,
            Tensor.unique_consecutive, torch.equal, Tensor.equal, torch.allclose, Tensor.allclose,
        )
    },
    chance.standard_gamma: (FUNCTIONS_OF_TORCH._standard_gamma,),
    chance.dirichlet: (FUNCTIONS_OF_TORCH._sample_dirichlet,),
    chance.binomial: (torch.binomial,),
    chance.bernoulli: (torch.bernoulli, Tensor.bernoulli),
    chance.normal: (torch.normal,),
    chance.multinomial: (torch.multinomial, Tensor.multinomial),
    chance.poisson: (torch.poisson,),
    values.unpacked(recurrent.lstm): (torch.lstm,),
    values.unpacked(recurrent.gru): (torch.gru,),
    values.unpacked(recurrent.rnn_tanh): (torch.rnn_tanh,),
    values.unpacked(recurrent.rnn_relu): (torch.rnn_relu,),
    recurrent.lstm_cell: (torch.lstm_cell,),
    recurrent.gru_cell: (torch.gru_cell,),
    recurrent.rnn_tanh_cell: (torch.rnn_tanh_cell,),
    recurrent.rnn_relu_cell: (torch.rnn_relu_cell,),
    routing.grouped_mm: (FUNCTIONS_OF_TORCH._grouped_mm,),
    routing.histc: (torch.histc, Tensor.histc),
    losses.cross_entropy: (torch.nn.functional.cross_entropy,),
    losses.nll_loss: (torch.nn.functional.nll_loss,),
    derivatives.grad: (torch.autograd.grad,),
    derivatives.requires_grad_: (Tensor.requires_grad_,),
    derivatives.set_requires_grad: (Tensor.requires_grad.__set__,),  # type: ignore[attr-defined]
    derivatives.get_requires_grad: (Tensor.requires_grad.__get__,),  # type: ignore[attr-defined]
    derivatives.data: (Tensor.data.__get__,),  # type: ignore[attr-defined]
    layout.contiguous: (Tensor.contiguous,),
    layout.is_contiguous: (Tensor.is_contiguous,),
    layout.stride: (Tensor.stride,),
    layout.storage_offset: (Tensor.storage_offset,),
    layout.to: (Tensor.to,),
    layout.clone: (torch.clone, Tensor.clone),
    layout.empty_like: (torch.empty_like,),
    layout.zeros_like: (torch.zeros_like,),
    losses.ctc: (torch.nn.functional.ctc_loss,),
    losses.kl_div: (torch.nn.functional.kl_div,),
    losses.soft_margin: (torch.nn.functional.soft_margin_loss,),
    losses.margin_ranking: (torch.nn.functional.margin_ranking_loss,),
    losses.triplet_margin: (torch.nn.functional.triplet_margin_loss,),
    losses.gaussian_nll: (torch.nn.functional.gaussian_nll_loss,),
    losses.multi_margin: (torch.nn.functional.multi_margin_loss,),
    losses.multilabel_margin: (torch.nn.functional.multilabel_margin_loss,),
}  # fmt: skip
selection.RECURRENT.update(
    {torch.lstm: recurrent.lstm, torch.gru: recurrent.gru,
     torch.rnn_tanh: recurrent.rnn_tanh, torch.rnn_relu: recurrent.rnn_relu}
)  # fmt: skip
RULES: dict[Any, Rule] = {
    function: rule for rule, functions in FUNCTIONS.items() for function in functions
}
# Their rules serve where every parameter enters as copies, too.
OF_COPIES = frozenset(FUNCTIONS[derivatives.grad] + FUNCTIONS[embedding.embedding])
