"""What nobody means any harm by: each of these works, or is refused for a true reason.

A row is a model, a function of one record and a batch.  `way` is how psac is to evaluate it.
"""

from __future__ import annotations

import copy
import warnings
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import psac
from psac.gradients import ClippedSum, Evaluator

N, D, CLASSES = 6, 4, 3
TABLE: list[Innocent] = []


@dataclass(frozen=True)
class Innocent:
    name: str
    make: Callable[[], tuple[nn.Module, Callable, Any]]
    way: str = "vmap"
    random: bool = False  # drawn numbers: cannot be compared with a plain loop
    refused: str | None = None  # what the message says


def innocent(name: str, **settings: Any):
    def put(make: Callable[[], tuple[nn.Module, Callable, Any]]):
        TABLE.append(Innocent(name, make, **settings))
        return make

    return put


def labelled(*shape: int, n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, *(shape or (D,)), generator=generator)
    return x, torch.randint(0, CLASSES, (n,), generator=generator)


def network(out: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, out))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


class Behind(nn.Module):
    """A function of the network and the inputs."""

    def __init__(self, function: Callable, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.function = inner or network(), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.inner, x)


# Checkpoints
def checkpointed(reentrant: bool, inner: nn.Module | None = None) -> nn.Module:
    return Behind(lambda m, x: checkpoint(m, x, use_reentrant=reentrant), inner)


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))


@innocent("gradient checkpointing with dropout", random=True)
def _():
    return checkpointed(False, with_dropout()), cross_entropy, labelled()


@innocent("re-entrant gradient checkpointing with dropout", random=True)
def _():
    model = nn.Sequential(nn.Linear(D, D), checkpointed(True, with_dropout()))
    return model, cross_entropy, labelled()


@innocent("a convolution inside a checkpoint that is not re-entrant")
def _():
    inner = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.Flatten())
    inner.append(nn.Linear(12, CLASSES))
    return checkpointed(False, inner), cross_entropy, labelled(1, 6, 6)


@innocent("checkpoint_sequential")
def _():
    def function(m: nn.Sequential, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint_sequential(m, 2, x, use_reentrant=False)

    return Behind(function), cross_entropy, labelled()


# Complex parameters
class Spectral(nn.Module):
    """The layer of a Fourier neural operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 2, 4, dtype=torch.cfloat))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.einsum("bix,iox->box", torch.fft.rfft(x)[..., :4], self.weight)
        return self.head(torch.fft.irfft(modes, n=8).flatten(1))


@innocent("complex parameters, as in a Fourier neural operator")
def _():
    return Spectral(), cross_entropy, labelled(2, 8)


# Sizes that happen to agree
@innocent("a constant in the loss whose length is that of the batch")
def _():
    constant = torch.linspace(0, 1, N)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (cross_entropy(model, x, y) * constant).sum()

    return network(), loss, labelled()


@innocent("as many classes as records")
def _():
    return network(N), cross_entropy, labelled()


@innocent("as many time steps as records")
def _():
    def function(m: nn.Module, x: Tensor) -> Tensor:
        return m(x)[0][:, -1]

    return Behind(function, nn.LSTM(D, CLASSES, batch_first=True)), cross_entropy, labelled(N, D)


@innocent("a weight for each class, as many as records")
def _():
    weights = torch.rand(N)
    return network(N), lambda m, x, y: F.cross_entropy(m(x), y, weights), labelled()


# Sparse batches
@innocent("sparse inputs", refused=r"sparse|dense")
def _():
    x, y = labelled()
    return network(), lambda m, x, y: cross_entropy(m, x.to_dense(), y), (x.to_sparse(), y)


@innocent("sparse inputs in rows (CSR)", refused=r"sparse|dense")
def _():
    x, y = labelled()
    return network(), lambda m, x, y: cross_entropy(m, x.to_dense(), y), (x.to_sparse_csr(), y)


# Derivatives inside the function
def energies_and_forces(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().requires_grad_(True)
    energy = model(x).sum()
    (forces,) = torch.autograd.grad(energy, x, create_graph=True)
    return (energy - y).square().sum() + forces.square().sum()


@innocent("forces by autograd.grad inside the function")
def _():
    return network(1), energies_and_forces, labelled()


@innocent("forces by torch.func.grad inside the forward")
def _():
    def function(m: nn.Module, x: Tensor) -> Tensor:
        return -torch.func.grad(lambda a: m(a).sum())(x)

    return Behind(function, network(1)), lambda m, x, y: (m(x) - y).square().mean(), labelled()


@innocent("a gradient penalty: double backward inside the function")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        score = model(x).sum()
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        return score + (slope.norm() - 1).square()

    return network(1), loss, labelled()


@innocent("FGSM inside the function")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        near = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(cross_entropy(model, near, y), near)
        return cross_entropy(model, x + 0.1 * slope.sign(), y)

    return network(), loss, labelled()


@innocent("a Jacobian by torch.func.jacrev inside the forward")
def _():
    def function(m: nn.Module, x: Tensor) -> Tensor:
        return torch.func.jacrev(lambda a: m(a))(x[0]).sum(-1, keepdim=True).T

    return Behind(function), cross_entropy, labelled()


@innocent("torch.func.functional_call inside the function")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        doubled = {name: 2 * p for name, p in model.named_parameters()}
        return F.cross_entropy(torch.func.functional_call(model, doubled, x), y)

    return network(), loss, labelled()


@innocent("one step of MAML inside the function")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        parameters = dict(model.named_parameters())
        inner = torch.func.functional_call(model, parameters, x)
        slopes = torch.autograd.grad(
            F.cross_entropy(inner, y), list(parameters.values()), create_graph=True
        )
        moved = {n: p - 0.1 * g for (n, p), g in zip(parameters.items(), slopes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, moved, x), y)

    return network(), loss, labelled()


# What models return
@innocent("a model that returns a Categorical")
def _():
    model = Behind(lambda m, x: torch.distributions.Categorical(logits=m(x)))
    return model, lambda m, x, y: -m(x).log_prob(y).sum(), labelled()


@innocent("a Normal whose sample is scored", random=True)
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        distribution = torch.distributions.Normal(model(x), 1.0)
        return distribution.rsample().square().sum() + 0 * y.sum()

    return network(), loss, labelled()


@innocent("views of each record, concatenated to 3n rows")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        views = torch.cat([x, x.flip(-1), 0.5 * x])
        return F.cross_entropy(model(views), y.repeat(3))

    return network(), loss, labelled()


# Quantisation
class FakeQuantized(nn.Module):
    """A learned step size, with a gradient that goes straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.scale = nn.Parameter(torch.tensor([0.1]))
        self.register_buffer("zero", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        x = torch._fake_quantize_learnable_per_tensor_affine(x, self.scale, self.zero, -8, 7, 1.0)
        return self.inner(x)


@innocent("a learned fake quantisation")
def _():
    return FakeQuantized(), cross_entropy, labelled()


# Other models in the function
@innocent("distillation from a teacher that is equal to the student")
def _():
    student = network()
    teacher = copy.deepcopy(student).requires_grad_(False)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        target = teacher(x).softmax(-1)
        return F.cross_entropy(model(x), y) + F.cross_entropy(model(x), target)

    return student, loss, labelled()


@innocent("a loss module, with class weights and label smoothing, in the closure")
def _():
    criterion = nn.CrossEntropyLoss(weight=torch.rand(CLASSES), label_smoothing=0.1)
    return network(), lambda m, x, y: criterion(m(x), y), labelled()


# State that tells nothing of records
class Counting(nn.Module):
    """As models of transformers are written."""

    _keys_to_ignore: ClassVar = {"a", "b"}
    _no_split_modules: ClassVar = ["Block"]

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.forwards += 1
        return self.inner(x)


@innocent("a buffer and a number that count calls")
def _():
    return Counting(), cross_entropy, labelled()


@innocent("spectral norm, whose buffers follow the weights")
def _():
    inner = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(D, 8)), nn.Linear(8, CLASSES)
    )
    return inner, cross_entropy, labelled()


@innocent("weight norm and orthogonal weights")
def _():
    first = nn.utils.parametrizations.weight_norm(nn.Linear(D, 8))
    second = nn.utils.parametrizations.orthogonal(nn.Linear(8, CLASSES))
    return nn.Sequential(first, nn.Tanh(), second), cross_entropy, labelled()


@innocent("a loss that is printed: f'{loss:.3f}'", way="alone")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value = cross_entropy(model, x, y)
        f"{value:.3f}"
        return value

    return network(), loss, labelled()


@innocent("a hook that keeps only the shape of its output")
def _():
    model, shapes = network(), []
    model[0].register_forward_hook(lambda m, i, o: shapes.append(tuple(o.shape)))
    return model, cross_entropy, labelled()


@innocent("torch.jit.script of a part", way="alone")
def _():
    return nn.Sequential(torch.jit.script(nn.Linear(D, D)), network()), cross_entropy, labelled()


@innocent("torch.compile of a part")
def _():
    part = torch.compile(nn.Linear(D, D), backend="eager")
    return nn.Sequential(part, network()), cross_entropy, labelled()


@innocent("a mixture of experts that chooses by value")
def _():
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(D, 2)
            self.experts = nn.ModuleList([nn.Linear(D, CLASSES), nn.Linear(D, CLASSES)])

        def forward(self, x: Tensor) -> Tensor:
            scores = self.gate(x).softmax(-1)
            best = int(scores.argmax())
            return self.experts[best](x) * scores[:, best]

    return Experts(), cross_entropy, labelled()


@innocent("records without a loss: all of the batch are masked")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return torch.zeros(()) if int(y) >= 0 else cross_entropy(model, x, y)

    return network(), loss, labelled()


@innocent("a tuple that is named, a dict, and None in the batch")
def _():
    x, y = labelled()

    def loss(model: nn.Module, inputs: dict, mask: None, y: Tensor) -> Tensor:
        return cross_entropy(model, inputs["x"], y)

    return network(), loss, {"inputs": {"x": x}, "mask": None, "y": y}


@innocent("a UserDict in the batch, as tokenizers give it")
def _():
    x, y = labelled()
    return network(), lambda m, b, y: F.cross_entropy(m(b.data["x"]), y), (UserDict(x=x), y)


class Pair:
    """A class of the user's own, registered with torch."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


pytree.register_pytree_node(Pair, lambda p: ([p.x, p.y], None), lambda parts, _: Pair(*parts))


@innocent("an object of a registered class")
def _():
    return network(), lambda m, pair: cross_entropy(m, pair.x, pair.y), Pair(*labelled())


# Tensors made in the function, and written
def decoded(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(3, len(x), CLASSES)
    first, last = out[0], out[-1]  # views see what is written
    for k in range(3):
        out[k] = model(k * x)
    return F.cross_entropy(last + first, y) + out.square().mean()


@innocent("outputs written into zeros, of which views are kept")
def _():
    return network(), decoded, labelled()


@innocent("zeros that hold a parameter before they hold a record")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        rows = torch.zeros(2, 8)
        rows[0] = model[0].bias
        rows[1] = model[0](x)[0]
        return F.cross_entropy(model[2](rows.tanh().sum(0, keepdim=True)), y)

    return network(), loss, labelled()


@innocent("a mask by index_add, scatter and masked assignment")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        hot = torch.zeros(len(y), CLASSES).scatter_(1, y.unsqueeze(1), 1.0)
        counts = torch.zeros(CLASSES).index_add_(0, y, torch.ones(len(y)))
        scores = model(x)
        scores[scores < -0.5] = 0
        return (hot * scores.log_softmax(-1) * counts).sum()

    return network(), loss, labelled()


@innocent("numbers drawn into empty tensors", random=True)
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        noise = torch.empty(x.shape).normal_() * torch.empty(1).uniform_()
        kept = torch.zeros(x.shape).bernoulli_(0.5)
        share = torch.distributions.Beta(0.4, 0.4).sample((len(x), 1))
        return cross_entropy(model, share * x * kept + noise, y)

    return network(), loss, labelled()


@innocent("a coin that decides for the whole batch", random=True)
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if torch.rand(1) < 0.5:
            x = x.flip(-1)
        return cross_entropy(model, x.roll(torch.randint(0, D, (1,)).item(), -1), y)

    return network(), loss, labelled()


# Values that decide
def sentences() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, 5, D, generator=generator), torch.tensor([2, 5, 2, 3, 5, 1])


@innocent("labels picked by a mask")
def _():
    def loss(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(5) < lengths[:, None]
        labels = torch.arange(5).expand(len(x), 5) % CLASSES
        return F.cross_entropy(model(x)[mask], labels[mask])

    return network(), loss, sentences()


@innocent("packed sequences, in both directions")
def _():
    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scan = nn.LSTM(D, CLASSES, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            rnn = nn.utils.rnn
            packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            outputs, (last, _) = self.scan(packed)
            return rnn.pad_packed_sequence(outputs, batch_first=True)[0].mean() + last.sum()

    return Scan(), lambda m, x, lengths: m(x, lengths).square(), sentences()


@innocent("experts that gather their tokens")
def _():
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(D, 2)
            self.experts = nn.ModuleList([nn.Linear(D, CLASSES), nn.Linear(D, CLASSES)])

        def forward(self, x: Tensor) -> Tensor:
            best, out = self.gate(x).argmax(-1), torch.zeros(*x.shape[:-1], CLASSES)
            for k, expert in enumerate(self.experts):
                out[best == k] = expert(x[best == k])
            return out.mean(1)

    x, lengths = sentences()
    return Experts(), cross_entropy, (x, lengths % CLASSES)


@innocent("a check of the inputs")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if not torch.isfinite(x).all() or y.max() >= CLASSES:
            raise ValueError("bad inputs")
        return cross_entropy(model, x, y)

    return network(), loss, labelled()


# Inputs that want a gradient, and functions in the old style
@innocent("inputs that require a gradient")
def _():
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x.requires_grad = True
        return cross_entropy(model, x, y)

    return network(), loss, labelled()


class OldScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, x.exp())
        ctx.factor, ctx.positive = factor, x > 0
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, grown = ctx.saved_tensors
        return grad * ctx.factor * (x + grown) * ctx.positive, None


@innocent("an autograd.Function in the old style, with attributes on its ctx")
def _():
    return Behind(lambda m, x: OldScale.apply(m(x), 0.5)), cross_entropy, labelled()


@innocent("channels_last, asked for inside")
def _():
    def function(m: nn.Module, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        assert x.is_contiguous(memory_format=torch.channels_last)
        return m(x)

    inner = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, CLASSES))
    return Behind(function, inner), cross_entropy, labelled(2, 4, 4)


# Functions that torch calls
@innocent("a function that torch.jit has compiled")
def _():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        squared = torch.jit.script(square_and_scale)
    return Behind(lambda m, x: squared(m(x), m[0].bias.sum())), cross_entropy, labelled()


def square_and_scale(x: Tensor, factor: Tensor) -> Tensor:
    return x * x.sigmoid() * factor


@innocent("torch.compile around a network, and a number that is read", way="alone")
def _():
    inner = network()
    compiled = torch.compile(inner, backend="eager")
    return Behind(lambda m, x: compiled(x / float(x.max())), inner), cross_entropy, labelled()


@innocent("a distance of one's own in a triplet loss")
def _():
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        apart = lambda a, b: (a - b).abs().sum(1)  # noqa: E731
        return F.triplet_margin_with_distance_loss(m(x), m(-x), m(x / 2), distance_function=apart)

    return network(), loss, labelled()


@innocent("a hook that scales a gradient", way="alone")
def _():
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scores = m(x)
        scores.register_hook(lambda grad: grad / 2)
        return F.cross_entropy(scores, y)

    return network(), loss, labelled()


def against_the_loss(m: nn.Module, x: Tensor, y: Tensor, *, only: bool = False) -> Tensor:
    x = x.clone().requires_grad_()
    F.cross_entropy(m(x), y).backward(inputs=[x] if only else None)
    return F.cross_entropy(m(x.detach() + 0.1 * x.grad.sign()), y)


@innocent("an adversarial step by backward()", refused=r"use torch\.autograd\.grad")
def _():
    return network(), against_the_loss, labelled()


@innocent("an adversarial step by backward(inputs=[x])", way="alone")
def _():
    return network(), lambda m, x, y: against_the_loss(m, x, y, only=True), labelled()


@innocent("a tangent by torch.func.jvp")
def _():
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scores, tangent = torch.func.jvp(m, (x,), (torch.ones_like(x),))
        return F.cross_entropy(scores, y) + tangent.square().mean()

    return network(), loss, labelled()


def tried(row: Innocent) -> tuple[str, str]:
    """The way that psac took, or "refused" or "raised", and what it said."""
    torch.manual_seed(0)
    model, loss, batch = row.make()
    total = ClippedSum(Evaluator(model), psac.Abadi(bound=1.0))
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            way = total.add(loss, batch).way
        except psac.PrivacyError as error:
            return "refused", str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the table
            return "raised", f"{type(error).__name__}: {error}"
    told = [str(w.message) for w in raised if issubclass(w.category, psac.SlowPathWarning)]
    return way, told[0] if told else ""
