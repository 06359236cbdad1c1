"""The engine on a user's own model: hooks that turn `loss.backward()` into a private sum.

    engine = Engine(model, clipping=psac.PSAC())
    with engine:                                 # or engine.attach() ... engine.detach()
        F.cross_entropy(model(x), y).backward()  # as often as there are physical batches
        sums = engine.collect()                  # name -> sum over samples of weight * gradient
                                                 # noise comes next

How. When the model's forward returns, its outputs are handed on through a `Boundary`, cut off from
the graph inside. When their gradients come back, the engine runs the inner backward itself, as far
as it needs it: no weight gradient is computed. When the whole backward is done, norms are complete,
the rule gives weights, weighted sums are added up.

Guarantees. The model stays the user's object: parameters, state_dict keys, outputs are the same,
and `detach` removes every trace. Each sample adds at most `clipping.bound` to the sums. It fails
closed: a gradient that reaches a private parameter by any other way raises `OutsideTheTape` and
names the parameter; so does a second backward of the same forward. A forward whose operations were
not seen before is proved before it counts, and again ever more rarely (see planner.py, proof.py),
and so is the loss (see losses.py).
"""

from __future__ import annotations

import math
import operator
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.modules.batchnorm import _BatchNorm

from ..clipping import PSAC, ClippingRule, safe_weights
from . import samples as trees
from .arguments import tensors_in
from .call import Boundary, Call, replaced, together
from .capture import Captured, Rows
from .errors import (
    OutsideTheTape,
    PrivacyError,
    announce_trained_by_the_loss,
    announce_unprotected,
)
from .graph import trace
from .groups import TOGETHER, Groups
from .layout import Layout
from .losses import Constants, place_of_samples, prove_loss
from .plan import Plan
from .precision import summed_in
from .state import Watch
from .tape import Earlier, LossTape, Watched, plain
from .training import (
    attached,
    refuse_modules,
    refuse_scripted,
    refuse_shared,
    silenced,
    trainable,
)

in_training = operator.attrgetter("training")
# What keeps the outputs of private models in the graph: no data, and nothing that is trained.
anchors: weakref.WeakSet[Tensor] = weakref.WeakSet()
LOSSES = 16  # of a length of their own; those of a loop over samples differ at every batch


class Engine:
    """Accumulates sums of weighted per-sample gradients over the backward passes of a model."""

    def __init__(
        self,
        model: nn.Module,
        *,
        clipping: ClippingRule | Mapping[str, ClippingRule] | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
        batch_dim: int = 0,
        method: Literal["auto", "loop"] = "auto",
    ):
        """`clipping`: one rule, or a mapping from patterns of parameter names to rules.

        `loss_reduction`: how the user's loss reduces over the batch. `batch_dim`: where samples are
        in inputs.
        """
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"loss_reduction {loss_reduction!r} is unknown. Known: 'mean', 'sum'.")
        if method not in ("auto", "loop"):
            raise ValueError(f"method {method!r} is unknown. Known: 'auto', 'loop'.")
        self.model, self.clipping = model, clipping if clipping is not None else PSAC()
        self.loss_reduction, self.batch_dim, self.method = loss_reduction, batch_dim, method
        self.plans: dict[tuple, Plan | None] = {}  # None: the loop serves this forward
        # Of the last backward, [n]; with several groups [groups, n]. Sensitive, not private.
        self.norms: Tensor | None = None
        self.weights: Tensor | None = None
        self.num_samples = 0  # since the last collect
        self._sums: dict[str, Tensor] = {}
        self._bounds: list[float] | None = None  # of the rules that made the sums
        self._handles: list[Any] = []
        self._open: weakref.WeakSet[Call] = weakref.WeakSet()  # forwards whose backward may come
        self._pending: list[Captured | Rows] = []
        # inputs of forwards that have begun, before any other hook, and whether gradients are on
        self._given: list[tuple[tuple[tuple, dict], bool]] = []
        self._backward = -1  # number of the backward that is pending
        self.expected: int | None = None  # samples of the forward to come; None: any number
        self.after_backward: Callable[[], None] | None = None
        self._served = False  # the expected samples had their backward
        self.batch = 0  # counts what was expected, so that a forward knows its batch
        self._tape: LossTape | None = None
        self._constants, self._earlier = Constants(), Earlier()
        self._faint: LossTape | None = None  # the first one fades until the second is over
        self._entered: list[int] = []  # numbers of the inputs of the forward that runs
        self._backwards, self._next_loss_proof = 0, 0
        self._operations: set[int] = set()  # how many the loss had, where it was not proved
        self._after_forward = 0  # autograd's count of operations
        self._warned = self._warned_of_the_loss = False
        self._state: Watch | None = None  # what forwards leave in the model
        # hooks do nothing: a forward is being repeated, or studied by plain functions
        self.silent = False

    # Life of the hooks
    def attach(self) -> Engine:
        if self._handles:
            return self
        refuse_scripted(self.model)
        self.parameters = trainable(self.model)
        self.groups = TOGETHER
        if isinstance(self.clipping, Mapping):
            self.groups = Groups.by_pattern(self.clipping, self.parameters)
        refuse_modules(self.model)
        self._anchor = torch.ones((), requires_grad=True)
        anchors.add(self._anchor)
        self._frozen = {name: p for name, p in self.model.named_parameters() if not p.requires_grad}
        self._batch_norms = [
            module for module in self.model.modules() if isinstance(module, _BatchNorm)
        ]
        if self.model in attached:
            raise PrivacyError(
                f"{type(self.model).__name__} has an engine already; detach that one first."
            )
        self._state = Watch(self.model)
        self.names = {id(p): name for name, p in self.parameters.items()}
        refuse_shared(self)
        attached[self.model] = self
        self._handles = [
            self.model.register_forward_pre_hook(
                Hook(self._before), prepend=True, with_kwargs=True
            ),
            self.model.register_forward_hook(Hook(self._after), with_kwargs=True),
        ]
        self._places = [handle.id for handle in self._handles]
        self._modules = list(self.model.modules())
        self._handles += [
            p.register_post_accumulate_grad_hook(lambda p, name=name: self._outside(p, name))
            for name, p in self.parameters.items()
        ]
        return self

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._state = [], None
        if attached.get(self.model) is self:
            del attached[self.model]
        self._drop_tape()
        self._fade_away()
        self.discard()

    def __enter__(self) -> Engine:
        return self.attach()

    def __exit__(self, *_: object) -> None:
        self.detach()

    # What the user gets
    def collect(self) -> dict[str, Tensor]:
        """The sums since the last collect, by parameter name, zeros included.

        Of float32 at least, whatever the parameter's dtype (precision.py). The engine starts anew.
        """
        self._drop_tape()
        if self._state is not None and self.expected:
            self._state.notice()
        sums = {
            name: self._sums[name]
            if name in self._sums
            else torch.zeros_like(p, dtype=summed_in(p.dtype))
            for name, p in self.parameters.items()
        }
        self.discard()
        return sums

    @property
    def rules(self) -> list[ClippingRule]:
        """One for each group."""
        if isinstance(self.clipping, Mapping):
            return list(self.clipping.values())
        return [self.clipping]

    @property
    def sensitivities(self) -> dict[str, float]:
        """By parameter: the bound of the rule that clips it."""
        bounds = self.bounds
        return {name: bounds[self.groups.of([name])] for name in self.parameters}

    @property
    def bounds(self) -> list[float]:
        """By group, of what is accumulated; of the rules, if nothing is."""
        return [rule.bound for rule in self.rules] if self._bounds is None else self._bounds

    @property
    def modes(self) -> tuple[bool, ...]:
        """Which modules are in training mode."""
        return tuple(map(in_training, self._modules))

    def expect(self, num_samples: int | None) -> None:
        """From now on one backward, of this many samples: what a loader has handed out.

        Another number, or a second backward, raises; None lifts that.
        """
        self.expected, self._served = num_samples, False
        self.batch, self._given = self.batch + 1, []
        self._drop_tape()
        self.look()

    def look(self) -> None:
        """What was written into the model until now is the user's own business."""
        if self._state is not None:
            self._state.look()

    def handed_out(self, batch: Any) -> Any:
        """The batch that is expected; where its loss is proved, its tensors tell the tape."""
        n = self.expected
        if n is None or n < 2 or not self._proof_is_due():
            return batch
        self._tape = LossTape(self._earlier)
        for tensor in tensors_in(batch):
            layout = place_of_samples(tensor, n, self.batch_dim)
            if layout is not None:
                self._tape.draw(tensor, layout)
        return batch

    def discard(self) -> None:
        """Forgets what was accumulated."""
        self._sums, self.num_samples, self._bounds = {}, 0, None
        self._pending, self._given = [], []

    # Hooks
    def _before(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        inputs = trees.tensors((args, kwargs))
        watched = any(isinstance(t, Watched) for t in inputs)
        if self.silent or self._state is None:
            return trees.map_tensors((args, kwargs), unwatched) if watched else None
        self._refuse_batch_norms()
        self._state.before(is_private=bool(self.expected))
        if not torch.is_grad_enabled():
            given = trees.map_tensors((args, kwargs), unwatched) if watched else (args, kwargs)
            self._given.append((given, False))
            return given if watched else None
        if self._tape is not None and self._tape.loss is not None:
            self._start_again(self._tape.batch)
        self._notice_changes()
        self._take_our_places()
        self._entered = []
        if watched and self._tape is not None and self._backward_is_welcome():
            entered = map(self._tape.enter, inputs)
            self._entered = [number for number in entered if number is not None]
        if watched or any(t.requires_grad for t in inputs):
            self._origins: list[tuple[Tensor, Tensor]] = []
            given = trees.map_tensors((args, kwargs), self._cut)
            self._given.append((given, True))
            return given
        self._given.append(((args, kwargs), True))
        return None

    def _take_our_places(self) -> None:
        """Our hooks are the first and the last, so that those of the user are in the forward.

        A forward that is repeated runs them all again.
        """
        before, after = self._places
        if next(iter(self.model._forward_pre_hooks)) != before:
            raise PrivacyError(
                "a forward pre-hook with prepend=True came before that of the engine on "
                f"{type(self.model).__name__}, so its inputs cannot be given again. "
                "Register it without prepend, or before make_private."
            )
        hooks = self.model._forward_hooks
        if next(reversed(hooks)) != after:
            hooks[after] = hooks.pop(after)  # to the end

    def _cut(self, leaf: Any) -> Any:
        """An input that needs a gradient becomes a leaf of the inner graph."""
        if not isinstance(leaf, Tensor) or not leaf.requires_grad:
            return unwatched(leaf)
        for tape in getattr(leaf, "tapes", ()):
            tape.entered_a_model = True
        leaf = plain(leaf)
        inner = leaf.detach().requires_grad_()
        self._origins.append((inner, leaf))
        return inner.view_as(inner)  # not a leaf, so that in-place operations stay possible

    def _after(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        if self.silent or self._state is None:
            return None
        given, with_gradients = self._given.pop()
        self._state.after(given, self._repeat, self.batch_dim)
        if not torch.is_grad_enabled():
            return None
        if not with_gradients:
            raise PrivacyError(
                "gradients were switched on in the middle of a forward, by a hook of the model. "
                "Switch them on before the model is called."
            )
        args, kwargs = given
        if next(reversed(self.model._forward_hooks)) != self._places[1]:
            raise PrivacyError(
                f"a forward hook was registered on {type(self.model).__name__} while its forward "
                "ran. Register it before the model is called."
            )
        roots = list({id(t): t for t in trees.tensors(output) if t.requires_grad}.values())
        if not roots:
            return None
        call = Call(self, args, kwargs, roots)
        if not call.graph.parameters:
            return None
        self._refuse_strangers(call)
        self._open.add(call)
        foreign = call.foreign()
        if foreign and not self._warned:
            self._warn_of(foreign)
        outputs = Boundary.apply(call, self._anchor, *foreign)
        self._after_forward = outputs[0].grad_fn._sequence_nr()
        if self._proof_is_due():
            outputs = self._watched(call, outputs)
        handed_on = dict(zip(map(id, roots), outputs, strict=True))
        return trees.map_tensors(output, lambda leaf: replaced(leaf, handed_on))

    def _repeat(self, tree: tuple[tuple, dict]) -> Any:
        with silenced(self.model):
            return self.model(*tree[0], **tree[1])

    def _watched(self, call: Call, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """From here to backward, what the user does to the outputs goes on the tape."""
        if self._tape is None:
            self._tape = LossTape(self._earlier)
        return self._tape.watch(call.key, outputs, self._entered)

    def _proof_is_due(self) -> bool:
        return self._backwards >= self._next_loss_proof and self._backward_is_welcome()

    def _backward_is_welcome(self) -> bool:
        return self.expected is None or (self.expected > 0 and not self._served)

    def _drop_tape(self) -> None:
        if self._tape is not None and self._tape is not self._faint:
            self._tape.forget()
        self._tape = None

    def _start_again(self, batch: list[tuple[Tensor, Layout]]) -> None:
        """A new tape for the same batch: the last backward is over, or was refused."""
        self._drop_tape()
        if batch and self._proof_is_due():
            self._tape = LossTape(self._earlier)
            for tensor, layout in batch:
                self._tape.draw(tensor, layout)

    def _notice_another_loss(self) -> None:
        """A loss of as many operations as were not met before is proved at the next backward."""
        with torch.enable_grad():
            now = self._anchor.view(()).grad_fn._sequence_nr()  # type: ignore[union-attr]
        operations = now - self._after_forward
        if operations not in self._operations and len(self._operations) < LOSSES:
            self._operations.add(operations)
            self._next_loss_proof = min(self._next_loss_proof, self._backwards + 1)

    def _fade_away(self) -> None:
        if self._faint is not None:
            self._faint.forget()
        self._faint = None

    def _warn_of(self, foreign: list[Tensor]) -> None:
        """Says once that leaves outside the model, other private models apart, are unprotected."""
        graph = trace(foreign, {})
        leaves = [graph.nodes[number].variable for number in graph.foreign]
        unprotected = [leaf for leaf in leaves if leaf not in anchors]
        if unprotected:
            self._warned = True
            announce_unprotected(self.model, unprotected)

    def _warn_of_the_loss(self, leaves: list[Tensor]) -> None:
        """Says once that the loss trains tensors of its own."""
        unprotected = [t for t in leaves if t not in anchors and id(t) not in self.names]
        if unprotected and not self._warned_of_the_loss:
            self._warned_of_the_loss = True
            announce_trained_by_the_loss(self.model, unprotected)

    def _refuse_batch_norms(self) -> None:
        for module in self._batch_norms:
            if module.training:
                refuse_modules(self.model)

    def _notice_changes(self) -> None:
        changed = [name for name, p in self.parameters.items() if not p.requires_grad]
        changed += [name for name, p in self._frozen.items() if p.requires_grad]
        if changed:
            self._refuse_changes(changed)

    def _refuse_strangers(self, call: Call) -> None:
        """Raises for a parameter that came later.

        It shows as a leaf of the graph that is the model's own and not known.
        """
        if not call.graph.foreign:
            return
        leaves = {id(call.graph.nodes[number].variable) for number in call.graph.foreign}
        strangers = [name for name, p in self.model.named_parameters() if id(p) in leaves]
        if strangers:
            self._refuse_changes(strangers)

    def _refuse_changes(self, names: list[str]) -> None:
        raise PrivacyError(
            "parameters changed requires_grad, or were exchanged, after the engine was attached: "
            f"{sorted(names)}. Freeze and exchange before that. To go on with a run: first.close(),"
            " then make_private again; the new run has a ledger of its own, and both cost "
            "(first.ledger + second.ledger).epsilon(delta). An Engine: detach() and attach()."
        )

    def _outside(self, parameter: Tensor, name: str) -> None:
        parameter.grad = None
        raise OutsideTheTape(
            f"a gradient reached parameter '{name}' outside the model's own forward (a submodule "
            "called directly, a regulariser on weights, reentrant checkpointing, or a model object "
            "that hides its outputs), so it is not clipped. Compute everything that uses "
            "parameters inside model.forward; use weight_decay of the optimizer."
        )

    # The end of a backward
    def _arrived(self, call: Call, captured: Captured | Rows) -> None:
        self._open.discard(call)
        number = torch._C._current_graph_task_id()
        if number != self._backward:  # what an earlier backward left when it raised is dropped
            self._backward, self._pending = number, []
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._pending.append(captured)

    def _alone(self) -> bool:
        """Whether the present backward has one forward only, so that norms can be taken at once."""
        return len(self._open) <= 1 and not (
            self._pending and torch._C._current_graph_task_id() == self._backward
        )

    def _finish(self) -> None:
        parts, self._pending = self._pending, []
        captured = together(parts)
        n = captured.num_samples
        self._prove_loss(n)
        self._served, self._backwards = True, self._backwards + 1
        squared = captured.norms_squared(self.groups)
        like = next((norms for norms in squared if norms is not None), None)
        if like is None:
            return
        self._hold_bounds()
        factor = float(n) if self.loss_reduction == "mean" else 1.0
        norms = [torch.zeros_like(like) if s is None else s.sqrt() * factor for s in squared]
        floor = captured.floor()
        weighed = norms if floor is None else [x.maximum(floor * factor) for x in norms]
        weights = [safe_weights(rule, x) for rule, x in zip(self.rules, weighed, strict=True)]
        self.norms, self.weights = (
            (norms[0], weights[0])
            if len(norms) == 1
            else (torch.stack(norms), torch.stack(weights))
        )
        believed = self.norms if floor is None else torch.stack(weighed)
        if not math.isfinite(float(believed.sum())):
            # not finite in any group: the sample is dropped from all
            finite = torch.isfinite(believed).view(len(norms), n).all(0)
            captured.zero_samples(~finite)
            weights = [torch.where(finite, w, 0.0) for w in weights]
        scaled = [w * factor for w in weights]
        for name, value in captured.weighted_sums(scaled, self.groups).items():
            known = self._sums.get(name)
            if known is not None:
                known.add_(value)
            else:
                dtype = summed_in(self.parameters[name].dtype)
                self._sums[name] = value if value.dtype is dtype else value.to(dtype)
        self.num_samples += n
        if self.after_backward is not None:
            self.after_backward()

    def _hold_bounds(self) -> None:
        """All of a sum is clipped by the same bounds: how much of it there is tells of the data."""
        bounds = [rule.bound for rule in self.rules]
        if self._bounds not in (None, bounds):
            raise PrivacyError(
                f"the bounds of engine.clipping changed from {self._bounds} to {bounds} while a "
                "sum is being accumulated, so no noise fits it. Change them after collect()."
            )
        self._bounds = bounds

    def _prove_loss(self, n: int) -> None:
        tape = self._tape
        if tape is None:
            self._notice_another_loss()
            return
        if n < 2:  # there is nobody to mix with; the next batch proves
            tape.forget()
            return

        def dims_of(key: tuple) -> list[int | None] | None:
            plan = self.plans.get(key)
            return None if plan is None else plan.root_dims

        mean = self.loss_reduction == "mean"
        leaves = prove_loss(tape, n, mean, self._constants, dims_of)
        self._warn_of_the_loss(leaves)
        self._next_loss_proof = 2 * self._backwards + 1
        self._fade_away()
        if self._backwards == 0:
            self._faint = tape
        tape.forget(fade=self._backwards == 0)


def unwatched(leaf: Any) -> Any:
    """A tensor or packed sequence that no tape hears of."""
    if isinstance(leaf, Tensor):
        return plain(leaf)
    return leaf._replace(**{name: plain(value) for name, value in leaf._asdict().items()})


class Hook:
    """A hook that stays behind when its model is copied or pickled: the copy is an ordinary one."""

    def __init__(self, function: Callable | None = None):
        self.function = function

    def __call__(self, *args: Any) -> Any:
        if self.function is None:
            return None
        if "torch._dynamo" in sys.modules:  # the model may have been compiled after attach
            return uncompiled(self.function, *args)
        return self.function(*args)

    def __reduce__(self) -> tuple:
        return Hook, ()


@_disable_dynamo  # torch.compiler.disable, when it is called: importing that takes a second
def uncompiled(function: Callable, *args: Any) -> Any:
    """What is around a compiled model is not compiled: it looks at the graph that was made."""
    return function(*args)
