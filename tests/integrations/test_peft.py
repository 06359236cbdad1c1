"""All ways of peft to train a few parameters: exact gradients, and adapters saved as usual."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import psac

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from psac.integrations.transformers import PrivacyArguments, PrivateTrainer  # noqa: E402
from tests.gradients.test_against_the_loop import hold_to_the_loop  # noqa: E402
from tests.integrations.small import (  # noqa: E402
    RECORDS,
    classifier,
    collate,
    settings,
    texts,
    weights,
)

pytestmark = [  # what peft and torch say of themselves
    pytest.mark.filterwarnings("ignore:Failed to load the CUDA extension"),
    pytest.mark.filterwarnings("ignore:Setting boft_n_butterfly_factor"),
    pytest.mark.filterwarnings("ignore:Unsupported layer type"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]
CLASSES = {"task_type": "SEQ_CLS"}
AT = {**CLASSES, "target_modules": ["query", "value"]}
FORWARD = {
    **CLASSES,
    "target_modules": ["key", "output.dense"],
    "feedforward_modules": ["output.dense"],
}
METHODS: dict[str, Callable[[], Any]] = {
    "lora": lambda: peft.LoraConfig(**AT, r=2, lora_dropout=0.1),
    "rslora": lambda: peft.LoraConfig(**AT, r=2, use_rslora=True),
    "dora": lambda: peft.LoraConfig(**AT, r=2, use_dora=True),
    "lora_of_embeddings": lambda: peft.LoraConfig(
        **CLASSES, r=2, target_modules=["word_embeddings", "query"]
    ),
    "ia3": lambda: peft.IA3Config(**FORWARD),
    "prompt": lambda: peft.PromptTuningConfig(**CLASSES, num_virtual_tokens=3),
    "prefix": lambda: peft.PrefixTuningConfig(**CLASSES, num_virtual_tokens=3),
    "p_tuning": lambda: peft.PromptEncoderConfig(
        **CLASSES, num_virtual_tokens=3, encoder_hidden_size=8
    ),
    "vera": lambda: peft.VeraConfig(**AT, r=2),
    "loha": lambda: peft.LoHaConfig(**AT, r=2),
    "lokr": lambda: peft.LoKrConfig(**AT, r=2),
    "oft": lambda: peft.OFTConfig(**AT, oft_block_size=4),
    "boft": lambda: peft.BOFTConfig(**AT, boft_block_size=4),
    "adalora": lambda: peft.AdaLoraConfig(**AT, init_r=3, target_r=2, total_step=10),
    "ln_tuning": lambda: peft.LNTuningConfig(**CLASSES, target_modules=["LayerNorm"]),
    "fourier": lambda: peft.FourierFTConfig(**AT, n_frequency=8),
    "hra": lambda: peft.HRAConfig(**AT, r=2),
    "vblora": lambda: peft.VBLoRAConfig(
        **AT, r=2, num_vectors=8, vector_length=4, topk=2
    ),
    "bone": lambda: peft.MissConfig(**AT, r=2),
    "shira": lambda: peft.ShiraConfig(**AT, r=2),
}  # fmt: skip
MERGED = ("lora", "rslora", "dora", "vera", "loha", "lokr", "boft")


def loss(model: nn.Module, **batch: torch.Tensor) -> torch.Tensor:
    return model(**batch).loss


def adapted(name: str, *, moved: bool = True) -> nn.Module:
    """With an adapter that is no more where it began: many begin at zero."""
    model = peft.get_peft_model(classifier(), METHODS[name]())
    if moved:
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", METHODS)
def test_gradients_of_an_adapter_equal_the_loop(name: str) -> None:
    hold_to_the_loop(adapted(name).eval(), loss, collate(texts(5)), "vmap", 1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_of_an_adapter_is_reached_in_the_first_step(name: str) -> None:
    """At its own beginning, where gradients may be zero; a warning would be an error."""
    model = adapted(name, moved=False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    data = torch.utils.data.DataLoader(texts(), collate_fn=collate)
    with psac.make_private(
        model, optimizer, data, batch_size=8, steps=2, noise_multiplier=1.0
    ) as private:
        for batch in private.loader:
            private.step(loss, batch)
        assert private.ledger.isolation in ((), ("vmap",))


@pytest.mark.parametrize("name", MERGED)
def test_an_adapter_is_saved_loaded_and_merged_as_usual(tmp_path: Path, name: str) -> None:
    args = settings(tmp_path, max_steps=2)
    model = peft.get_peft_model(classifier(), METHODS[name]())
    privacy = PrivacyArguments(noise_multiplier=1.0)
    run = PrivateTrainer(model, args, collate, texts(), privacy=privacy)
    before = weights(classifier().bert)
    run.train()
    run.save_model()
    assert (tmp_path / "adapter_model.safetensors").exists()
    assert (tmp_path / "privacy.json").exists()
    loaded = peft.PeftModel.from_pretrained(classifier(), str(tmp_path))
    batch = collate(texts(6, seed=2))
    with torch.no_grad():
        expected = model.eval()(**batch).logits
        assert torch.equal(loaded.eval()(**batch).logits, expected)
        merged = model.merge_and_unload().eval()
        torch.testing.assert_close(merged(**batch).logits, expected, rtol=1e-3, atol=1e-4)
    if name == "lora":
        assert weights(merged.bert).shape == before.shape


def test_an_adapter_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    args = settings(tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    privacy = PrivacyArguments(noise_multiplier=1.0)
    for resumed in (None, str(tmp_path / "checkpoint-2")):
        model = peft.get_peft_model(classifier(), METHODS["lora"]())
        run = PrivateTrainer(model, args, collate, texts(), privacy=privacy)
        if resumed is None:
            run.train()
            continue
        with pytest.warns(psac.PrivacyWarning, match="2 steps ran after"):
            result = run.train(resume_from_checkpoint=resumed)
        assert result.global_step == 2
        assert run.private is not None
        assert run.private.ledger.steps == 4


def test_adapters_that_the_loss_does_not_reach_are_named() -> None:
    model = peft.get_peft_model(classifier(), METHODS["lora"]())

    def cut_off(model: nn.Module, labels: torch.Tensor, **batch: torch.Tensor) -> torch.Tensor:
        inner = model.base_model.model
        hidden = inner.bert(**batch).pooler_output.detach()
        return nn.functional.cross_entropy(inner.classifier(hidden), labels)

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    data = torch.utils.data.DataLoader(texts(), collate_fn=collate)
    settings = {"batch_size": RECORDS, "steps": 1, "noise_multiplier": 1.0}
    with psac.make_private(model.train(), optimizer, data, **settings) as private:
        batches = iter(private.loader)
        batch = next(batches)
        with pytest.warns(UserWarning, match=r"depends on 2 of 10 trainable .*lora_A"):
            private.step(cut_off, batch)
