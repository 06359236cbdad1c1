"""A figure of the paper as files: data, pictures and a caption, in a folder of its own.

    results/paper/fig4/data.json       all numbers in the picture, settings, versions, seeds
                       data.csv        the same numbers as a table
                       fig4-light.svg  and -dark, each as SVG and PNG
                       caption.md      what it shows, and where it agrees with the paper
                       finished/       one file per finished run, if it needs runs

`make` computes what is not there yet and draws the rest anew.  Guarantees: a run that is finished
of the same settings is never repeated, also if recipes have got further settings since, at whose
defaults it was made; pictures and caption are functions of data.json alone.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paper.figures.theme import THEMES, Theme, save
from paper.result_files import settings_of
from psac.app.training.environment import environment
from psac.app.training.recipe import Recipe
from psac.checkpoint.saving import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Data = dict[str, Any]
Note = Callable[[str], None]


class Folder:
    """Where an exhibit is kept, and where its unfinished runs are."""

    def __init__(self, path: Path, note: Note) -> None:
        self.path, self.note = path, note

    def run(self, name: str, asked: Mapping[str, Any], compute: Callable[[Path], Data]) -> Data:
        """The finished run of this name; else `compute(checkpoint)`, which is then kept.

        `asked` is all that it depends on: a run that was asked for something else is not taken.
        """
        path, text = self.path / "finished" / f"{name}.json", json.dumps(asked, sort_keys=True)
        if path.exists():
            result = read(path)
            if same_request(result["asked"], json.loads(text)):
                return result
        self.note(f"{self.path.name}: {name}")
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        checkpoint = Path("runs") / "paper" / self.path.name / f"{name}-{digest}.safetensors"
        result = {"asked": json.loads(text), **compute(checkpoint)}
        write(path, json.dumps(result, indent=1))
        return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exhibit:
    """`compute` gives the data, `rows` those of its table; `draw` and `caption` read nothing else.

    `settings` are those that its data depend on: data with other ones are computed again.
    """

    name: str
    title: str
    command: str
    settings: Mapping[str, Any]
    compute: Callable[[Folder], Data]
    rows: Callable[[Data], Sequence[Mapping[str, Any]]]
    draw: Callable[[Data, Theme], Figure]
    caption: Callable[[Data], str]


def make(exhibit: Exhibit, results: Path, note: Note = lambda _: None) -> list[Path]:
    """The files of the exhibit, computed as far as they are not there."""
    folder = results / exhibit.name
    data = _stored(exhibit, folder / "data.json")
    if data is None:
        result = exhibit.compute(Folder(folder, note))
        data = {**stamp(), "settings": dict(exhibit.settings), **result}
        data = json.loads(json.dumps(data))  # what is drawn is what is stored
        write(folder / "data.json", json.dumps(data, indent=1))
    written = [folder / "data.json", folder / "data.csv", folder / "caption.md"]
    write(written[1], table(exhibit.rows(data)))
    parts = f"# {exhibit.title}", exhibit.caption(data).strip(), origin(data, exhibit.command)
    write(written[2], "\n\n".join(parts) + "\n")
    for theme in THEMES.values():
        figure = exhibit.draw(data, theme)
        figure.tight_layout(w_pad=2.5, h_pad=2.0)
        written += save(figure, folder / f"{exhibit.name}-{theme.name}")
    return written


def _stored(exhibit: Exhibit, path: Path) -> Data | None:
    if not path.exists():
        return None
    data = read(path)
    same = same_request(data["settings"], json.loads(json.dumps(dict(exhibit.settings))))
    return data if same and not data.get("missing") else None


def same_request(stored: Any, asked: Any) -> bool:
    """Whether two JSON values ask for the same.

    What stands under "recipe" is compared as a recipe: a setting that it lacks has its default.
    Numbers may differ in their last digits, as noise does that was calibrated elsewhere.
    """
    if isinstance(stored, dict) and isinstance(asked, dict):
        stored, asked = _completed(stored), _completed(asked)
        return stored.keys() == asked.keys() and all(
            same_request(stored[key], asked[key]) for key in asked
        )
    if isinstance(stored, list) and isinstance(asked, list):
        return len(stored) == len(asked) and all(map(same_request, stored, asked))
    if isinstance(stored, float) and isinstance(asked, (float, int)):
        return math.isclose(stored, asked, rel_tol=1e-9)
    return stored == asked


def _completed(asked: Data) -> Data:
    """With all settings of its recipe, if it has one."""
    if "recipe" not in asked:
        return asked
    try:
        return {**asked, "recipe": settings_of(Recipe.from_settings(asked["recipe"]))}
    except (TypeError, ValueError):  # of a version with other settings: not the same
        return asked


def read(path: Path) -> Data:
    """The JSON of a file; one that is damaged is named."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}). Remove it, and it is computed again."
        ) from error


def stamp() -> Data:
    """When and with what data were computed."""
    here = environment(seed=None, device=torch.device("cpu"))
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        **{key: here[key] for key in ("versions", "platform", "threads")},
    }


def origin(data: Data, command: str) -> str:
    """The last line of a caption."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return f"Computed on {data['date']} by `{command}` with {versions}."


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows, which have the same columns, as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
