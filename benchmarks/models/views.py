"""Several views, several models, several tasks: contrast, distillation, meta-learning."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .batches import RECORDS, Case, classes, cross_entropy, dense, numbers, tokens
from .convolutions import head, normed


def trunk(outputs: int = 32) -> nn.Sequential:
    return nn.Sequential(normed(3, 16, 3, 2), normed(16, 32, 3, 2), head(32, outputs))


def siamese() -> Case:
    """Siamese network, contrastive loss on a pair"""

    def loss(model: nn.Module, x: Tensor, z: Tensor, same: Tensor) -> Tensor:
        distance = F.pairwise_distance(model(x), model(z))
        return torch.where(same > 0, distance**2, F.relu(1 - distance) ** 2).mean()

    return trunk(), loss, (numbers(3, 24, 24), numbers(3, 24, 24), classes(2))


def triplet() -> Case:
    """Triplet margin loss"""

    def loss(model: nn.Module, x: Tensor, near: Tensor, far: Tensor) -> Tensor:
        return F.triplet_margin_loss(model(x), model(near), model(far), margin=1.0)

    return trunk(), loss, tuple(numbers(3, 24, 24) for _ in range(3))


def simclr() -> Case:
    """SimCLR among the eight crops of a record"""

    def loss(model: nn.Module, crops: Tensor) -> Tensor:
        features = F.normalize(model(crops.flatten(0, 1)), dim=-1).unflatten(0, crops.shape[:2])
        scores = features @ features.transpose(1, 2) / 0.2
        scores = scores.masked_fill(torch.eye(8, dtype=torch.bool), -1e9)
        other = torch.arange(8).roll(4).expand(len(crops), -1)
        return F.cross_entropy(scores.flatten(0, 1), other.flatten())

    return trunk(), loss, (numbers(8, 3, 16, 16),)


def byol() -> Case:
    """BYOL: two noisy views, a target that follows by EMA"""
    model = nn.Sequential(trunk(), dense(32, 64, 32))
    target = copy.deepcopy(model[0]).requires_grad_(False)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        views = [x + 0.1 * torch.randn_like(x) for _ in range(2)]
        guesses = [F.normalize(model(view), dim=-1) for view in views]
        with torch.no_grad():
            wanted = [F.normalize(target(view), dim=-1) for view in views]
        return 4 - 2 * (guesses[0] * wanted[1] + guesses[1] * wanted[0]).sum(-1).mean()

    return model, loss, (numbers(3, 24, 24),)


class WithTarget(nn.Module):
    """A student, and a teacher inside the same module."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = trunk(64), trunk(64).requires_grad_(False)
        self.register_buffer("center", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = ((self.teacher(x) - self.center) / 0.04).softmax(-1)
        return -(wanted * (self.student(x.flip(-1)) / 0.1).log_softmax(-1)).sum(-1).mean()


def dino() -> Case:
    """DINO: student, teacher and center in one module"""
    return WithTarget(), lambda model, x: model(x), (numbers(3, 24, 24),)


def distillation() -> Case:
    """Distillation from a teacher of the same kind"""
    teacher = trunk(10).eval()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(-1)
        scores = model(x)
        soft = F.kl_div((scores / 2).log_softmax(-1), wanted, reduction="batchmean")
        return F.cross_entropy(scores, y) + 4 * soft

    return trunk(10), loss, (numbers(3, 24, 24), classes(10))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.kind, self.age = trunk(64), nn.Linear(64, 5), nn.Linear(64, 1)
        self.log_variances = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = F.relu(self.trunk(x))
        return self.kind(features), self.age(features).squeeze(-1)


def two_heads() -> Case:
    """Two tasks, weights of losses learned"""

    def loss(model: TwoHeads, x: Tensor, kind: Tensor, age: Tensor) -> Tensor:
        kinds, ages = model(x)
        losses = torch.stack([F.cross_entropy(kinds, kind), F.mse_loss(ages, age)])
        return (losses * torch.exp(-model.log_variances) + model.log_variances).sum()

    return TwoHeads(), loss, {"x": numbers(3, 24, 24), "kind": classes(5), "age": numbers()}


class Prototypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = dense(32, 128, 32)

    def forward(self, shots: Tensor, query: Tensor) -> Tensor:
        centers = self.body(shots).mean(2)  # [b, class, shot, d]
        return -torch.cdist(self.body(query), centers)


def prototypes() -> Case:
    """Prototypical network: a task in each record"""

    def loss(model: nn.Module, shots: Tensor, query: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(shots, query).flatten(0, 1), y.flatten())

    return Prototypes(), loss, (numbers(5, 4, 32), numbers(10, 32), classes(5, 10))


def maml() -> Case:
    """MAML: torch.func.grad inside, a task in each record"""

    def loss(model: nn.Module, x: Tensor, y: Tensor, x2: Tensor, y2: Tensor) -> Tensor:
        def of_task(x: Tensor, y: Tensor, x2: Tensor, y2: Tensor) -> Tensor:
            weights = dict(model.named_parameters())

            def inner(weights: dict[str, Tensor]) -> Tensor:
                return F.mse_loss(functional_call(model, weights, (x,)), y)

            slopes = torch.func.grad(inner)(weights)
            moved = {name: w - 0.1 * slopes[name] for name, w in weights.items()}
            return F.mse_loss(functional_call(model, moved, (x2,)), y2)

        return torch.vmap(of_task)(x, y, x2, y2).mean()

    return dense(1, 40, 40, 1), loss, tuple(numbers(10, 1) for _ in range(4))


def jacobian_penalty() -> Case:
    """A penalty on the Jacobian (torch.func.jacrev)"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        slopes = torch.vmap(torch.func.jacrev(model))(x)
        return F.cross_entropy(model(x), y) + 0.01 * slopes.square().sum((1, 2)).mean()

    return dense(16, 64, 4, activation=nn.Tanh), loss, (numbers(16), classes(4))


def physics_informed() -> Case:
    """A physics-informed network (second derivatives)"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope[..., 0].sum(), x, create_graph=True)
        return ((bend[..., 0] - slope[..., 1]) ** 2).mean() + F.mse_loss(u, y)

    return dense(2, 64, 64, 1, activation=nn.Tanh), loss, (numbers(32, 2), numbers(32, 1))


def adversarial() -> Case:
    """FGSM: an adversarial step inside the loss"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        attacked = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(attacked), y), attacked)
        return F.cross_entropy(model(x + 0.05 * slope.sign()), y)

    return trunk(10), loss, (numbers(3, 24, 24), classes(10))


class ArcFace(nn.Module):
    def __init__(self, people: int = 100) -> None:
        super().__init__()
        self.trunk, self.people = trunk(64), nn.Parameter(torch.randn(people, 64))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        cosine = F.linear(F.normalize(self.trunk(x)), F.normalize(self.people))
        angle = torch.acos(cosine.clamp(-0.999, 0.999))
        mine = F.one_hot(y, len(self.people)).bool()
        return 16 * torch.where(mine, torch.cos(angle + 0.5), cosine)


def arcface() -> Case:
    """ArcFace (normalized weights, a margin on angles)"""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x, y), y)

    return ArcFace(), loss, (numbers(3, 24, 24), classes(100))


class SkipGram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.around = nn.Embedding(1000, 64), nn.Embedding(1000, 64, sparse=False)

    def forward(self, word: Tensor, around: Tensor) -> Tensor:
        return torch.einsum("bd,bkd->bk", self.words(word), self.around(around))


def word2vec() -> Case:
    """word2vec with negative samples"""

    def loss(model: nn.Module, word: Tensor, near: Tensor) -> Tensor:
        far = torch.randint(0, 1000, (len(word), 10))
        return -F.logsigmoid(model(word, near)).mean() - F.logsigmoid(-model(word, far)).mean()

    return SkipGram(), loss, (classes(1000), tokens(4, 1000))


class ClipPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.picture, self.text = trunk(32), nn.EmbeddingBag(500, 32, mode="mean")
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, captions: Tensor) -> Tensor:
        picture = F.normalize(self.picture(x), dim=-1)
        text = F.normalize(self.text(captions.flatten(0, 1)), dim=-1).unflatten(
            0, captions.shape[:2]
        )
        return self.log_scale.exp() * torch.einsum("bd,bkd->bk", picture, text)


def captions() -> Case:
    """CLIP with captions to choose from within a record"""
    words = torch.randint(500, (RECORDS, 6, 8))

    def loss(model: nn.Module, x: Tensor, words: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x, words), y)

    return ClipPair(), loss, (numbers(3, 24, 24), words, classes(6))


def ensemble() -> Case:
    """An ensemble by torch.func.stack_module_state"""

    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            members = [dense(32, 64, 5) for _ in range(4)]
            stacked, _ = torch.func.stack_module_state(members)  # type: ignore[arg-type]
            self.weights = nn.ParameterDict(
                {name.replace(".", "_"): nn.Parameter(w.detach()) for name, w in stacked.items()}
            )

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.einsum("bi,koi->kbo", x, self.weights["0_weight"])
            hidden = F.relu(hidden + self.weights["0_bias"].unsqueeze(1))
            out = torch.einsum("kbi,koi->kbo", hidden, self.weights["2_weight"])
            return (out + self.weights["2_bias"].unsqueeze(1)).mean(0)

    return Ensemble(), cross_entropy, (numbers(32), classes(5))


MODELS = (
    siamese, triplet, simclr, byol, dino, distillation, two_heads, prototypes, maml,
    jacobian_penalty, physics_informed, adversarial, arcface, word2vec, captions, ensemble,
)  # fmt: skip
