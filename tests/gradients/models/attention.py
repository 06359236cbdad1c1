"""Multi-head attention in all its forms, and transformers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.table import raw, rows

SHAPE = (5, 3, 8)


def heads(call, **settings):
    """A row's model and call."""
    return lambda: nn.MultiheadAttention(8, 2, **{"batch_first": True, **settings}), SHAPE, call


def of_itself(**settings):
    return lambda m, x: m(x, x, x, **settings)


def causal(length: int = 3) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


rows("mha_batch_first", *heads(of_itself()))
rows("mha_no_weights", *heads(of_itself(need_weights=False)))
rows("mha_weights_in_the_loss", *heads(lambda m, x: torch.cat(m(x, x, x), -1)))
rows(
    "mha_weights_of_each_head",
    *heads(lambda m, x: m(x, x, x, average_attn_weights=False)[1]),
)
rows("mha_batch_second", *heads(lambda m, x: m(*[x.transpose(0, 1)] * 3), batch_first=False))
rows("mha_unbatched", *heads(lambda m, x: m(x[0], x[0], x[0])))
rows("mha_without_bias", *heads(of_itself(), bias=False))
rows("mha_bias_kv", *heads(of_itself(), add_bias_kv=True))
rows("mha_zero_attention", *heads(of_itself(need_weights=False), add_zero_attn=True))
rows(
    "mha_own_kdim_vdim",
    *heads(lambda m, x: m(x, x[..., :5], x[..., 2:]), kdim=5, vdim=6),
)
rows("mha_cross", *heads(lambda m, x: m(x[:, :2], x[:, 1:], x[:, 1:])))
rows("mha_keys_are_not_values", *heads(lambda m, x: m(x, x.tanh(), x.sin(), need_weights=False)))
rows("mha_causal_mask", *heads(of_itself(attn_mask=torch.ones(3, 3).triu(1).bool())))
rows("mha_is_causal", *heads(lambda m, x: m(x, x, x, attn_mask=causal(), is_causal=True)))
rows(
    "mha_causal_without_weights",
    *heads(lambda m, x: m(x, x, x, need_weights=False, is_causal=True, attn_mask=causal())),
)
rows(
    "mha_mask_as_large_as_batch",
    lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    (4, 4, 8),
    of_itself(attn_mask=torch.ones(4, 4).triu(1).bool()),
)
rows("mha_mask_of_each_head", *heads(of_itself(attn_mask=torch.ones(2, 3, 3).triu(1).bool())))
rows(
    "mha_mask_of_the_record",
    *heads(
        lambda m, x: m(x, x, x, attn_mask=0.1 * x[:, :, :3].expand(2, 3, 3), need_weights=False)
    ),
)
rows(
    "mha_key_padding",
    *heads(lambda m, x: m(x, x, x, key_padding_mask=x[..., 0] > 1.5, need_weights=False)),
)
rows(
    "mha_key_padding_and_mask",
    *heads(lambda m, x: m(x, x, x, key_padding_mask=0 * x[..., 0], attn_mask=causal())),
)


def layer(kind: type[nn.Module] = nn.TransformerEncoderLayer, **settings) -> nn.Module:
    return kind(8, 2, 12, **{"dropout": 0.0, "batch_first": True, **settings})


def encoder(**settings) -> nn.Module:
    return nn.TransformerEncoder(layer(**settings), 2, enable_nested_tensor=False)


def decoder(**settings) -> nn.Module:
    return nn.TransformerDecoder(layer(nn.TransformerDecoderLayer, **settings), 2)


rows("encoder_layer", layer, SHAPE)
rows(
    "encoder_layer_batch_second",
    lambda: layer(batch_first=False),
    SHAPE,
    lambda m, x: m(x.transpose(0, 1)),
)
rows("encoder_norm_first", lambda: encoder(norm_first=True), SHAPE)
rows("encoder_gelu_without_bias", lambda: encoder(activation="gelu", bias=False), SHAPE)
rows("encoder_in_eval_mode", lambda: encoder().eval(), SHAPE)
rows("encoder_causal", encoder, SHAPE, lambda m, x: m(x, mask=causal(), is_causal=True))
rows("encoder_padding", encoder, SHAPE, lambda m, x: m(x, src_key_padding_mask=x[..., 0] > 1.5))
rows("decoder", decoder, SHAPE, lambda m, x: m(x, x[:, :2].tanh()))
rows("decoder_norm_first", lambda: decoder(norm_first=True), SHAPE, lambda m, x: m(x, x[:, :2]))
rows(
    "decoder_causal",
    decoder,
    SHAPE,
    lambda m, x: m(x, x[:, :2], tgt_mask=causal(), tgt_is_causal=True),
)
rows(
    "transformer",
    lambda: nn.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True),
    SHAPE,
    lambda m, x: m(x, x[:, :2]),
)

SQUARE = {"q": (4, 4), "k": (4, 4), "v": (4, 4)}
raw(
    "scaled_dot_product",
    lambda m, x: F.scaled_dot_product_attention(x @ m.q, x @ m.k, x @ m.v),
    (5, 6, 4),
    **SQUARE,
)
raw(
    "scaled_dot_product_causal",
    lambda m, x: F.scaled_dot_product_attention(x @ m.q, x @ m.k, x @ m.v, is_causal=True, scale=2),
    (5, 6, 4),
    **SQUARE,
)
raw(
    "scaled_dot_product_learned_mask",
    lambda m, x: F.scaled_dot_product_attention(x @ m.q, x @ m.k, x @ m.v, attn_mask=m.bias),
    (5, 6, 4),
    **SQUARE,
    bias=(6, 6),
)
raw(
    "scaled_dot_product_learned_queries",
    lambda m, x: F.scaled_dot_product_attention(m.queries, x @ m.k, x @ m.v),
    (5, 6, 4),
    queries=(1, 3, 4),
    k=(4, 4),
    v=(4, 4),
)
raw(
    "scaled_dot_product_grouped",
    lambda m, x: F.scaled_dot_product_attention(
        (x @ m.q).unflatten(-1, (2, 2)).transpose(1, 2),
        (x @ m.k).unflatten(-1, (1, 2)).transpose(1, 2),
        (x @ m.v).unflatten(-1, (1, 2)).transpose(1, 2),
        enable_gqa=True,
    ),
    (5, 6, 4),
    q=(4, 4),
    k=(4, 2),
    v=(4, 2),
)
raw(
    "learned_queries",
    lambda m, x: (m.q @ (x @ m.k).transpose(1, 2)).softmax(-1) @ x,
    (5, 6, 4),
    q=(3, 4),
    k=(4, 4),
)
