"""A language model of a few kilobytes, and reviews that it can learn."""

from __future__ import annotations

import random
from pathlib import Path

import torch

WORDS = ("the", "film", "is", "was", "and", "a", "plot", "actor", "very", "quite")
GOOD, BAD = ("good", "fine", "great", "warm"), ("bad", "dull", "poor", "cold")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def model_folder(folder: Path, *, layers: int = 1) -> Path:
    """A BERT of width 16 with random weights and its tokenizer, as transformers writes them."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = [*SPECIAL, *WORDS, *GOOD, *BAD]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(str(folder))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,  # so that words differ from the start
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(str(folder))
    return folder


def reviews(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Sentences of 3 to 12 words with one word that decides."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        label = draw.randint(0, 1)
        words = draw.choices(WORDS, k=draw.randint(2, 11))
        words.insert(draw.randint(0, len(words)), draw.choice((BAD, GOOD)[label]))
        made.append((" ".join(words), label))
    return made


def sst2_folder(folder: Path, *, train: int = 120, test: int = 40) -> Path:
    """Files in the layout of SST-2."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", reviews(train, 1)), ("dev", reviews(test, 2))):
        lines = [f"{text} \t{label}" for text, label in rows]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return folder
