"""Whole models from transformers and peft, at tiny random sizes, against the loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import psac
from tests import oracles

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


def class_losses(model, batch):
    logits = model(**batch).logits
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long), reduction="none")


def token_losses(model, batch):
    logits = model(**batch).logits[:, :-1]
    return F.cross_entropy(
        logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none"
    ).mean(1)


def bert(name="Bert", **extra):
    config = getattr(transformers, f"{name}Config")(
        **SMALL, intermediate_size=24, max_position_embeddings=20, **extra
    )
    return (
        getattr(transformers, f"{name}ForSequenceClassification")(config),
        token_batch(),
        class_losses,
    )


def distilbert():
    config = transformers.DistilBertConfig(vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=20)  # fmt: skip
    return transformers.DistilBertForSequenceClassification(config), token_batch(), class_losses


def gpt2():
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=20, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)  # fmt: skip
    return transformers.GPT2LMHeadModel(config), token_batch(False), token_losses


def llama():
    config = transformers.LlamaConfig(
        **SMALL, intermediate_size=24, num_key_value_heads=1, max_position_embeddings=20
    )
    return transformers.LlamaForCausalLM(config), token_batch(False), token_losses


def t5():
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0)  # fmt: skip

    def losses(model, batch):
        logits = model(**batch, decoder_input_ids=batch["input_ids"][:, :4]).logits
        return F.cross_entropy(
            logits.transpose(1, 2), batch["input_ids"][:, :4], reduction="none"
        ).sum(1)

    return transformers.T5ForConditionalGeneration(config), token_batch(), losses


def vit():
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4)  # fmt: skip
    return (
        transformers.ViTForImageClassification(config),
        {"pixel_values": torch.randn(SAMPLES, 3, 8, 8)},
        class_losses,
    )


def lora():
    peft = pytest.importorskip("peft")
    model, batch, losses = bert()
    settings = peft.LoraConfig(
        r=3, target_modules=["query", "value"], task_type="SEQ_CLS", lora_dropout=0.1
    )
    return peft.get_peft_model(model, settings), batch, losses


MODELS = {
    "bert": bert,
    "roberta": lambda: bert("Roberta", pad_token_id=1),
    "electra": lambda: bert("Electra", embedding_size=8),
    "distilbert": distilbert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "lora_bert": lora,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_equals_the_loop(name):
    torch.manual_seed(0)
    model, batch, loss_fn = MODELS[name]()
    model.eval()
    gradients = oracles.loop_gradients(model, loss_fn, batch, oracles.take_first, SAMPLES)
    expected = oracles.norms(gradients)
    torch.testing.assert_close(
        psac.per_sample_norms(model, loss_fn, batch).double(), expected, rtol=1e-4, atol=1e-7
    )
    sums = psac.weighted_gradient(model, loss_fn, batch, psac.PSAC())
    truth = oracles.weighted_sum(gradients, [oracles.psac_weight(x) for x in expected.tolist()])
    size = sum(float(g.square().sum()) for g in truth.values()) ** 0.5
    for key, value in truth.items():
        torch.testing.assert_close(sums[key].double(), value, rtol=1e-4, atol=1e-4 * size)


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_trains_by_the_fast_way_with_dropout(name):
    """No loop over samples: SlowPathWarning is an error here."""
    torch.manual_seed(0)
    model, batch, loss_fn = MODELS[name]()
    model.train()
    with psac.Engine(model) as engine:
        for _ in range(2):
            loss_fn(model, batch).mean().backward()
        assert engine.num_samples == 2 * SAMPLES
        assert len(engine.plans) == 1
        total = torch.cat([g.flatten() for g in engine.collect().values()]).norm()
    assert 0 < float(total) <= 2 * SAMPLES
