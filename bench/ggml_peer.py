"""ggml, the library under llama.cpp, as one of the libraries of peers.py: its operator flash_attn_ext on CPUs, called
through the shared libraries that the package llama-cpp-python installs.

A graph of one operator is made before the clock starts and computed by ggml's CPU backend on threads that stay, as
llama.cpp does it. Queries and results are f32; keys and values are of the case's type, where i8 is q8_0: 32 numbers
share a scale of f16. ggml stops the process where it does not know a case; then the case is left out.
"""
import ctypes
import importlib.util
import pathlib

import numpy as np

from peers import Left, Peer, cores

TYPES = {"f32": 0, "f16": 1, "i8": 8, "bf16": 30}   # enum ggml_type; 8 is q8_0
MASK_ROWS = 64                                      # some versions want a mask's rows to be a multiple of this
MOST_THREADS = 512                                  # GGML_MAX_N_THREADS
pointer = ctypes.c_void_p
size, real, whole = ctypes.c_size_t, ctypes.c_float, ctypes.c_int64


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", size), ("mem_buffer", pointer), ("no_alloc", ctypes.c_bool)]


class ThreadpoolParams(ctypes.Structure):
    _fields_ = [("cpumask", ctypes.c_bool * MOST_THREADS), ("n_threads", ctypes.c_int), ("prio", ctypes.c_int),
                ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool), ("paused", ctypes.c_bool)]


FUNCTIONS = {                                       # ggml_NAME: (what it returns, its arguments)
    "version": (ctypes.c_char_p,),
    "init": (pointer, InitParams),
    "free": (None, pointer),
    "new_tensor_4d": (pointer, pointer, ctypes.c_int, whole, whole, whole, whole),
    "nbytes": (size, pointer),
    "flash_attn_ext": (pointer, pointer, pointer, pointer, pointer, pointer, real, real, real),
    "mul_mat": (pointer, pointer, pointer, pointer),
    "new_graph": (pointer, pointer),
    "build_forward_expand": (None, pointer, pointer),
    "quantize_chunk": (size, ctypes.c_int, pointer, pointer, whole, whole, whole, pointer),
    "threadpool_params_default": (ThreadpoolParams, ctypes.c_int),
    "threadpool_new": (pointer, ctypes.POINTER(ThreadpoolParams)),
    "backend_cpu_init": (pointer,),
    "backend_cpu_set_n_threads": (None, pointer, ctypes.c_int),
    "backend_cpu_set_threadpool": (None, pointer, pointer),
    "backend_alloc_ctx_tensors": (pointer, pointer, pointer),
    "backend_buffer_free": (None, pointer),
    "backend_tensor_set": (None, pointer, pointer, size, size),
    "backend_tensor_get": (None, pointer, pointer, size, size),
    "backend_graph_compute": (ctypes.c_int, pointer, pointer),
}


class Library:
    """The functions above by their names without ggml_."""

    def __init__(self):
        package = importlib.util.find_spec("llama_cpp")     # found, not imported: llama.cpp itself is not needed
        if package is None:
            raise ImportError("the package llama-cpp-python, which holds it, is not installed")
        found = [file for folder in package.submodule_search_locations
                 for file in pathlib.Path(folder).glob("lib/libggml.so")]
        if not found:
            raise ImportError("the package llama-cpp-python holds no lib/libggml.so")
        shared = ctypes.CDLL(str(found[0]))                 # and with it libggml-base and libggml-cpu beside it
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(shared, "ggml_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


def as_f32(array):
    return np.ascontiguousarray(array, np.float32)


class Ggml(Peer):
    lacks = {}

    def __init__(self):
        self.ggml = Library()
        self.version = self.ggml.version().decode()
        self.backend = self.ggml.backend_cpu_init()
        threads = self.ggml.threadpool_params_default(cores())
        self.ggml.backend_cpu_set_n_threads(self.backend, cores())
        self.ggml.backend_cpu_set_threadpool(self.backend, self.ggml.threadpool_new(ctypes.byref(threads)))
        self.context = self.buffer = None

    def graph(self, inputs, operator):
        """The function to time, which returns operator(context, tensors); inputs: (array, its tensor's type)."""
        ggml = self.ggml
        if self.buffer:
            ggml.backend_buffer_free(self.buffer)
            ggml.free(self.context)
        self.context = ggml.init(InitParams(1 << 20, None, True))       # names and shapes, not numbers
        shape = lambda array: (1,) * (4 - array.ndim) + array.shape
        tensors = [ggml.new_tensor_4d(self.context, type, *reversed(shape(array))) for array, type in inputs]
        result = operator(self.context, tensors)
        graph = ggml.new_graph(self.context)
        ggml.build_forward_expand(graph, result)
        self.buffer = ggml.backend_alloc_ctx_tensors(self.context, self.backend)
        if not self.buffer:
            raise Left("ggml found no memory")
        for tensor, (array, type) in zip(tensors, inputs):
            self.fill(tensor, array, type)

        def call():
            if ggml.backend_graph_compute(self.backend, graph) != 0:
                raise RuntimeError("ggml did not compute the graph")
            return result

        return call

    def fill(self, tensor, array, type):
        stored = array
        if array.dtype == np.float32 and type != TYPES["f32"]:
            stored = np.empty(self.ggml.nbytes(tensor), np.uint8)
            rows = array.size // array.shape[-1]
            self.ggml.quantize_chunk(type, array.ctypes.data, stored.ctypes.data, 0, rows, array.shape[-1], None)
        self.ggml.backend_tensor_set(tensor, stored.ctypes.data, 0, stored.nbytes)

    def read(self, tensor, *shape):
        array = np.empty(shape, np.float32)
        self.ggml.backend_tensor_get(tensor, array.ctypes.data, 0, array.nbytes)
        return array

    def forward(self, case, data):
        batch, heads, queries, keys, d = (case[name] for name in ("batch", "heads", "queries", "keys", "d"))
        type = TYPES[case["type"]]
        inputs = [(as_f32(data["q"]), TYPES["f32"]), *((as_f32(data[name]), type) for name in "kv")]
        if case["causal"]:
            mask = np.zeros((queries + -queries % MASK_ROWS, keys), np.float16)
            mask[:queries][np.arange(queries)[:, None] + keys - queries < np.arange(keys)] = -np.inf
            inputs.append((mask, TYPES["f16"]))
        self.note = "flash_attn_ext" + (", q8_0" if case["type"] == "i8" else "")
        call = self.graph(inputs, lambda context, tensors: self.ggml.flash_attn_ext(
            context, *tensors, *[None] * (4 - len(tensors)), d ** -0.5, 0.0, 0.0))
        return call, lambda out: {"out": self.read(out, batch, queries, heads, d).swapaxes(1, 2)}

    def backward(self, case, data):
        raise Left("ggml has no gradients of flash_attn_ext")

    forward_backward = backward

    def matmul(self, case, data):
        """Rows of the first with rows of the second: for a b, the columns of b."""
        inputs = [(as_f32(data["b"].T), TYPES[case["type"]]), (as_f32(data["a"]), TYPES["f32"])]
        call = self.graph(inputs, lambda context, tensors: self.ggml.mul_mat(context, *tensors))
        return call, lambda c: {"c": self.read(c, case["size"], case["size"])}
