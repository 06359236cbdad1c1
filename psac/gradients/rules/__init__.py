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

from . import attention, chance, convolution, embedding, losses, matrix, normalization, recurrent

Rule = Callable[..., Any]

# The torch functions that each rule serves; some are reached under several names.
FUNCTIONS: dict[Rule, tuple[Any, ...]] = {
    matrix.linear: (torch.nn.functional.linear,),
    matrix.matmul: (
        torch.matmul, Tensor.matmul, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm,
        torch.mv, Tensor.mv, torch.linalg.matmul,
    ),
    matrix.addmm: (torch.addmm, Tensor.addmm),
    matrix.bilinear: (torch.bilinear,),
    matrix.einsum: (torch._C._VariableFunctions.einsum,),  # type: ignore[attr-defined]
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
    embedding.embedding: (torch.embedding,),
    embedding.getitem: (Tensor.__getitem__,),
    embedding.index_select: (torch.index_select, Tensor.index_select),
    embedding.embedding_bag: (torch.nn.functional.embedding_bag,),
    attention.attention: (torch.nn.functional.scaled_dot_product_attention,),
    chance.rand: (torch.rand,),
    chance.randn: (torch.randn,),
    chance.bernoulli: (torch.bernoulli, Tensor.bernoulli),
    chance.normal: (torch.normal,),
    chance.multinomial: (torch.multinomial, Tensor.multinomial),
    chance.poisson: (torch.poisson,),
    recurrent.lstm: (torch.lstm,),
    recurrent.gru: (torch.gru,),
    recurrent.rnn_tanh: (torch.rnn_tanh,),
    recurrent.rnn_relu: (torch.rnn_relu,),
    recurrent.lstm_cell: (torch.lstm_cell,),
    recurrent.gru_cell: (torch.gru_cell,),
    recurrent.rnn_tanh_cell: (torch.rnn_tanh_cell,),
    recurrent.rnn_relu_cell: (torch.rnn_relu_cell,),
    losses.cross_entropy: (torch.nn.functional.cross_entropy,),
    losses.nll_loss: (torch.nn.functional.nll_loss,),
    losses.ctc: (torch.nn.functional.ctc_loss,),
    losses.kl_div: (torch.nn.functional.kl_div,),
    losses.soft_margin: (torch.nn.functional.soft_margin_loss,),
    losses.margin_ranking: (torch.nn.functional.margin_ranking_loss,),
    losses.triplet_margin: (torch.nn.functional.triplet_margin_loss,),
    losses.gaussian_nll: (torch.nn.functional.gaussian_nll_loss,),
    losses.multi_margin: (torch.nn.functional.multi_margin_loss,),
    losses.multilabel_margin: (torch.nn.functional.multilabel_margin_loss,),
}  # fmt: skip
RULES: dict[Any, Rule] = {
    function: rule for rule, functions in FUNCTIONS.items() for function in functions
}
