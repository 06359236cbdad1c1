"""More than one kind of input: pictures with text, layouts, tables, episodes, time series."""

from __future__ import annotations

import torch

from .records import (
    CLASSES,
    Record,
    a_class,
    a_language,
    captioned,
    made,
    tokens,
)
from .sizes import line

EYES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
WORDS = {
    "vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_key_value_heads": 2,
}  # fmt: skip


def on_a_page() -> Record:
    """Words with their boxes."""
    record = a_class()
    corner = torch.randint(400, (len(record["input_ids"]), 2))
    return {**record, "bbox": torch.cat([corner, corner + 50], 1)}


def in_a_table() -> Record:
    """Words with segment, column, row, ranks and relation."""
    record = a_class()
    length = len(record["input_ids"])
    return {**record, "token_type_ids": torch.zeros(length, 7, dtype=torch.long)}


def looked_at() -> Record:
    """A picture, two of whose patches a text speaks of."""
    words = torch.cat([torch.tensor([99] * 16), tokens(8)])
    return {
        "pixel_values": torch.randn(3, 32, 32),
        "input_ids": words,
        "attention_mask": torch.ones_like(words),
        "labels": words.masked_fill(words == 99, -100),
    }


def asked_about() -> Record:
    return {**a_language(), "pixel_values": torch.randn(3, 32, 32)}


def question_of_classes() -> Record:
    return {
        **a_class(is_ragged=False),
        "pixel_values": torch.randn(3, 32, 32),
        "labels": torch.rand(CLASSES),
    }


def patches_of_a_picture() -> Record:
    """Row and column come first, then the pixels."""
    places = torch.cartesian_prod(torch.arange(1.0, 4), torch.arange(1.0, 4))
    return {"flattened_patches": torch.cat([places, torch.randn(9, 48)], 1), "labels": tokens(6)}


def series() -> Record:
    return {
        "past_values": torch.randn(16, 2),
        "future_values": torch.randn(4, 2),
    }


def long_series() -> Record:
    return {
        "past_values": torch.randn(24), "past_time_features": torch.randn(24, 1),
        "past_observed_mask": torch.ones(24), "future_values": torch.randn(4),
        "future_time_features": torch.randn(4, 1),
    }  # fmt: skip


LINES = (
    line("captions", made(asked_about), "GitForCausalLM", vision_config=EYES),
    line("questions", made(looked_at), "LlavaForConditionalGeneration", image_token_index=99,
         image_token_id=99, vision_feature_layer=-1, vision_feature_select_strategy="full",
         vision_config={**EYES, "model_type": "siglip_vision_model"},
         text_config={**WORDS, "model_type": "llama"}),
    line("captions", made(asked_about), "BlipForConditionalGeneration", image_text_hidden_size=32,
         vision_config=EYES,
         text_config={**WORDS, "encoder_hidden_size": 32, "projection_dim": 32}),
    line("classes", made(question_of_classes), "ViltForQuestionAnswering", max_image_length=-1,
         patch_size=8),
    line("captions", made(patches_of_a_picture), "Pix2StructForConditionalGeneration",
         vision_config={"hidden_size": 32, "patch_embed_hidden_size": 48, "d_ff": 48, "d_kv": 8,
                        "num_hidden_layers": 1, "num_attention_heads": 4, "seq_len": 9},
         text_config={"vocab_size": 120, "hidden_size": 32, "d_kv": 8, "d_ff": 48,
                      "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 1}),
    line("captions", captioned, "VisionEncoderDecoderModel", encoder={**EYES, "model_type": "vit"},
         decoder={**WORDS, "model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 4,
                  "add_cross_attention": True, "is_decoder": True},
         decoder_start_token_id=1, pad_token_id=0),
    line("classes of pages", made(on_a_page), "LayoutLMForSequenceClassification"),
    line("classes of pages", made(on_a_page), "LiltForSequenceClassification",
         channel_shrink_ratio=2, hidden_size=48),
    line("classes of tables", made(in_a_table), "TapasForSequenceClassification",
         max_position_embeddings=64, type_vocab_sizes=[3, 8, 8, 2, 8, 8, 2]),
    line("time series", made(series), "PatchTSTForPrediction", num_input_channels=2,
         context_length=16, patch_length=4, patch_stride=4, prediction_length=4, d_model=16,
         num_attention_heads=2, ffn_dim=24, norm_type="layernorm"),
    line("time series", made(series), "PatchTSMixerForPrediction", num_input_channels=2,
         context_length=16, patch_length=4, patch_stride=4, prediction_length=4, d_model=16,
         norm_mlp="LayerNorm"),
    line("time series", made(long_series), "TimeSeriesTransformerForPrediction",
         prediction_length=4, context_length=17, lags_sequence=[1, 7], num_time_features=1,
         d_model=16),
)  # fmt: skip
