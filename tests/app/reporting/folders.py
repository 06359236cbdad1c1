"""Run folders like those of a real training, made in milliseconds.

Curves, norms and confusions follow simple models of what a run does, from a fixed seed; files and
keys are exactly those of the run format.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import psac
from psac.app.training.price import price

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
EDGES = [k / 4 for k in range(-16, 13)]
CLASSES = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat",
           "Sandal", "Shirt", "Sneaker", "Bag", "Boot"]  # fmt: skip
SEGMENTS = {  # of the figures that stand for pictures: top, upper left, upper right, middle, ...
    0: "1110111", 1: "0010010", 2: "1011101", 3: "1011011", 4: "0111010",
    5: "1101011", 6: "1101111", 7: "1010010", 8: "1111111", 9: "1111011",
}  # fmt: skip
RULES = {
    "psac": psac.PSAC(r=0.1, bound=0.1),
    "auto_s": psac.AutoS(r=0.01, bound=0.1),
    "abadi": psac.Abadi(bound=0.1),
    "adaptive_psac": psac.AdaptivePSAC(r=0.1, bound=0.1),
}


def make_run(
    folder: Path,
    *,
    rule: str = "psac",
    seed: int | None = None,
    epochs: int = 8,
    epsilon: float = 3.0,
    noise_multiplier: float = 1.2,
    learning_rate: float = 4.0,
    validation_fraction: float = 0.0,
    stop: float = 1.0,
    pixels: bool = True,
    luck: int = 0,
) -> Path:
    """Writes a run that was killed after the share `stop` of its steps, or is finished."""
    random = np.random.default_rng([luck, seed or 0, len(rule)])
    folder.mkdir(parents=True, exist_ok=True)
    recipe = {
        "data": "fashion-mnist",
        "data_root": "somewhere/data",
        "validation_fraction": validation_fraction,
        "model": "cnn",
        "rule": rule,
        "r": 0.1 if "psac" in rule else None,
        "bound": 0.1,
        "epsilon": epsilon,
        "sampling": "poisson",
        "batch_size": 2048,
        "epochs": float(epochs),
        "optimizer": "sgd",
        "learning_rate": learning_rate,
        "momentum": 0.9,
        "seed": seed,
    }
    _write_toml(folder / "recipe.toml", recipe)
    _write_json(folder / "environment.json", _environment(seed))
    run = _Simulation(RULES[rule], epochs, noise_multiplier, validation_fraction, random)
    last = max(1, round(stop * run.planned))
    lines = run.lines(last, secure=seed is None)
    _write_json(folder / "ledger.json", run.ledger(last, secure=seed is None).to_json())
    if last == run.planned:
        summary = run.summary(lines)
        end = {"kind": "end", "step": last, "seconds": summary["seconds"], **run.mark,
               "epsilon": summary["epsilon"], "accuracy": summary["accuracy"]}  # fmt: skip
        lines.append(end)
        _write_json(folder / "summary.json", summary)
        if not validation_fraction:
            found = {"split": "test", "public": True, "mistakes": run.mistakes(pixels)}
            _write_json(folder / "predictions.json", found)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1))


def _write_toml(path: Path, recipe: dict[str, Any]) -> None:
    given = {key: value for key, value in recipe.items() if value is not None}
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()))


def _environment(seed: int | None) -> dict[str, Any]:
    return {
        "date": "2026-11-15T10:20:30+00:00",
        "command": "psac train fashion-mnist-cnn --epsilon 3 --out runs/fashion",
        "versions": {"psac": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "platform": "Linux-6.1-x86_64",
        "cpu_count": 2,
        "seed": seed,
        "secure": seed is None,
        "resumed": [],
    }


class _Simulation:
    """What a run would have seen."""

    def __init__(
        self,
        rule: Any,
        epochs: int,
        noise_multiplier: float,
        validation_fraction: float,
        random: np.random.Generator,
    ) -> None:
        self.rule, self.random, self.noise_multiplier = rule, random, noise_multiplier
        self.records, self.batch = round(60_000 * (1 - validation_fraction)), 2048
        self.rate = self.batch / self.records
        self.planned = round(epochs / self.rate)
        self.epochs = epochs
        self.split = "validation" if validation_fraction else "test"
        self.mark = {"private": False} if validation_fraction else {"public": True}
        self.delta = 1 / (10 * self.records)
        self.best = 0.865 + {"PSAC": 0.004, "AdaptivePSAC": 0.006}.get(type(rule).__name__, 0.0)
        self.best += 0.0015 * random.standard_normal()

    def ledger(self, steps: int, *, secure: bool = True) -> psac.Ledger:
        ledger = psac.Ledger(secure=secure)
        ledger.note_way("vmap")
        ledger.record(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.rate,
            num_records=self.records,
            steps=steps,
        )
        return ledger

    def epsilon(self, step: int) -> float:
        """Exact at the end; before, near enough for a curve."""
        final = price(self.ledger(self.planned), self.delta)
        return final * (step / self.planned) ** 0.5

    def lines(self, last: int, *, secure: bool) -> list[dict[str, Any]]:
        lines = [self._start(secure)]
        every = max(1, self.planned // 400)
        evaluated = 0
        for step in range(every, last + 1, every):
            lines.append(self._step(step, priced=step % (every * 20) == 0))
            if int(step * self.rate + 1e-9) > evaluated:
                evaluated = int(step * self.rate + 1e-9)
                lines.append(self._evaluation(step))
        if last == self.planned and lines[-1]["kind"] != "evaluation":
            lines.append(self._evaluation(last))
        return lines

    def _start(self, secure: bool) -> dict[str, Any]:
        return {
            "kind": "start", "time": 1.0, "step": 0, "planned_steps": self.planned,
            "num_records": self.records, "expected_batch_size": self.batch,
            "noise_multiplier": self.noise_multiplier, "delta": self.delta,
            "sampling": "poisson", "relation": "add or remove one record",
            "rule": repr(self.rule), "secure": secure, "resumed": False,
        }  # fmt: skip

    def _norms(self, progress: float) -> np.ndarray:
        """A bulk that shrinks and a tail of difficult records that grows."""
        hard = 0.35 + 0.25 * np.exp(-6 * progress)
        size = 2048
        easy = np.exp(self.random.normal(np.log(0.6) - 2.2 * progress, 1.0, size))
        difficult = np.exp(self.random.normal(np.log(3.0) + 1.1 * progress, 0.55, size))
        return np.where(self.random.random(size) < hard, difficult, easy)

    def _step(self, step: int, *, priced: bool) -> dict[str, Any]:
        progress = step / self.planned
        norms = self._norms(progress)
        adaptive = isinstance(self.rule, psac.AdaptivePSAC)
        scale = 1.0 + 0.8 * float(np.tanh(4 * progress)) if adaptive else None
        rule = self.rule.rule(scale) if scale is not None else self.rule
        weights = rule.weights(torch.tensor(norms)).numpy()
        loss = 0.42 + 1.8 * np.exp(-14 * progress) + 0.02 * self.random.standard_normal()
        samples = int(self.random.binomial(self.records, self.rate))
        speed = 21_700 + 900 * self.random.standard_normal()
        counts, _ = np.histogram(np.log10(norms).clip(EDGES[0], EDGES[-1]), EDGES)
        return {
            "kind": "step", "time": 2.0, "step": step, "epoch": round(step * self.rate, 6),
            **({"epsilon": self.epsilon(step)} if priced else {}),
            "loss": float(loss), "samples": samples,
            "norms": {"quantiles": np.quantile(norms, QUANTILES).tolist()},
            "weights": {"quantiles": np.quantile(weights, QUANTILES).tolist()},
            "histogram": {"log10_norm_edges": EDGES, "counts": counts.tolist()},
            "private": False, "seconds": 0.0941 * step, "samples_per_second": float(speed),
            "scale": scale,
        }  # fmt: skip

    def _evaluation(self, step: int) -> dict[str, Any]:
        progress = step / self.planned
        accuracy = self.best - 0.16 * np.exp(-7 * progress) + 0.002 * self.random.standard_normal()
        return {
            "kind": "evaluation", "time": 3.0, "step": step, "epoch": round(step * self.rate, 6),
            "split": self.split, "accuracy": round(float(accuracy), 4),
            "loss": float(0.41 + 0.5 * np.exp(-7 * progress)),
            "epsilon": self.epsilon(step), **self.mark,
        }  # fmt: skip

    def summary(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        matrix = self._confusion()
        last = [line for line in lines if line["kind"] == "evaluation"][-1]
        right = sum(row[i] for i, row in enumerate(matrix))
        last["accuracy"] = right / sum(map(sum, matrix))
        return {
            "accuracy": last["accuracy"], "loss": last["loss"], "split": self.split, **self.mark,
            "epsilon": self.epsilon(self.planned), "delta": self.delta,
            "isolation": "by construction (vmap)", "warnings": [], "unsafe": [],
            "steps": self.planned, "seconds": 0.0941 * self.planned,
            "classes": CLASSES,
            "per_class_accuracy": [row[i] / sum(row) for i, row in enumerate(matrix)],
            "confusion_matrix": matrix,
        }  # fmt: skip

    def _confusion(self) -> list[list[int]]:
        """Tops are taken for each other, shoes for each other."""
        groups = ([0, 2, 3, 4, 6], [5, 7, 9], [1], [8])
        difficulty = [0.17, 0.035, 0.21, 0.12, 0.19, 0.06, 0.42, 0.05, 0.04, 0.05]
        shift = (self.best - 0.869) / 0.131
        matrix = []
        for true in range(10):
            miss = difficulty[true] * (1 - shift)
            near = next(group for group in groups if true in group)
            shares = np.full(10, 0.06 * miss / 9)
            others = [said for said in near if said != true] or [8, 3]
            for said in others:
                shares[said] += 0.94 * miss / len(others)
            shares[true] = 0.0
            shares[true] = 1 - shares.sum()
            matrix.append(self.random.multinomial(1000, shares).tolist())
        return matrix

    def mistakes(self, pixels: bool) -> list[dict[str, Any]]:
        rows = []
        for _ in range(24):
            label, prediction = self.random.choice(10, 2, replace=False)
            row = {
                "record": int(self.random.integers(10_000)) + 1,
                "label": int(label),
                "prediction": int(prediction),
                "confidence": float(self.random.uniform(0.4, 1)),
            }
            rows.append(row | {"pixels": picture(int(label), self.random)} if pixels else row)
        return sorted(rows, key=lambda row: -row["confidence"])


def picture(figure: int, random: np.random.Generator) -> list[list[int]]:
    """A figure of seven segments, 28 x 28, a little blurred."""
    image = np.zeros((28, 28))
    bars = [(4, 5, 9, 19), (5, 14, 8, 9), (5, 14, 19, 20), (13, 14, 9, 19), (14, 23, 8, 9),
            (14, 23, 19, 20), (22, 23, 9, 19)]  # fmt: skip
    for on, (top, bottom, left, right) in zip(SEGMENTS[figure], bars, strict=True):
        if on == "1":
            image[top - 1 : bottom + 1, left - 1 : right + 1] = 1.0
    image = sum(np.roll(image, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) / 9
    image = image + 0.06 * random.random((28, 28))
    return (255 * image.clip(0, 1)).astype(int).tolist()
