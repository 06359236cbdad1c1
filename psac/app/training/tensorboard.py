"""A run in TensorBoard: an observer that writes event files.

    with TensorBoard("runs/first/tensorboard") as log:
        train(recipe, "runs/first", observer=log)

Guarantees: values are those of metrics.jsonl.  Everything that comes from private records without
noise is in the group `not_private`.  A resumed run continues in the same folder and hides what was
written after its checkpoint.  The names of event files contain the name of the machine.  Needs the
extra `tensorboard`.
"""

from __future__ import annotations

import os
from typing import Any

NOT_PRIVATE = "not_private"


class TensorBoard:
    """An observer of `psac.training.train`, and a context that closes its file."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard logs need the package tensorboard: pip install 'psac[tensorboard]'."
            ) from error
        self._open, self._folder = SummaryWriter, os.fspath(folder)
        self._writer: Any = None  # opened by `started`, so that a refused run writes nothing

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def started(self, info: dict[str, Any]) -> None:
        self._writer = self._open(self._folder, purge_step=info["step"] + 1)
        plan = {key: value for key, value in info.items() if key not in ("kind", "time")}
        text = "\n".join(f"    {key}: {value}" for key, value in plan.items())
        self._writer.add_text("plan", text, info["step"])

    def stepped(self, info: dict[str, Any]) -> None:
        self._add(info, f"{NOT_PRIVATE}/loss", info["loss"])
        self._add(info, f"{NOT_PRIVATE}/samples_per_second", info["samples_per_second"])
        for name in ("norms", "weights"):
            quantiles = info[name]["quantiles"]
            if quantiles:
                self._add(info, f"{NOT_PRIVATE}/median_{name[:-1]}", quantiles[len(quantiles) // 2])
        self._add(info, "privacy/epsilon", info.get("epsilon"))

    def evaluated(self, info: dict[str, Any]) -> None:
        private = info.get("public") is not True
        prefix = f"{NOT_PRIVATE}/{info['split']}_" if private else "evaluation/"
        for name in ("accuracy", "loss"):
            self._add(info, prefix + name, info[name])
        self._add(info, "privacy/epsilon", info["epsilon"])

    def ended(self, info: dict[str, Any]) -> None: ...

    def _add(self, info: dict[str, Any], tag: str, value: float | None) -> None:
        if value is not None:  # null is a number that is not finite
            self._writer.add_scalar(tag, value, info["step"], walltime=info["time"])
