"""Encoders of text."""

from __future__ import annotations

from .records import LONGEST, class_of_text, next_words, span_of_text, tags_of_words, whole_texts
from .sizes import line, lines

CLASS, SPAN, TAGS, WORDS = "classes", "questions", "tags", "masked words"

LINES = (
    *lines(
        CLASS,
        class_of_text,
        "BertForSequenceClassification RobertaForSequenceClassification "
        "AlbertForSequenceClassification DistilBertForSequenceClassification "
        "ElectraForSequenceClassification DebertaV2ForSequenceClassification "
        "ModernBertForSequenceClassification MPNetForSequenceClassification "
        "XLMRobertaForSequenceClassification "
        "BigBirdForSequenceClassification NystromformerForSequenceClassification "
        "MobileBertForSequenceClassification ConvBertForSequenceClassification "
        "RoFormerForSequenceClassification YosoForSequenceClassification "
        "CanineForSequenceClassification XLMForSequenceClassification "
        "FlaubertForSequenceClassification MegatronBertForSequenceClassification "
        "IBertForSequenceClassification NomicBertForSequenceClassification "
        "EuroBertForSequenceClassification GteForSequenceClassification",
    ),
    line(CLASS, class_of_text, "LongformerForSequenceClassification", attention_window=8),
    line(CLASS, class_of_text, "SqueezeBertForSequenceClassification", embedding_size=32),
    line(CLASS, class_of_text, "FunnelForSequenceClassification", block_sizes=[1, 1], d_head=8),
    line(CLASS, class_of_text, "PerceiverForSequenceClassification", num_latents=8, d_latents=32,
         num_cross_attention_heads=2, num_self_attends_per_block=1),
    line(CLASS, whole_texts, "FNetForSequenceClassification"),
    line(CLASS, class_of_text, "XLNetForSequenceClassification", lengths=(LONGEST,)),
    line(CLASS, class_of_text, "ReformerForSequenceClassification", lengths=(LONGEST,),
         attention_head_size=8, axial_pos_shape=[4, 4], axial_pos_embds_dim=[16, 16], num_buckets=4,
         lsh_attn_chunk_length=4, local_attn_chunk_length=4, feed_forward_size=48),
    *lines(
        SPAN,
        span_of_text,
        "BertForQuestionAnswering RobertaForQuestionAnswering DistilBertForQuestionAnswering "
        "ElectraForQuestionAnswering DebertaV2ForQuestionAnswering SplinterForQuestionAnswering "
        "LlamaForQuestionAnswering",
        lengths=(LONGEST,),
    ),
    *lines(TAGS, tags_of_words, "BertForTokenClassification DebertaV2ForTokenClassification "
           "ModernBertForTokenClassification"),
    *lines(WORDS, next_words, "BertForMaskedLM RobertaForMaskedLM ModernBertForMaskedLM "
           "MPNetForMaskedLM EsmForMaskedLM", pad_token_id=0),
)  # fmt: skip
