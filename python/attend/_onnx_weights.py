"""The weights around an attention node of an ONNX model.

A MatMul of ONNX is y = x W with W [in, out]; attend's weights are [out, in]. What is found here is
turned round, under the names that MultiHeadAttention.parameters() has: q.weight, q.bias, ... o.bias.

From each of the node's inputs the search goes back to the MatMul or Gemm with constant weights, and
from its output on to the next one. On the way it passes what only moves numbers as splitting into
heads does; anything else in between (rotary positions, a norm) is refused by its name, because the
weights alone would then not be the layer.
"""
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ._attend import MultiHeadAttention

HEADS_LAST_BUT_ONE = [0, 2, 1, 3]  # [b, t, h, d] <-> [b, h, t, d]
OPERATORS = {("", "Attention"), ("com.microsoft", "Attention"),
             ("com.microsoft", "MultiHeadAttention")}


@dataclass
class AttentionWeights:
    """An attention node of a model and the projections around it."""

    name: str  # the node's
    heads: int
    key_heads: int
    weights: dict[str, np.ndarray]  # q.weight [out, in], q.bias [out], k. v. and, if there is one, o.
    options: dict[str, Any] = field(default_factory=dict)  # what forward() is to be given: causal, ...

    def layer(self) -> MultiHeadAttention:
        """The same as a layer of attend, with copies of the weights. Missing biases are zeros.

        >>> found = attend.onnx.load_attention(model)
        >>> y = found.layer().forward(x, **found.options)
        """
        w = self.weights
        q, k, v, o = (w.get(f"{part}.weight") for part in "qkvo")
        if o is not None and o.shape[0] != q.shape[1]:
            raise ValueError(f"load_attention: the output is {o.shape[0]} wide, the query {q.shape[1]}: "
                             "not a MultiHeadAttention; use .weights")
        layer = MultiHeadAttention(
            model_dim=q.shape[1], heads=self.heads, key_heads=self.key_heads,
            d_k=q.shape[0] // self.heads, d_v=v.shape[0] // self.key_heads,
            key_dim=k.shape[1], value_dim=v.shape[1], type=q.dtype.name,
            bias=any(name.endswith(".bias") for name in w), output_projection=o is not None)
        for name, parameter in layer.parameters().items():
            parameter[...] = w.get(name, 0)
        return layer


def load_attention(model: onnx.ModelProto | str | os.PathLike, name: str | None = None) -> AttentionWeights:
    """The weights of the attention node called `name`, or whose name starts so; of the only one if None.

    The node is an Attention of ONNX, or an Attention or MultiHeadAttention of com.microsoft. A model
    may be given as a path; weights in files beside it are read too.
    """
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load(os.fspath(model))
    graph = _Graph(model)
    node = graph.attention(name)
    if node.domain == "com.microsoft":
        return _microsoft(graph, node)
    return _standard(graph, node)


def _refuse(node: onnx.NodeProto, rule: str) -> None:
    raise ValueError(f"load_attention: {node.op_type} '{node.name}': {rule}")


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


@dataclass
class _Map:
    """y = x W + b: W [in, out], b [out] or None."""

    weight: np.ndarray
    bias: np.ndarray | None = None

    def plus(self, bias: np.ndarray, node: onnx.NodeProto) -> "_Map":
        if self.bias is not None:
            _refuse(node, "a second bias")
        if bias.size != self.weight.shape[1]:
            _refuse(node, f"a bias {list(bias.shape)} for {self.weight.shape[1]} features")
        return _Map(self.weight, bias.reshape(-1))

    def columns(self, start: int, stop: int) -> "_Map":
        bias = None if self.bias is None else self.bias[start:stop]
        return _Map(self.weight[:, start:stop], bias)


class _Graph:
    """Who makes a value, who reads it, and which are constant."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.constants = {x.name: x for x in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        self.maker = {name: node for node in self.nodes for name in node.output if name}
        self.outputs = {x.name for x in model.graph.output}

    def attention(self, name: str | None) -> onnx.NodeProto:
        all_ = [x for x in self.nodes if (x.domain.removeprefix("ai.onnx"), x.op_type) in OPERATORS]
        found = [x for x in all_ if x.name == name] or [x for x in all_ if x.name.startswith(name or "")]
        if len(found) == 1:
            return found[0]
        names = ", ".join(repr(x.name) for x in found or all_) or "none"
        wanted = "" if name is None else f" named {name!r}"
        raise ValueError(f"load_attention: {len(found)} attention nodes{wanted}; there are: {names}")

    def constant(self, name: str) -> np.ndarray | None:
        found = self.constants.get(name)
        return None if found is None else numpy_helper.to_array(found)

    def optional(self, node: onnx.NodeProto, index: int) -> str:
        """The name of an input; "" if there is none."""
        return node.input[index] if index < len(node.input) else ""

    def reader(self, name: str) -> onnx.NodeProto | None:
        """The only node that reads a value; None if there are several, or it is an output."""
        readers = [x for x in self.nodes if name in x.input]
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    # ---- linear maps -------------------------------------------------------------------------
    def linear(self, node: onnx.NodeProto) -> _Map | None:
        """A MatMul or Gemm that multiplies by a constant from the right; None: something else."""
        if node.op_type not in ("MatMul", "Gemm"):
            return None
        weight = self.constant(node.input[1])
        if weight is None or weight.ndim != 2:
            return None
        if node.op_type == "MatMul":
            return _Map(weight)
        a = _attributes(node)
        if a.get("transA", 0) or a.get("alpha", 1.0) != 1 or a.get("beta", 1.0) != 1:
            _refuse(node, "transA, alpha and beta must be 0, 1, 1")
        result = _Map(weight.T if a.get("transB", 0) else weight)
        name = self.optional(node, 2)
        bias = self.constant(name)
        if name and bias is None:
            _refuse(node, "its bias is not constant")
        return result if bias is None else result.plus(bias, node)

    def split_bias(self, add: onnx.NodeProto) -> tuple[str, np.ndarray] | None:
        """An Add of a constant: the other input's name, and the constant."""
        for index in (0, 1):
            bias = self.constant(add.input[index])
            if bias is not None:
                return add.input[1 - index], bias
        return None

    def projection(self, name: str, of: str) -> _Map:
        """The linear map that made a value."""
        node = self.maker.get(name)
        if node is None:
            raise ValueError(f"load_attention: {of} is an input of the model, not a projection")
        found = self.linear(node)
        if found:
            return found
        if node.op_type == "Add" and (parts := self.split_bias(node)):
            return self.projection(parts[0], of).plus(parts[1], node)
        if node.op_type == "Identity":
            return self.projection(node.input[0], of)
        if node.op_type == "Reshape":
            found = self.projection(node.input[0], of)
            self.check_reshape(node, found.weight.shape[1])
            return found
        if node.op_type == "Transpose" and self.heads_of(name):
            return self.projection(node.input[0], of)
        if node.op_type == "Split":
            found = self.projection(node.input[0], of)
            return found.columns(*self.part(node, name, found.weight.shape[1]))
        _refuse(node, f"it stands between {of} and its projection")

    def part(self, split: onnx.NodeProto, name: str, width: int) -> tuple[int, int]:
        """The columns that one output of a Split along the last axis gets."""
        if _attributes(split).get("axis", 0) not in (-1, 2):
            _refuse(split, "packed projections are split along the last axis")
        sizes = self.constant(self.optional(split, 1))
        index, count = list(split.output).index(name), len(split.output)
        ends = np.cumsum(sizes) if sizes is not None else -(-width // count) * np.arange(1, count + 1)
        ends = [0, *(min(int(end), width) for end in ends)]
        return ends[index], ends[index + 1]

    # ---- heads -------------------------------------------------------------------------------
    def check_reshape(self, node: onnx.NodeProto, width: int) -> None:
        """The last dimension stays, or is split into heads."""
        shape = self.constant(node.input[1])
        last = [] if shape is None else shape[2 if len(shape) == 4 else -1:]
        if int(np.prod(last)) != width or min(last, default=0) < 1 or len(shape) > 4:
            found = "not constant" if shape is None else shape.tolist()
            _refuse(node, f"a shape is wanted that keeps or splits the {width} features, found {found}")

    def heads_of(self, name: str) -> int:
        """How many heads a value [b, h, t, d] has that was made by Reshape and Transpose; or 0."""
        node = self.maker.get(name)
        if node is None or node.op_type != "Transpose" or _attributes(node).get("perm") != HEADS_LAST_BUT_ONE:
            return 0
        reshape = self.maker.get(node.input[0])
        shape = self.constant(reshape.input[1]) if reshape and reshape.op_type == "Reshape" else None
        return int(shape[2]) if shape is not None and len(shape) == 4 else 0

    def output(self, name: str) -> _Map | None:
        """The linear map that follows; None: there is none."""
        node = self.reader(name)
        while node and (node.op_type in ("Reshape", "Identity") or node.op_type == "Transpose"
                        and _attributes(node).get("perm") == HEADS_LAST_BUT_ONE):
            node = self.reader(node.output[0])
        found = self.linear(node) if node else None
        if found is None:
            return None
        while (node := self.reader(node.output[0])) and node.op_type in ("Reshape", "Identity"):
            pass
        parts = self.split_bias(node) if node and node.op_type == "Add" else None
        return found.plus(parts[1], node) if parts and parts[1].ndim == 1 else found


def _found(node: onnx.NodeProto, heads: int, key_heads: int, maps: Sequence[_Map], out: _Map | None,
           options: dict[str, Any]) -> AttentionWeights:
    """Under attend's names, [out, in], once the sizes fit together."""
    q, k, v = (x.weight.shape[1] for x in maps)
    if heads % key_heads or q % heads or v % key_heads or k * heads != q * key_heads:
        _refuse(node, f"projections to {q}, {k}, {v} features for {heads} and {key_heads} heads")
    if out is not None and out.weight.shape[0] * key_heads != v * heads:
        _refuse(node, f"an output projection {list(out.weight.shape)} behind "
                      f"{v // key_heads * heads} features")
    weights = {}
    for part, found in zip("qkvo", [*maps, out]):
        if found is not None:
            weights[f"{part}.weight"] = found.weight.T
        if found is not None and found.bias is not None:
            weights[f"{part}.bias"] = found.bias
    return AttentionWeights(node.name, heads, key_heads, weights, options)


def _standard(graph: _Graph, node: onnx.NodeProto) -> AttentionWeights:
    """ONNX's own Attention: three projections, an output projection."""
    a = _attributes(node)
    heads = a.get("q_num_heads") or graph.heads_of(node.input[0])
    key_heads = a.get("kv_num_heads") or graph.heads_of(node.input[1])
    if not heads or not key_heads:
        _refuse(node, "the number of heads is neither an attribute nor in a constant shape")
    maps = [graph.projection(node.input[i], name) for i, name in enumerate(("Q", "K", "V"))]
    options: dict[str, Any] = {}
    window = [a.get("left_window_size", -1), a.get("right_window_size", -1)]
    if window != [-1, -1]:
        options["window"] = tuple(None if side < 0 else side for side in window)
    if a.get("is_causal"):
        options["causal"] = True
    if options and not graph.optional(node, 4) and not graph.optional(node, 6):
        options["query_offset"] = 0  # without a cache, ONNX's first query meets the first key
    options |= {name: a[name] for name in ("scale", "softcap") if a.get(name)}
    mask = graph.constant(graph.optional(node, 3))
    if mask is not None and mask.ndim and mask.shape[-1] == 1:
        _refuse(node, "a constant attn_mask of one key is not supported: attend would repeat it for all keys")
    if mask is not None:
        options["mask" if mask.dtype == np.bool_ else "bias"] = mask
    return _found(node, heads, key_heads, maps, graph.output(node.output[0]), options)


def _microsoft(graph: _Graph, node: onnx.NodeProto) -> AttentionWeights:
    """ONNX Runtime's: packed weights [in, q + k + v] (Attention), or a packed bias (MultiHeadAttention)."""
    a = _attributes(node)
    heads = a["num_heads"]
    if a.get("do_rotary"):
        _refuse(node, "do_rotary is not supported")
    packed = node.op_type == "Attention"
    for i in (3, 5) if packed else (4, 5):
        if graph.constant(graph.optional(node, i)) is not None:
            _refuse(node, f"a constant mask or bias of the scores (input {i}) is not supported")
    name = graph.optional(node, 2 if packed else 3)
    bias = graph.constant(name)
    if name and bias is None:
        _refuse(node, "its bias is not constant")
    if packed:
        weight = graph.constant(node.input[1])
        if weight is None:
            _refuse(node, "its weights are not constant")
        whole = _Map(weight) if bias is None else _Map(weight).plus(bias, node)
        sizes = a.get("qkv_hidden_sizes") or [weight.shape[1] // 3] * 3
        if sum(sizes) != weight.shape[1]:
            _refuse(node, f"weights {list(weight.shape)} for sizes {sizes}")
        ends = [0, *np.cumsum(sizes).tolist()]
        maps = [whole.columns(*ends[i:i + 2]) for i in range(3)]
    else:
        if not all(graph.optional(node, i) for i in (1, 2)):
            _refuse(node, "packed query, key and value are not supported")
        maps = [graph.projection(node.input[i], part) for i, part in enumerate(("query", "key", "value"))]
        ends = [0, *np.cumsum([x.weight.shape[1] for x in maps]).tolist()]
        if bias is not None:
            if bias.size != ends[3]:
                _refuse(node, f"a bias {list(bias.shape)} for {ends[3]} features")
            maps = [x.plus(bias[ends[i]:ends[i + 1]], node) for i, x in enumerate(maps)]
    options: dict[str, Any] = {"causal": True} if a.get("unidirectional") else {}
    options |= {"scale": a["scale"]} if a.get("scale") else {}
    return _found(node, heads, heads, maps, graph.output(node.output[0]), options)
