"""What is taken as an array, without a copy, and what is refused?"""
import ctypes
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attend
import attend.cuda


def draw(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


X = draw((2, 3, 4, 6))


def strided(x, way):
    """The values of x in another layout."""
    if way == "fortran":
        return np.asfortranarray(x)
    if way == "reversed":
        return np.ascontiguousarray(x[::-1, :, ::-1, ::-1])[::-1, :, ::-1, ::-1]
    if way == "every third":
        room = np.zeros((*x.shape[:-1], 3 * x.shape[-1]), x.dtype)
        room[..., ::3] = x
        return room[..., ::3]
    if way == "transposed":
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    if way == "read-only":
        x = x.copy()
        x.flags.writeable = False
        return x
    return x


WAYS = ["contiguous", "fortran", "reversed", "every third", "transposed", "read-only"]


@given(st.tuples(*[st.sampled_from(WAYS)] * 3), st.sampled_from(["f8", "f4", "f2", ml_dtypes.bfloat16]))
def test_no_layout_changes_a_bit(ways, dtype):
    q, k, v = (draw((2, 2, 4, 6), dtype, n) for n in range(3))
    expected = attend.attention(q, k, v)
    found = attend.attention(*(strided(x, way) for x, way in zip((q, k, v), ways)))
    assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def test_a_repeated_array_is_not_copied():
    row = draw((1, 1, 1, 6))
    k = np.broadcast_to(row, (2, 3, 4, 6))
    assert k.strides[:3] == (0, 0, 0)
    np.testing.assert_array_equal(attend.attention(X, k, k), attend.attention(X, k.copy(), k.copy()))


@pytest.mark.parametrize("dim", range(3))
def test_empty_arrays(dim):
    shape = [2, 3, 4, 6]
    shape[dim] = 0
    x = np.empty(shape, np.float32)
    assert attend.attention(x, x, x).shape == tuple(shape)
    if dim == 2:
        out, lse = attend.attention(X, x, x, return_lse=True)
        assert (out == 0).all() and np.isneginf(lse).all()


def test_a_scalar_array_is_a_mask_of_everything():
    np.testing.assert_array_equal(attend.attention(X, X, X, bias=np.array(2.0, np.float32)),
                                  attend.attention(X, X, X, bias=np.full((4, 4), 2, np.float32)))


@pytest.mark.parametrize("dtype", ["b1", "u1", "i1", "i4", "i8"])
def test_masks_of_every_type(dtype):
    mask = np.tri(4).astype(dtype)
    np.testing.assert_array_equal(attend.attention(X, X, X, mask=mask),
                                  attend.attention(X, X, X, causal=True))


# ---- DLPack ----------------------------------------------------------------------------------------


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int),
                ("ndim", ctypes.c_int), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Foreign:
    """An array of a library that nobody knows: only __dlpack__, NULL strides, a byte offset."""

    def __init__(self, array, device=1, code=2, offset=0):
        self.array = np.ascontiguousarray(array)
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.managed = DLManagedTensor(
            DLTensor(self.array.ctypes.data - offset, device, 0, array.ndim, code,
                     8 * array.itemsize, 1, self.shape, None, offset), None, None)
        self.dtype = array.dtype
        self.asked = 0

    def __dlpack__(self, **_):
        self.asked += 1
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.managed), b"dltensor", None)


class Nameless(Foreign):
    """And without a dtype."""

    dtype = property(doc="not to be read", fset=lambda self, value: None)


def test_dlpack_with_null_strides_and_an_offset():
    k = Foreign(X, offset=64)
    np.testing.assert_array_equal(attend.attention(X, k, k), attend.attention(X, X, X))
    assert k.asked
    out = attend.attention(Foreign(X), X, X)          # no namespace to make its arrays: NumPy's
    assert isinstance(out, np.ndarray)


def test_an_array_outlives_the_container_it_came_in():
    """Another thread could take it out; here reading the next argument does."""
    alive = []

    def watch(container, array):
        there = weakref.ref(array)

        class Thief(Foreign):
            def __dlpack__(self, **_):
                container.clear()
                gc.collect()
                alive.append(there() is not None)
                return super().__dlpack__()
        return Thief

    visible = np.ones((1, 1, 4, 4), bool)
    blocks = [visible, 1, 1]
    thief = watch(blocks, visible)(np.zeros((4, 4), np.float32))
    del visible
    attend.attention(X, X, X, blocks=blocks, bias=thief)
    assert alive and all(alive) and not blocks

    alive.clear()
    weight = np.ones(3, np.float32)
    parameters = {"a": weight}
    thief = watch(parameters, weight)(np.ones(3, np.float32))
    del weight
    attend.SGD().step(parameters, {"a": thief}, 0.5)
    assert alive and all(alive) and not parameters


def test_a_dict_may_change_while_it_is_read():
    tensors = {}

    class Thief(Foreign):
        def __dlpack__(self, **_):
            tensors.clear()
            return super().__dlpack__()

    for n in range(20):
        tensors[f"{n}"] = Thief(np.ones(3, np.float32))
    total = {}
    attend.accumulate(total, tensors)
    assert len(total) == 20 and not tensors


def test_dlpack_out_is_written():
    out = Foreign(np.zeros_like(X))
    assert attend.attention(X, X, X, out=out) is out
    np.testing.assert_array_equal(out.array, attend.attention(X, X, X))


CUDA, METAL = 2, 8  # as DLPack numbers devices


def test_other_devices_are_named():
    with pytest.raises(NotImplementedError, match="attention: k is not in the CPU's memory or an NVIDIA GPU's.*device 8"):
        attend.attention(X, Foreign(X, device=METAL), X)
    with pytest.raises(NotImplementedError, match="view: q is on cuda:0; view computes on the CPU"):
        attend.view(Foreign(X, device=CUDA), X, X)


def test_arrays_on_different_devices_are_refused():
    for name in ("k", "v"):
        with pytest.raises(ValueError, match=f"attention: {name} is on cuda:0, q on cpu; all tensors must be on one device"):
            attend.attention(**{"q": X, "k": X, "v": X, name: Foreign(X, device=CUDA)})
    with pytest.raises(ValueError, match="bias is on cuda:0, q on cpu"):
        attend.attention(X, X, X, bias=Foreign(np.ones((4, 4), np.float32), device=CUDA))


def test_without_a_gpu_its_arrays_are_refused_with_the_reason():
    reason = attend.cuda.why_unavailable()
    if not reason:
        pytest.skip("this machine has a GPU")
    x = Foreign(X, device=CUDA)
    for call in (lambda: attend.attention(x, x, x), lambda: attend.merge([x], [x]), lambda: attend.attention_partial(x, x, x)):
        with pytest.raises(NotImplementedError) as caught:
            call()
        assert "on cuda:0" in str(caught.value) and reason in str(caught.value)


class Namespaced(Foreign):
    """One whose library can make arrays: the array API standard."""

    class Namespace:
        @staticmethod
        def from_dlpack(x):
            return ("made by the namespace", np.from_dlpack(x))

    def __array_namespace__(self):
        return self.Namespace


def test_results_are_made_by_the_library_of_q():
    name, out = attend.attention(Namespaced(X), X, X)
    assert name == "made by the namespace"
    np.testing.assert_array_equal(out, attend.attention(X, X, X))


# ---- lifetime --------------------------------------------------------------------------------------


def test_results_own_their_memory():
    q = X.copy()
    out = attend.attention(q, q, q)
    copy = out.copy()
    gone = weakref.ref(q)
    del q
    gc.collect()
    assert gone() is None
    for _ in range(100):
        attend.attention(X + 1, X, X)
    np.testing.assert_array_equal(out, copy)
    assert out.flags.writeable and out.flags.c_contiguous


def test_memory_is_given_back():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    x = np.zeros((1, 1, 1, 1 << 20), np.float32)
    attend.attention(x, x, x)
    before = resident()
    for _ in range(50):                               # 4 MB each
        attend.attention(x, x, x)
    assert resident() - before < 40e6


# ---- refusals --------------------------------------------------------------------------------------

ROOM = np.zeros((2, 3, 4, 7), np.float32)
READ_ONLY = strided(X, "read-only")
REFUSED = {
    "list": (TypeError, r"attention: q takes a NumPy array or anything with __dlpack__.*found list",
             lambda: attend.attention([[1.0]], X, X)),
    "number": (TypeError, "k takes a NumPy array.*found float", lambda: attend.attention(X, 1.0, X)),
    "None": (TypeError, "v takes a NumPy array.*found NoneType", lambda: attend.attention(X, X, None)),
    "integers": (TypeError, "q takes float64, float32, bfloat16 or float16, found int64",
                 lambda: attend.attention(X.astype(int), X, X)),
    "complex": (TypeError, "found complex64", lambda: attend.attention(X.astype("c8"), X, X)),
    "float mask": (TypeError, r"mask takes bool, int8, .*found float32.*bias=",
                   lambda: attend.attention(X, X, X, mask=X[..., :4])),
    "boolean bias": (TypeError, "bias takes float64.*found bool.*mask=",
                     lambda: attend.attention(X, X, X, bias=np.ones((4, 4), bool))),
    "float lengths": (TypeError, "key_lengths takes int64 or int32, found float32",
                      lambda: attend.attention(X, X, X, key_lengths=np.ones(2, np.float32))),
    "16-bit integers": (TypeError, "mask takes bool, int8, uint8, int32 or int64 .*found int16",
                        lambda: attend.attention(X, X, X, mask=np.ones((4, 4), np.int16))),
    "no dtype": (TypeError, "mask takes .*found another in .*Nameless",
                 lambda: attend.attention(X, X, X, mask=Nameless(np.ones((4, 4), np.int16), code=0))),
    "attn_mask": (TypeError, "'attn_mask'.*True.*takes part.*mask=~attn_mask",
                  lambda: attend.attention(X, X, X, attn_mask=np.ones((4, 4), bool))),
    "key_padding_mask": (TypeError, "key_padding_mask.*opposite",
                         lambda: attend.attention(X, X, X, key_padding_mask=None)),
    "is_causal": (TypeError, "is_causal.*causal=", lambda: attend.attention(X, X, X, is_causal=True)),
    "unknown": (TypeError, "unexpected keyword argument 'maks'; the options are scale, softcap",
                lambda: attend.attention(X, X, X, maks=None)),
    "window of a number": (TypeError, r"window takes a tuple or dict \(left, right\), found int",
                           lambda: attend.attention(X, X, X, window=3)),
    "window of three": (ValueError, "window takes at most 2", lambda: attend.attention(X, X, X, window=(1, 2, 3))),
    "window of words": (TypeError, "window takes whole numbers",
                        lambda: attend.attention(X, X, X, window=("a", 1))),
    "dropout of a number": (TypeError, r"dropout takes a tuple or dict \(p, seed",
                            lambda: attend.attention(X, X, X, dropout=0.1)),
    "dropout with a typo": (TypeError, "dropout has no 'sed'",
                            lambda: attend.attention(X, X, X, dropout={"p": 0.1, "sed": 1})),
    "causal of a number": (TypeError, "causal takes True or False", lambda: attend.attention(X, X, X, causal=2)),
    "stage": (TypeError, "return_scores is 'raw'", lambda: attend.attention(X, X, X, return_scores="x")),
    "rank": (ValueError, r"q has 3 dimensions \[3, 4, 6\]", lambda: attend.attention(X[0], X, X)),
    "nine dimensions": (ValueError, "mask has 9 dimensions; at most 8",
                        lambda: attend.attention(X, X, X, mask=np.ones((1,) * 9, bool))),
    "shapes": (ValueError, "k has d 5, q has 6", lambda: attend.attention(X, X[..., :5], X)),
    "heads": (ValueError, "k has 2 heads, q has 3", lambda: attend.attention(X, X[:, :2], X[:, :2])),
    "types": (ValueError, "k is f64", lambda: attend.attention(X, X.astype("f8"), X)),
    "read-only out": (ValueError, "out is read-only", lambda: attend.attention(X, X, X, out=READ_ONLY)),
    "shape of out": (ValueError, "out", lambda: attend.attention(X, X, X, out=ROOM)),
    "out over an input": (ValueError, "out overlaps", lambda: attend.attention(X, X, X, out=X)),
    "byte order": (ValueError, "other byte order", lambda: attend.attention(X.astype(">f4"), X, X)),
    "kernel": (ValueError, "nothing", lambda: attend.Plan.attention(X, X, X, kernel="nothing")),
    "no parts": (ValueError, "no parts", lambda: attend.merge([], [])),
    "no states": (ValueError, "no states", lambda: attend.finish_partial([])),
    "a state of float32": (ValueError, "state is f32", lambda: attend.attention_partial(
        X, X, X, np.zeros((*X.shape[:3], X.shape[3] + 4), "f4"))),
    "a part that does not say where queries are": (
        ValueError, "query_offset is not given",
        lambda: attend.attention_partial(X, X, X, causal=True, key_offset=256)),
    "a part at a half": (TypeError, "key_offset", lambda: attend.attention(X, X, X, key_offset=0.5)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name):
    kind, message, call = REFUSED[name]
    with pytest.raises(kind, match=message):
        call()


def test_fields_of_records_are_refused():
    records = np.zeros((2, 3, 4, 6), [("x", "f4"), ("y", "i2")])
    with pytest.raises(ValueError, match="stride of 6 bytes"):
        attend.attention(records["x"], X, X)


def test_too_large_is_a_memory_error():
    q = np.broadcast_to(np.float32(0), (1, 1, 1 << 23, 1))
    with pytest.raises(MemoryError):
        attend.attention(q, q, q, return_weights=True)   # 256 TiB: no process has as many addresses; a system
                                                         # may well promise more memory than there is
