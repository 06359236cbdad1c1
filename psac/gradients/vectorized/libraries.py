"""What other libraries do that vmap cannot, done otherwise while a function runs under vmap.

Nothing of it stays: when the call is over, each library is as it was.

- `torch.utils.checkpoint` saves memory by hooks on saved tensors, which see all records.  Blocks
  run without it: same results, and the memory of a model without checkpoints.
- `torch.compile` does not trace under a function mode: compiled code runs as it was written.
- Operators whose kernel is Python are called record by record, wherever they are called from: what
  they remember would meet the next record.  `refuse_operator_of_library` and `NotVectorized`.
- A batching rule of the user's own (an autograd.Function with a `vmap`, a custom operator) would
  see all records: whatever calls one, forward or backward, is computed one record at a time.
- `transformers` leaves out attention masks that mask nothing, which is a branch on values.  Masks
  are always made.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch
import torch.utils.checkpoint as checkpoints
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]
from torch._C._functorch import TransformType
from torch._functorch import predispatch
from torch._functorch.autograd_function import custom_function_call
from torch._library.custom_ops import OPDEFS
from torch.overrides import _get_current_function_mode, _pop_mode_temporarily

from psac.gradients.errors import NotVectorized, PrivacyError

# Namespaces of operators that come with torch, and the rules that it has written in Python.
OF_TORCH = {
    *("aten", "prims", "c10d", "onednn", "quantized", "mkldnn", "mkl", "debugprims", "rngprims"),
    *("debug_mode_ops", "export", "torchvision", "torchaudio", "inductor", "_inductor_test"),
    *("fsdp", "symm_mem", "onnx", "onnx_symbolic", "streams", "flex_lib", "_dtensor", "_native"),
    *("c10d_functional", "_c10d_functional", "_c10d_functional_autograd"),
}
RULES_OF_TORCH = {
    *("smooth_l1_loss_backward", "huber_loss_backward", "mse_loss_backward", "addr"),
    *("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
}
TEXTS: Any = sys.modules["torch._tensor_str"]
FUNCTION_RULES = custom_function_call.functorch_table
SEES_ALL = ("CPU", "Auto", "Func", "Comp", "Batch")  # how the keys of such kernels begin


NOTHING = contextlib.nullcontext()


class Replaced:
    """Other values for attributes, in here: (owner, name, value)."""

    __slots__ = ("_before", "_entries")

    def __init__(self, *entries: tuple[Any, str, Any]) -> None:
        self._entries = entries

    def __enter__(self) -> None:
        self._before = [getattr(owner, name) for owner, name, _ in self._entries]
        for owner, name, value in self._entries:
            setattr(owner, name, value)

    def __exit__(self, *_: object) -> None:
        for (owner, name, _), value in zip(self._entries, self._before, strict=True):
            setattr(owner, name, value)


@contextlib.contextmanager
def without_branches(made: Callable[[Any], None]) -> Iterator[None]:
    """For the forward.  `made` is told of tensors that leave a transform of torch.func.

    Those pass no function mode.  Seeding is refused, and checkpoints are plain calls, too.
    """

    def told(function: Callable) -> Callable:
        def run(*args: Any) -> Any:
            result = function(*args)
            made(result)
            return result

        return run

    leaving = ("_remove_batch_dim_impl", "_unwrap_for_grad_impl")
    with (
        Replaced(*((predispatch, name, told(getattr(predispatch, name))) for name in leaving)),
        guarded(),
        without_checkpoints(),
        as_written(),
        with_all_masks() if "transformers.masking_utils" in sys.modules else NOTHING,
    ):
        yield


def as_written() -> AbstractContextManager:
    """What torch.compile was given runs as it is."""
    is_there = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_there else NOTHING


def guarded() -> Replaced:
    """What passes no function mode: seeding is refused, scripts are seen, `torch.cond` branches."""
    return Replaced(*_guards())


@functools.cache
def _guards() -> list[tuple[Any, str, Any]]:
    names = ("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all")
    seeding = [getattr(o, n, None) for o in (torch.random, torch.cuda.random) for n in names]
    scripts = (torch.jit.ScriptFunction, torch._C.ScriptMethod)
    return [  # of functions the code: they may be known by other names
        *((inspect.unwrap(f), "__code__", _seeding.__code__) for f in seeding if f is not None),
        *((kind, "__call__", through_mode(kind.__call__)) for kind in scripts),
        (torch, "cond", branch),
    ]


def without_texts() -> Replaced:
    """The text of a tensor would show all records: `str(x)`, `f"{x}"`, printing."""
    return Replaced((inspect.unwrap(TEXTS._functorch_wrapper_str_intern), "__code__", _text))


def refuse_text() -> NoReturn:
    raise NotVectorized("it makes a text of a tensor, which would show all records")


def _text_of(tensor: Any, *, tensor_contents: Any = None) -> NoReturn:
    from psac.gradients.vectorized.libraries import refuse_text

    refuse_text()


_text = _text_of.__code__


def refuse_seeding() -> NoReturn:
    raise PrivacyError(
        "the loss function seeds torch's generator or sets its state (as torch.random.fork_rng "
        "does): which random numbers a record gets would follow from its place in the batch, or "
        "from the record before. Leave it out; make_private(seed=...) makes a run that can be "
        "repeated."
    )


def _seeding(*_: Any, **__: Any) -> NoReturn:
    from psac.gradients.vectorized.libraries import refuse_seeding

    refuse_seeding()


def through_mode(call: Callable) -> Callable:
    """What torch.jit has compiled is an operation like others: its operands are seen."""

    def scripted(script: Any, *args: Any, **kwargs: Any) -> Any:
        if _functorch.peek_interpreter_stack() is not None and looks_up(script):
            raise NotVectorized("torch.jit has compiled an embedding, whose padding vmap mixes up")
        return call(script, *args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        mode = _get_current_function_mode()
        if mode is None:
            return call(*args, **kwargs)
        with _pop_mode_temporarily():
            return mode.__torch_function__(scripted, (), args, kwargs)

    return run


@functools.lru_cache
def looks_up(script: Any) -> bool:
    """Whether it has an embedding of a table that it is given, as no rule sees in there."""
    if not isinstance(script, torch.jit.ScriptFunction):  # modules are given no table
        return False
    graph: Any = script.inlined_graph
    return graph.findNode("aten::embedding") is not None


def branch(pred: Any, true_fn: Callable, false_fn: Callable, operands: Any = ()) -> Any:
    """In the place of `torch.cond`, which would compile both."""
    return true_fn(*operands) if pred else false_fn(*operands)


class OnlyRulesOfTorch:
    """For forward and backward: a batching rule that torch did not make raises `NotVectorized`.

    `called` gets the autograd functions that ran, each of them under the mode that `within` makes.
    `with_loops`: torch may call an operator for one record after the other where it has no batching
    rule.
    """

    def __init__(self, called: set[Any], within: Callable[[], Any], with_loops: bool) -> None:
        self._called, self._within, self._with_loops = called, within, with_loops

    def __enter__(self) -> None:
        self._usual = FUNCTION_RULES[TransformType.Vmap]
        self._ruled = {op: op._vmap_fn for op in kernels().with_own_rules()}
        self._falls_back = _functorch._is_vmap_fallback_enabled()
        _functorch._set_vmap_fallback_enabled(self._with_loops)
        FUNCTION_RULES[TransformType.Vmap] = self._rule
        for op in self._ruled:
            op._vmap_fn = functools.partial(refuse_operator, op)

    def __exit__(self, *_: object) -> None:
        _functorch._set_vmap_fallback_enabled(self._falls_back)
        FUNCTION_RULES[TransformType.Vmap] = self._usual
        for op, function in self._ruled.items():
            op._vmap_fn = function

    def _rule(self, interpreter: Any, function: Any, *operands: Any, **kwargs: Any) -> Any:
        self._called.add(function)
        if function.vmap is not torch.autograd.Function.vmap:
            raise NotVectorized(
                f"{function.__name__} is an autograd.Function with a vmap rule of its own, which "
                "sees all records at once"
            )
        return self._usual(interpreter, under(self._within, function), *operands, **kwargs)


OPERATORS = (torch._ops.OpOverloadPacket, torch._ops.OpOverload)


def under(within: Callable[[], Any], function: Any) -> Any:
    """The same autograd.Function, whose methods run under a mode: else they pass none."""

    def watched(method: Callable) -> Any:
        @functools.wraps(method)
        def run(*args: Any) -> Any:
            with within():
                return method(*args)

        return staticmethod(run)

    names = ("forward", "backward", "setup_context")
    return type(function.__name__, (function,), {n: watched(getattr(function, n)) for n in names})


def refuse_operator_in_python(func: Any, *, is_alone: bool = False) -> None:
    """An operator with a kernel in Python is called record by record, and may remember one.

    Into one of `torch.library.custom_op` psac can look, where records are computed one at a time.
    """
    name = str(func).replace(".", "::", 1)
    name = name if isinstance(func, torch._ops.OpOverloadPacket) else name.rsplit(".", 1)[0]
    if "c10d" in name.split("::")[0]:
        raise PrivacyError(
            f"the loss function talks to other workers ({name}): a record there could change this "
            "one's gradient. Leave the collective out; psac adds up the sums of all workers itself."
        )
    if name in OPDEFS:
        if is_alone:
            return
        raise NotVectorized(f"{name} is an operator in Python, which vmap does not see into")
    if name in kernels().in_python:
        raise PrivacyError(
            f"{name} is an operator with a kernel in Python (torch.library.Library.impl): it sees "
            "one record after the other, and psac does not see what it keeps. Call the Python "
            "function itself, or make it an operator by torch.library.custom_op."
        )


class Kernels:
    """What was registered with torch.library, read again only where that list has changed.

    Attributes:
        in_python: Names of operators that somebody gave a kernel in Python.
    """

    def __init__(self, registered: set[str]) -> None:
        self.registered = set(registered)
        self.in_python = names_of_users(registered)
        ruled = (entry.split("/") for entry in registered if entry.endswith("/FuncTorchBatched"))
        self._ruled = [f"{space}::{name}" for space, name, _ in ruled]

    def with_own_rules(self) -> list[Any]:
        """The operators of `register_vmap`; one may be made anew under the same name."""
        operators = (OPDEFS.get(name) for name in self._ruled)
        return [op for op in operators if op is not None]


_kernels: list[Kernels] = []  # as they were when last looked at


def kernels() -> Kernels:
    """Those of now."""
    if not _kernels or _kernels[0].registered != torch.library._impls:
        _kernels[:] = [Kernels(torch.library._impls)]
    return _kernels[0]


def names_of_users(registered: Iterable[str]) -> frozenset[str]:
    """Of the operators of kernels that did not come with torch."""
    found = set()
    for space, name, key in (entry.split("/") for entry in registered):
        name = name.split(".")[0]
        is_known = name in RULES_OF_TORCH and key == "FuncTorchBatched"
        if space not in OF_TORCH:
            is_known = key in ("Meta", "FakeTensor")
        elif space != "aten" or not key.startswith(SEES_ALL):
            is_known = True
        if not is_known:
            found.add(f"{space}::{name}")
    return frozenset(found)


def refuse_overridden_operators() -> None:
    """Of torch's own operators, those that were given another kernel in Python."""
    changed = [n for n in kernels().in_python if n.startswith("aten::")]
    if changed:
        raise PrivacyError(
            f"{', '.join(sorted(changed)[:5])}: torch's own operator has another kernel in Python "
            "(torch.library.Library.impl), which would see all records. Remove it."
        )


def is_loop_over_records(error: Exception) -> bool:
    """Whether an operator of torch lacks a batching rule, so that it would be called in a loop."""
    space = str(error).split("::")[0]
    return "hit the vmap fallback" in str(error) and space in OF_TORCH


def refuse_operator(op: Any, *_: Any) -> Any:
    raise NotVectorized(
        f"the operator {op._qualname} has a vmap rule of its own (register_vmap), which sees all "
        "records at once"
    )


class PlainFunction:
    """In the place of torch's CheckpointFunction."""

    @staticmethod
    def apply(function: Callable, preserve_rng_state: bool, *args: Any) -> Any:
        """As there, nothing inside is trained if no argument asks for a gradient."""
        wanted = any(isinstance(value, Tensor) and value.requires_grad for value in args)
        with torch.set_grad_enabled(wanted and torch.is_grad_enabled()):
            return function(*args)


def plain_generator(*_: Any, **__: Any) -> Iterator[None]:
    """In the place of what surrounds a block whose checkpoint is not re-entrant."""
    yield


def without_checkpoints() -> Replaced:
    return Replaced(
        (checkpoints, "CheckpointFunction", PlainFunction),
        (checkpoints, "_checkpoint_without_reentrant_generator", plain_generator),
    )


@contextlib.contextmanager
def with_all_masks() -> Iterator[None]:
    home = sys.modules["transformers.masking_utils"]
    masks = home.AttentionMaskInterface
    mapping = masks._global_mapping
    before = dict(mapping)
    homes = home, sys.modules.get("transformers.modeling_utils")
    traced = [(h, "is_tracing", always) for h in homes if hasattr(h, "is_tracing")]
    try:
        for name in ("sdpa", "eager"):
            masks.register(name, without_skips(before[name]))
        with Replaced(*traced):  # a graph has no branches on values, either
            yield
    finally:
        mapping.clear()
        mapping.update(before)


def always(*_: Any) -> bool:
    return True


@functools.cache
def without_skips(make_mask: Callable) -> Callable:
    """The same masks, made also where they mask nothing."""

    @functools.wraps(make_mask)
    def whole(*args: Any, **kwargs: Any) -> Any:
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return make_mask(*args, **{**kwargs, **skips})

    return whole
