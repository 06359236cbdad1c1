"""A loss function of one record, evaluated for all records of a batch, with per-sample gradients.

The user writes `loss(model, x, y)` for a batch of ONE record.  Two ways to evaluate it:

    vmap     torch.vmap over records: no record can see another, on every step, by construction.
    alone    one record after the other, for what vmap refuses: isolated as well, and slow.

Either way losses are backpropagated as they are: there is no mean over the batch, and so no 1/n in
any graph.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.autograd.graph import disable_saved_tensors_hooks

from psac.gradients import trees
from psac.gradients.contributions.cluster import clusters_of
from psac.gradients.errors import NotVectorized, PrivacyError
from psac.gradients.isolation.again import Again
from psac.gradients.isolation.beginning import Beginning
from psac.gradients.isolation.outside import Outside, code_of
from psac.gradients.isolation.reach import Reach
from psac.gradients.isolation.state import State, refuse_memory, tell_of_undone
from psac.gradients.isolation.watch import Watch, is_wrapped, refuse_remains
from psac.gradients.measured import Measured
from psac.gradients.precision import without_autocast
from psac.gradients.rules.chance import NeedsSharing, Place
from psac.gradients.rules.derivatives import NeedsCopies
from psac.gradients.rules.selection import NeedsShapes
from psac.gradients.rules.values import NeedsPaths
from psac.gradients.trees import LossFunction
from psac.gradients.vectorized.libraries import (
    OnlyRulesOfTorch,
    is_loop_over_records,
    refuse_seeding,
    without_branches,
    without_texts,
)
from psac.gradients.vectorized.old_functions import with_old_functions
from psac.gradients.vectorized.paths import (
    Draws,
    MeasuredPaths,
    Path,
    followed,
    refuse_other_order,
)
from psac.gradients.vectorized.recorder import Recorder, WithinFunction

TORCH: Any = torch._C
NO_HOOKS = "saved_tensors_hooks see all records at once, so vmap runs without them"


@dataclass
class Evaluation:
    """One batch: a loss for each record (sensitive), and its per-sample gradients."""

    losses: Tensor
    measured: Measured | MeasuredPaths
    way: str
    rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by parameter
    signature: Any = ()  # what met parameters, and how their norms were taken
    paths: Sequence[Path] = ()  # if records took different ones


class Escaped(Exception):
    """Internal: gradients reached parameters by a way that the recorder does not see."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"gradients reached {names} unrecorded")
        self.names = names


class Vectorized:
    """The function under vmap.  It learns how large activations are, and which parameters escape.

    Parameters `at_source` enter the function as one copy for each record: so they are seen in any
    operation whatsoever, at the price of per-sample gradients in memory.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], outside: Outside
    ) -> None:
        self.model, self.parameters, self.outside = model, parameters, outside
        self.names = {id(p): name for name, p in parameters.items()}
        self.at_source: list[str] = []
        self.of_copies: set[Any] = set()  # functions that differentiate a gradient of their own
        self.of_shapes: set[Any] = set()  # functions that ask how many rows a mask selects
        self.branching: set[Any] = set()  # functions that depend on values
        self.shared_draws: dict[Any, set[Place]] = {}  # by function: numbers that it branches on
        self.activation_bytes = 0
        self.watch = Watch(outside)
        self.is_half = False  # whether the last call computed in half precision
        self.writes = False  # whether the last call has written to its arguments
        self._beginning: Beginning | None = None  # of the last batch that was taken path by path
        self._again = Again()
        self.with_loops = False  # whether torch may loop over records where it has no batching rule

    def evaluate(
        self,
        loss: LossFunction,
        batch: Any,
        *,
        randomness: str = "different",
        copies: bool = True,
        before: State | None = None,
    ) -> Evaluation:
        """Raises whatever the function raises under vmap.

        It is given copies of the records, which it may write to, unless it is known not to.  If it
        has to run again in another way, it starts from the state `before`.
        """
        code = code_of(loss)
        while True:
            try:
                if code in self.branching:
                    return self._by_paths(loss, batch, randomness, copies)
                return self._evaluate(loss, batch, randomness, copies)
            except NeedsPaths:
                self.branching.add(code)
            except NeedsShapes:
                self.of_shapes.add(code)
            except NeedsCopies:
                self.of_copies.add(code)
            except NeedsSharing as draw:
                if draw.place in self.shared_draws.get(code, ()):
                    raise NotVectorized("a number that is drawn for a branch is not seen") from None
                self.shared_draws.setdefault(code, set()).add(draw.place)
            except Escaped as escaped:
                if set(escaped.names) <= set(self.at_source):
                    break
                self.at_source += [n for n in escaped.names if n not in self.at_source]
            except RuntimeError as error:
                if self.with_loops or not is_loop_over_records(error):
                    raise
                self.with_loops = True
            if before is not None:
                before.restore()
        raise NotVectorized(f"the gradients of {self.at_source} cannot be followed under vmap")

    def _by_paths(
        self, loss: LossFunction, batch: Any, randomness: str, copies: bool
    ) -> Evaluation:
        """Records that take the same path together; each path from the same state."""
        roots, private = {"model": self.model, "loss": loss}, self.outside.private(batch)
        differences, read, draws = [], [], Draws(same=randomness == "same")
        self._beginning = before = Beginning.following(self._beginning, roots, private)

        def run(some: Any) -> Evaluation:
            evaluate = contextvars.copy_context().run
            evaluation = evaluate(self._evaluate, loss, some, randomness, copies)
            refuse_remains(self.model, self.watch.remains(), roots)
            read.extend(self.watch.read)
            return evaluation

        def evaluate(some: Any) -> Evaluation:
            try:
                evaluation = run(some)
            finally:
                difference = before.left()
            differences.append(difference)
            return evaluation

        with draws.surrounding():
            paths = followed(batch, evaluate, draws)
            if len(paths) > 1 and self._again.is_due(loss, len(paths)):
                refuse_other_order(paths, batch, evaluate, draws)
                self._again.passed(loss, len(paths))
            for difference in differences:
                if difference != differences[0]:
                    refuse_memory(differences[0], difference)
            if differences[0]:
                made_up = (functools.partial(run, one) for one in trees.made_up(batch))
                if not before.keep(differences[0], made_up):
                    tell_of_undone(differences[0])
        self.watch.read = read
        return together(paths, trees.num_records(batch))

    def _evaluate(
        self, loss: LossFunction, batch: Any, randomness: str, copies: bool
    ) -> Evaluation:
        leaves = trees.leaves(batch)
        self.watch = Watch(self.outside, self.outside.private(batch))
        rec = Recorder(trees.num_records(batch), self.watch, randomness)
        rec.only_copies = code_of(loss) in self.of_copies
        rec.follows_paths = code_of(loss) in self.branching
        rec.selects = code_of(loss) not in self.of_shapes
        rec.shared_draws = self.shared_draws.get(code_of(loss), ())
        inputs = [
            (leaf.detach().clone() if copies else leaf.detach()).unsqueeze(1) for leaf in leaves
        ]

        def one(*values: Tensor) -> Tensor:
            rec.level = _functorch.maybe_current_level()
            for value in values:
                self.watch.keep(value)
            with self._at_source(rec), rec:
                result = trees.call(loss, self.model, trees.rebuilt(batch, list(values)))
            return scalar(rec, result)

        seed, versions = torch.initial_seed(), [leaf._version for leaf in inputs]
        functions: set[Any] = set()
        with (
            OnlyRulesOfTorch(functions, lambda: WithinFunction(self.watch), self.with_loops),
            with_old_functions(rec, functions),
            without_texts(),
        ):
            with (
                torch.enable_grad(),
                disable_saved_tensors_hooks(NO_HOOKS),
                without_branches(self.watch.made),
                contextlib.closing(rec),
            ):
                losses = torch.vmap(one, randomness=randomness)(*inputs)
                if rec.stopped is not None:
                    raise rec.stopped
                refuse_caught(self.watch)
            if torch.initial_seed() != seed:
                refuse_seeding()
            self.writes = versions != [leaf._version for leaf in inputs]
            measured = self._backward(rec, losses)
            refuse_caught(self.watch)  # by the backward of an autograd.Function
        for function in functions:  # what runs inside passes no function mode
            for _, value in Reach({"function": function}).found:
                if isinstance(value, Tensor) and is_wrapped(value):
                    self.watch.keep(value)
        self.activation_bytes = max(self.activation_bytes, measured.activation_bytes)
        self.is_half = rec.is_half
        signature = tuple(rec.operations), tuple(measured.methods.items())
        rules = measured.rules(rec.rules)
        return Evaluation(losses.detach(), measured, "vmap", rules, signature)

    @without_autocast
    def _backward(self, rec: Recorder, losses: Tensor) -> Measured:
        if rec.follows_paths and not losses.requires_grad:
            return Measured.of_rows({}, rec.num_samples)  # records that this path does not count
        refuse_constant(losses)
        if any(rec.versions[key] != source._version for key, source in rec.sources.items()):
            raise NotVectorized("a tensor made of parameters is written in place after its use")
        clusters = clusters_of(rec.sources, self.names)
        measured = Measured(clusters, rec.uses, rec.num_samples, self.activation_bytes)
        rec.arrive = measured.arrive
        _, *reached = torch.autograd.grad(
            [losses],
            [rec.anchor, *self.parameters.values()],
            [torch.ones_like(losses)],
            allow_unused=True,
        )
        escapes = [n for n, g in zip(self.parameters, reached, strict=True) if g is not None]  # pyright: ignore[reportUnnecessaryComparison]
        if escapes:
            raise Escaped(escapes)
        measured.finish()
        return measured

    @contextlib.contextmanager
    def _at_source(self, rec: Recorder) -> Iterator[None]:
        """Copies for each record in the place of some parameters."""
        if not self.at_source:
            yield
            return
        chosen = {id(self.parameters[name]) for name in self.at_source}
        places = [
            (module._parameters, key, parameter)
            for module in self.model.modules()
            for key, parameter in module._parameters.items()
            if id(parameter) in chosen
        ]
        try:
            for store, key, parameter in places:
                assert parameter is not None
                if not isinstance(store, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise NotVectorized("torch.jit does not show what it does with parameters")
                store[key] = rec.copies(parameter, "copies")  # type: ignore[assignment]
            yield
        finally:
            for store, key, parameter in places:
                store[key] = parameter


def refuse_caught(watch: Watch) -> None:
    """Raises if the function went on after an error: which records have caused it is not known."""
    watch.refuse_caught()
    if watch.caught is not None:
        raise NotVectorized(
            f"it catches an error, which may be that of one record ({watch.caught:.80})"
        )


def together(paths: list[Path], n: int) -> Evaluation:
    """The evaluation of all paths, in the order of the batch."""
    if len(paths) == 1:
        return paths[0].evaluation
    measured = MeasuredPaths(paths, n)
    losses = measured.whole([path.evaluation.losses for path in paths])
    assert losses is not None
    rules: dict[str, tuple[str, ...]] = {}
    for path in paths:
        for name, served in path.evaluation.rules.items():
            rules[name] = tuple(dict.fromkeys((*rules.get(name, ()), *served)))
    signature = frozenset(path.evaluation.signature for path in paths)
    return Evaluation(losses, measured, "vmap", rules, signature, paths)


def scalar(rec: Recorder, result: Any) -> Tensor:
    """The loss of a record, in a tensor without axes."""
    if id(result) in rec.selected:
        rec.stop(NeedsShapes())
    result = one_number(result)
    if not is_wrapped(result) and result.requires_grad:
        result = rec.copies(result, "loss")  # it depends on no record
    return result.reshape(())


def one_number(result: Any) -> Tensor:
    if not isinstance(result, Tensor):
        raise TypeError(
            f"the loss function returned a {type(result).__name__}; it must return the loss of its "
            "record, a tensor with one number (of a Hugging Face output: outputs.loss)."
        )
    if result.numel() != 1:
        raise ValueError(
            f"the loss function returned a tensor of shape {list(result.shape)}; it must return "
            "the loss of its record, one number. It is given a batch of one record: take the "
            "mean or the sum over everything."
        )
    if not result.is_floating_point():
        raise TypeError(
            f"the loss function returned a tensor of {result.dtype}; the loss of a record must be "
            "a real number of a floating-point type."
        )
    return result


def refuse_constant(losses: Tensor) -> None:
    if not losses.requires_grad:
        raise PrivacyError(
            "the losses depend on no trainable parameter of the model: was the output detached, "
            "or computed under no_grad?"
        )


def gradient_of(value: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """By plain autograd, by name where there is any."""
    if not value.requires_grad:
        return {}
    grads = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    pairs = zip(parameters, grads, strict=True)
    return {name: g.to_dense() if g.is_sparse else g for name, g in pairs if g is not None}  # pyright: ignore[reportUnnecessaryComparison]
