"""How models are called: twice, in parts, frozen in part, by name, under transforms."""

from __future__ import annotations

import dataclasses
import warnings

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.gradients.models.linear import two
from tests.gradients.table import Call, row, rows

rows(
    "same_modules_called_twice",
    lambda: Call(
        lambda m, x: m.norm(m.layer(m.norm(m.layer(x).tanh()))),
        layer=nn.Linear(4, 4),
        norm=nn.LayerNorm(4),
    ),
    (5, 3, 4),
)
rows(
    "same_convolution_called_twice",
    lambda: Call(lambda m, x: m.conv(m.conv(x).tanh()), conv=nn.Conv2d(3, 3, 3, padding=1)),
    (5, 3, 4, 4),
)
rows(
    "same_layer_in_a_loop",
    lambda: nn.Linear(4, 4),
    (5, 3, 4),
    lambda m, x: [x := m(x).tanh() for _ in range(20)][-1],
)
rows(
    "two_forwards_in_one_loss",
    lambda: two(4, 3, 2),
    (5, 4),
    lambda m, x: m(x).square() + m(x.flip(1)).exp().sqrt(),
)
rows(
    "positions_one_by_one",
    lambda: two(4, 3, 2),
    (5, 3, 4),
    lambda m, x: torch.stack([m(part) for part in x.unbind(1)]),
)
rows(
    "submodules_called_in_the_loss",
    lambda: nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(3, 2)}),
    (5, 4),
    lambda m, x: m["b"](m["a"](x).tanh()),
)
rows(
    "experts_that_all_run",
    lambda: Call(
        lambda m, x: sum(
            m.gate(x).softmax(-1)[..., k : k + 1] * expert(x) for k, expert in enumerate(m.experts)
        ),
        gate=nn.Linear(4, 2),
        experts=nn.ModuleList(nn.Linear(4, 3) for _ in range(2)),
    ),
    (5, 3, 4),
)


def partly_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    model[4].weight.requires_grad_(False)
    return model


rows("partly_frozen", partly_frozen, (5, 4))
rows(
    "partly_frozen_norms",
    lambda: Call(
        lambda m, x: (
            m.bag(m.norm(m.conv(x)).abs().long().clamp(max=4).flatten(1)) * m.conv(x).sum()
        ),
        conv=nn.Conv1d(3, 4, 2).requires_grad_(False),
        norm=nn.GroupNorm(2, 4).requires_grad_(False),
        bag=nn.EmbeddingBag(5, 3),
    ),
    (5, 3, 4),
)


class FrozenFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.body(x).relu()
        return self.head(features)


rows("frozen_features", FrozenFeatures, (5, 4))
rows(
    "features_without_gradient",
    lambda: two(4, 3, 2),
    (5, 4),
    lambda m, x: m[2](m[:2](x).detach()) * m(x),
)


@dataclasses.dataclass
class Output:
    logits: Tensor
    extra: dict[str, Tensor]


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *, x: Tensor, mask: Tensor) -> Output:
        out = self.layer(x)
        return Output(out, {"masked": out * mask})


def of_output(model: nn.Module, **batch: Tensor) -> Tensor:
    out = model(**batch)
    return out.logits.square().sum() + out.extra["masked"].sum()


row(
    "keyword_only_and_dataclass",
    Keyword,
    lambda: {"x": torch.randn(5, 4), "mask": torch.rand(5, 1)},
    of_output,
)
row(
    "nested_batch",
    lambda: nn.Linear(4, 3),
    lambda: ({"x": torch.randn(5, 4)}, [torch.randn(5, 3), torch.rand(5)]),
    lambda m, inputs, targets: (m(inputs["x"]) - targets[0]).square().sum() * targets[1].sum(),
)
row(
    "padded_sequences",
    lambda: Call(
        lambda m, x, mask: m.head((m.body(x).tanh() * mask.unsqueeze(-1)).sum(1)),
        body=two(4, 6, 6),
        head=nn.Linear(6, 2),
    ),
    lambda: (
        torch.randn(5, 12, 4),
        torch.arange(12) < torch.tensor([3, 6, 1, 4, 0]).unsqueeze(1),
    ),
    lambda m, x, mask: m(x, mask).square().sum(),
)
rows(
    "checkpointed",
    lambda: two(4, 6, 2),
    (5, 4),
    lambda m, x: m[2](checkpoint(m[:2], x, use_reentrant=False)),
)
rows(
    "gradient_of_the_input",
    lambda: two(4, 3, 1),
    (5, 4),
    lambda m, x: torch.func.grad(lambda given: m(given).sum())(x) + m(x),
)
rows(
    "jacobian",
    lambda: two(4, 3, 2),
    (5, 4),
    lambda m, x: torch.func.jacrev(m)(x[0]),
)
rows("inner_vmap", lambda: two(4, 3, 2), (5, 3, 4), lambda m, x: torch.vmap(m)(x[0]))
rows(
    "functional_call",
    lambda: two(4, 3, 2),
    (5, 4),
    lambda m, x: torch.func.functional_call(m, dict(m.named_parameters()), (x,)),
)
rows(
    "branch_on_a_random_number",
    lambda: two(4, 3, 2),
    (5, 4),
    lambda m, x: m(x) if torch.rand([]) < 2 and torch.randn(()) < 100 else m[0](x),
)


class Experts(nn.Module):
    """Gathers tokens by data: how many each expert gets is not known before."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, 4)
        chance, choice = self.gate(flat).softmax(-1).max(-1)
        out = x.new_zeros(flat.shape[0], 3)
        for k, expert in enumerate(self.experts):
            mine = (choice == k).nonzero().flatten()
            out = out.index_add(0, mine, expert(flat[mine]) * chance[mine, None])
        return out


rows("experts_that_pick_tokens", Experts, (5, 3, 4))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class GeneratedScale(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class Custom(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(4, 3)
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(self.layer(x), self.w)


rows("custom_function", lambda: Custom(Scale), (5, 4))
rows("custom_function_for_vmap", lambda: Custom(GeneratedScale), (5, 4))


def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(two(4, 3, 2), torch.randn(5, 4))


rows("traced", lambda: nn.Sequential(traced()), (5, 4), way="alone")


class Equilibrium(nn.Module):
    """The first pass of the core sees no record yet."""

    def __init__(self) -> None:
        super().__init__()
        self.inject, self.core = nn.Linear(4, 5), nn.Linear(5, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.zeros(x.shape[0], 5, dtype=x.dtype)
        for _ in range(4):
            z = (self.core(z) + self.inject(x)).tanh()
        return z


rows("core_before_any_record", Equilibrium, (5, 4))
