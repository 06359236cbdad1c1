"""A run on disk: one folder that holds everything about it.

    recipe.toml             its settings
    environment.json        versions and machine; `resumed` has those of later sessions
    metrics.jsonl           its log (metrics.py)
    ledger.json             what was released, as of the last checkpoint
    checkpoint.safetensors  the state for resuming it (`psac.save_checkpoint`)
    model.safetensors       the trained model; its header says how to build it, and its epsilon
    text/                   configuration and tokenizer of a language model, which are public
    released.json           ranges and categories of a table that were released with noise, if any
    predictions.json        its most confident mistakes, on public test records only
    model.py                your own network, if the recipe names one (own_model.py)
    summary.json            the results; written when the run finishes
    .lock                   held by the process that trains (`psac.checkpoint.locking`)

Guarantees: a kill at any moment leaves each file in its old or its new version, except for the last
line of metrics.jsonl, which is dropped on resuming.  The ledger is written before the checkpoint
and the model, so that it never counts less than they hold.

Ledger, model and released columns are as private as the ledger says, and so is an evaluation on
public test records.  Recipe and environment may name folders.  Lines with `"private": false` in
metrics.jsonl and summary.json were computed from private records without noise.  Keep the
checkpoint with the data.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from psac.accounting import Ledger
from psac.app import models
from psac.app.models.copies import with_copies
from psac.app.text.classifier import restored
from psac.app.training import metrics, own_model
from psac.app.training.own_data import asks_for_noise
from psac.app.training.recipe import Recipe
from psac.app.training.released_columns import ReleasedColumns
from psac.checkpoint.journal import journal_of, steps_in
from psac.checkpoint.locking import Locked, locked
from psac.checkpoint.saving import write_atomically


class RunError(ValueError):
    """The folder does not hold the expected run; nothing was changed."""


class Run:
    """The paths of a run folder and their content."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.recipe_path = self.folder / "recipe.toml"
        self.environment_path = self.folder / "environment.json"
        self.metrics_path = self.folder / "metrics.jsonl"
        self.ledger_path = self.folder / "ledger.json"
        self.checkpoint_path = self.folder / "checkpoint.safetensors"
        self.model_path = self.folder / "model.safetensors"
        self.predictions_path = self.folder / "predictions.json"
        self.model_source_path = self.folder / "model.py"
        self.text_path = self.folder / "text"
        self.released_path = self.folder / "released.json"
        self.summary_path = self.folder / "summary.json"
        self.lock_path = self.folder / ".lock"

    # Content
    @property
    def started(self) -> bool:
        return self.recipe_path.exists()

    @property
    def finished(self) -> bool:
        return self.summary_path.exists()

    def recipe(self) -> Recipe:
        return Recipe.from_toml(self.recipe_path)

    def metrics(self) -> list[dict[str, Any]]:
        return metrics.read(self.metrics_path)

    def ledger(self) -> Ledger:
        return Ledger.from_json(read_json(self.ledger_path))

    def released(self) -> ReleasedColumns | None:
        """The columns that were released before the first step; None if there are none."""
        if not self.started:
            return None
        if not self.released_path.exists():
            if asks_for_noise(self.recipe()):
                raise RunError(
                    f"{self.released_path} is missing. It holds the ranges and categories that "
                    "this run was trained with. Restore it from a copy, or start a new run with "
                    "its own budget in another folder."
                )
            return None
        return ReleasedColumns.from_json(read_json(self.released_path))

    def summary(self) -> dict[str, Any]:
        if not self.finished:
            raise RunError(f"the run in {self.folder} is not finished, so it has no summary.")
        return read_json(self.summary_path)

    def model(self) -> nn.Module:
        """The trained model, in evaluation mode."""
        from safetensors.torch import load_file

        model = self._built(self.model_facts())
        with self._whole_model():
            model.load_state_dict(load_file(self.model_path))
        return model.eval()

    def _built(self, how: Mapping[str, Any]) -> nn.Module:
        """The network that the header of the model describes."""
        from psac.app.training.assembly import network

        classes, settings = len(how["classes"]), how["model_settings"]
        if models.takes_text(how["model"]):
            return restored(how["model"], self.text_path, classes=classes, **settings)
        model = network(
            how["model"],
            self.model_source(self.recipe().model if self.started else how["model"]),
            input_shape=tuple(how["input_shape"]),
            classes=classes,
            settings=settings,
        )
        return with_copies(model, copies=how.get("copies", 1), shift=how.get("shift", 0))

    def model_source(self, model: str) -> Path | None:
        """The file of your own network, as it was when the run was started."""
        if not own_model.is_own(model):
            return None
        original = own_model.parts(model)[0]
        if not self.started:
            if not original.is_file():
                raise RunError(f"{original}, which model '{model}' names, does not exist.")
            return original
        copy = self.model_source_path
        expected = read_json(self.environment_path).get("model_sha256")
        if not copy.is_file() or own_model.digest(copy) != expected:
            raise RunError(
                f"{copy} is missing or was changed, so the network of this run cannot be built. "
                f"Restore it: it is a copy of {original} with the SHA-256 {expected}."
            )
        # The original may import files beside it.
        unchanged = original.is_file() and own_model.digest(original) == expected
        return original if unchanged else copy

    def refuse_changed_model(self, recipe: Recipe) -> None:
        """Raises if your own network has changed since the run was started."""
        source = self.model_source(recipe.model)
        original = own_model.parts(recipe.model)[0]
        if source is not None and original.is_file() and source != original:
            raise RunError(
                f"{original} was changed after the run in {self.folder} was started. To continue, "
                f"restore it from {self.model_source_path}. Or start a new run with its own budget "
                "in another folder."
            )

    def model_facts(self) -> dict[str, Any]:
        """The header of the model: how to build it, its classes, its cost."""
        from safetensors import safe_open

        if not self.folder.exists():
            raise RunError(f"{self.folder} does not exist.")
        if not self.model_path.exists():
            raise RunError(f"{self.folder} has no trained model, as the run is not finished.")
        with (
            self._whole_model(),
            safe_open(self.model_path, framework="pt") as file,  # type: ignore[no-untyped-call]
        ):
            return json.loads((file.metadata() or {})["psac"])

    @contextlib.contextmanager
    def _whole_model(self) -> Iterator[None]:
        """Explains errors of a damaged model file."""
        from safetensors import SafetensorError

        try:
            yield
        except (SafetensorError, KeyError, OSError) as error:
            raise RunError(
                f"{self.model_path} is not a complete model of a run ({error}). Copy it again from "
                f"where it was trained. Or, if {self.checkpoint_path.name} exists, remove "
                f"{self.summary_path.name} and resume the run, which writes the model again."
            ) from error

    # Starting and resuming
    def refuse(self, recipe: Recipe, *, resume: bool) -> None:
        """Raises if this run cannot be started or resumed in the folder."""
        if resume:
            self.refuse_other(recipe)
        else:
            self.refuse_occupied()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder, and locks it for the process that trains in it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.lock_path, wait=False))
            except Locked as error:
                raise RunError(
                    f"process {error.process} is training in {self.folder}. Wait until it ends, "
                    "stop it (Ctrl-C saves the run), or choose another folder."
                ) from error
            yield

    def refuse_occupied(self) -> None:
        """Raises if the folder holds a run: a second one would spend privacy uncounted."""
        if self.started or self.checkpoint_path.exists():
            raise RunError(
                f"{self.folder} already holds a run. Continue it (--resume, or resume=True), or "
                "choose another folder. A second run on the same data adds to the spent budget."
            )

    def refuse_lost_checkpoint(self) -> None:
        """Raises if steps were spent but their checkpoint is missing."""
        spent = 0 if self.checkpoint_path.exists() else self.steps_on_record()
        if spent:
            raise RunError(
                f"the run in {self.folder} has spent {spent:,} step{'s' if spent > 1 else ''}, but "
                f"{self.checkpoint_path.name} is missing. Restore it from a copy, or start a new "
                "run in another folder, which adds to the budget that is already spent."
            )

    def steps_on_record(self) -> int:
        """The largest number of steps in ledger, metrics or journal."""
        logged = [line.get("step", 0) for line in self.metrics()]
        return max(self.steps_in_ledger(), journalled(self.checkpoint_path), *logged, 0)

    def steps_in_ledger(self) -> int:
        if not self.ledger_path.exists():
            return 0
        try:
            return self.ledger().steps
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{self.ledger_path} cannot be read ({error}), so it is unknown what the run has "
                "spent. Restore it from a copy, or start a new run in another folder."
            ) from error

    def refuse_other(self, recipe: Recipe) -> None:
        """Raises if the folder holds no run, or a run with another recipe."""
        self.refuse_empty()
        differences = self.recipe().differences(recipe)
        if differences:
            raise RunError(
                f"the run in {self.folder} was started with another recipe "
                f"({'; '.join(differences)}). Continue it with its own recipe, without options: "
                f"{shlex.join(['psac', 'train', '--run', str(self.folder), '--resume'])}, or "
                "train(Run(folder).recipe(), folder, resume=True) in Python. Or start a new run "
                "with its own budget in another folder."
            )

    def refuse_empty(self) -> None:
        """Raises if the folder holds no run."""
        if not self.started:
            raise RunError(
                f"{self.folder} holds no run to resume. Start a new one without --resume."
            )

    def enter(
        self,
        recipe: Recipe,
        environment: Mapping[str, Any],
        released: ReleasedColumns | None = None,
    ) -> None:
        """Records that the run was started or resumed in this environment."""
        if not self.started:
            self.released_path.unlink(missing_ok=True)
            if released is not None:
                write_json(self.released_path, released.to_json())
            source = self.model_source(recipe.model)
            digest = {} if source is None else self._copy_model_source(source)
            write_json(self.environment_path, {**environment, **digest, "resumed": []})
            write_atomically(self.recipe_path, recipe.to_toml().encode())
            return
        first = read_json(self.environment_path)
        resumed = [*first["resumed"], dict(environment)]
        write_json(self.environment_path, {**first, "resumed": resumed})

    def _copy_model_source(self, source: Path) -> dict[str, str]:
        """Copies your own network into the folder; returns its SHA-256 for environment.json."""
        write_atomically(self.model_source_path, source.read_bytes())
        return {"model_sha256": own_model.digest(self.model_source_path)}

    # Results
    def write_model(self, model: nn.Module, how: Mapping[str, Any]) -> None:
        """Writes the weights, with `how` as the header."""
        from safetensors.torch import save

        weights = model.state_dict().items()
        state = {name: value.detach().cpu().contiguous() for name, value in weights}
        # One entry: safetensors writes several in any order, and equal runs would differ.
        header = {"psac": json.dumps(metrics.plain(dict(how)))}
        write_atomically(self.model_path, save(state, header))

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"


def journalled(checkpoint: Path) -> int:
    """The number of steps in the journal of a checkpoint; 0 without one."""
    journal = journal_of(checkpoint)
    return steps_in(journal) if journal.exists() else 0


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Writes JSON atomically, with null for numbers that are not finite."""
    text = json.dumps(metrics.plain(content), indent=1, allow_nan=False)
    write_atomically(path, (text + "\n").encode())
