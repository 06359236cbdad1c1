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
not seen before is proved before it counts (see planner.py), and so is the loss (see losses.py).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..clipping import PSAC, ClippingRule, safe_weights
from . import samples as trees
from .capture import Captured, Rows, capture, capture_single
from .errors import CannotAssign, OutsideTheTape, PrivacyError, announce, announce_unprotected
from .graph import Graph, trace
from .groups import TOGETHER, Groups
from .loop import loop
from .losses import LossTape, plain, prove_loss
from .plan import Plan
from .planner import Forward
from .proof import first_that_fits, plan_or_none, prove_isolation
from .samples import Batch
from .training import attached, refuse_modules, silenced, trainable

# What keeps the outputs of private models in the graph: no data, and nothing that is trained.
anchors: weakref.WeakSet[Tensor] = weakref.WeakSet()


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
        self._handles: list[Any] = []
        self._open: weakref.WeakSet[Call] = weakref.WeakSet()  # forwards whose backward may come
        self._pending: list[Captured | Rows] = []
        self._backward = -1  # number of the backward that is pending
        self.expected: int | None = None  # samples of the forward to come; None: any number
        self.after_backward: Callable[[], None] | None = None
        self._served = False  # the expected samples had their backward
        self._tape: LossTape | None = None
        self._backwards, self._next_loss_proof = 0, 0
        self._warned = False
        # hooks do nothing: a forward is being repeated, or studied by plain functions
        self.silent = False

    # Life of the hooks
    def attach(self) -> Engine:
        if self._handles:
            return self
        self.parameters = trainable(self.model)
        self.groups = TOGETHER
        if isinstance(self.clipping, Mapping):
            self.groups = Groups.by_pattern(self.clipping, self.parameters)
        refuse_modules(self.model)
        self._frozen = {name: p for name, p in self.model.named_parameters() if not p.requires_grad}
        self._batch_norms = [
            module for module in self.model.modules() if isinstance(module, _BatchNorm)
        ]
        if self.model in attached:
            raise PrivacyError(
                f"{type(self.model).__name__} has an engine already; detach that one first."
            )
        attached[self.model] = self
        self.names = {id(p): name for name, p in self.parameters.items()}
        self._handles = [
            self.model.register_forward_pre_hook(Hook(self._before), with_kwargs=True),
            self.model.register_forward_hook(Hook(self._after), with_kwargs=True),
        ]
        self._handles += [
            p.register_post_accumulate_grad_hook(lambda p, name=name: self._outside(p, name))
            for name, p in self.parameters.items()
        ]
        return self

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if attached.get(self.model) is self:
            del attached[self.model]
        self._drop_tape()
        self.discard()

    def __enter__(self) -> Engine:
        return self.attach()

    def __exit__(self, *_: object) -> None:
        self.detach()

    # What the user gets
    def collect(self) -> dict[str, Tensor]:
        """The sums since the last collect, by parameter name, zeros included.

        The engine starts anew.
        """
        self._drop_tape()
        sums = {
            name: self._sums[name] if name in self._sums else torch.zeros_like(p)
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
        return {name: self.rules[self.groups.of([name])].bound for name in self.parameters}

    def expect(self, num_samples: int | None) -> None:
        """From now on one backward, of this many samples: what a loader has handed out.

        Another number, or a second backward, raises; None lifts that.
        """
        self.expected, self._served = num_samples, False
        self._drop_tape()

    def discard(self) -> None:
        """Forgets what was accumulated."""
        self._sums, self.num_samples, self._pending = {}, 0, []

    # Hooks
    def _before(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self.silent or not torch.is_grad_enabled():
            return None
        if self._tape is not None and self._tape.loss is not None:
            self._drop_tape()
        self._notice_changes()
        if any(t.requires_grad for t in trees.tensors((args, kwargs))):
            self._origins: list[tuple[Tensor, Tensor]] = []
            return trees.map_tensors((args, kwargs), self._cut)
        return None

    def _cut(self, leaf: Any) -> Any:
        """An input that needs a gradient becomes a leaf of the inner graph."""
        if not isinstance(leaf, Tensor) or not leaf.requires_grad:
            return leaf
        for tape in getattr(leaf, "tapes", ()):
            tape.entered_a_model = True
        leaf = plain(leaf)
        inner = leaf.detach().requires_grad_()
        self._origins.append((inner, leaf))
        return inner.view_as(inner)  # not a leaf, so that in-place operations stay possible

    def _after(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        if self.silent or not torch.is_grad_enabled():
            return None
        roots = list({id(t): t for t in trees.tensors(output) if t.requires_grad}.values())
        if not roots:
            return None
        call = Call(self, args, kwargs, roots)
        if not call.graph.parameters:
            return None
        self._refuse_strangers(call)
        self._open.add(call)
        anchor, foreign = torch.ones((), requires_grad=True), call.foreign()
        anchors.add(anchor)
        if foreign and not self._warned:
            self._warn_of(foreign)
        outputs = Boundary.apply(call, anchor, *foreign)
        if self._backwards >= self._next_loss_proof and self._backward_is_welcome():
            outputs = self._watched(call, outputs)
        handed_on = dict(zip(map(id, roots), outputs, strict=True))
        return trees.map_tensors(output, lambda leaf: replaced(leaf, handed_on))

    def _watched(self, call: Call, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """From here to backward, what the user does to the outputs goes on the tape."""
        if self._tape is None:
            self._tape = LossTape()
        return self._tape.watch(call.graph.signature, outputs)

    def _backward_is_welcome(self) -> bool:
        return self.expected is None or (self.expected > 0 and not self._served)

    def _drop_tape(self) -> None:
        if self._tape is not None:
            self._tape.forget()
        self._tape = None

    def _warn_of(self, foreign: list[Tensor]) -> None:
        """Says once that leaves outside the model, other private models apart, are unprotected."""
        graph = trace(foreign, {})
        leaves = [graph.nodes[number].variable for number in graph.foreign]
        unprotected = [leaf for leaf in leaves if leaf not in anchors]
        if unprotected:
            self._warned = True
            announce_unprotected(self.model, unprotected)

    def _notice_changes(self) -> None:
        for module in self._batch_norms:
            if module.training:
                refuse_modules(self.model)
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
            f"{sorted(names)}. Detach it first and attach it again."
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
        factor = float(n) if self.loss_reduction == "mean" else 1.0
        norms = [torch.zeros_like(like) if s is None else s.sqrt() * factor for s in squared]
        weights = [safe_weights(rule, x) for rule, x in zip(self.rules, norms, strict=True)]
        self.norms, self.weights = (
            (norms[0], weights[0])
            if len(norms) == 1
            else (torch.stack(norms), torch.stack(weights))
        )
        finite = torch.isfinite(self.norms).view(len(norms), n).all(0)
        if not bool(finite.all()):  # in any group: the sample is dropped from all
            captured.zero_samples(~finite)
            weights = [torch.where(finite, w, 0.0) for w in weights]
        scaled = [w * factor for w in weights]
        for name, value in captured.weighted_sums(scaled, self.groups).items():
            known = self._sums.get(name)
            self._sums[name] = (
                value.to(self.parameters[name].dtype) if known is None else known.add_(value)
            )
        self.num_samples += n
        if self.after_backward is not None:
            self.after_backward()

    def _prove_loss(self, n: int) -> None:
        tape = self._tape
        if tape is None:
            return
        if n < 2:  # there is nobody to mix with; the next batch proves
            tape.forget()
            return

        def dims_of(signature: tuple) -> list[int | None] | None:
            plan = self.plans.get(signature)
            return None if plan is None else plan.root_dims

        prove_loss(tape, n, self.loss_reduction == "mean", dims_of)
        self._next_loss_proof = 2 * self._backwards + 1
        tape.forget()


class Hook:
    """A hook that stays behind when its model is copied or pickled: the copy is an ordinary one."""

    def __init__(self, function: Callable | None = None):
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return None if self.function is None else self.function(*args)

    def __reduce__(self) -> tuple:
        return Hook, ()


class Call:
    """One forward of the model, until its backward."""

    def __init__(self, engine: Engine, args: tuple, kwargs: dict, roots: list[Tensor]):
        self.engine, self.args, self.kwargs, self.roots = engine, args, kwargs, roots
        self.graph: Graph = trace(roots, engine.names)
        self.origins = {id(inner): outer for inner, outer in getattr(engine, "_origins", [])}
        engine._origins = []
        self.autocast = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
        ]

    def foreign(self) -> list[Tensor]:
        """Tensors outside the model that the forward depends on and that want a gradient.

        They get their ordinary gradient, which is not private.
        """
        leaves = [self.graph.nodes[k].variable for k in self.graph.foreign]
        return [self.origins.get(id(leaf), leaf) for leaf in leaves]

    def backward(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        if not self.roots:
            raise OutsideTheTape(
                "a second backward through the same forward: its samples would count twice. "
                "Run the forward again."
            )
        n = self.num_samples()
        if n == 0:
            self.roots = []
            return [torch.zeros_like(tensor) for tensor in self.foreign()]
        with torch.no_grad():
            captured, foreign = self._captured(n, grads)
        result = [foreign.get(k) for k in self.graph.foreign]
        self.roots, self.args, self.kwargs = [], (), {}
        del self.graph  # the user may hold the loss for long
        self.engine._arrived(self, captured)
        return result

    def num_samples(self) -> int:
        dim, expected = self.engine.batch_dim, self.engine.expected
        found = [
            int(leaf.batch_sizes[0]) if not isinstance(leaf, Tensor) else leaf.shape[dim]
            for leaf in trees.leaves((self.args, self.kwargs))
            if not isinstance(leaf, Tensor) or leaf.dim() > dim
        ]
        if not found:
            raise PrivacyError(
                "no input of the forward is a tensor, so the samples of the batch cannot be found."
            )
        if expected is None:
            return found[0]
        self._refuse_unexpected(found, expected)
        return expected

    def _refuse_unexpected(self, found: list[int], expected: int) -> None:
        if expected == 0:
            raise PrivacyError(
                "a backward outside the loop over private.loader: its samples were not drawn by "
                "the private sampler. For gradients that train other models use private.paused()."
            )
        if expected not in found:
            raise PrivacyError(
                f"the model was given {found[0]} samples, private.loader handed out {expected}. "
                "Each of them must be in the forward exactly once: split batches by "
                "physical_batch_size, and draw copies of a sample (augmentation) inside the model."
            )
        if self.engine._served:
            raise PrivacyError(
                "a second backward on the same batch: its samples would count twice, and what one "
                "sample adds would pass the bound. Add the losses up, and call backward once."
            )

    def _captured(
        self, n: int, grads: Sequence[Tensor | None]
    ) -> tuple[Captured | Rows, dict[int, Tensor]]:
        wanted = [
            (root, grad) for root, grad in zip(self.roots, grads, strict=True) if grad is not None
        ]
        roots, cotangents = [root for root, _ in wanted], [grad for _, grad in wanted]
        if n == 1 and self.engine.method == "auto":
            rows, foreign = capture_single(self.graph, roots, cotangents)
            return Rows({name: grad.unsqueeze(0) for name, grad in rows.items()}, 1), foreign
        plan = self._plan(n, grads)
        if isinstance(plan, Plan):
            try:
                captured = capture(
                    self.graph, plan, roots, cotangents, n, at_once=self.engine._alone()
                )
                return captured, captured.foreign_gradients
            except CannotAssign:  # this batch by the loop; the next one looks for a plan again
                del self.engine.plans[plan.signature]
                plan = next(self._forwards(n))
        if self.graph.foreign:
            raise PrivacyError(
                "the loop over samples cannot pass gradients on to tensors outside the model."
            )
        with self._again():
            return loop(plan, self.roots, grads, self.engine.loss_reduction == "mean"), {}

    def _plan(self, n: int, grads: Sequence[Tensor | None]) -> Plan | Forward:
        """A proved plan, or the forward to loop over."""
        engine = self.engine
        key = self.graph.signature
        if engine.plans.get(key) is not None:
            return engine.plans[key]  # type: ignore[return-value]
        with self._again():
            forward, plan, result = first_that_fits(
                self._forwards(n), lambda f: self._attempt(f, grads)
            )
        if plan is None and key not in engine.plans and engine.method != "loop":
            announce(engine.model, result)
        engine.plans[key] = plan
        return forward if plan is None else plan

    def _attempt(
        self, forward: Forward, grads: Sequence[Tensor | None]
    ) -> tuple[Plan | None, float | str]:
        if self.engine.method == "loop" or self.graph.signature in self.engine.plans:
            prove_isolation(forward, self.engine.loss_reduction == "mean")
            return None, ""
        return plan_or_none(self.graph, forward, grads, self.engine.loss_reduction == "mean")

    def _forwards(self, n: int) -> Iterator[Forward]:
        """The forward, for each way to find its samples in the inputs.

        Only ways that fit the stated batch dimension.
        """
        for reading in Batch.readings((self.args, self.kwargs), n):
            if reading.axes[0] in (None, self.engine.batch_dim):
                yield Forward(self.engine.model, self.engine.names, self._run, reading)

    def _run(self, tree: tuple[tuple, dict]) -> list[Tensor]:
        args, kwargs = tree
        output = self.engine.model(*args, **kwargs)
        return list({id(t): t for t in trees.tensors(output) if t.requires_grad}.values())

    @contextlib.contextmanager
    def _again(self) -> Iterator[None]:
        """The state that the forward ran in: hooks silent, autocast as it was."""
        with silenced(self.engine.model), contextlib.ExitStack() as stack:
            for device, enabled, dtype in self.autocast:
                if enabled:
                    stack.enter_context(torch.autocast(device, dtype=dtype))
            yield


class Boundary(torch.autograd.Function):
    """Hands outputs on without their graph; its backward is the call's."""

    @staticmethod
    def forward(ctx: Any, call: Call, anchor: Tensor, *foreign: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(root.detach() for root in call.roots)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise PrivacyError(
                "backward(create_graph=True): second derivatives of a private model "
                "are not supported."
            )
        return None, None, *ctx.call.backward(grads)


def replaced(leaf: Any, handed_on: dict[int, Tensor]) -> Any:
    if isinstance(leaf, Tensor):
        return handed_on.get(id(leaf), leaf)
    return leaf._replace(data=handed_on.get(id(leaf.data), leaf.data))


def together(parts: Sequence[Captured | Rows]) -> Captured | Rows:
    """One capture for the forwards that a backward joined: each sample's gradients add up."""
    first, *others = parts
    if not others:
        if isinstance(first, Captured) and not first.at_once:
            first.join([])
        return first
    if {part.num_samples for part in parts} != {first.num_samples}:
        raise PrivacyError(
            f"one backward joins forwards of {sorted({p.num_samples for p in parts})} samples; "
            "they must be the same samples. Call backward for each."
        )
    if all(isinstance(part, Captured) for part in parts):
        assert not any(part.at_once for part in parts), "a measured capture cannot be joined"  # type: ignore[union-attr]
        first.join(others)  # type: ignore[union-attr, arg-type]
        return first
    rows: dict[str, Tensor] = {}
    for part in parts:
        if isinstance(part, Captured):
            raise PrivacyError(
                "one backward joins a fast and a looped forward; use Engine(method='loop')."
            )
        for name, row in part.rows.items():
            rows[name] = rows[name] + row.values if name in rows else row.values
    return Rows(rows, first.num_samples)
