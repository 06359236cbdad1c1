"""Each sample's own gradient as a row: for figures that need its direction, not its norm alone.

The engine never forms them (`psac.gradients`); here `torch.func` does, some samples at a time.
Guarantee: row i is the gradient of sample i's cross entropy over all parameters, in the order of
`model.named_parameters()`.  Needs as much memory as samples times parameters.

>>> model = nn.Linear(2, 3)
>>> gradients_of(model, torch.ones(4, 2), torch.tensor([0, 1, 2, 0])).shape
torch.Size([4, 9])
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

# n sample, p parameter, r rule
CHUNK = 256


def gradients_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], one_input: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(model, parameters, (one_input.unsqueeze(0),))
        return F.cross_entropy(scores, label.unsqueeze(0))

    rows = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=CHUNK)(parameters, inputs, labels)
    return torch.cat([row.flatten(1) for row in rows.values()], dim=1)


def cosines(vectors_rp: Tensor, reference_p: Tensor) -> Tensor:
    """The cosine of each row to the reference; 0 where one of them is zero."""
    return F.cosine_similarity(vectors_rp, reference_p.unsqueeze(0), dim=1, eps=1e-30)
