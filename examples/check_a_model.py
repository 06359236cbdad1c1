"""See how the engine treats a model: `psac.check` on a small vision transformer.

python examples/check_a_model.py             prints the report
python examples/check_a_model.py --page      writes it into docs/guides/own-model.md
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import psac

BEGIN, END = "<!-- check:begin -->", "<!-- check:end -->"


class VisionTransformer(nn.Module):
    """The class token and the positions are raw parameters, which module hooks would miss."""

    def __init__(self, width: int = 64, patches: int = 16, classes: int = 10):
        super().__init__()
        self.embed = nn.Conv2d(1, width, 7, stride=7)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, patches + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.embed(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], 1) + self.positions
        return self.head(self.encoder(tokens)[:, 0])


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def main() -> None:
    torch.manual_seed(0)
    batch = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    report = str(psac.check(VisionTransformer(), loss, batch))
    print(report)
    if "--page" in sys.argv:
        path = Path(__file__).parents[1] / "docs" / "guides" / "own-model.md"
        before, rest = path.read_text().split(BEGIN)
        after = rest.split(END)[1]
        path.write_text(f"{before}{BEGIN}\n```text\n{report}\n```\n{END}{after}")


if __name__ == "__main__":
    main()
