"""Tables: embeddings, bags of them, and rows that are picked by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.table import Call, raw, row, rows, uneven

WORDS = 7


def tokens(n: int, t: int, vocabulary: int = WORDS) -> Tensor:
    return torch.randint(vocabulary, (n, t))


def words(name: str, build, call=lambda m, x: m(x), shape=(5, 9)) -> None:
    rows(name, build, shape, call, below=WORDS)


def with_head(table: nn.Module) -> nn.Sequential:
    return nn.Sequential(table, nn.Linear(4, 3))


words("embedding", lambda: with_head(nn.Embedding(WORDS, 4)))
words("embedding_padding_idx", lambda: with_head(nn.Embedding(WORDS, 4, padding_idx=0)))
words("embedding_last_is_padding", lambda: with_head(nn.Embedding(WORDS, 4, padding_idx=-1)))
words("embedding_one_token", lambda: with_head(nn.Embedding(WORDS, 4)), shape=(5,))
words("embedding_sparse", lambda: with_head(nn.Embedding(WORDS, 4, sparse=True)))
words("embedding_by_frequency", lambda: nn.Embedding(WORDS, 4, scale_grad_by_freq=True))
words(
    "embedding_by_frequency_and_padding",
    lambda: nn.Embedding(WORDS, 4, padding_idx=0, scale_grad_by_freq=True),
)
aten = torch.ops.aten.embedding
words("embedding_by_aten", lambda: nn.Embedding(WORDS, 4), lambda m, x: aten(m.weight, x, 0))
words(
    "embedding_by_an_overload_of_aten",
    lambda: nn.Embedding(WORDS, 4),
    lambda m, x: aten.default(m.weight, x, 0),
)
words("embedding_of_int32", lambda: nn.Embedding(WORDS, 4), lambda m, x: m(x.int()))
words("embedding_written_in_place", lambda: nn.Embedding(WORDS, 4), lambda m, x: F.relu_(m(x)))


def with_slope(m: nn.Embedding, x: Tensor) -> Tensor:
    """Its gradient is differentiated once more, so that each record has a copy of the table."""
    e = m(x)
    (slope,) = torch.autograd.grad(e.pow(3).sum(), m.weight, create_graph=True)
    return torch.cat([e.flatten(), slope.flatten()])


class Squares(torch.autograd.Function):
    """A function of the user's own that looks up in its backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table, x):
        return F.embedding(x, table, padding_idx=0).square()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        table, x = ctx.saved_tensors
        rows = 2 * grad * F.embedding(x, table, padding_idx=0)
        return torch.zeros_like(table).index_add(0, x.flatten(), rows.flatten(0, -2)), None


def with_slope_of_squares(m: nn.Embedding, x: Tensor) -> Tensor:
    e = Squares.apply(m.weight, x)
    (slope,) = torch.autograd.grad(e.sum(), m.weight, create_graph=True)
    return torch.cat([e.flatten(), slope.flatten()])


def after_a_step(m: nn.Embedding, x: Tensor) -> Tensor:
    """A step of torch.func, on the record alone."""

    def of(table: Tensor) -> Tensor:
        return torch.func.functional_call(m, {"weight": table}, (x,))

    return of(m.weight - 0.1 * torch.func.grad(lambda table: of(table).pow(3).sum())(m.weight))


words("embedding_padding_and_slope", lambda: nn.Embedding(WORDS, 4, padding_idx=0), with_slope)
words("embedding_in_a_function_and_slope", lambda: nn.Embedding(WORDS, 4), with_slope_of_squares)
words("embedding_padding_and_a_step", lambda: nn.Embedding(WORDS, 4, padding_idx=0), after_a_step)


class Positions(nn.Module):
    """Tokens, and positions that are the same for all records."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 4), nn.Embedding(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x)
        hidden += self.places(torch.arange(x.shape[1]))
        return hidden.tanh()


words("embedding_of_positions", Positions)
raw(
    "embedding_of_shared_indices",
    lambda m, x: x * F.embedding(torch.tensor([1, 1, 0]), m.w) @ m.v,
    (5, 3, 4),
    w=(5, 4),
    v=(4, 2),
)
raw(
    "table_as_a_weight",
    lambda m, x: (x @ F.embedding(torch.tensor([3, 1, 1, 0]), m.w)).tanh(),
    (5, 3, 4),
    w=(5, 4),
)

for _mode in ("sum", "mean", "max"):

    def bag(padding: int | None = None, mode: str = _mode) -> nn.Module:
        return with_head(nn.EmbeddingBag(WORDS, 4, mode=mode, padding_idx=padding))

    words(f"embedding_bag_{_mode}", bag)
    words(f"embedding_bag_{_mode}_padding_idx", lambda bag=bag: bag(2))
    words(f"embedding_bag_{_mode}_last_is_padding", lambda bag=bag: bag(-1))
    words(f"embedding_bag_{_mode}_of_three", bag, lambda m, x: m(x.view(3, 3)))
    words(
        f"embedding_bag_{_mode}_by_offsets",
        lambda mode=_mode: nn.EmbeddingBag(WORDS, 4, mode=mode, padding_idx=1),
        lambda m, x: m(x[0], torch.tensor([0, 2, 2, 7])),
    )


def weights(n: int, t: int) -> Tensor:
    return torch.rand(n, t)


row(
    "embedding_bag_weighted",
    lambda: nn.EmbeddingBag(WORDS, 4, mode="sum"),
    lambda: (tokens(5, 6), weights(5, 6)),
    lambda m, x, w: uneven(m(x, per_sample_weights=w)),
)
row(
    "embedding_bag_weighted_by_own_offsets",
    lambda: nn.EmbeddingBag(WORDS, 4, mode="sum"),
    lambda: (tokens(5, 6), weights(5, 6), torch.tensor([[0, k] for k in range(5)])),
    lambda m, x, w, offsets: uneven(m(x[0], offsets[0], per_sample_weights=w[0])),
)
words(
    "embedding_bag_to_the_last_offset",
    lambda: nn.EmbeddingBag(WORDS, 4, mode="sum", include_last_offset=True),
    lambda m, x: m(x[0], torch.tensor([0, 2, 9])),
)


class LearnedWeights(nn.Module):
    """Words count by a weight that is learned, and so do places."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.importance = nn.EmbeddingBag(WORDS, 4, mode="sum"), nn.Embedding(WORDS, 1)
        self.places = nn.Parameter(torch.rand(1, 9))

    def forward(self, x: Tensor) -> Tensor:
        by_word = self.table(x, per_sample_weights=self.importance(x).squeeze(-1))
        return by_word + self.table(x, per_sample_weights=self.places)


words("embedding_bag_learned_weights", LearnedWeights)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.table(x)).tanh())


row(
    "tied_embedding_and_head",
    Language,
    lambda: tokens(5, 8, 11),
    lambda m, x: F.cross_entropy(m(x[:, :-1]).transpose(1, 2), x[:, 1:], reduction="sum"),
)

# By hand
raw(
    "rows_by_index",
    lambda m, x: m.table[x.argmax(-1)] + x @ m.w,
    (5, 3, 4),
    table=(4, 2),
    w=(4, 2),
)
raw("rows_counted_from_the_end", lambda m, x: m.table[x.argmax(-1) - 4], (5, 3, 4), table=(4, 2))
raw("numbers_by_index", lambda m, x: m.table[x.argmax(-1)] * x.sum(-1), (5, 3, 4), table=(4,))
raw("matrices_by_index", lambda m, x: x @ m.table[x[0, 0].argmax()], (5, 3, 4), table=(4, 4, 2))
raw("rows_by_two_indices", lambda m, x: m.t[x.argmax(-1), x.argmin(-1)], (5, 3, 4), t=(4, 4, 2))
raw("columns_by_index", lambda m, x: m.table[:, x.argmax(-1)], (5, 3, 4), table=(2, 4))
raw(
    "rows_by_index_select",
    lambda m, x: torch.index_select(m.a, 0, x[0].argmax(-1)) * m.b.index_select(0, x[0].argmin(-1)),
    (5, 3, 4),
    a=(4, 2),
    b=(4, 2),
)
raw(
    "columns_by_index_select",
    lambda m, x: m.t.index_select(1, x[0].argmax(-1)),
    (5, 3, 4),
    t=(2, 4),
)
raw(
    "entries_by_gather",
    lambda m, x: m.table.gather(1, x[0].argsort(-1)),
    (5, 3, 4),
    table=(3, 4),
)
raw("entries_by_take", lambda m, x: m.table.take(x.argsort(-1)), (5, 3, 4), table=(4,))
raw(
    "one_hot_without_classes",
    lambda m, x: F.one_hot(x.argmax(-1)).to(x.dtype).sum() * x @ m.w,
    (5, 3, 4),
    w=(4, 2),
)
raw("one_hot", lambda m, x: F.one_hot(x.argmax(-1), 4).to(x.dtype) @ m.w, (5, 3, 4), w=(4, 2))


class RelativePositions(nn.Module):
    """A table that is looked up at places which do not depend on records."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 4), nn.Parameter(torch.randn(5))
        self.register_buffer("places", (torch.arange(3)[:, None] - torch.arange(3)) + 2)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.layer(x) @ x.transpose(1, 2) + self.table[self.places]
        return scores.softmax(-1) @ x


rows("table_of_relative_positions", RelativePositions, (5, 3, 4))
words(
    "one_table_three_times",
    lambda: Call(
        lambda m, x: m.table(x) + m.table(x.flip(1)).tanh() * m.table.weight[x],
        table=nn.Embedding(WORDS, 4),
    ),
)
