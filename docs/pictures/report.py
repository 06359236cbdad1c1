"""Makes the picture of a report: `python docs/pictures/report.py runs/demo/fashion-mnist-cnn-psac`.

A headless chromium renders the beginning and the curves of the run's public page side by side, and
the script saves them as docs/pictures/report.png.  The picture shows nothing of the machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from psac.app.reporting import report

PICTURE = Path(__file__).with_suffix(".png")
WIDTH, HEIGHT, GAP, SCALE = 1180, 1500, 30, 0.6
FRAME = f"""<iframe src="page.html{{place}}" width="{WIDTH}" height="{HEIGHT}" scrolling="no"
 style="border:0"></iframe>"""


def photograph(run: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report(run, output=Path(folder) / "page.html", publish=True)
        wall = Path(folder) / "wall.html"
        frames = "".join(FRAME.format(place=place) for place in ("", "#learning"))
        style = f"margin:0;display:flex;gap:{GAP}px;background:#d9dee6"
        wall.write_text(f'<!doctype html><body style="{style}">{frames}</body>')
        shot = Path(folder) / "shot.png"
        size = f"--window-size={2 * WIDTH + GAP},{HEIGHT}"
        chromium = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        how = [size, f"--force-device-scale-factor={SCALE}", f"--screenshot={shot}"]
        command = [*chromium, *how, wall.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        Image.open(shot).convert("RGB").save(PICTURE, optimize=True)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    photograph(sys.argv[1])
