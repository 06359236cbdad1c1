"""A run on disk: one folder with everything that it was and did.

    recipe.toml             its settings
    environment.json        where it ran; `resumed` lists where it went on
    metrics.jsonl           its story, line by line (see metrics.py)
    ledger.json             what was released, as of the last checkpoint
    checkpoint.safetensors  all that is needed to go on (`psac.save_checkpoint`)
    model.safetensors       the trained model; its header says how to build it, and its epsilon
    released.json           ranges and categories of a table that were released with noise, if any
    predictions.json        its surest mistakes, on public test records only
    model.py                the user's own network, if the recipe names one (own_model.py)
    summary.json            the results; written when the run finishes
    .lock                   held by the process that trains, by its number
    (`psac.checkpoint.locking`)

Guarantees: a kill at any moment leaves every file whole, in its old version or its new one, save
for the last line of metrics.jsonl, which is dropped when the run goes on.  The ledger is written
before the checkpoint and the model, so that it counts no less than they hold.

What may be shown: recipe, environment, ledger and model are as private as the ledger says, and so
is an evaluation on public test records.  Whatever has `"private": false` in metrics.jsonl or
summary.json was computed from private records without noise.  Keep the checkpoint with the data.
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
from psac.app.models.copies import with_copies
from psac.app.training import metrics, own_model
from psac.app.training.own_data import asks_for_noise
from psac.app.training.recipe import Recipe
from psac.app.training.released import ReleasedColumns
from psac.checkpoint.journal import journal_of, steps_in
from psac.checkpoint.locking import Locked, locked
from psac.checkpoint.saving import write_atomically


class RunError(ValueError):
    """The folder does not hold the run that was asked for; nothing was changed."""


class Run:
    """The folder's paths, and what is in them."""

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
        self.released_path = self.folder / "released.json"
        self.summary_path = self.folder / "summary.json"
        self.lock_path = self.folder / ".lock"

    # What is there
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
        """What was released of the table before the first step."""
        if not self.started:
            return None
        if not self.released_path.exists():
            if asks_for_noise(self.recipe()):
                raise RunError(
                    f"{self.released_path} is gone: it held the ranges and categories that the run "
                    "in its folder was trained with. Restore it from a copy, or start a new run in "
                    "another folder, with a budget of its own."
                )
            return None
        return ReleasedColumns.from_json(read_json(self.released_path))

    def summary(self) -> dict[str, Any]:
        if not self.finished:
            raise RunError(f"the run in {self.folder} is not finished: it has no summary yet.")
        return read_json(self.summary_path)

    def model(self) -> nn.Module:
        """The trained model, in evaluation mode."""
        from safetensors.torch import load_file

        from psac.app.training.assembly import network

        how = self.model_facts()
        model = network(
            how["model"],
            self.model_source(how["model"]),
            input_shape=tuple(how["input_shape"]),
            classes=len(how["classes"]),
            settings=how["model_settings"],
        )
        model = with_copies(model, copies=how.get("copies", 1), shift=how.get("shift", 0))
        with self._whole_model():
            model.load_state_dict(load_file(self.model_path))
        return model.eval()

    def model_source(self, model: str) -> Path | None:
        """The file of a network of the user's own, as it was when the run was started."""
        if not own_model.is_own(model):
            return None
        given = own_model.parts(model)[0]
        if not self.started:
            if not given.is_file():
                raise RunError(f"there is no file {given}, which model '{model}' names.")
            return given
        kept = self.model_source_path
        expected = read_json(self.environment_path).get("model_sha256")
        if not kept.is_file() or own_model.digest(kept) != expected:
            raise RunError(
                f"{kept} is gone or was changed, so the network of this run cannot be built. "
                f"Restore it: it is a copy of {given} with the SHA-256 {expected}."
            )
        # What lies beside the user's file may be imported from it.
        same = given.is_file() and own_model.digest(given) == expected
        return given if same else kept

    def refuse_changed_model(self, recipe: Recipe) -> None:
        """Raises if the user's own network is not that which the run was started with."""
        source = self.model_source(recipe.model)
        given = own_model.parts(recipe.model)[0]
        if source is not None and given.is_file() and source != given:
            raise RunError(
                f"{given} was changed after the run in {self.folder} was started with it. The file "
                f"of then is {self.model_source_path}: put it back to go on, or start a new run in "
                "another folder, with a budget of its own."
            )

    def model_facts(self) -> dict[str, Any]:
        """What the header of the model says: how to build it, its classes, what it cost."""
        from safetensors import safe_open

        if not self.folder.exists():
            raise RunError(f"there is no folder {self.folder}.")
        if not self.model_path.exists():
            raise RunError(f"there is no trained model in {self.folder}: the run is not finished.")
        with (
            self._whole_model(),
            safe_open(self.model_path, framework="pt") as file,  # type: ignore[no-untyped-call]
        ):
            return json.loads((file.metadata() or {})["psac"])

    @contextlib.contextmanager
    def _whole_model(self) -> Iterator[None]:
        """Says what to do about a file that was cut short, or is another's."""
        from safetensors import SafetensorError

        try:
            yield
        except (SafetensorError, KeyError, OSError) as error:
            raise RunError(
                f"{self.model_path} is not a whole model of a run ({error}). Copy it again from "
                f"where it was trained; or, if {self.checkpoint_path.name} is there, remove "
                f"{self.summary_path.name} and resume the run, which writes the model anew."
            ) from error

    # Beginning and going on
    def refuse(self, recipe: Recipe, *, resume: bool) -> None:
        """Raises if the folder is not fit to begin this run in, or to go on with it."""
        if resume:
            self.refuse_other(recipe)
        else:
            self.refuse_occupied()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Held by one process at a time, while it trains in the folder, which is made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self.lock_path, wait=False))
            except Locked as error:
                raise RunError(
                    f"process {error.process} is training in {self.folder} at this moment. Wait "
                    "for its end or stop it (Ctrl-C saves), or take another folder."
                ) from error
            yield

    def refuse_occupied(self) -> None:
        """A folder with a run in it: a second one would spend privacy that nobody counts."""
        if self.started or self.checkpoint_path.exists():
            raise RunError(
                f"{self.folder} holds a run already. Go on with it (resume=True, or --resume), or "
                "take another folder: a second run on the same data adds to what is spent."
            )

    def refuse_lost_checkpoint(self) -> None:
        """Raises if steps were spent and what they led to is gone: they would be forgotten."""
        spent = 0 if self.checkpoint_path.exists() else self.steps_on_record()
        if spent:
            raise RunError(
                f"{spent:,} step{'s were' if spent > 1 else ' was'} spent by the run in "
                f"{self.folder}, and {self.checkpoint_path.name}, which it would go on from, is "
                "gone. Restore it from a copy, or start a new run in another folder: what was "
                "spent on these records stays spent, and a new run adds to it."
            )

    def steps_on_record(self) -> int:
        """The most steps that ledger, metrics or journal tell of."""
        told = [line.get("step", 0) for line in self.metrics()]
        return max(self.steps_in_ledger(), journalled(self.checkpoint_path), *told, 0)

    def steps_in_ledger(self) -> int:
        if not self.ledger_path.exists():
            return 0
        try:
            return self.ledger().steps
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{self.ledger_path} cannot be read ({error}), so what the run spent is not "
                "known. Restore it from a copy, or start a new run in another folder."
            ) from error

    def refuse_other(self, recipe: Recipe) -> None:
        """A folder without a run, or with that of another recipe."""
        self.refuse_empty()
        differences = self.recipe().differences(recipe)
        if differences:
            raise RunError(
                f"the run in {self.folder} was started with another recipe "
                f"({'; '.join(differences)}). Go on with its own, without other options: "
                f"{shlex.join(['psac', 'train', '--run', str(self.folder), '--resume'])}, or "
                "train(Run(folder).recipe(), folder, resume=True) in Python; or start a new run in "
                "another folder, with a budget of its own."
            )

    def refuse_empty(self) -> None:
        """A folder without a run."""
        if not self.started:
            raise RunError(
                f"{self.folder} holds no run to go on with. To start one, do not ask to resume."
            )

    def enter(
        self,
        recipe: Recipe,
        environment: Mapping[str, Any],
        released: ReleasedColumns | None = None,
    ) -> None:
        """Writes down that the run is started here, or goes on here."""
        if not self.started:
            self.released_path.unlink(missing_ok=True)
            if released is not None:
                write_json(self.released_path, released.to_json())
            source = self.model_source(recipe.model)
            kept = {} if source is None else self._keep(source)
            write_json(self.environment_path, {**environment, **kept, "resumed": []})
            write_atomically(self.recipe_path, recipe.to_toml().encode())
            return
        first = read_json(self.environment_path)
        resumed = [*first["resumed"], dict(environment)]
        write_json(self.environment_path, {**first, "resumed": resumed})

    def _keep(self, source: Path) -> dict[str, str]:
        """The user's own network goes into the folder; its SHA-256, for environment.json."""
        write_atomically(self.model_source_path, source.read_bytes())
        return {"model_sha256": own_model.digest(self.model_source_path)}

    # Results
    def write_model(self, model: nn.Module, how: Mapping[str, Any]) -> None:
        """`how` goes into the header, for `model`."""
        from safetensors.torch import save

        found = model.state_dict().items()  # safetensors takes no other order of dimensions
        state = {name: value.detach().cpu().contiguous() for name, value in found}
        # One entry: safetensors writes several in any order, and equal runs would differ.
        header = {"psac": json.dumps(metrics.plain(dict(how)))}
        write_atomically(self.model_path, save(state, header))

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"


def journalled(checkpoint: Path) -> int:
    """The steps that the journal of a checkpoint tells of; 0 if it is gone."""
    journal = journal_of(checkpoint)
    return steps_in(journal) if journal.exists() else 0


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """As JSON, whole or not at all, with null for numbers that are not finite."""
    text = json.dumps(metrics.plain(content), indent=1, allow_nan=False)
    write_atomically(path, (text + "\n").encode())
