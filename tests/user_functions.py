"""Loss functions as users write them, none of which lets one record see another.

`CASES` maps a name to a function without arguments that makes a `Case` anew.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

N, WIDTH, CLASSES, TOKENS, VOCABULARY = 24, 6, 3, 5, 11


@dataclasses.dataclass
class Case:
    """A model, its loss function, its data, and what the user does after a step."""

    model: nn.Module
    loss: Callable[..., Tensor]
    data: Any = None
    random: bool = False  # whether the function draws random numbers
    after: Callable[[nn.Module], None] | None = None
    around: Callable[[], Any] | None = None  # a context for the step, such as autocast

    def __post_init__(self) -> None:
        self.data = TensorDataset(*vectors()) if self.data is None else self.data


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    @functools.wraps(make)
    def seeded() -> Case:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return make()

    CASES[make.__name__.replace("_", " ")] = seeded
    return seeded


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def vectors() -> tuple[Tensor, Tensor]:
    seed = generator()
    return torch.randn(N, WIDTH, generator=seed), torch.randint(CLASSES, (N,), generator=seed)


def sequences() -> tuple[Tensor, Tensor]:
    """Token numbers, padded by 0, and the mask of what counts."""
    seed = generator()
    tokens = torch.randint(1, VOCABULARY, (N, TOKENS), generator=seed)
    lengths = torch.randint(2, TOKENS + 1, (N, 1), generator=seed)
    mask = torch.arange(TOKENS) < lengths
    return tokens * mask, mask


def network(outputs: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, outputs))


def dictionaries(**columns: Tensor) -> list[dict[str, Tensor]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# ---- How a batch comes


class Output(NamedTuple):
    logits: Tensor
    loss: Tensor | None = None


@dataclasses.dataclass
class ModelOutput:
    loss: Tensor | None
    logits: Tensor


class Tagger(nn.Module):
    """As models of the transformers library: named arguments in, an object with a loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8, padding_idx=0)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.norm(self.embedding(input_ids))
        if attention_mask is not None:
            hidden = hidden * attention_mask.unsqueeze(-1)
        logits = self.head(hidden)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return ModelOutput(loss=loss, logits=logits)


@case
def dictionaries_of_hugging_face():
    tokens, mask = sequences()
    labels = tokens.masked_fill(~mask, -100)
    data = dictionaries(input_ids=tokens, attention_mask=mask.long(), labels=labels)
    return Case(Tagger(), lambda model, **batch: model(**batch).loss, data)


@case
def named_arguments():
    x, y = vectors()

    def loss(model, *, label, features):
        return F.cross_entropy(model(features), label)

    return Case(network(), loss, dictionaries(features=x, label=y))


@case
def a_tuple_of_inputs():
    x, y = vectors()

    def loss(model, inputs, target):
        left, right = inputs
        return F.cross_entropy(model(torch.cat([left, right], dim=-1)), target)

    data = [((a[:2], a[2:]), b) for a, b in zip(x, y, strict=True)]
    return Case(network(), loss, data)


@case
def one_tensor_and_no_label():
    def loss(model, x):
        return F.mse_loss(model(x), x)

    return Case(network(WIDTH), loss, vectors()[0])


# ---- How a function is made


class Criterion:
    def __init__(self, smoothing):
        self.smoothing = smoothing

    def __call__(self, model, x, y):
        return F.cross_entropy(model(x), y, label_smoothing=self.smoothing)


class Trainer:
    """Calls itself from its method."""

    def __init__(self, model):
        self.model, self.weights, self.epoch = model, torch.tensor([1.0, 2.0, 0.5]), 3

    def compute_loss(self, model, x, y):
        return self.reduce(F.cross_entropy(model(x), y, weight=self.weights, reduction="none"))

    def reduce(self, losses):
        return losses.mean() / self.epoch


def general(model, x, y, *, scale, criterion):
    return scale * criterion(model(x), y)


@case
def an_object_that_can_be_called():
    return Case(network(), Criterion(0.1))


@case
def a_bound_method():
    model = network()
    return Case(model, Trainer(model).compute_loss)


@case
def a_partial_function():
    return Case(network(), functools.partial(general, scale=0.5, criterion=F.cross_entropy))


@case
def a_lambda():
    return Case(network(), lambda model, x, y: F.cross_entropy(model(x), y))


@case
def a_criterion_with_class_weights():
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), reduction="sum")
    return Case(network(), lambda model, x, y: criterion(model(x), y))


@case
def a_model_that_computes_its_loss():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.criterion = network(), nn.CrossEntropyLoss()

        def forward(self, x, y):
            return self.criterion(self.body(x), y)

    return Case(WithLoss(), lambda model, x, y: model(x, y))


@case
def a_function_that_counts_its_calls():
    calls = {"forward": 0}

    def loss(model, x, y):
        calls["forward"] += 1
        return F.cross_entropy(model(x), y)

    return Case(network(), loss)


# ---- What a model returns


@case
def a_dataclass():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, x):
            return ModelOutput(loss=None, logits=self.body(x))

    return Case(Model(), lambda model, x, y: F.cross_entropy(model(x).logits, y))


@case
def a_named_tuple():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, x):
            return Output(self.body(x))

    def loss(model, x, y):
        logits, _ = model(x)
        return F.cross_entropy(logits, y)

    return Case(Model(), loss)


@case
def a_distribution():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, x):
            return torch.distributions.Categorical(logits=self.body(x), validate_args=False)

    def loss(model, x, y):
        policy = model(x)
        return (-policy.log_prob(y) - 0.01 * policy.entropy()).mean()

    return Case(Policy(), loss)


@case
def two_heads():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.label, self.size = nn.Linear(WIDTH, 8), nn.Linear(8, 3), nn.Linear(8, 1)

        def forward(self, x):
            hidden = F.gelu(self.body(x))
            return {"label": self.label(hidden), "size": self.size(hidden).squeeze(-1)}

    def loss(model, x, y):
        out = model(x)
        losses = {
            "label": F.cross_entropy(out["label"], y),
            "size": F.smooth_l1_loss(out["size"], x.norm(dim=-1)),
        }
        return sum(losses.values())

    return Case(Model(), loss)


@case
def auxiliary_losses_of_the_model():
    class Mixture(nn.Module):
        """Experts and the balance of their gate."""

        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(WIDTH, 4), nn.Parameter(torch.randn(4, WIDTH, 3))

        def forward(self, x):
            chances = self.gate(x).softmax(-1)
            outputs = torch.einsum("bi,eio->beo", x, self.experts)
            balance = (chances.mean(0) - 0.25).square().sum()
            return (chances.unsqueeze(-1) * outputs).sum(1), balance

    def loss(model, x, y):
        logits, balance = model(x)
        return F.cross_entropy(logits, y) + 0.1 * balance

    return Case(Mixture(), loss)


@case
def early_exits():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.exits = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(3))

        def forward(self, x):
            outputs = []
            for block, leave in zip(self.blocks, self.exits, strict=True):
                x = x + torch.tanh(block(x))
                outputs.append(leave(x))
            return outputs

    def loss(model, x, y):
        return torch.stack([F.cross_entropy(out, y) for out in model(x)]).mean()

    return Case(Model(), loss)


# ---- Other models beside the one that is trained


@case
def a_frozen_teacher():
    teacher = network().eval().requires_grad_(False)

    def loss(model, x, y, temperature=2.0):
        student, target = model(x) / temperature, teacher(x) / temperature
        soft = F.kl_div(student.log_softmax(-1), target.softmax(-1), reduction="batchmean")
        return F.cross_entropy(model(x), y) + temperature**2 * soft

    return Case(network(), loss)


@case
def a_teacher_that_follows():
    teacher = network().requires_grad_(False)

    def follow(model):
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    def loss(model, x, y):
        return F.cross_entropy(model(x), y) + F.mse_loss(model(-x), teacher(-x))

    return Case(network(), loss, after=follow)


@case
def a_frozen_backbone():
    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU())
            self.backbone.requires_grad_(False).eval()
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x):
            with torch.no_grad():
                features = self.backbone(x)
            return self.head(features)

    return Case(Probe(), lambda model, x, y: F.cross_entropy(model(x), y))


@case
def a_low_rank_change_of_a_frozen_model():
    class LowRank(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(WIDTH, CLASSES).requires_grad_(False)
            self.down = nn.Parameter(torch.randn(2, WIDTH))
            self.up = nn.Parameter(torch.randn(CLASSES, 2))

        def forward(self, x):
            return self.base(x) + x @ self.down.T @ self.up.T

    return Case(LowRank(), lambda model, x, y: F.cross_entropy(model(x), y))


# ---- Losses


@case
def mixup_with_a_public_record():
    other, label = torch.randn(1, WIDTH), torch.tensor([2])

    def loss(model, x, y):
        out = model(0.7 * x + 0.3 * other)
        return 0.7 * F.cross_entropy(out, y) + 0.3 * F.cross_entropy(out, label)

    return Case(network(), loss)


@case
def label_smoothing():
    return Case(network(), lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1))


@case
def a_mean_over_tokens():
    tokens, mask = sequences()

    def loss(model, tokens, mask):
        logits = model(tokens[:, :-1]).logits
        losses = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        return (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()

    return Case(Tagger(), loss, TensorDataset(tokens, mask))


@case
def focal():
    def loss(model, x, y):
        log_chance = model(x).log_softmax(-1).gather(1, y.unsqueeze(1)).squeeze(1)
        return (-((1 - log_chance.exp()) ** 2) * log_chance).mean()

    return Case(network(), loss)


@case
def dice():
    images = torch.rand(N, 1, 6, 6, generator=generator())
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv2d(4, 1, 1))

    def loss(model, image, target):
        chance = model(image).sigmoid().flatten(1)
        target = target.flatten(1)
        overlap = 2 * (chance * target).sum(1) / (chance + target).sum(1).clamp(min=1e-6)
        return (1 - overlap).mean()

    return Case(model, loss, TensorDataset(images, (images > 0.6).float()))


@case
def several_labels_with_weights():
    x, _ = vectors()
    weights = torch.tensor([1.0, 3.0, 0.5])

    def loss(model, x, y):
        return F.binary_cross_entropy_with_logits(model(x), y, pos_weight=weights)

    return Case(network(), loss, TensorDataset(x, (x[:, :3] > 0).float()))


@case
def quantiles():
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss(model, x, y):
        error = y.float().unsqueeze(1) - model(x)
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    return Case(network(), loss)


@case
def a_mixture_of_densities():
    def loss(model, x, y):
        logits, mean, scale = model(x).chunk(3, dim=-1)
        density = torch.distributions.Normal(mean, F.softplus(scale) + 0.1, validate_args=False)
        return -torch.logsumexp(
            logits.log_softmax(-1) + density.log_prob(y.unsqueeze(1).float()), dim=-1
        ).mean()

    return Case(network(6), loss)


@case
def a_penalty_on_the_weights():
    def loss(model, x, y):
        penalty = sum(p.square().sum() for p in model.parameters())
        return F.cross_entropy(model(x), y) + 1e-2 * penalty

    return Case(network(), loss)


@case
def a_triplet_in_each_record():
    triplets = torch.randn(N, 3, WIDTH, generator=generator())

    def loss(model, triplet):
        anchor, positive, negative = model(triplet).unbind(1)
        return F.triplet_margin_loss(anchor, positive, negative, margin=2.0)

    return Case(network(), loss, triplets)


@case
def two_views_of_a_record():
    def loss(model, x, y):
        first, second = model(x), model(x.flip(-1))
        agreement = F.cosine_similarity(first, second.detach()).mean()
        return F.cross_entropy(first, y) - agreement

    return Case(network(), loss)


@case
def patches_of_a_record_against_each_other():
    patches = torch.randn(N, 4, WIDTH, generator=generator())

    def loss(model, patches):
        first = F.normalize(model(patches), dim=-1)
        second = F.normalize(model(patches + 0.1), dim=-1)
        logits = first @ second.transpose(1, 2) / 0.5
        return F.cross_entropy(logits.flatten(0, 1), torch.arange(4))

    return Case(network(), loss, patches)


@case
def a_gradient_penalty():
    def loss(model, x, y):
        slope = torch.func.grad(lambda inputs: model(inputs).sum())(x)
        return F.cross_entropy(model(x), y) + 0.1 * (slope.norm(dim=-1) - 1).square().mean()

    return Case(nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3)), loss)


@case
def autocast_around_the_step():
    return Case(
        network(),
        lambda model, x, y: F.cross_entropy(model(x).float(), y),
        around=lambda: torch.autocast("cpu", torch.bfloat16),
    )


@case
def autocast_inside():
    def loss(model, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        return F.cross_entropy(out.float(), y)

    return Case(network(), loss)


# ---- Structures


@case
def a_tied_autoencoder():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(WIDTH, 4)
            self.bias = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x):
            return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T, self.bias)

    return Case(Tied(), lambda model, x, y: F.mse_loss(model(x), x))


@case
def a_graph_with_a_padded_adjacency():
    seed = generator()
    nodes = torch.randn(N, TOKENS, WIDTH, generator=seed)
    edges = (torch.rand(N, TOKENS, TOKENS, generator=seed) < 0.4).float()
    mask = (torch.arange(TOKENS) < torch.randint(2, 6, (N, 1), generator=seed)).float()

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

        def forward(self, nodes, edges, mask):
            edges = edges * mask.unsqueeze(1) * mask.unsqueeze(2)
            edges = edges / edges.sum(-1, keepdim=True).clamp(min=1)
            hidden = self.second(F.relu(edges @ self.first(nodes)))
            return (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)

    def loss(model, nodes, edges, mask, y):
        return F.cross_entropy(model(nodes, edges, mask), y)

    return Case(Graph(), loss, TensorDataset(nodes, edges, mask, vectors()[1]))


@case
def a_masked_mean_of_a_sequence():
    tokens, mask = sequences()

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, CLASSES)

        def forward(self, tokens, mask):
            hidden = self.embedding(tokens).masked_fill(~mask.unsqueeze(-1), 0.0)
            return self.head(hidden.sum(1) / mask.sum(1, keepdim=True))

    def loss(model, tokens, mask, y):
        return F.cross_entropy(model(tokens, mask), y)

    return Case(Pooled(), loss, TensorDataset(tokens, mask, vectors()[1]))


@case
def attention_with_a_mask():
    tokens, mask = sequences()

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.places = (
                nn.Embedding(VOCABULARY, 8),
                nn.Parameter(torch.randn(5, 8)),
            )
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

        def forward(self, tokens, mask):
            x = self.embedding(tokens) + self.places
            mixed, _ = self.attention(x, x, x, key_padding_mask=~mask, need_weights=False)
            return self.head(self.norm(x + mixed)[:, 0])

    def loss(model, tokens, mask, y):
        return F.cross_entropy(model(tokens, mask), y)

    return Case(Encoder(), loss, TensorDataset(tokens, mask, vectors()[1]))


@case
def a_recurrent_network_read_at_the_last_token():
    tokens, mask = sequences()

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, 8)
            self.cells, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, CLASSES)

        def forward(self, tokens, mask):
            outputs, _ = self.cells(self.embedding(tokens))
            last = (mask.sum(1) - 1).view(-1, 1, 1).expand(-1, 1, outputs.shape[-1])
            return self.head(outputs.gather(1, last).squeeze(1))

    def loss(model, tokens, mask, y):
        return F.cross_entropy(model(tokens, mask), y)

    return Case(Recurrent(), loss, TensorDataset(tokens, mask, vectors()[1]))


@case
def a_conditional_random_field():
    tokens, _ = sequences()

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Embedding(VOCABULARY, CLASSES)
            self.moves = nn.Parameter(torch.randn(CLASSES, CLASSES))

        def forward(self, tokens, tags):
            scores = self.scores(tokens)
            total = scores[:, 0]
            for t in range(1, tokens.shape[1]):
                paths = total.unsqueeze(2) + self.moves + scores[:, t].unsqueeze(1)
                total = torch.logsumexp(paths, dim=1)
            path = scores.gather(2, tags.unsqueeze(2)).sum((1, 2))
            steps = self.moves[tags[:, :-1], tags[:, 1:]].sum(1)
            return (torch.logsumexp(total, dim=1) - path - steps).mean()

    data = TensorDataset(tokens, tokens % CLASSES)
    return Case(Field(), lambda model, tokens, tags: model(tokens, tags), data)


@case
def steps_of_a_differential_equation():
    field = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    model = nn.ModuleDict({"field": field, "head": nn.Linear(WIDTH, CLASSES)})

    def loss(model, x, y):
        for _ in range(3):
            half = x + 0.05 * model["field"](x)
            x = x + 0.1 * model["field"](half)
        return F.cross_entropy(model["head"](x), y)

    return Case(model, loss)


# ---- With random numbers


@case
def dropout():
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    return Case(model, lambda model, x, y: F.cross_entropy(model(x), y), random=True)


@case
def a_variational_autoencoder():
    class Variational(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(WIDTH, 6), nn.Linear(3, WIDTH)

        def forward(self, x):
            mean, log_variance = self.encoder(x).chunk(2, dim=-1)
            code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
            return self.decoder(code), mean, log_variance

    def loss(model, x, y):
        output, mean, log_variance = model(x)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
        return F.mse_loss(output, x, reduction="sum") + divergence

    return Case(Variational(), loss, random=True)


@case
def stochastic_depth():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            for block in self.blocks:
                keep = (torch.rand(x.shape[0], 1) < 0.8).to(x)
                x = x + keep * torch.tanh(block(x))
            return self.head(x)

    return Case(Deep(), lambda model, x, y: F.cross_entropy(model(x), y), random=True)


@case
def augmentation():
    def loss(model, x, y):
        x = torch.where(torch.rand(len(x), 1) < 0.5, x.flip(-1), x)
        return F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)

    return Case(network(), loss, random=True)


@case
def two_views_by_dropout():
    def loss(model, x, y):
        first, second = (F.normalize(model(F.dropout(x, 0.2)), dim=-1) for _ in range(2))
        return F.cross_entropy(first, y) + (first - second.detach()).square().sum(1).mean()

    return Case(network(), loss, random=True)


@case
def denoising_at_a_random_time():
    def loss(model, x, y):
        time = torch.rand(x.shape[0], 1)
        noise = torch.randn_like(x)
        noisy = (1 - time) * x + time * noise
        return F.mse_loss(model(noisy), noise - x)

    return Case(network(WIDTH), loss, random=True)


@case
def masked_tokens():
    tokens, mask = sequences()

    def loss(model, tokens, mask):
        hidden = (torch.rand(tokens.shape) < 0.4) & mask
        logits = model(tokens.masked_fill(hidden, 0)).logits
        losses = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
        return (losses * hidden).sum() / hidden.sum().clamp(min=1)

    return Case(Tagger(), loss, TensorDataset(tokens, mask), random=True)
