"""Models of the transformers library, small, with random weights; `model(**batch).loss`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .batches import RECORDS, Case, classes, numbers, padding, tokens

LENGTH, VOCABULARY = 32, 400
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip


def own_loss(model: nn.Module, **batch: Tensor) -> Tensor:
    return model(**batch).loss


def text(labels: Tensor | None = None) -> dict[str, Tensor]:
    """Padded text; without labels, those of a language model, -100 on padding."""
    words, mask = tokens(LENGTH, VOCABULARY), padding(LENGTH)
    words = words * mask
    if labels is None:
        labels = words.masked_fill(~mask, -100)
    return {"input_ids": words, "attention_mask": mask.long(), "labels": labels}


def build(kind: str, configuration: str, **options: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, configuration)(**options)
    return getattr(transformers, kind)(config).train()


def bert() -> Case:
    """BERT, classification, dropout"""
    model = build("BertForSequenceClassification", "BertConfig", **SMALL)
    return model, own_loss, text(classes(2))


def bert_masked() -> Case:
    """BERT, masked words"""
    return build("BertForMaskedLM", "BertConfig", **SMALL), own_loss, text()


def bert_checkpointed() -> Case:
    """BERT with gradient checkpointing"""
    model = build("BertForSequenceClassification", "BertConfig", **SMALL)
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    return model, own_loss, text(classes(2))


def bert_eager() -> Case:
    """BERT with eager attention"""
    options = {**SMALL, "attn_implementation": "eager"}
    return (
        build("BertForSequenceClassification", "BertConfig", **options),
        own_loss,
        text(classes(2)),
    )


def roberta() -> Case:
    """RoBERTa, tags of tokens"""
    model = build("RobertaForTokenClassification", "RobertaConfig", **SMALL | {"num_labels": 5})
    return model, own_loss, text(classes(5, LENGTH))


def distilbert() -> Case:
    """DistilBERT, questions and answers"""
    options = {"vocab_size": VOCABULARY, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
    model = build("DistilBertForQuestionAnswering", "DistilBertConfig", **options)
    batch = text()
    del batch["labels"]
    return model, own_loss, {
        **batch, "start_positions": classes(LENGTH // 2), "end_positions": classes(LENGTH // 2),
    }  # fmt: skip


def albert() -> Case:
    """ALBERT (layers share weights)"""
    model = build("AlbertForSequenceClassification", "AlbertConfig", **SMALL, embedding_size=32)
    return model, own_loss, text(classes(2))


def electra() -> Case:
    """ELECTRA discriminator"""
    model = build("ElectraForPreTraining", "ElectraConfig", **SMALL, embedding_size=32)
    return model, own_loss, text(classes(2, LENGTH))


def deberta() -> Case:
    """DeBERTa-v2 (disentangled attention)"""
    options = SMALL | {
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0,
        "position_biased_input": False, "pooler_hidden_size": 64,
    }  # fmt: skip
    model = build("DebertaV2ForSequenceClassification", "DebertaV2Config", **options)
    return model, own_loss, text(classes(2))


def gpt2() -> Case:
    """GPT-2, dropout"""
    options = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return (
        build("GPT2LMHeadModel", "GPT2Config", **options, bos_token_id=1, eos_token_id=2),
        own_loss,
        text(),
    )


def llama() -> Case:
    """Llama (RoPE, GQA, SwiGLU, RMSNorm)"""
    return (
        build("LlamaForCausalLM", "LlamaConfig", **SMALL, num_key_value_heads=2),
        own_loss,
        text(),
    )


def llama_lora() -> Case:
    """Llama with LoRA by peft"""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = build("LlamaForCausalLM", "LlamaConfig", **SMALL, num_key_value_heads=2)
    return get_peft_model(model, config), own_loss, text()  # type: ignore[arg-type]


def mistral() -> Case:
    """Mistral (sliding window)"""
    options = SMALL | {"num_key_value_heads": 2, "sliding_window": 16}
    return build("MistralForCausalLM", "MistralConfig", **options), own_loss, text()


def gemma() -> Case:
    """Gemma 2 (soft caps)"""
    options = SMALL | {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16}
    return build("Gemma2ForCausalLM", "Gemma2Config", **options), own_loss, text()


def qwen() -> Case:
    """Qwen 3 (norms of queries and keys)"""
    options = SMALL | {"num_key_value_heads": 2, "head_dim": 16}
    return build("Qwen3ForCausalLM", "Qwen3Config", **options), own_loss, text()


def bloom() -> Case:
    """BLOOM (ALiBi)"""
    options = {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4}
    return build("BloomForCausalLM", "BloomConfig", **options), own_loss, text()


def mixtral() -> Case:
    """Mixtral (experts by routing)"""
    options = SMALL | {"num_key_value_heads": 2, "num_local_experts": 4}
    return build("MixtralForCausalLM", "MixtralConfig", **options), own_loss, text()


def t5() -> Case:
    """T5 (encoder, decoder, relative bias)"""
    options = {
        "vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
        "num_heads": 4, "decoder_start_token_id": 0,
    }  # fmt: skip
    return build("T5ForConditionalGeneration", "T5Config", **options), own_loss, text()


def bart() -> Case:
    """BART (encoder, decoder)"""
    options = {
        "vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    return build("BartForConditionalGeneration", "BartConfig", **options), own_loss, text()


def pixels(kind: str, configuration: str, **options: Any) -> Case:
    model = build(kind, configuration, **options, num_labels=10)
    return model, own_loss, {"pixel_values": numbers(3, 32, 32), "labels": classes(10)}


def hf_vit() -> Case:
    """ViT of transformers"""
    options = {k: SMALL[k] for k in list(SMALL)[1:5]}
    return pixels("ViTForImageClassification", "ViTConfig", **options, image_size=32, patch_size=4)


def hf_convnext() -> Case:
    """ConvNeXt of transformers"""
    options = {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1], "patch_size": 2}
    return pixels("ConvNextForImageClassification", "ConvNextConfig", **options, drop_path_rate=0.1)


def hf_swin() -> Case:
    """Swin of transformers"""
    options = {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 24,
        "depths": [2, 2],
        "num_heads": [2, 4],
    }
    return pixels("SwinForImageClassification", "SwinConfig", **options, window_size=4)


def wav2vec2() -> Case:
    """Wav2Vec2, classification of sounds"""
    options = {k: SMALL[k] for k in list(SMALL)[1:5]}
    model = build(
        "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **options, conv_dim=(32, 32, 32),
        conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2), num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, classifier_proj_size=32, num_labels=4,
        mask_time_prob=0.0, layerdrop=0.0,
    )  # fmt: skip
    return model, own_loss, {"input_values": torch.randn(RECORDS, 1600), "labels": classes(4)}


def whisper() -> Case:
    """Whisper (speech to text)"""
    options = {
        "vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "num_mel_bins": 20, "max_source_positions": 40,
        "max_target_positions": 40, "pad_token_id": 0, "decoder_start_token_id": 1,
        "bos_token_id": 1, "eos_token_id": 2, "begin_suppress_tokens": None,
        "suppress_tokens": None,
    }  # fmt: skip
    model = build("WhisperForConditionalGeneration", "WhisperConfig", **options)
    return model, own_loss, {"input_features": numbers(20, 80), "labels": tokens(16, VOCABULARY)}


MODELS = (
    bert, bert_masked, bert_checkpointed, bert_eager, roberta, distilbert, albert, electra, deberta,
    gpt2, llama, llama_lora, mistral, gemma, qwen, bloom, mixtral, t5, bart, hf_vit, hf_convnext,
    hf_swin, wav2vec2, whisper,
)  # fmt: skip
