"""What is done to a batch and to the outputs of a model, from the moment the user has them.

The tensors of the batch and the outputs of the model become tensors of a subclass, `Watched`, which
writes every torch function that is called on them, or on what was made from them, on a `LossTape`;
its `play` calls them again with other tensors in the place of some.

A tape holds the values that it starts from (batch, outputs, constants) and no others: what was made
on the way is known by its number.  A plain tensor that is written to (`losses[i] = ...`) is watched
from there on, and is a plain one again when the tape is over.

A tape that is over may *fade*: until the next one is over, too, what is made from its tensors stays
watched, so that the next proof sees what it uses of an earlier batch (a running mean of losses).
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import samples as trees
from .arguments import Ref, exchanged, flat, is_ref, mapped
from .layout import Layout
from .marks import Marked, MarkedInt, bare, mark
from .proof import HALF

OVER = torch.empty(0)  # in the place of a loss: nothing is recorded any more
# Where an int that was read from a tensor is a value; elsewhere it is a size or a place.
VALUES = {"add", "sub", "mul", "div", "true_divide", "rsub", "pow", "where", "clamp"}
VALUES |= {"eq", "ne", "lt", "le", "gt", "ge"}
VALUES |= {f"{name}_" for name in VALUES} | {f"__{name}__" for name in ("rdiv", "rpow", "rtruediv")}

_numbers = itertools.count()


class Played(NamedTuple):
    function: Callable
    args: tuple
    kwargs: dict
    made: list[int | None]  # numbers of the results
    changed: list[int]  # numbers of what was written to
    autocast: list[tuple[str, torch.dtype]]
    draws: list[tuple[torch.Generator, Tensor]]  # states of generators that were drawn from
    stale: bool  # it used something that was made from an earlier batch
    grad: bool  # whether gradients were recorded


class Forward(NamedTuple):
    signature: tuple
    node: Any
    outputs: list[tuple[int, Tensor]]
    inputs: list[int]


class Earlier:
    """Tensors that were handed out with, or written from, a batch that is over."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Tensor]] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        reference = self._known.get(id(tensor))
        return reference is not None and reference() is tensor

    def add(self, tensors: Sequence[Tensor]) -> None:
        self._known = {key: known for key, known in self._known.items() if known() is not None}
        self._known |= {id(tensor): weakref.ref(tensor) for tensor in tensors}


class LossTape:
    """What is done to the batch and to outputs from the moment they are handed to the user."""

    def __init__(self, earlier: Earlier | None = None) -> None:
        self.played: list[Played] = []
        self.forwards: list[Forward] = []
        self.drawn: dict[int, tuple[Tensor, Layout]] = {}  # the batch, and where its samples are
        self.batch: list[tuple[Tensor, Layout]] = []  # the user's own objects
        self.started: dict[int, Tensor] = {}  # plain tensors as they were before a write
        self.loss: Tensor | None = None
        self.end = -1  # the number of what is differentiated
        self.arrived: dict[Any, Sequence[Tensor | None]] = {}  # gradients by forward
        self.entered_a_model = False  # a private one, whose own proofs cover what follows
        self.half = self.fading = False
        self.earlier = Earlier() if earlier is None else earlier
        self._lent: list[Tensor] = []  # the user's tensors that are watched for the time being

    def draw(self, tensor: Tensor, layout: Layout) -> None:
        """A tensor of the batch becomes a watched one; the object stays the user's."""
        if self.lend(tensor):
            self.drawn[tensor.number] = (plain(tensor), layout)  # type: ignore[attr-defined]
            self.batch.append((tensor, layout))

    def watch(
        self, signature: tuple, outputs: Sequence[Tensor], inputs: Sequence[int] = ()
    ) -> list[Tensor]:
        """The outputs of a forward as tensors that tell the tape what is done to them."""
        node = outputs[0].grad_fn
        watched = [watch(output, (self,)) for output in outputs]
        # Copies: the user may write into outputs.
        values = [(w.number, o.detach().clone()) for w, o in zip(watched, outputs, strict=True)]
        self.half |= any(output.dtype in HALF for output in outputs)
        self.forwards.append(Forward(signature, node, values, list(inputs)))
        return watched

    def enter(self, tensor: Tensor) -> int | None:
        """The number of an input of the model as it is now, if a tape has seen it."""
        if not isinstance(tensor, Watched):
            return None
        stale, number = not current(tensor), next(_numbers)
        if not stale and self not in tensor.tapes:
            return None
        taken = plain(tensor) if stale else Ref(tensor.number)
        call = _called(torch.clone, (taken,), made=[number])
        self.played.append(call._replace(stale=stale))
        return number

    def lend(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor or tensor.is_inference():
            return False
        tensor.__class__ = Watched
        tensor.tapes, tensor.number = (self,), next(_numbers)  # type: ignore[attr-defined]
        self._lent.append(tensor)
        return True

    def forget(self, *, fade: bool = False) -> None:
        """Lets go of the tensors; what the user computes from those they hold is not recorded."""
        self.played, self.forwards, self.drawn, self.started = [], [], {}, {}
        self.arrived, self.batch, self.loss, self.fading = {}, [], OVER, fade
        if fade:
            return
        for tensor in self._lent:
            tensor.__class__ = Tensor
        self.earlier.add(self._lent)
        self._lent = []

    @property
    def tolerance(self) -> float:
        return 5e-2 if self.half else 1e-3

    def ends_with(self, loss: Tensor, gradient: Any) -> None:
        """The user calls loss.backward(gradient)."""
        self.end, value = loss.number, loss.detach()  # type: ignore[attr-defined]
        if isinstance(gradient, Tensor):
            factor: Any = Ref(gradient.number) if isinstance(gradient, Watched) else gradient
            number = next(_numbers)
            self.played.append(self._weighted(self.end, factor, value, number))
            self.end = number
        self.loss = loss

    def _weighted(self, loss: int, gradient: Any, value: Tensor, number: int) -> Played:
        """Loss times gradient; ones / k are a division by k, for a k that may be the batch size."""
        if isinstance(gradient, Tensor) and gradient.numel() and value.dim():
            first = float(gradient.flatten()[0])
            if bool((gradient == first).all()) and 0 < abs(first) <= 1:
                size = round(1 / first)
                if abs(1 / first - size) < 1e-4 * abs(size):
                    return _called(torch.div, (Ref(loss), size), made=[number])
        return _called(torch.mul, (Ref(loss), gradient), made=[number])

    def needed(self, ends: Sequence[int]) -> list[Played]:
        """The calls that these numbers depend on, as far as numbers tell."""
        wanted, chosen = set(ends), []
        for call in reversed(self.played):
            if wanted.isdisjoint(call.made) and wanted.isdisjoint(call.changed):
                continue
            chosen.append(call)
            wanted |= {leaf.number for leaf in flat((call.args, call.kwargs)) if is_ref(leaf)}
        return chosen[::-1]

    def play(
        self,
        calls: Sequence[Played],
        now: dict[int, Tensor],
        constants: Mapping[int, Tensor],
        numbers: Mapping[int, int],
        *,
        drawing: bool = False,
    ) -> dict[int, Tensor]:
        """What the calls make of the tensors in `now`, all of it by number.

        Other tensors and numbers stand in the place of some; `drawing` draws the same random
        numbers as the user's own call did.
        """
        now = {k: constants.get(id(t), t).clone() for k, t in self.started.items()} | now

        def filled(leaf: Any) -> Any:
            if is_ref(leaf):
                return now[leaf.number]
            return constants.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf

        for call in calls:
            args, kwargs = mapped((call.args, call.kwargs), filled)
            args = exchanged(args, numbers)
            with as_then(call, drawing):
                after = trees.leaves(call.function(*args, **kwargs))
            if call.made:
                now.update((k, t) for k, t in zip(call.made, after, strict=True) if k is not None)
        return now

    def constants(self, calls: Sequence[Played]) -> list[Tensor]:
        """Tensors that calls use and that neither batch, model nor tape made; parameters apart."""
        used = [leaf for call in calls for leaf in flat((call.args, call.kwargs))]
        written = {k for call in calls for k in call.changed}
        used += [tensor for number, tensor in self.started.items() if number in written]
        tensors = [t for t in used if isinstance(t, Tensor)]
        return list({id(t): t for t in tensors if not isinstance(t, torch.nn.Parameter)}.values())


class Watched(Tensor):
    """A tensor of the batch, an output, or what was computed from them."""

    tapes: tuple[LossTape, ...]
    number: int

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: Any = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        marked = [leaf for leaf in flat((args, kwargs)) if isinstance(leaf, (Watched, Marked))]
        tapes = tuple({id(tape): tape for leaf in marked for tape in current(leaf)}.values())
        if function is Tensor.backward and isinstance(args[0], Watched):
            for tape in tapes:
                gradient = args[1] if len(args) > 1 else kwargs.get("gradient")
                with torch._C.DisableTorchFunctionSubclass():
                    tape.ends_with(args[0], gradient)
            tapes = ()
        if function is Tensor.__deepcopy__ and tapes:
            function, args = Tensor.clone, args[:1]
        if function is Tensor.__reduce_ex__:
            args = (plain(args[0]), *args[1:])
        fading = [] if tapes else [tape for leaf in marked for tape in leaf_tapes(leaf)]
        fading = tuple({id(tape): tape for tape in fading if tape.fading}.values())
        if not tapes and not fading:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*mapped(args, bare), **mapped(kwargs, bare))
        if function is Tensor.item:
            shadow = args[0].detach()
            value = plain(args[0]).item()
            return mark(value, shadow.double() if isinstance(value, float) else shadow)
        return record(function, args, kwargs, tapes or fading)


def record(function: Callable, args: tuple, kwargs: dict, tapes: tuple[LossTape, ...]) -> Any:
    """Calls the function, and writes the call on the tapes if it made or changed a tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        written = targets(function, args, kwargs)
        for target in written:
            start(target, tapes)
        changed = [target.number for target in written if isinstance(target, Watched)]
        inputs = [references(function, args, kwargs, tape) for tape in tapes]
        before = generators(args, kwargs)
        result = function(*mapped(args, bare), **mapped(kwargs, bare))
        draws = [(g, state) for g, state in before if not torch.equal(g.get_state(), state)]
        if trees.leaves(result):
            result = trees.map_tensors(result, lambda t: watch(t, tapes))
        made = [getattr(t, "number", None) for t in trees.leaves(result)]
        if not made and not changed:
            return result  # a number for the user to look at
        if getattr(function, "__name__", "") == "one_hot":  # as many classes as there were
            inputs = [((a[0], result.shape[-1]), {}, stale) for a, _, stale in inputs]
        half = any(t.dtype in HALF for t in trees.leaves(result) if isinstance(t, Tensor))
        for tape, (taken, named, stale) in zip(tapes, inputs, strict=True):
            if tape.fading:
                continue
            tape.half |= half
            state = (autocast_now(), draws, stale, torch.is_grad_enabled())
            call = Played(function, taken, named, made, changed, *state)
            tape.played.append(call)
    return result


def _called(function: Callable, args: tuple, *, made: list[int | None]) -> Played:
    return Played(function, args, {}, made, [], [], [], False, True)


def references(
    function: Callable, args: tuple, kwargs: dict, tape: LossTape
) -> tuple[tuple, dict, bool]:
    """The arguments as the tape keeps them, and whether one is from an earlier batch."""
    stale = False
    values = getattr(function, "__name__", "") in VALUES

    def reference(leaf: Any) -> Any:
        nonlocal stale
        if isinstance(leaf, Marked):
            if isinstance(leaf, MarkedInt) and not values:
                return bare(leaf)
            if tape in leaf.shadow.tapes:
                return Ref(leaf.shadow.number)
            stale |= not current(leaf)
            return bare(leaf)
        if isinstance(leaf, Watched):
            if tape in leaf.tapes:
                return Ref(leaf.number)
            stale |= not current(leaf)
            return plain(leaf)
        stale |= isinstance(leaf, Tensor) and leaf in tape.earlier
        return leaf

    return mapped(args, reference), mapped(kwargs, reference), stale


def targets(function: Callable, args: tuple, kwargs: dict) -> list[Tensor]:
    """The tensors that the call writes to, as far as its name tells."""
    name = getattr(function, "__name__", "")
    in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    in_place |= name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
    found = [args[0]] if in_place and args else []
    found += flat(kwargs.get("out"))
    return [t for t in found if isinstance(t, Tensor)]


def start(target: Tensor, tapes: Sequence[LossTape]) -> None:
    """A tensor that is written to is known to the tapes from now on, as it was before."""
    new = [tape for tape in tapes if not isinstance(target, Watched) or tape not in target.tapes]
    if not new:
        return
    if new[0].fading:
        new[0].lend(target)
        return
    before = plain(target).detach().clone()
    stale = isinstance(target, Watched) and not current(target)
    if not isinstance(target, Watched) and not new[0].lend(target):
        return
    target.tapes = (*current(target), *(t for t in new if t not in target.tapes))  # type: ignore
    for tape in new:
        tape.started[target.number] = before  # type: ignore[attr-defined]
        if stale or target in tape.earlier:
            tape.earlier.add([before])


def current(leaf: Any) -> list[LossTape]:
    """The tapes of a watched tensor or marked number that still run."""
    return [tape for tape in leaf_tapes(leaf) if tape.loss is None]


def leaf_tapes(leaf: Any) -> tuple[LossTape, ...]:
    return leaf.shadow.tapes if isinstance(leaf, Marked) else leaf.tapes


def watch(tensor: Any, tapes: tuple[LossTape, ...]) -> Any:
    if not isinstance(tensor, Tensor):
        return tensor
    if isinstance(tensor, Watched):  # written to: a tensor may come to belong to more tapes
        tensor.tapes = (*tensor.tapes, *(tape for tape in tapes if tape not in tensor.tapes))
        return tensor
    watched = tensor.as_subclass(Watched)
    watched.tapes, watched.number = tapes, next(_numbers)
    return watched


def plain(tensor: Any) -> Any:
    """The tensor without its tapes."""
    if not isinstance(tensor, Watched):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def generators(args: tuple, kwargs: dict) -> list[tuple[torch.Generator, Tensor]]:
    """Random generators that a call may draw from, with their states."""
    leaves = flat((args, kwargs))
    found = [torch.default_generator, *(g for g in leaves if isinstance(g, torch.Generator))]
    devices = {t.device.index or 0 for t in leaves if isinstance(t, Tensor) and t.is_cuda}
    found += [torch.cuda.default_generators[device] for device in devices]
    return [(generator, generator.get_state()) for generator in found]


@contextlib.contextmanager
def as_then(call: Played, drawing: bool) -> Iterator[None]:
    """Autocast and grad mode as they were; with `drawing`, random generators too, for the call."""
    draws = call.draws if drawing else []
    before = [(generator, generator.get_state()) for generator, _ in draws]
    with contextlib.ExitStack() as stack:
        for device, dtype in call.autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        stack.enter_context(torch.set_grad_enabled(call.grad))
        for generator, state in draws:
            generator.set_state(state)
        try:
            yield
        finally:
            for generator, state in before:
                generator.set_state(state)


def autocast_now() -> list[tuple[str, torch.dtype]]:
    return [
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
