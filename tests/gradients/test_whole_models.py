"""Whole models from transformers and peft, at tiny random sizes, against the loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import psac
from psac.gradients import ClippedSum, Evaluator
from tests.gradients.test_against_the_loop import hold_to_the_loop

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH, SAMPLES = 50, 9, 5
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def token_batch(with_mask: bool = True) -> dict[str, torch.Tensor]:
    batch = {"input_ids": torch.randint(5, VOCABULARY, (SAMPLES, LENGTH))}
    if with_mask:
        lengths = torch.tensor([9, 4, 7, 2, 9]).unsqueeze(1)
        batch["attention_mask"] = (torch.arange(LENGTH) < lengths).long()
    return batch


def class_loss(model, **batch):
    return F.cross_entropy(model(**batch).logits, torch.zeros(1, dtype=torch.long))


def token_loss(model, **batch):
    logits = model(**batch).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:])


def own_loss(model, **batch):
    """The one that the model computes by itself from labels."""
    return model(**batch, labels=batch["input_ids"]).loss


def bert(name="Bert", **extra):
    config = getattr(transformers, f"{name}Config")(
        **SMALL, intermediate_size=24, max_position_embeddings=20, **extra
    )
    return (
        getattr(transformers, f"{name}ForSequenceClassification")(config),
        token_batch(),
        class_loss,
    )


def distilbert():
    config = transformers.DistilBertConfig(vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=20)  # fmt: skip
    return transformers.DistilBertForSequenceClassification(config), token_batch(), class_loss


def gpt2():
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=20, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)  # fmt: skip
    return transformers.GPT2LMHeadModel(config), token_batch(False), token_loss


def llama():
    config = transformers.LlamaConfig(
        **SMALL, intermediate_size=24, num_key_value_heads=1, max_position_embeddings=20
    )
    return transformers.LlamaForCausalLM(config), token_batch(False), token_loss


def t5():
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0)  # fmt: skip

    def loss(model, **batch):
        logits = model(**batch, decoder_input_ids=batch["input_ids"][:, :4]).logits
        return F.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, :4])

    return transformers.T5ForConditionalGeneration(config), token_batch(), loss


def vit():
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4)  # fmt: skip
    return (
        transformers.ViTForImageClassification(config),
        {"pixel_values": torch.randn(SAMPLES, 3, 8, 8)},
        class_loss,
    )


def lora():
    peft = pytest.importorskip("peft")
    model, batch, loss = bert()
    settings = peft.LoraConfig(
        r=3, target_modules=["query", "value"], task_type="SEQ_CLS", lora_dropout=0.1
    )
    return peft.get_peft_model(model, settings), batch, loss


def mistral():
    config = transformers.MistralConfig(
        **SMALL, intermediate_size=24, num_key_value_heads=1, max_position_embeddings=20
    )
    return transformers.MistralForCausalLM(config), token_batch(), own_loss


def whisper():
    config = transformers.WhisperConfig(vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=10, max_target_positions=20, num_mel_bins=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)  # fmt: skip
    sounds = {"input_features": torch.randn(SAMPLES, 8, 20)}
    return (
        transformers.WhisperForConditionalGeneration(config),
        {**sounds, "labels": token_batch()["input_ids"]},
        lambda model, **batch: model(**batch).loss,
    )


def swin():
    config = transformers.SwinConfig(image_size=32, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4)  # fmt: skip
    return (
        transformers.SwinForImageClassification(config),
        {"pixel_values": torch.randn(SAMPLES, 3, 32, 32)},
        class_loss,
    )


MODELS = {
    "bert": bert,
    "roberta": lambda: bert("Roberta", pad_token_id=1),
    "albert": lambda: bert("Albert", embedding_size=8),
    "electra": lambda: bert("Electra", embedding_size=8),
    "distilbert": distilbert,
    "gpt2": gpt2,
    "gpt2_own_loss": lambda: (*gpt2()[:2], own_loss),
    "llama": llama,
    "t5": t5,
    "mistral": mistral,
    "whisper": whisper,
    "vit": vit,
    "swin": swin,
    "lora_bert": lora,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_equals_the_loop(name):
    torch.manual_seed(0)
    model, batch, loss = MODELS[name]()
    hold_to_the_loop(model.eval(), loss, batch, "vmap", 1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_trains_by_the_fast_way_with_dropout(name):
    torch.manual_seed(0)
    model, batch, loss = MODELS[name]()
    total = ClippedSum(Evaluator(model.train()), psac.PSAC())
    for _ in range(2):
        sensitive = total.add(loss, batch)
        assert sensitive.way == "vmap"
        assert bool((sensitive.norms > 0).all())
    size = torch.cat([value.flatten() for value in total.collect().values()]).norm()
    assert 0 < float(size) <= 2 * SAMPLES
