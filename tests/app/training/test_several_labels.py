"""The shipped recipe for the 40 labels of CelebA, on pictures that the test makes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from psac.app.data import catalogue
from psac.app.training import load_recipe, train

NAMES = catalogue.ENTRIES["celeba"].classes


@pytest.fixture
def faces(tmp_path):
    """12 to train on and 4 to test on, in the layout of CelebA."""
    random = np.random.default_rng(0)
    (tmp_path / "img_align_celeba").mkdir()
    rows, parts = [], []
    for k in range(16):
        name = f"{k:06}.jpg"
        picture = random.integers(0, 256, (22, 18, 3)).astype(np.uint8)
        Image.fromarray(picture).save(tmp_path / "img_align_celeba" / name)
        rows.append(" ".join([name, *map(str, random.choice([-1, 1], 40))]))
        parts.append(f"{name} {0 if k < 12 else 2}")
    header = ["16", " ".join(NAMES)]
    (tmp_path / "list_attr_celeba.txt").write_text("\n".join([*header, *rows]) + "\n")
    (tmp_path / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return tmp_path


def test_forty_labels_are_trained_and_counted_one_by_one(faces, tmp_path):
    recipe = load_recipe(
        "celeba-40-labels-resnet9",
        **{"data_root": str(faces), "model_settings": {"width": 4}, "delta": 1e-2},
        **{"data_settings": {"size": 16}, "batch_size": 6, "epochs": 1, "noise_multiplier": 3.0},
    )
    run = train(recipe, tmp_path / "run")
    summary = run.summary()
    assert len(summary["per_class_accuracy"]) == 40
    assert summary["accuracy"] == pytest.approx(np.mean(summary["per_class_accuracy"]))
    assert summary["accuracy"] * 4 * 40 == pytest.approx(round(summary["accuracy"] * 4 * 40))
    assert summary["classes"] == list(NAMES)
    assert run.model_facts()["several_labels"] is True
    steps = [line for line in run.metrics() if line["kind"] == "step"]
    assert all(0.3 < line["loss"] < 2 for line in steps if line["loss"] is not None)
