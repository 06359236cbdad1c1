"""Language models with a head: scores, types, adapters, files."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import psac
from psac.app import models
from psac.app.text import classifier, pretrained
from psac.app.text.classifier import build, restored, save_files
from psac.app.training.evaluation import loss_of
from tests.app.text.small import model_folder

TEXTS = ["the film is good", "very bad", "a plot and a dull actor was quite poor"]


@pytest.fixture(params=["minilm", "roberta-base"])  # the mean of the tokens; the first token
def name(request) -> str:
    return request.param


def model(name, weights, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build(name, classes=3, **{"weights": str(weights), "lengths": [8, 16], **settings})


def test_scores_of_a_text_do_not_depend_on_others_or_on_padding(name, weights):
    built = model(name, weights)
    ids = built.tokens(TEXTS)
    together = built(ids)
    assert together.shape == (3, 3)
    for number, text in enumerate(TEXTS):
        alone = torch.tensor([built.tokens.tokenizer(text)["input_ids"]])
        torch.testing.assert_close(built(alone)[0], together[number], rtol=1e-5, atol=1e-6)


def test_the_mean_is_over_the_tokens_of_the_text(weights):
    from transformers import AutoModel

    built = model("minilm", weights)
    encoder = AutoModel.from_pretrained(str(weights)).eval()
    for text in TEXTS:
        states = encoder(**built.tokens.tokenizer(text, return_tensors="pt")).last_hidden_state
        expected = built.network.classifier(states.mean(1))
        torch.testing.assert_close(built(built.tokens([text])), expected, rtol=1e-5, atol=1e-6)


def test_types_of_pairs_are_those_of_the_tokenizer(weights):
    built = model("minilm", weights)
    pairs = ["a plot", "very bad", "the actor is fine"]
    ids = built.tokens(TEXTS, pairs)
    expected = built.tokens.tokenizer(TEXTS, pairs, padding="max_length", max_length=16)
    types = built._types(ids.long(), ids != built.tokens.padding)
    assert types.tolist() == expected["token_type_ids"]


@pytest.mark.parametrize("lora", [None, 4])
def test_weighted_gradients_are_those_of_a_loop(name, weights, lora):
    built = model(name, weights, lora=lora)
    for parameter in built.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)  # adapters begin with zeros
    ids, labels = built.tokens(TEXTS), torch.tensor([0, 2, 1])
    trained = [p for p in built.parameters() if p.requires_grad]
    rule = psac.PSAC()
    expected = [torch.zeros_like(p) for p in trained]
    for k in range(3):
        loss = loss_of(built, ids[k : k + 1], labels[k : k + 1])
        own = torch.autograd.grad(loss, trained)
        norm = torch.cat([g.flatten() for g in own]).norm()
        for total, gradient in zip(expected, own, strict=True):
            total += rule.weights(norm[None]) * gradient
    found = psac.weighted_gradient(built, loss_of, (ids, labels), rule)
    named = [n for n, p in built.named_parameters() if p.requires_grad]
    for key, want in zip(named, expected, strict=True):
        torch.testing.assert_close(found[key], want, rtol=1e-4, atol=1e-6)


def test_lora_trains_adapters_and_head_alone(name, weights):
    whole, built = model(name, weights), model(name, weights, lora=4)
    trained = {key for key, p in built.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in key or "classifier" in key for key in trained)
    assert any("classifier" in key for key in trained)
    assert sum(p.numel() for p in whole.parameters()) > 4 * sum(
        p.numel() for p in built.parameters() if p.requires_grad
    )


def test_without_adapters_the_scores_are_the_same(name, weights):
    built = model(name, weights, lora=4)
    for key, parameter in built.named_parameters():
        if "lora_B" in key:
            nn.init.normal_(parameter)
    merged = built.merged()
    assert not any("lora" in key for key in merged.state_dict())
    ids = built.tokens(TEXTS)
    torch.testing.assert_close(merged(ids), built(ids), rtol=1e-4, atol=1e-5)


def test_a_model_is_restored_from_its_files_without_the_pretrained_weights(
    name, weights, tmp_path, monkeypatch
):
    built = model(name, weights, lora=4, dropout=0.1).merged()
    save_files(built, tmp_path / "text")
    monkeypatch.setattr(classifier, "folder_of", None)
    again = restored(name, tmp_path / "text", classes=3, lora=4, lengths=[8, 16], weights="gone")
    again.load_state_dict(built.state_dict())
    ids = again.tokens(TEXTS)
    assert torch.equal(ids, built.tokens(TEXTS))
    assert torch.equal(again.eval()(ids), built.eval()(ids))


def test_the_files_of_a_model_hold_what_is_public_only(weights, tmp_path):
    save_files(model("minilm", weights), tmp_path / "text")
    assert sorted(path.name for path in (tmp_path / "text").iterdir()) == [
        *("config.json", "tokenizer.json", "tokenizer_config.json"),
    ]
    known = json.loads((weights / "tokenizer.json").read_text())
    found = json.loads((tmp_path / "text" / "tokenizer.json").read_text())
    assert found["model"] == known["model"]  # the vocabulary
    text = "".join(path.read_text() for path in (tmp_path / "text").iterdir())
    assert str(weights) not in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": 0}, "lora is 0"),
        ({"lora_layers": ["query"]}, "without lora"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"lengths": [1]}, "lengths is"),
        ({"hidden": 3}, "minilm setting 'hidden' is unknown"),
    ],
)
def test_settings_are_refused_before_anything_is_read(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        models.registry.check_settings("minilm", settings)


def test_a_length_without_positions_is_refused(weights):
    with pytest.raises(ValueError, match="lengths has 128, but the model takes texts of 64"):
        model("minilm", weights, lengths=[16, 128])


def test_layers_that_the_model_does_not_have_are_refused_with_those_it_has(weights):
    with pytest.raises(ValueError, match=r"lists q_proj, but .* dense, key, query, value"):
        model("minilm", weights, lora=4, lora_layers=["q_proj"])


@pytest.mark.parametrize("library", ["transformers", "peft"])
def test_a_missing_library_is_named_with_the_extra(weights, library, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(ImportError, match=rf"needs {library}.*psac\[hf\]"):
        model("minilm", weights, lora=4)


def test_weights_of_a_model_that_cannot_be_fetched_are_asked_for(cache):
    with pytest.raises(FileNotFoundError, match=r"weights=FOLDER .*config\.json"):
        pretrained.folder_of("roberta-base")


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json, model\.safetensors cannot be"):
        pretrained.folder_of("minilm", tmp_path)


def test_weights_that_were_changed_in_the_cache_are_not_used(cache):
    folder = model_folder(cache / "minilm")
    with (
        pytest.raises(FileNotFoundError, match="no source could provide it"),
        pytest.warns(UserWarning, match="wrong SHA-256"),
    ):
        pretrained.folder_of("minilm")
    assert folder.exists()


def test_no_model_has_the_name_of_a_data_set():
    assert not set(pretrained.PRETRAINED) & set(psac.data.names())
    for entry in pretrained.PRETRAINED.values():
        assert entry.seen
        assert entry.sources or all(checksum is None for checksum in entry.files.values())
        assert not entry.sources or all(entry.files.values())
