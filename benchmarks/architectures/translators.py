"""An encoder and a decoder: sequences to sequences, padded both."""

from __future__ import annotations

from .records import class_with_end, next_words, translation
from .sizes import line, lines

TASK = "sequences"

LINES = (
    *lines(
        TASK,
        translation,
        "T5ForConditionalGeneration MT5ForConditionalGeneration UMT5ForConditionalGeneration "
        "LongT5ForConditionalGeneration BartForConditionalGeneration MBartForConditionalGeneration "
        "MarianMTModel PegasusForConditionalGeneration PegasusXForConditionalGeneration "
        "BlenderbotForConditionalGeneration BlenderbotSmallForConditionalGeneration "
        "M2M100ForConditionalGeneration PLBartForConditionalGeneration "
        "MvpForConditionalGeneration ProphetNetForConditionalGeneration "
        "BigBirdPegasusForConditionalGeneration",
        decoder_start_token_id=1,
        num_encoder_layers=1,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
    ),
    line(TASK, translation, "LEDForConditionalGeneration", attention_window=4,
         max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
    line(TASK, next_words, "FSMTForConditionalGeneration", src_vocab_size=120, tgt_vocab_size=120,
         langs=["en", "de"], decoder_start_token_id=1),
    *lines("classes", class_with_end, "BartForSequenceClassification T5ForSequenceClassification "
           "MBartForSequenceClassification", decoder_start_token_id=1),
)  # fmt: skip
