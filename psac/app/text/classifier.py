"""A pretrained encoder with a new head: texts as token numbers in, scores of the classes out.

    model = build("minilm", classes=2)
    model(model.tokens(["a fine film"]))           # [1, 2]

`network` is a model of `transformers` with a head: all of it is trained, or, with `lora`, adapters
of that rank and the head (adapters.py). Encoders of sentences were trained for the mean over their
tokens, which the head reads (`MeanOfTokens`); for others it is the head of `transformers`. Dropout
is 0 unless a recipe sets it: noise and clipping regularise already.  Guarantees: the scores of a
text depend on that text alone; the network is built from files on this machine, and no code in them
is run; initial values of head and adapters come from torch's generator and are public, as are the
weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from psac.app.data.optional import needed
from psac.app.text import adapters
from psac.app.text.pretrained import CONFIG, PRETRAINED, folder_of
from psac.app.text.tokens import LENGTHS, Tokens, checked_lengths, tokenizer_in
from psac.checks import number, positive

WITH_WEIGHTS, WITHOUT_WEIGHTS = True, False
FOLDERS = ("weights",)  # settings that are places on a machine, and no part of a model
HEAD = "classifier"  # the name of the head in both kinds of networks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """`model_settings` of a recipe for text.

    Args:
        lora: The rank of the adapters; None trains all weights.
        lora_layers: The names of the layers that are adapted; None are those of the model.
        lengths: Public lengths that texts are padded to; longer texts are cut to the largest.
        dropout: The share of activations that is dropped in training.
        weights: Your own folder with the files of the model.
    """

    lora: int | None = None
    lora_layers: Sequence[str] | None = None
    lengths: Sequence[int] = LENGTHS
    dropout: float = 0.0
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.lora is not None:
            positive("lora", self.lora)
        elif self.lora_layers is not None:
            raise ValueError("lora_layers is given without lora: give the rank, such as lora=8.")
        checked_lengths(self.lengths)
        number("dropout", self.dropout, "[0, 1)")


class MeanOfTokens(nn.Module):
    """An encoder, and a linear head on the mean over the tokens of a text."""

    def __init__(self, encoder: Any, classes: int) -> None:
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        self.classifier = nn.Linear(encoder.config.hidden_size, classes)

    def forward(self, attention_mask: Tensor, **inputs: Tensor) -> Scores:
        states = self.encoder(attention_mask=attention_mask, **inputs).last_hidden_state
        share = attention_mask / attention_mask.sum(1, keepdim=True)
        return Scores(self.classifier((states * share.unsqueeze(-1)).sum(1)))


class Scores(NamedTuple):
    """As the outputs of `transformers` have them."""

    logits: Tensor


class TextClassifier(nn.Module):
    """Maps token numbers [n, length] to scores [n, classes]."""

    def __init__(self, network: nn.Module, tokens: Tokens) -> None:
        super().__init__()
        self.network, self.tokens = network, tokens
        config: Any = network.config
        self._has_types = getattr(config, "type_vocab_size", 0) > 1
        self._separator = int(tokens.tokenizer.sep_token_id)

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids.long()
        mask = ids != self.tokens.padding
        types = {"token_type_ids": self._types(ids, mask)} if self._has_types else {}
        return self.network(input_ids=ids, attention_mask=mask.long(), **types).logits

    def _types(self, ids: Tensor, mask: Tensor) -> Tensor:
        """0 up to the first separator, and 1 for the second text of a pair."""
        separators = (ids == self._separator).long()
        return (separators.cumsum(1) - separators).clamp(max=1) * mask

    def merged(self) -> TextClassifier:
        """The same without adapters, which are added to the weights."""
        return TextClassifier(adapters.merged(self.network), self.tokens)


def build(name: str, *, classes: int, **settings: Any) -> TextClassifier:
    """The pretrained model with a new head for so many classes."""
    stated = Settings(**settings)
    folder = folder_of(name, stated.weights)
    library = needed("transformers", package="transformers", purpose="a model for text", extra="hf")
    with quiet(library):
        network = _network(name, library, folder, classes, stated, WITH_WEIGHTS)
    if stated.lora is not None:
        layers = stated.lora_layers or PRETRAINED[name].lora
        network = adapters.adapted(network, rank=stated.lora, layers=layers, head=HEAD)
    tokens = Tokens(tokenizer_in(folder), stated.lengths)
    _refuse_long(tokens, network.config)
    return TextClassifier(network.train(), tokens)


def _refuse_long(tokens: Tokens, config: Any) -> None:
    """Raises for a length that the model has no positions for."""
    positions = getattr(config, "max_position_embeddings", tokens.lengths[-1])
    most = min(positions, tokens.tokenizer.model_max_length)
    if tokens.lengths[-1] > most:
        raise ValueError(
            f"lengths has {tokens.lengths[-1]}, but the model takes texts of {most} tokens or "
            "fewer. Leave out larger lengths: longer texts are cut."
        )


def tokens_of(name: str, **settings: Any) -> Tokens:
    """What makes token numbers of texts, as in the model of these settings."""
    stated = Settings(**settings)
    return Tokens(tokenizer_in(folder_of(name, stated.weights)), stated.lengths)


def restored(name: str, folder: Path, *, classes: int, **settings: Any) -> TextClassifier:
    """The network that `save_files` described, without weights and without adapters."""
    stated = Settings(**settings)
    library = needed("transformers", package="transformers", purpose="a model for text", extra="hf")
    network = _network(name, library, folder, classes, stated, WITHOUT_WEIGHTS)
    return TextClassifier(network, Tokens(tokenizer_in(folder), stated.lengths))


def save_files(model: TextClassifier, folder: Path) -> None:
    """Writes configuration and tokenizer, which are public, so that a run needs nothing else."""
    config: Any = model.network.config
    config.name_or_path = ""  # a folder of this machine
    config.save_pretrained(str(folder))
    model.tokens.tokenizer.save_pretrained(str(folder))


def _network(
    name: str, library: Any, folder: Path, classes: int, settings: Settings, with_weights: bool
) -> nn.Module:
    """The encoder with its head."""
    mean, config = PRETRAINED[name].mean, _config(library, folder, classes, settings)
    kind = library.AutoModel if mean else library.AutoModelForSequenceClassification
    # Nothing reads the token that a pooler pools, if the head reads the mean.
    more = {"add_pooling_layer": False} if mean else {}
    if with_weights:
        made = kind.from_pretrained(str(folder), config=config, local_files_only=True, **more)
    else:
        made = kind.from_config(config, **more)
    return MeanOfTokens(made, classes) if mean else made


def _config(library: Any, folder: Path, classes: int, settings: Settings) -> Any:
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder / CONFIG} is missing, so the model cannot be built.")
    config = library.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    config.num_labels = classes
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
        if hasattr(config, name):
            setattr(config, name, settings.dropout)
    return config


@contextlib.contextmanager
def quiet(library: Any) -> Iterator[None]:
    """Without progress bars and notes on a head that is new on purpose."""
    logging = library.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
