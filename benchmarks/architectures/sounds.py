"""Sounds: classes, and text that is spoken."""

from __future__ import annotations

import torch

from .records import CLASSES, Record, class_of_sound, made, spoken, tokens
from .sizes import line, lines

CLASS, TEXT = "classes", "speech to text"
WAVES = {
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
    "mask_time_length": 2,
    "vocab_size": 20,
}


def a_spectrum() -> Record:
    return {"input_features": torch.randn(20, 80), "labels": tokens(8)}


def a_spectrum_of_a_class() -> Record:
    return {"input_values": torch.randn(32, 16), "labels": torch.randint(CLASSES, ())}


def a_spectrum_in_time() -> Record:
    return {"input_features": torch.randn(40, 20), "labels": tokens(8)}


LINES = (
    *lines(CLASS, class_of_sound, "Wav2Vec2ForSequenceClassification "
           "HubertForSequenceClassification WavLMForSequenceClassification "
           "UniSpeechSatForSequenceClassification Data2VecAudioForSequenceClassification", **WAVES),
    line(CLASS, class_of_sound, "Wav2Vec2ForSequenceClassification, no LayerDrop, no masks",
         **WAVES, layerdrop=0.0, mask_time_prob=0.0),
    *lines(TEXT, spoken, "Wav2Vec2ForCTC HubertForCTC", **WAVES),
    line(TEXT, made(a_spectrum), "WhisperForConditionalGeneration", num_mel_bins=20,
         max_source_positions=40, max_target_positions=40, begin_suppress_tokens=None,
         suppress_tokens=None),
    line(TEXT, made(a_spectrum_in_time), "Speech2TextForConditionalGeneration",
         input_feat_per_channel=20, max_source_positions=60, max_target_positions=40,
         conv_channels=16),
    line(CLASS, made(a_spectrum_of_a_class), "ASTForAudioClassification", max_length=32,
         num_mel_bins=16, patch_size=8, frequency_stride=8, time_stride=8),
    line(TEXT, spoken, "SpeechT5ForSpeechToText", conv_dim=(16, 16, 16), conv_kernel=(10, 3, 3),
         conv_stride=(5, 2, 2), num_feat_extract_layers=3, num_conv_pos_embeddings=8,
         num_conv_pos_embedding_groups=2, mask_time_length=2, vocab_size=40),
    line(TEXT, spoken, "MoonshineForConditionalGeneration"),
)  # fmt: skip
