"""ONNX: a backend that runs the `Attention` operator, and a loader of attention weights.

>>> import attend.onnx
>>> Y, = attend.onnx.AttendBackend.run_model(model, [Q, K, V])
>>> found = attend.onnx.load_attention("model.onnx", name="layer_0/attention")

All arithmetic is attend's own. Python only shows arrays in other shapes, joins past and new keys, and
changes types where a node mixes them.
"""
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.backend.base as base
from onnx import helper, numpy_helper

from ._attend import attention
from ._onnx_weights import AttentionWeights, load_attention

__all__ = ["AttendBackend", "AttendModel", "AttentionWeights", "load_attention"]

VERSIONS = (23, 24, 25)  # of the operator; 25 brought the windows
STAGES = {0: "raw", 1: "softcapped", 2: "masked"}  # qk_matmul_output_mode; 3 is the weights
PRECISIONS = (1, 10, 11, 16)  # softmax_precision: float, float16, double, bfloat16
DOUBLE = 11
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


def _refuse(rule: str) -> None:
    raise ValueError(f"ONNX Attention: {rule}")


def _by_heads(x: np.ndarray, heads: int | None, name: str) -> np.ndarray:
    """[batch, length, heads * d] as [batch, heads, length, d]; nothing is copied."""
    if not heads:
        _refuse("3-D inputs need q_num_heads and kv_num_heads")
    if x.shape[2] % heads:
        _refuse(f"{name} {list(x.shape)} does not divide into {heads} heads")
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def _join(past: np.ndarray, new: np.ndarray, name: str) -> np.ndarray:
    """[batch, heads, past + new, d]"""
    if past.ndim != 4 or past.shape[:2] + past.shape[3:] != new.shape[:2] + new.shape[3:]:
        _refuse(f"{name} {list(past.shape)} does not fit the new {list(new.shape)}")
    if past.dtype != new.dtype:
        _refuse(f"{name} is {past.dtype}, what it continues {new.dtype}")
    return np.concatenate((past, new), axis=2)


def _mask(mask: np.ndarray, keys: int, dtype: np.dtype) -> dict[str, np.ndarray]:
    """attn_mask as attend's mask= (bool) or bias= (floats).

    Keys past the end of a shorter mask are hidden here as there. Only a mask of one column is another
    matter: attend repeats it, ONNX takes it as short, so it gets a second column, which hides.
    """
    boolean = mask.dtype == np.bool_
    if not boolean and not _is_float(mask.dtype):
        _refuse(f"attn_mask is bool or floating-point, found {mask.dtype}")
    if mask.ndim == 0:
        _refuse("attn_mask has a rank from 1 to 4, found 0")
    if mask.shape[-1] == 1 < keys:
        hidden = np.full(mask.shape, False if boolean else -np.inf, mask.dtype)
        mask = np.concatenate((mask, hidden), axis=-1)
    return {"mask": mask} if boolean else {"bias": mask.astype(dtype, copy=False)}


def _is_float(dtype: np.dtype) -> bool:
    return dtype.name in ("float64", "float32", "float16", "bfloat16")


def _widest(types: set[np.dtype]) -> np.dtype:
    """A type that holds all of them: float16 and bfloat16 have only float32 in common."""
    wide = np.dtype("float64" if np.dtype("float64") in types else "float32")
    return wide if len(types) > 1 else next(iter(types))


def _plain_options(attribute: Callable[..., Any]) -> dict[str, Any]:
    """The attributes that need no array, checked; the others' range is checked too."""
    precision, mode = attribute("softmax_precision"), attribute("qk_matmul_output_mode", 0)
    if precision is not None and precision not in PRECISIONS:
        _refuse(f"softmax_precision is one of {list(PRECISIONS)}, found {precision}")
    if mode not in (0, 1, 2, 3):
        _refuse(f"qk_matmul_output_mode is 0, 1, 2 or 3, found {mode}")
    window = [attribute("left_window_size", -1), attribute("right_window_size", -1)]
    if min(window) < -1:
        _refuse(f"window sizes are -1 (no limit), 0 or more, found {window}")
    return {"causal": bool(attribute("is_causal", 0)), "scale": attribute("scale"),
            "softcap": attribute("softcap", 0.0),
            "window": tuple(None if side == -1 else side for side in window)}


def _run_attention(
    version: int,
    wanted: set[str],
    attributes: Mapping[str, Any],
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    attn_mask: np.ndarray | None = None,
    past_key: np.ndarray | None = None,
    past_value: np.ndarray | None = None,
    nonpad_kv_seqlen: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """One Attention node: the outputs that are wanted (Y always), by the operator's own names.

    Q [batch, heads, queries, d]   K [batch, key heads, keys, d]   V [batch, key heads, keys, dv]
    or [batch, length, heads * d] each; then Y is so too. past_ and present_ are 4-D always.
    """
    attribute = attributes.get
    flat = Q.ndim == 3
    heads, key_heads = attribute("q_num_heads"), attribute("kv_num_heads")
    if not Q.ndim == K.ndim == V.ndim or Q.ndim not in (3, 4):
        _refuse(f"Q, K and V are all 3-D or all 4-D, found {[Q.ndim, K.ndim, V.ndim]}")
    if not all(_is_float(x.dtype) for x in (Q, K, V)) or K.dtype != Q.dtype:
        _refuse(f"Q, K and V are floats, Q and K of one type, found {Q.dtype}, {K.dtype}, {V.dtype}")
    if flat:
        q, k = _by_heads(Q, heads, "Q"), _by_heads(K, key_heads, "K")
        v = _by_heads(V, key_heads, "V")
    else:
        q, k, v = Q, K, V
        if version >= 25 and (heads is not None or key_heads is not None):
            _refuse("q_num_heads and kv_num_heads belong to 3-D inputs only")
        if (heads or q.shape[1], key_heads or k.shape[1]) != (q.shape[1], k.shape[1]):
            _refuse(f"q_num_heads {heads}, kv_num_heads {key_heads} differ from the inputs' "
                    f"{q.shape[1]} and {k.shape[1]}")

    # Where query 0 stands: behind the past; so that the last query meets the last key that is no
    # padding; or at key 0.
    batch, _, queries, _ = q.shape
    options: dict[str, Any] = {"query_offset": 0}
    if (past_key is None) != (past_value is None):
        _refuse("past_key and past_value come together")
    if past_key is not None:
        if nonpad_kv_seqlen is not None:
            _refuse("nonpad_kv_seqlen excludes past_key and past_value")
        k, v = _join(past_key, k, "past_key"), _join(past_value, v, "past_value")
        options["query_offset"] = past_key.shape[2]
    elif nonpad_kv_seqlen is not None:
        if nonpad_kv_seqlen.shape != (batch,):
            _refuse(f"nonpad_kv_seqlen is [{batch}], found {list(nonpad_kv_seqlen.shape)}")
        options["key_lengths"] = nonpad_kv_seqlen
        options["query_offset"] = nonpad_kv_seqlen - queries  # may be negative: such rows see no key

    options |= _plain_options(attribute)
    # One type for all of the call: the widest that was given or asked for.
    types = {q.dtype, v.dtype}
    if attribute("softmax_precision") == DOUBLE:
        types.add(np.dtype("float64"))
    if attn_mask is not None and _is_float(attn_mask.dtype):
        types.add(attn_mask.dtype)
    dtype = _widest(types)
    if attn_mask is not None:
        options |= _mask(attn_mask, k.shape[2], dtype)

    shows_qk = "qk_matmul_output" in wanted
    if shows_qk:
        mode = attribute("qk_matmul_output_mode", 0)
        options |= {"return_weights": True} if mode == 3 else {"return_scores": STAGES[mode]}

    y = np.empty((batch, queries, q.shape[1], v.shape[3]) if flat else q.shape[:3] + v.shape[3:], dtype)
    out = y.transpose(0, 2, 1, 3) if flat else y
    qk = attention(*(x.astype(dtype, copy=False) for x in (q, k, v)), out=out, **options)
    results = {"Y": y.reshape(batch, queries, -1) if flat else y}
    if shows_qk:
        results["qk_matmul_output"] = qk[1]
    results = {name: x.astype(Q.dtype, copy=False) for name, x in results.items()}
    for name, x in (("present_key", k), ("present_value", v)):
        if name in wanted:
            results[name] = x if past_key is not None else x.copy()
    return results


class _Node:
    """An Attention node, read and checked once."""

    def __init__(self, node: onnx.NodeProto, version: int) -> None:
        self.version = version
        self.inputs, self.outputs = list(node.input), list(node.output)
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def run(self, values: dict[str, np.ndarray]) -> None:
        """Reads its inputs from `values` by name, and adds its outputs."""
        given = [values[name] if name else None for name in self.inputs]
        names = {kind: name for kind, name in zip(OUTPUTS, self.outputs) if name}
        results = _run_attention(self.version, set(names), self.attributes, *given)
        values |= {name: results[kind] for kind, name in names.items()}


class AttendModel(base.BackendRep):
    """A model of Attention nodes, ready to run: what AttendBackend.prepare returns."""

    def __init__(self, model: onnx.ModelProto, version: int) -> None:
        graph = model.graph
        self._constants = {x.name: numpy_helper.to_array(x) for x in graph.initializer}
        self._inputs = [x.name for x in graph.input if x.name not in self._constants]
        self._outputs = [x.name for x in graph.output]
        self._nodes = [_Node(node, version) for node in graph.node]  # in order: the checker saw to it

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The model's outputs. `inputs`: arrays in the order of the model's inputs, or a dict."""
        values = dict(self._constants)
        values |= _named(inputs, self._inputs, "the model")
        for node in self._nodes:
            node.run(values)
        results = [values[name] for name in self._outputs]
        return base.namedtupledict("Outputs", self._outputs)(*results)


def _named(inputs: Any, names: Sequence[str], what: str) -> dict[str, np.ndarray]:
    if not isinstance(inputs, Mapping):
        inputs = [inputs] if isinstance(inputs, np.ndarray) else inputs
        if len(inputs) != len(names):
            raise ValueError(f"AttendBackend: {what} takes {len(names)} inputs ({', '.join(names)}), "
                             f"found {len(inputs)}")
        inputs = dict(zip(names, inputs))
    missing = [name for name in names if inputs.get(name) is None]
    if missing:
        raise ValueError(f"AttendBackend: {what} lacks the input {', '.join(missing)}")
    return {name: np.asarray(inputs[name]) for name in names}


def _unsupported(model: onnx.ModelProto, device: str) -> str | None:
    """Why the model cannot run here; None: it can."""
    if not AttendBackend.supports_device(device):
        return f"the device is CPU, found {device}"
    others = {f"{x.domain}.{x.op_type}" if x.domain else x.op_type for x in model.graph.node}
    others -= {"Attention", "ai.onnx.Attention"}
    if others:
        return (f"the operator is Attention, the model also has {', '.join(sorted(others))}; "
                "attend.onnx.load_attention(model) takes the weights of an attention out of it, as a layer")
    if _version(model) not in VERSIONS:
        return f"Attention's versions are {', '.join(map(str, VERSIONS))}, found {_version(model)}"
    return None


def _version(model: onnx.ModelProto) -> int:
    """The version of the operator that the model's opset means; 0: that opset has none."""
    opset = next((x.version for x in model.opset_import if x.domain in ("", "ai.onnx")), 0)
    try:
        return onnx.defs.get_schema("Attention", opset).since_version
    except onnx.defs.SchemaError:
        return 0


class AttendBackend(base.Backend):
    """An ONNX backend for models that consist of `Attention` nodes (opsets 23, 24, 25).

    A row that sees no key gives Y = 0. With softmax_precision = double all of the call is computed in
    float64; otherwise in float32 at least, whatever narrower type was asked for.

    >>> Y, = AttendBackend.run_node(onnx.helper.make_node("Attention", ["Q", "K", "V"], ["Y"]), [q, k, v])
    """

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return _unsupported(model, device) is None

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> AttendModel:
        super().prepare(model, device, **kwargs)  # onnx's checker
        reason = _unsupported(model, device)
        if reason:
            raise NotImplementedError(f"AttendBackend: {reason}")
        return AttendModel(model, _version(model))

    @classmethod
    def run_node(cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU",
                 outputs_info: Any = None, **kwargs: Any) -> tuple[Any, ...]:
        """One node. `inputs`: arrays for those inputs of the node that have a name, or a dict; the
        opset is the keyword opset_version, or the newest that is known here."""
        opset = kwargs.get("opset_version", min(onnx.defs.onnx_opset_version(), VERSIONS[-1]))
        super().run_node(node, inputs, device, outputs_info, opset_version=opset)
        model = helper.make_model(helper.make_graph([node], "node", [], []),
                                  opset_imports=[helper.make_opsetid("", opset)])
        reason = _unsupported(model, device)
        if reason:
            raise NotImplementedError(f"AttendBackend: {reason}")
        values = _named(inputs, [name for name in node.input if name], "the node")
        _Node(node, _version(model)).run(values)
        names = [name for name in node.output if name]
        return base.namedtupledict("Outputs", names)(*(values[name] for name in names))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == "CPU"
