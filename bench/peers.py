"""The libraries that are compared, attend among them. Each is a class that is made once a process and knows the cases
it can compute: `PEER.OPERATION(case, data)` gives a function to time, and one that turns what it returns into NumPy
arrays by name; `note` then says what computes it, and `around()` is the context to call it in. Left(reason) says why a
case is left out.

Operations: forward, backward, forward_backward, layer, layer_train, and matmul, the yardstick of the machine. In the
type i8 a case is given in f32, and the library stores keys and values in 8 bits before the clock starts.
"""
import contextlib
import os

import numpy as np


class Left(Exception):
    """A case that this library is not measured on, and why."""


def cores():
    return len(os.sched_getaffinity(0))


class Peer:
    version, note, around = "", "", contextlib.nullcontext
    lacks = {"i8": "it has no attention over keys and values of 8 bits"}    # types, and why they are left out

    def missing(self, case, data):
        raise Left("not measured")

    forward = backward = forward_backward = layer = layer_train = matmul = missing


class Attend(Peer):
    lacks = {}

    def __init__(self):
        import attend
        self.attend = attend
        self.version = attend.version()

    def kernel(self, case, q, k, v, **options):
        return self.attend.Plan.attention(q, k, v, causal=case["causal"], **options).kernel

    def forward(self, case, data):
        q, k, v, options = data["q"], data["k"], data["v"], {}
        if case["type"] == "i8":
            cache = self.attend.KvCache(batch=case["batch"], key_heads=case["key_heads"], d_k=case["d"],
                                        capacity=case["keys"], type="i8")
            cache.append(k, v)
            k, v, options = cache.keys, cache.values, {"k_scales": cache.k_scales, "v_scales": cache.v_scales}
        self.note = self.kernel(case, q, k, v, **options)
        return (lambda: self.attend.attention(q, k, v, causal=case["causal"], **options)), (lambda out: {"out": out})

    def backward(self, case, data):
        return self.gradients(case, data, alone=True)

    def forward_backward(self, case, data):
        return self.gradients(case, data, alone=False)

    def gradients(self, case, data, alone):
        a, causal = self.attend, case["causal"]
        q, k, v, dout = data["q"], data["k"], data["v"], data["dout"]
        out, lse = a.attention(q, k, v, causal=causal, return_lse=True)
        self.note = a.Plan.attention_backward(q, k, v, out, lse, dout, causal=causal).kernel

        def both():
            o, l = a.attention(q, k, v, causal=causal, return_lse=True)
            return a.attention_backward(q, k, v, o, l, dout, causal=causal)

        call = (lambda: a.attention_backward(q, k, v, out, lse, dout, causal=causal)) if alone else both
        return call, lambda found: dict(zip(("dq", "dk", "dv"), found))

    def made_layer(self, case, data):
        layer = self.attend.MultiHeadAttention(model_dim=case["heads"] * case["d"], heads=case["heads"],
                                               type=case["type"])
        for name, array in layer.parameters().items():
            array[...] = data["w"][name]
        heads = np.ascontiguousarray(data["x"].reshape(*data["x"].shape[:2], case["heads"], -1).swapaxes(1, 2))
        self.note = self.kernel(case, heads, heads, heads)
        return layer

    def layer(self, case, data):
        layer, x = self.made_layer(case, data), data["x"]
        return (lambda: layer.forward(x)), (lambda y: {"y": y})

    def layer_train(self, case, data):
        layer, x, dy = self.made_layer(case, data), data["x"], data["dy"]

        def call(_written=layer.parameters()):  # as an optimizer holds them: they change with every step
            y, saved = layer.forward_train(x)
            return layer.backward(dy, saved)

        return call, lambda found: {"dx": found.dx, **found.parameters}


class AttendTorch(Peer):
    """attend as the drop-in for PyTorch's function, on PyTorch's tensors."""

    def __init__(self):
        import attend
        import attend.torch
        import torch
        torch.set_num_threads(cores())
        self.torch, self.sdpa = torch, attend.torch.scaled_dot_product_attention
        self.version = attend.version()

    def forward(self, case, data):
        if case["suite"] != "notes":
            raise Left("the drop-in is measured on the notes' shapes alone")
        self.around = self.torch.inference_mode
        return torch_forward(self.torch, self.sdpa, case, data)


def tensor_of(torch, array):
    """The same memory as a tensor of PyTorch, which does not know the bfloat16 of ml_dtypes."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor):
    """A tensor of PyTorch as an array, to be checked: 16 bits as f32, which holds all their values."""
    return (tensor.float() if tensor.itemsize == 2 else tensor).numpy()


def torch_forward(torch, sdpa, case, data):
    q, k, v = (tensor_of(torch, data[name]) for name in "qkv")
    options = {"is_causal": case["causal"]}
    if case["heads"] != case["key_heads"]:
        options["enable_gqa"] = True
    return (lambda: sdpa(q, k, v, **options)), (lambda out: {"out": array_of(out)})


class Torch(Peer):
    def __init__(self):
        import torch
        torch.set_num_threads(cores())
        self.torch = torch
        self.version = torch.__version__

    def forward(self, case, data):
        self.around = self.torch.inference_mode
        return torch_forward(self.torch, self.torch.nn.functional.scaled_dot_product_attention, case, data)

    def backward(self, case, data):
        return self.gradients(case, data, alone=True)

    def forward_backward(self, case, data):
        return self.gradients(case, data, alone=False)

    def gradients(self, case, data, alone):
        torch, sdpa = self.torch, self.torch.nn.functional.scaled_dot_product_attention
        inputs = [tensor_of(torch, data[name]).requires_grad_() for name in "qkv"]
        dout = tensor_of(torch, data["dout"])
        out = sdpa(*inputs, is_causal=case["causal"])

        def both():
            return torch.autograd.grad(sdpa(*inputs, is_causal=case["causal"]), inputs, dout)

        call = (lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)) if alone else both
        return call, lambda found: dict(zip(("dq", "dk", "dv"), map(array_of, found)))

    def made_layer(self, case, data):
        torch, w = self.torch, data["w"]
        layer = torch.nn.MultiheadAttention(case["heads"] * case["d"], case["heads"], batch_first=True,
                                            dtype=tensor_of(torch, w["q.bias"]).dtype)
        with torch.no_grad():
            for parameter, names in ((layer.in_proj_weight, ("q.weight", "k.weight", "v.weight")),
                                     (layer.in_proj_bias, ("q.bias", "k.bias", "v.bias")),
                                     (layer.out_proj.weight, ("o.weight",)), (layer.out_proj.bias, ("o.bias",))):
                parameter.copy_(tensor_of(torch, np.concatenate([w[name] for name in names])))
        return layer

    def layer(self, case, data):
        torch, layer = self.torch, self.made_layer(case, data).eval()
        x = tensor_of(torch, data["x"])
        layer, self.around = self.ready(layer), torch.inference_mode
        return (lambda: layer(x, x, x, need_weights=False)[0]), (lambda y: {"y": array_of(y)})

    def ready(self, layer):
        return layer

    def layer_train(self, case, data):
        torch, layer = self.torch, self.made_layer(case, data).train()
        x, dy = tensor_of(torch, data["x"]).requires_grad_(), tensor_of(torch, data["dy"])
        wanted = [x, layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias]

        def call():
            y = layer(x, x, x, need_weights=False)[0]
            return torch.autograd.grad(y, wanted, dy)

        def results(found):
            dx, weights, biases, weight, bias = map(array_of, found)
            parts = [(name + kind, part) for kind, three in ((".weight", weights), (".bias", biases))
                     for name, part in zip("qkv", np.split(three, 3))]
            return {"dx": dx, "o.weight": weight, "o.bias": bias, **dict(parts)}

        return call, results

    def matmul(self, case, data):
        a, b = (tensor_of(self.torch, data[name]) for name in "ab")
        return (lambda: a @ b), (lambda c: {"c": array_of(c)})


class TorchCompiled(Torch):
    """nn.MultiheadAttention through torch.compile."""

    # Compiled, PyTorch's function is the same kernel; training is measured eager alone.
    forward = backward = forward_backward = layer_train = matmul = Peer.missing

    def ready(self, layer):
        return self.torch.compile(layer, dynamic=False)


class NumPy(Peer):
    """In f32 alone: products of 16 bits have no library under them, and take some hundred times as long."""

    lacks = {type: f"NumPy has no fast products of {type}" for type in ("bf16", "f16", "i8")}

    def __init__(self):
        import formulas
        self.f = formulas
        self.version = np.__version__

    def forward(self, case, data):
        q, k, v = data["q"], data["k"], data["v"]
        return (lambda: self.f.attention(q, k, v, case["causal"])), (lambda out: {"out": out})

    def backward(self, case, data):
        q, k, v, dout = data["q"], data["k"], data["v"], data["dout"]
        call = lambda: self.f.attention_backward(q, k, v, dout, case["causal"])
        return call, lambda found: dict(zip(("dq", "dk", "dv"), found))

    forward_backward = backward      # it forms the weights anew in any case

    def layer(self, case, data):
        return (lambda: self.f.layer(data["x"], data["w"], case["heads"])), (lambda y: {"y": y})

    def layer_train(self, case, data):
        return (lambda: self.f.layer_backward(data["x"], data["w"], case["heads"], data["dy"])), (lambda found: found)

    def matmul(self, case, data):
        return (lambda: data["a"] @ data["b"]), (lambda c: {"c": c})
