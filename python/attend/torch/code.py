"""What the code of a module does about attention: told by the names in its methods, as Python compiled them; and whether by
that, its config and the blocks around it will come to attend.

Names, not source text: they are there for any class, also where the source is not, and a comment cannot
deceive. Functions of the same file that a method calls count as part of it.
"""
import dis
import enum
import functools
import re
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from .layers import Known
from .modules import MultiheadAttention
from .sdpa import is_open

NAME = "attend"  # in Transformers


class Uses(enum.Enum):
    nothing = enum.auto()
    interface = enum.auto()  # Transformers' AttentionInterface
    replaced = enum.auto()  # attend.torch.MultiheadAttention
    layer_of_torch = enum.auto()  # nn.MultiheadAttention
    sdpa = enum.auto()
    own_softmax = enum.auto()
    name_alone = enum.auto()  # it is called an attention, and nothing is found in it


def uses_of(module: nn.Module) -> Uses:
    if isinstance(module, MultiheadAttention):
        return Uses.replaced
    if isinstance(module, nn.MultiheadAttention):
        return Uses.layer_of_torch
    return _uses_of_class(type(module))


def known_in(model: nn.Module) -> Known:
    """What attend.torch knows of the layers of a model before it runs."""
    root = type(model).__name__
    comes = [name or root for name, _, uses, config in attentions_in(model) if not why_not(uses, config)]
    return Known(comes, [name or root for name, module in model.named_modules() if _may_call(module)])


def _may_call(module: nn.Module) -> bool:
    """PyTorch's own modules call no attention, but for the one that is one."""
    return type(module).__module__.split(".")[0] != "torch" or isinstance(module, nn.MultiheadAttention)


def attentions_in(model: nn.Module) -> Iterator[tuple[str, nn.Module, Uses, Any]]:
    """(name, module, what its code does, its config or that of the module around it)"""
    configs: dict[str, Any] = {}
    for name, module in model.named_modules():
        configs[name] = getattr(module, "config", None) or configs.get(name.rpartition(".")[0])
        uses = uses_of(module)
        if uses is not Uses.nothing and not (uses is Uses.name_alone and _has_attention_inside(module)):
            yield name, module, uses, configs[name]


def _has_attention_inside(module: nn.Module) -> bool:
    inner = list(module.modules())[1:]
    return any(uses_of(x) not in (Uses.nothing, Uses.name_alone) for x in inner)


def why_not(uses: Uses, config: Any) -> str:
    """Why such a module will not come here and now; "": it will."""
    if uses is Uses.layer_of_torch:
        return "it is PyTorch's own layer, which attend.torch.replace(model) makes into attend's"
    if uses is Uses.replaced or uses is Uses.sdpa and is_open():
        return ""
    if uses is Uses.sdpa:
        return "its code calls scaled_dot_product_attention by itself, which comes inside of attend.torch.sdpa() alone"
    if uses is Uses.own_softmax:
        return "its code computes the attention by itself, without Transformers' AttentionInterface"
    if uses is Uses.name_alone:
        return "no softmax attention is found in its code, which may be of another kind or elsewhere"
    asked = getattr(config, "_attn_implementation", None)
    if asked != NAME and not (asked == "sdpa" and is_open()):
        return f'its config asks for {asked!r}; model.set_attn_implementation("{NAME}") changes that'
    return ""


_PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum", "@"}
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
_ENDS_SO = re.compile(r"(attention|attn)$", re.IGNORECASE)  # not an output, a bias or a loss of one
_QUERY = re.compile(r"^(q|wq|qkv|queries|(.*_)?(query|q_proj|qkv_proj)(_.*)?|c_attn)$", re.IGNORECASE)


@functools.cache
def _uses_of_class(cls: type) -> Uses:
    if cls.__module__.split(".")[0] == "torch":
        return Uses.nothing
    names: set[str] = set()
    interface = False
    for function in _functions(cls):
        for code in _codes(function.__code__):
            names |= set(code.co_names) | set(code.co_varnames)
            if any(step.opname == "BINARY_OP" and step.argrepr in ("@", "@=") for step in dis.get_instructions(code)):
                names.add("@")
            interface = interface or any(_is_interface(function.__globals__.get(name)) for name in code.co_names)
    if interface:
        return Uses.interface
    if names & {"scaled_dot_product_attention", "multi_head_attention_forward"}:
        return Uses.sdpa
    softmax = any("softmax" in name.lower() for name in names)
    if softmax and names & _PRODUCTS and (_ATTENTION.search(cls.__name__) or _has_queries(cls, names)):
        return Uses.own_softmax
    return Uses.name_alone if _ENDS_SO.search(cls.__name__) else Uses.nothing


def _has_queries(cls: type, names: set[str]) -> bool:
    """A whole model has a softmax for other reasons."""
    return any(map(_QUERY.match, names)) and not any(base.__name__ == "PreTrainedModel" for base in cls.__mro__)


def _is_interface(value: Any) -> bool:
    return any(cls.__name__ == "AttentionInterface" for cls in type(value).__mro__)


def _functions(cls: type) -> Iterator[types.FunctionType]:
    """The methods of a class and its bases, up to PyTorch's and Transformers' base classes, and the functions of the
    same file that they call.
    """
    waiting, seen = [], set()
    for base in cls.__mro__:
        if base.__module__.split(".")[0] in ("torch", "builtins") or base.__name__ == "PreTrainedModel":
            break
        waiting += [(base.__module__, value) for value in vars(base).values()]
    while waiting:
        file, value = waiting.pop()
        function = _unwrapped(value)
        if function is None or function in seen or function.__module__ != file:
            continue
        seen.add(function)
        yield function
        for code in _codes(function.__code__):
            waiting += [(file, function.__globals__.get(name)) for name in code.co_names]


def _unwrapped(value: Any) -> types.FunctionType | None:
    """The function inside of decorators."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    while hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value if isinstance(value, types.FunctionType) else None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions and comprehensions inside."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _codes(part)
