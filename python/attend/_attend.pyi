"""The compiled part of attend."""

from collections.abc import Sequence
import os
from typing import overload


from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ._types import (
    Array as Array,
    ArrayT as ArrayT,
    BlockGradients as BlockGradients,
    BlocksLike as BlocksLike,
    DropoutLike as DropoutLike,
    HeadWeights as HeadWeights,
    LayerGradients as LayerGradients,
    LayerHeads as LayerHeads,
    Loss as Loss,
    MultiHeadAttentionGradients as MultiHeadAttentionGradients,
    RotaryLike as RotaryLike,
    Statistics as Statistics,
    TraceStep as TraceStep,
    WindowLike as WindowLike,
)

def version() -> str:
    """The library's version, 'major.minor.patch'."""

class Context:
    """
    Where calls run: how many threads, which kernels.

    threads  0: the environment variable ATTEND_THREADS, or as many as the calling thread may run on
    kernels  one per operation, "forward:reference.forward,backward:reference.backward"; empty: the
             environment variable ATTEND_KERNEL, or what the planner chooses

    A Context may be used from any number of threads and survives fork(). copy gives the same Context;
    pickle one that is made with the same arguments, where it is loaded.

    >>> attend.Context(threads=2).threads
    2
    """

    def __init__(self, *, threads: int = 0, kernels: str = '') -> None: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __copy__(self) -> Context: ...

    def __deepcopy__(self, memo: Any) -> Context: ...

    @property
    def threads(self) -> int: ...

    @staticmethod
    def with_openmp(threads: int) -> Context:
        """
        One that computes with the threads of PyTorch's OpenMP; with its own, where that is not loaded.
        For PyTorch's tensors, as attend.torch does.
        """

    @staticmethod
    def kernels() -> list[tuple[str, str, bool]]:
        """The table of kernels, best first: (name, operation, only if forced)."""

def default_context() -> Context:
    """The Context that every function uses unless it is given another."""

@overload
def attention(q: ArrayT, k: Array, v: Array, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, out: ArrayT | None = None, return_lse: Literal[False] = False, return_weights: Literal[False] = False, return_scores: None = None, weight_heads: None = None, context: Context | None = None) -> ArrayT:
    """
    Softmax attention: out = softmax(scale * q . k^T + ...) . v

        q    [batch, heads, queries, d]        k [batch, key heads, keys, d]
        out  [batch, heads, queries, dv]       v [batch, key heads, keys, dv]

    heads must be a multiple of key heads: query head h uses key head h / (heads / key heads). q is
    float64, float32, bfloat16 or float16; k and v are of that type, or each bfloat16, float16 or int8
    with scales; gradients and statistics of these are some 50 times slower. Query i is at
    position i + query_offset, key j at j + key_offset; by default the last query is at the last key.

    scale                1 / sqrt(d) if None
    softcap              s = softcap * tanh(s / softcap); 0: none. The bias is added after it, or
                         before it with bias_before_softcap
    causal               key j is visible iff j + key_offset <= i + query_offset
    window               (left, right): keys from `left` before to `right` behind; None: no limit
    query_offset         a number, or integers [batch]
    key_offset           the position of key 0, in a call on a part of the keys; with causal, window or
                         alibi, query_offset must then be given too
    mask                 bool or integers, 0 = hidden, [batch, heads, queries, keys] or what broadcasts
                         to it; keys past the end of a shorter mask are hidden
    bias                 floats that are added to the scores, broadcast likewise; -inf hides
    alibi, sinks         [heads]: slopes, and scores of a key without value
    blocks               (visible, query_size, key_size): block-sparse attention
    key_lengths          integers [batch]: keys from there on are hidden
    cu_seqlens_q, _k     integers [sequences + 1]: packed sequences in q [1, heads, total, d]
    max_q, max_k         packed: queries and keys of the longest sequence or more, the sizes of weights,
                         scores, mask and bias; None: of the longest
    block_table          integers [batch, pages]: k and v are pages [pages, key heads, page size, d]
    k_scales, v_scales   float32 [batch, key heads, keys]: key j is k[j] * k_scales[j], a value likewise
    dropout              (p, seed, offset)
    out                  an array to write into, which is also returned
    return_lse           also the log of the sum of exp of the scores, [batch, heads, queries], float32,
                         or float64 if q or `out` is
    return_weights       also the weights [batch, heads, queries, keys], before dropout
    return_scores        also the scores: 'raw', 'softcapped' or 'masked'
    weight_heads         with return_weights: a list of heads; weights are of these alone, [batch, chosen
                         heads, queries, keys], with the bits that they have among those of all

    Returns out, or a tuple (out, lse, weights, scores) of those that were asked for, as arrays of the
    library that q is from.

    >>> q = numpy.ones((1, 2, 3, 4), 'float32')
    >>> attend.attention(q, q, q, causal=True).shape
    (1, 2, 3, 4)
    """

@overload
def attention(q: ArrayT, k: Array, v: Array, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, out: ArrayT | None = None, return_lse: bool = False, return_weights: bool = False, return_scores: Literal['raw', 'softcapped', 'masked'] | None = None, weight_heads: Sequence[int] | None = None, context: Context | None = None) -> tuple[ArrayT, ...]: ...

def attention_backward(q: ArrayT, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, dlse: Array | None = None, context: Context | None = None) -> Any:
    """
    Gradients of a loss, given its gradient dout at `out` and, if that is used, dlse at lse.

    out and lse are what attention() gave for the same q, k, v and options. Returns (dq, dk, dv), of the
    shapes and types of q, k, v, None for int8; with bias, sinks or alibi a BackwardResult, which has
    dbias, dsinks and dalibi as well.

    >>> q = numpy.ones((1, 2, 3, 4), 'float32')
    >>> out, lse = attend.attention(q, q, q, return_lse=True)
    >>> dq, dk, dv = attend.attention_backward(q, q, q, out, lse, numpy.ones_like(out))
    >>> dv.shape
    (1, 2, 3, 4)
    """

def attention_partial(q: ArrayT, k: Array, v: Array, state: ArrayT | None = None, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, context: Context | None = None) -> ArrayT:
    """
    Adds these keys to a partial state: the sums of all keys so far, before the division.

    A state is a float64 array [batch, heads, queries, dv + 4]; zeros are an empty one, and without a
    state a new one is begun. key_offset says where the part's keys begin. Keys that come in ascending
    order, cut at multiples of 256, leave a state from which finish_partial() makes the bits of the
    undivided call. Sinks are counted once, with the first keys. Returns the state.

    >>> q = numpy.ones((1, 1, 2, 4), 'float32'); k = numpy.ones((1, 1, 300, 4), 'float32')
    >>> state = None
    >>> for at, end in ((0, 256), (256, 300)):
    ...     part = k[:, :, at:end]
    ...     state = attend.attention_partial(q, part, part, state, causal=True, query_offset=298,
    ...                                      key_offset=at)
    >>> out = attend.finish_partial([state], out=numpy.empty_like(q))
    >>> bool((out == attend.attention(q, k, k, causal=True)).all())
    True
    """

def merge_partial(states: Sequence[ArrayT], *, context: Context | None = None) -> ArrayT:
    """
    Joins partial states over disjoint parts of the keys, in the order given, into a new one.

    If every part after the first lies between two multiples of 256, the bits are those of one state to
    which all keys were added in turn; otherwise they differ by some units in the last place of float64.

    >>> q = numpy.ones((1, 1, 2, 4))
    >>> attend.merge_partial([attend.attention_partial(q, q, q), numpy.zeros((1, 1, 2, 8))]).shape
    (1, 1, 2, 8)
    """

def finish_partial(states: Sequence[ArrayT], *, out: ArrayT | None = None, return_lse: bool = False, context: Context | None = None) -> Any:
    """
    The result of attention from partial states, which are joined in the order given.

    Returns out, or (out, lse): float64, or what is given as `out`.

    >>> q = numpy.ones((1, 1, 2, 4))
    >>> state = attend.attention_partial(q, q, q)
    >>> bool((attend.finish_partial([state]) == attend.attention(q, q, q)).all())
    True
    """

def merge(o: Sequence[ArrayT], lse: Sequence[Array], *, out: ArrayT | None = None, context: Context | None = None) -> tuple[ArrayT, ArrayT]:
    """
    Joins results over disjoint parts of the keys, in the order given.

    o[n] [batch, heads, queries, dv] and lse[n] [batch, heads, queries] are what attention() gave for
    the nth part. Returns (out, lse) of all the keys. Give each part its key_offset, and with causal,
    window or alibi query_offset too. These are rounded results: the join is near the undivided call, to
    about 16 * 2^-53 * (|lse| + 32) in float64, and is refused where |lse| is so large that lse does not
    tell how much a part weighs. Partial states (attention_partial) have the bits, and no such limit.

    >>> q = numpy.ones((1, 1, 2, 4)); k = numpy.ones((1, 1, 6, 4))
    >>> parts = [attend.attention(q, x, x, return_lse=True) for x in (k[:, :, :2], k[:, :, 2:])]
    >>> out, lse = attend.merge([o for o, _ in parts], [lse for _, lse in parts])
    >>> bool(abs(out - attend.attention(q, k, k)).max() < 1e-12)
    True
    """

def weights_shape(q: Array, k: Array, v: Array, **options: Any) -> tuple[int, ...]:
    """
    The shape of the weights and scores of such a call.

    >>> q, k = numpy.ones((1, 2, 3, 4)), numpy.ones((1, 2, 5, 4))
    >>> attend.weights_shape(q, k, k)
    (1, 2, 3, 5)
    """

class Plan:
    """
    A call with its arguments checked and its kernel chosen.

    Made once, run often with other data of the same shapes, types and options. attention() plans by
    itself; make a Plan to force a kernel or to see what was decided.

    >>> q = numpy.ones((1, 2, 3, 4), 'float32')
    >>> plan = attend.Plan.attention(q, q, q, kernel='reference.forward')
    >>> plan.kernel, plan.run(q, q, q).shape
    ('reference.forward', (1, 2, 3, 4))
    """

    @staticmethod
    def attention(q: Array, k: Array, v: Array, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, out: Array | None = None, return_lse: bool = False, return_weights: bool = False, return_scores: Literal['raw', 'softcapped', 'masked'] | None = None, weight_heads: Sequence[int] | None = None, kernel: str = '', context: Context | None = None) -> Plan:
        """A plan of attention(). `kernel` forces one, or raises with its reason."""

    @staticmethod
    def attention_backward(q: Array, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, dlse: Array | None = None, kernel: str = '', context: Context | None = None) -> Plan:
        """A plan of attention_backward()."""

    def run(self, q: ArrayT, k: Array, v: Array, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, out: ArrayT | None = None) -> Any:
        """
        As attention(); data, strides, lengths and offsets may differ from the plan's.
        """

    def run_backward(self, q: ArrayT, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, dlse: Array | None = None) -> Any:
        """As attention_backward()."""

    @property
    def kernel(self) -> str:
        """The kernel's name, 'reference.forward'."""

    @property
    def workspace_bytes(self) -> int:
        """Memory that a run needs besides its results."""

    def describe(self) -> str:
        """Problem, kernel, who declined and why, tasks, threads, workspace."""

class TorchOptions:
    """
    Options that are read once for many calls.

    queries, keys   the lengths of the calls they are for; -1: any
    """

    def __init__(self, options: dict[str, Any], queries: int = -1, keys: int = -1) -> None: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

class TorchCalls:
    """
    attention() on PyTorch's tensors, for calls that nobody else listens to.

    listeners   context variables, functions or objects: a call goes another way if one of them is true
    gradients   a function: whether autograd records
    threads     a function: how many threads PyTorch has
    context     a function: the Context for as many
    """

    def __init__(self, listeners: Sequence[Any], gradients: Any, threads: Any, context: Any) -> None: ...

    def plain(self, *tensors: Any) -> bool:
        """
        Whether these are tensors, no subclasses, and nobody listens to what is done with them.
        """

    def attention(self, q: Any, k: Any, v: Any, scale: float | None, options: TorchOptions, heads_last: bool = False, same_heads: bool = False, context: Context | None = None) -> Any:
        """
        out [batch, heads, queries, dv], or with heads_last [batch, queries, heads, dv].

        None: it is not such a call, or one whose arguments do not fit (with same_heads also of grouped
        heads), which is said by another way.
        """

    def of_model(self, q: Any, k: Any, v: Any, mask: Any, scale: float | None, more: dict[str, Any], harmless: frozenset[str], /) -> Any:
        """
        The same as a model calls it, with the TorchOptions in mask.prepared and heads last.

        None also if `more` holds anything under another name than the harmless, besides None and
        output_attentions=False.
        """

def cuda_why_unavailable(device: int = 0) -> str:
    """
    Why calls on arrays of this GPU cannot be made, in words that follow "this process"; '': they can.
    """

def cuda_device_count() -> int:
    """How many NVIDIA GPUs there are."""

class Trace:
    """
    Intermediate results by name, in the order in which they are computed.

    >>> x = numpy.ones((1, 1, 2, 4))
    >>> trace = attend.trace_attention(x, x, x)
    >>> [step.name for step in trace.steps]
    ['scores', 'scaled_scores', 'masked_scores', 'lse', 'weights', 'heads']
    >>> trace['weights'].shape
    (1, 1, 2, 2)
    """

    @property
    def steps(self) -> list[TraceStep]:
        """(name, formula, axes, value) of each."""

    def __getitem__(self, name: str) -> Any: ...

    def __contains__(self, name: str) -> bool: ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all of it as safetensors, with the formulas in the metadata."""

def trace_attention(q: Array, k: Array, v: Array, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, context: Context | None = None) -> Trace:
    """
    Every step of attention(): scores, scaled_scores, masked_scores, lse, weights, heads.

    >>> x = numpy.ones((1, 1, 2, 4))
    >>> attend.trace_attention(x, x, x, causal=True)['weights'][0, 0]
    array([[1. , 0. ],
           [0.5, 0.5]])
    """

def inspect(q: Array, k: Array, *, top_k: int = 0, key_mass: bool = True, metrics: bool = True, local_width: int = 8, tokens: Array | Sequence[str] | None = None, tile_rows: int = 0, tile_columns: int = 0, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, context: Context | None = None) -> Statistics:
    """
    What every head looks at, without storing the weights: memory is O(length).

        q [batch, heads, queries, d]        k [batch, key heads, keys, d]

    Options as in attention(); dropout is ignored. Returns Statistics: lse, maximum and entropy of every
    row, and of every head means, scores and a label.

    top_k                keys of largest weight to list for each row, with their weights
    key_mass             of every key the sum of the weights that it receives
    metrics              of every head distance, previous, first, diagonal, local, duplicate, induction
    local_width          'local' is at most so far from the query's position
    tokens               for duplicate and induction: a list of the keys' texts, or integers [keys] or
                         [batch, keys]
    tile_rows, tile_columns  both above 0: a map of at most so many tiles

    >>> q = numpy.zeros((1, 2, 4, 8)); statistics = attend.inspect(q, q, top_k=1)
    >>> statistics.entropy.shape, round(statistics.heads[0].entropy, 4)
    ((1, 2, 4), 1.3863)
    >>> statistics.heads[0].label
    'uniform'
    """

def weights_of(q: ArrayT, k: Array, lse: Array, *, batch: int = 0, head: int = 0, query: int = 0, queries: int, key: int = 0, keys: int, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, context: Context | None = None) -> ArrayT:
    """
    The exact weights of a part of one head, [queries, keys], from q, k and lse.

    `queries` queries from `query` on, and `keys` keys from `key` on. lse is what attention() or
    inspect() gave for the same q, k and options.

    >>> q = numpy.zeros((1, 1, 4, 8))
    >>> attend.weights_of(q, q, attend.inspect(q, q).lse, query=2, queries=1, keys=2)
    array([[0.25, 0.25]])
    """

def view_page(runs: list[Any], title: str, language: str, batch: int, page_bytes: int, tiles: int, windows: Sequence[Sequence[int]], open_run: int, progress: Callable[[int, int], object] | None, context: Context | None = None, command: str = 'attend view') -> str:
    """
    The page as text, from dicts of runs and layers; attend.view makes them.
    """

def load_npy(path: str | os.PathLike[str]) -> Any:
    """
    The array in a .npy file, as a contiguous NumPy array. The reader is strict.

    >>> attend.save_npy('x.npy', numpy.arange(6.0).reshape(2, 3))
    >>> attend.load_npy('x.npy').shape
    (2, 3)
    """

def save_npy(path: str | os.PathLike[str], tensor: Array) -> None:
    """Writes a .npy file, whole or not at all."""

class TensorFile:
    """What a safetensors file holds: tensors and metadata."""

    @property
    def tensors(self) -> dict[str, Any]:
        """NumPy arrays by name, in the order of the file."""

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def path(self) -> os.PathLike[str]: ...

    def __getitem__(self, name: str) -> Any: ...

def load_safetensors(path: str | os.PathLike[str]) -> TensorFile:
    """
    All tensors of a safetensors file. The reader is strict.

    >>> attend.save_safetensors('x.safetensors', {'a': numpy.ones((2, 3))}, {'made by': 'hand'})
    >>> file = attend.load_safetensors('x.safetensors')
    >>> file['a'].shape, file.metadata
    ((2, 3), {'made by': 'hand'})
    """

def save_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] = {}) -> None:
    """Writes a dict of arrays as a safetensors file, whole or not at all."""

def load_parameters(file: TensorFile, parameters: Mapping[str, Array], prefix: str = '', allow_others: bool = False) -> None:
    """
    Copies the tensors `prefix + name` of a file into the parameters of a layer.

    Every parameter must be there with its shape; floating-point types are converted. Nothing is changed
    if anything is wrong.
    """

class KvCache:
    """
    The KV cache: keys and values of the tokens so far, so that a new token costs one row.

    Dense: each sequence has room for `capacity` tokens. Paged (page_size > 0): sequences take pages
    from a common pool of `pages` as they grow. Of type 'i8', what is appended is quantised, with one
    scale for each token and key head. One thread at a time may use a cache.

    >>> cache = attend.KvCache(batch=1, key_heads=2, d_k=4, capacity=16)
    >>> cache.append(numpy.ones((1, 2, 3, 4), 'float32'), numpy.ones((1, 2, 3, 4), 'float32'))
    >>> cache.length(0)
    3
    >>> q = numpy.ones((1, 2, 1, 4), 'float32')
    >>> attend.attention(q, cache.keys, cache.values, key_lengths=cache.key_lengths).shape
    (1, 2, 1, 4)
    """

    def __init__(self, *, batch: int = 1, key_heads: int, d_k: int, d_v: int = 0, capacity: int, page_size: int = 0, pages: int = 0, type: Any = 'f32') -> None: ...

    @property
    def options(self) -> dict[str, Any]:
        """What it was made with."""

    def length(self, b: int) -> int:
        """Tokens that sequence b holds."""

    @property
    def free_pages(self) -> int:
        """Of a paged cache."""

    def append(self, k: Array, v: Array, lengths: Array | None = None) -> None:
        """
        Appends keys [batch, key_heads, n, d_k] and values [..., d_v].

        With lengths [batch] only the first lengths[b] of sequence b. Raises, with nothing
        changed, when there is no room.
        """

    def truncate(self, b: int, length: int) -> None:
        """Drops the tokens of sequence b from `length` on."""

    @property
    def keys(self) -> Any:
        """
        As attention() takes them: [batch, key_heads, capacity, d_k], or pages.
        """

    @property
    def values(self) -> Any:
        """As keys."""

    @property
    def key_lengths(self) -> Any:
        """[batch]"""

    @property
    def block_table(self) -> Any:
        """Of a paged cache, else None."""

    @property
    def k_scales(self) -> Any:
        """
        Of a cache of type 'i8', else None: float32, shaped as keys but for d_k.
        """

    @property
    def v_scales(self) -> Any:
        """As k_scales."""

class Linear:
    """
    A linear map of the last dimension: y = x W^T + b.

        x [..., in]   W [out, in]   b [out]   y [..., out]

    W is Xavier-uniform from the seed, b = 0.

    >>> layer = attend.Linear(4, 3)
    >>> layer.forward(numpy.ones((2, 4), 'float32')).shape
    (2, 3)
    >>> sorted(layer.parameters())
    ['bias', 'weight']
    """

    def __init__(self, in_: int, out: int, *, bias: bool = True, type: Any = 'f32', seed: int = 0) -> None: ...

    @staticmethod
    def from_weights(weight: Array, bias: Array | None = None) -> Linear:
        """A layer with copies of these: weight [out, in], bias [out]."""

    class Saved:
        """What backward() needs from forward_train()."""

    def forward(self, x: ArrayT, *, context: Context | None = None) -> ArrayT:
        """y = layer(x)"""

    def forward_train(self, x: ArrayT, *, context: Context | None = None) -> tuple[ArrayT, Saved]:
        """(y, saved); backward() takes saved."""

    def backward(self, dy: ArrayT, saved: Saved, *, context: Context | None = None) -> LayerGradients:
        """Gradients at x and at the parameters, given dy at y."""

    def parameters(self) -> dict[str, Any]:
        """
        The weights by name: NumPy arrays that are the layer's memory, for reading and writing; on a GPU tensors of PyTorch.
        """

    def to(self, type: Any) -> Linear:
        """
        A copy in another type, each weight rounded once: 'f64', 'f32', 'bf16' or 'f16'. Of layers that have a device also one in its memory: 'cuda', 'cuda:1', 'cpu'.
        """

    @property
    def device(self) -> str:
        """Where the weights are: 'cpu' or 'cuda:0'. Calls take arrays there."""

    def quantize(self) -> Linear:
        """A copy with weights of 8 bits, for inference: no gradients."""

    @property
    def quantized(self) -> bool:
        """Whether weights are of 8 bits."""

    def __repr__(self) -> str: ...

    __call__ = forward

class Norm:
    """LayerNorm or RMSNorm, by `kind`: 'layer_norm' or 'rms_norm'."""

    def __init__(self, dim: int, *, kind: str = 'layer_norm', epsilon: float = 1e-05, bias: bool = True, type: Any = 'f32') -> None: ...

    class Saved:
        """What backward() needs from forward_train()."""

    def forward(self, x: ArrayT, *, context: Context | None = None) -> ArrayT:
        """y = layer(x)"""

    def forward_train(self, x: ArrayT, *, context: Context | None = None) -> tuple[ArrayT, Saved]:
        """(y, saved); backward() takes saved."""

    def backward(self, dy: ArrayT, saved: Saved, *, context: Context | None = None) -> LayerGradients:
        """Gradients at x and at the parameters, given dy at y."""

    def parameters(self) -> dict[str, Any]:
        """
        The weights by name: NumPy arrays that are the layer's memory, for reading and writing; on a GPU tensors of PyTorch.
        """

    def to(self, type: Any) -> Norm:
        """
        A copy in another type, each weight rounded once: 'f64', 'f32', 'bf16' or 'f16'. Of layers that have a device also one in its memory: 'cuda', 'cuda:1', 'cpu'.
        """

    @property
    def device(self) -> str:
        """Where the weights are: 'cpu' or 'cuda:0'. Calls take arrays there."""

    def __repr__(self) -> str: ...

    __call__ = forward

class LayerNorm(Norm):
    """
    y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias over the last dimension.

        x, y [..., dim]   weight, bias [dim]

    >>> attend.LayerNorm(2).forward(numpy.array([[1.0, 3.0]], 'float32')).round(3)
    array([[-1.,  1.]], dtype=float32)
    """

    def __init__(self, dim: int, *, epsilon: float = 1e-05, bias: bool = True, type: Any = 'f32') -> None: ...

class RMSNorm(Norm):
    """
    y = x / sqrt(mean(x^2) + epsilon) * weight over the last dimension.

        x, y [..., dim]   weight [dim]

    >>> attend.RMSNorm(2).forward(numpy.array([[3.0, 3.0]], 'float32')).round(3)
    array([[1., 1.]], dtype=float32)
    """

    def __init__(self, dim: int, *, epsilon: float = 1e-06, type: Any = 'f32') -> None: ...

class FeedForward:
    """
    The feed-forward network (MLP) of a transformer layer. It maps each token by itself.

        relu, gelu, gelu_tanh   y = act(x W_up^T + b_up) W_down^T + b_down
        swiglu                  y = (silu(x W_gate^T + b_gate) * (x W_up^T + b_up)) W_down^T + b_down

        x, y [..., model_dim]   W_up, W_gate [hidden_dim, model_dim]   W_down [model_dim, hidden_dim]

    hidden_dim 0 is 4 * model_dim.

    >>> attend.FeedForward(8, activation='swiglu').forward(numpy.ones((2, 8), 'float32')).shape
    (2, 8)
    """

    def __init__(self, model_dim: int, hidden_dim: int = 0, *, activation: str = 'gelu', bias: bool = True, type: Any = 'f32', seed: int = 0) -> None: ...

    class Saved:
        """What backward() needs from forward_train()."""

    def forward(self, x: ArrayT, *, context: Context | None = None) -> ArrayT:
        """y = layer(x)"""

    def forward_train(self, x: ArrayT, *, context: Context | None = None) -> tuple[ArrayT, Saved]:
        """(y, saved); backward() takes saved."""

    def backward(self, dy: ArrayT, saved: Saved, *, context: Context | None = None) -> LayerGradients:
        """Gradients at x and at the parameters, given dy at y."""

    def parameters(self) -> dict[str, Any]:
        """
        The weights by name: NumPy arrays that are the layer's memory, for reading and writing; on a GPU tensors of PyTorch.
        """

    def to(self, type: Any) -> FeedForward:
        """
        A copy in another type, each weight rounded once: 'f64', 'f32', 'bf16' or 'f16'. Of layers that have a device also one in its memory: 'cuda', 'cuda:1', 'cpu'.
        """

    @property
    def device(self) -> str:
        """Where the weights are: 'cpu' or 'cuda:0'. Calls take arrays there."""

    def quantize(self) -> FeedForward:
        """A copy with weights of 8 bits, for inference: no gradients."""

    @property
    def quantized(self) -> bool:
        """Whether weights are of 8 bits."""

    def __repr__(self) -> str: ...

    __call__ = forward

class Embedding:
    """
    A vector for each token id.

        tokens [...] (int64 or int32)   weight [vocabulary, dim]   y [..., dim]

    >>> attend.Embedding(100, 8).forward(numpy.array([[1, 2, 3]])).shape
    (1, 3, 8)
    """

    def __init__(self, vocabulary: int, dim: int, *, type: Any = 'f32', seed: int = 0, deviation: float = 1.0) -> None: ...

    class Saved:
        """What backward() needs from forward_train()."""

    def forward(self, tokens: ArrayT, *, context: Context | None = None) -> ArrayT:
        """y = layer(x)"""

    def forward_train(self, tokens: ArrayT, *, context: Context | None = None) -> tuple[ArrayT, Saved]:
        """(y, saved); backward() takes saved."""

    def backward(self, dy: ArrayT, saved: Saved, *, context: Context | None = None) -> LayerGradients:
        """Gradients at x and at the parameters, given dy at y."""

    def parameters(self) -> dict[str, Any]:
        """
        The weights by name: NumPy arrays that are the layer's memory, for reading and writing; on a GPU tensors of PyTorch.
        """

    def to(self, type: Any) -> Embedding:
        """
        A copy in another type, each weight rounded once: 'f64', 'f32', 'bf16' or 'f16'. Of layers that have a device also one in its memory: 'cuda', 'cuda:1', 'cpu'.
        """

    def __repr__(self) -> str: ...

    __call__ = forward

class LearnedPositions:
    """
    Adds a trained vector to each position.

        y[..., i, :] = x[..., i, :] + weight[i + offset, :]     x, y [..., length, dim]

    >>> attend.LearnedPositions(16, 4).forward(numpy.zeros((2, 3, 4), 'float32'), offset=5).shape
    (2, 3, 4)
    """

    def __init__(self, length: int, dim: int, *, type: Any = 'f32', seed: int = 0, deviation: float = 1.0) -> None: ...

    class Saved:
        """What backward() needs from forward_train()."""

    def forward(self, x: ArrayT, *, offset: int = 0, context: Context | None = None) -> ArrayT:
        """x with the positions from `offset` on added."""

    def forward_train(self, x: ArrayT, *, offset: int = 0, context: Context | None = None) -> tuple[ArrayT, Saved]:
        """(y, saved); backward() takes saved."""

    def backward(self, dy: ArrayT, saved: Saved, *, context: Context | None = None) -> LayerGradients:
        """Gradients at x and at the parameters, given dy at y."""

    def parameters(self) -> dict[str, Any]:
        """weight [length, dim]."""

    def __repr__(self) -> str: ...

    __call__ = forward

    def to(self, type: Any) -> LearnedPositions:
        """
        A copy in another type, each weight rounded once: 'f64', 'f32', 'bf16' or 'f16'. Of layers that have a device also one in its memory: 'cuda', 'cuda:1', 'cpu'.
        """

class SinusoidalPositions:
    """
    Adds sines and cosines of the position. It has no parameters.

        y[..., i, 2c]     = x[..., i, 2c]     + sin((i + offset) / base^(2c / dim))
        y[..., i, 2c + 1] = x[..., i, 2c + 1] + cos((i + offset) / base^(2c / dim))

    >>> attend.SinusoidalPositions(2).forward(numpy.zeros((1, 2), 'float32'))
    array([[0., 1.]], dtype=float32)
    """

    def __init__(self, dim: int, *, base: float = 10000.0) -> None: ...

    class Saved:
        """What backward() needs from forward_train()."""

    def forward(self, x: ArrayT, *, offset: int = 0, context: Context | None = None) -> ArrayT:
        """x with the positions from `offset` on added."""

    def forward_train(self, x: ArrayT, *, offset: int = 0, context: Context | None = None) -> tuple[ArrayT, Saved]:
        """(y, saved); backward() takes saved."""

    def backward(self, dy: ArrayT, saved: Saved, *, context: Context | None = None) -> LayerGradients:
        """Gradients at x and at the parameters, given dy at y."""

    def parameters(self) -> dict[str, Any]:
        """None: an empty dict."""

    def __repr__(self) -> str: ...

    __call__ = forward

class MultiHeadAttention:
    """
    Multi-head attention with its projections.

        Q = query W^Q + b   K = key W^K + b   V = value W^V + b     split into heads
        output = concat(head_0, ..., head_{H-1}) W^O + b

        query [batch, Tq, model_dim]   key [batch, Tk, key_dim]   value [batch, Tk, value_dim]

    A single sequence may come without the batch dimension. Weights are [out, in], Xavier-uniform from
    the seed. Sizes that are 0 follow from the others: key_heads = heads, d_k = model_dim / heads,
    d_v = d_k, key_dim = model_dim, value_dim = key_dim. rotary is (pairing, base, dim).

    >>> layer = attend.MultiHeadAttention(model_dim=8, heads=2)
    >>> layer.forward(numpy.ones((1, 3, 8), 'float32'), causal=True).shape
    (1, 3, 8)
    """

    def __init__(self, model_dim: int, heads: int = 1, *, key_heads: int = 0, d_k: int = 0, d_v: int = 0, key_dim: int = 0, value_dim: int = 0, bias: bool = True, output_projection: bool = True, rotary: RotaryLike | None = None, type: Any = 'f32', seed: int = 0) -> None: ...

    class Saved:
        """What backward() needs from forward_train()."""

    @overload
    def forward(self, query: ArrayT, key: Array | None = None, value: Array | None = None, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, cache: KvCache | None = None, lengths: Array | None = None, return_lse: Literal[False] = False, return_weights: Literal[False] = False, return_scores: None = None, weight_heads: None = None, context: Context | None = None) -> ArrayT:
        """
        The output [batch, Tq, model_dim]: self-attention of `query`, or over key and value.

        A value that is not given is the key. Options, lse, weights and scores as in attention(). With a
        cache the query's rows are new tokens: they are appended and attend to all that it holds; only the
        first lengths[b] rows are tokens, if that is given.
        """

    @overload
    def forward(self, query: ArrayT, key: Array | None = None, value: Array | None = None, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, cache: KvCache | None = None, lengths: Array | None = None, return_lse: bool = False, return_weights: bool = False, return_scores: Literal['raw', 'softcapped', 'masked'] | None = None, weight_heads: Sequence[int] | None = None, context: Context | None = None) -> tuple[ArrayT, ...]: ...

    def forward_train(self, query: ArrayT, key: Array | None = None, value: Array | None = None, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, context: Context | None = None) -> tuple[ArrayT, Saved]:
        """(output, saved); backward() takes saved."""

    def backward(self, dy: Array, saved: Saved, *, context: Context | None = None) -> MultiHeadAttentionGradients:
        """
        Gradients at the inputs, options and parameters, given dy at the output.
        """

    def trace(self, query: Array, key: Array | None = None, value: Array | None = None, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, context: Context | None = None) -> Trace:
        """Every intermediate result by name."""

    def heads(self, query: Array, key: Array | None = None, value: Array | None = None, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, context: Context | None = None) -> LayerHeads:
        """
        q, k and v of the heads, as attention() takes them, and how much each head adds.
        """

    def inspect(self, query: Array, key: Array | None = None, value: Array | None = None, *, top_k: int = 0, key_mass: bool = True, metrics: bool = True, local_width: int = 8, tokens: Array | Sequence[str] | None = None, tile_rows: int = 0, tile_columns: int = 0, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, context: Context | None = None) -> Statistics:
        """
        inspect() of the layer's heads, with how much each adds to the output: contribution.
        """

    def make_cache(self, batch: int, capacity: int, page_size: int = 0, pages: int = 0, type: Any = None) -> KvCache:
        """An empty KvCache that fits this layer, of its type or 'i8'."""

    def append(self, key: Array, value: Array, cache: KvCache, lengths: Array | None = None, *, context: Context | None = None) -> None:
        """Projects key and value and appends them to the cache."""

    def attend(self, query: ArrayT, cache: KvCache, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, context: Context | None = None) -> ArrayT:
        """Attention of the query over what the cache holds."""

    @property
    def options(self) -> dict[str, Any]:
        """With every size filled in."""

    def parameters(self) -> dict[str, Any]:
        """
        q.weight, q.bias, k.weight, ... o.bias: NumPy arrays that are the layer's memory.
        """

    def split(self) -> list[HeadWeights]:
        """The same weights as one set of matrices per head, as copies."""

    @staticmethod
    def join(parts: Sequence[HeadWeights], o_bias: Array | None = None, **options: Any) -> MultiHeadAttention:
        """A layer from the matrices of its heads; options as of the constructor."""

    def save(self, path: str | os.PathLike[str], per_head: bool = False) -> None:
        """
        Writes the parameters as safetensors, with the options in the metadata.
        """

    @staticmethod
    def load(path: str | os.PathLike[str] | TensorFile, *, prefix: str = '', heads: int = 0, key_heads: int = 0, rotary: RotaryLike | None = None, output_projection: bool = True, orientation: Literal['automatic', 'out_in', 'in_out'] = 'automatic') -> MultiHeadAttention:
        """
        A layer from a safetensors file: one of save(), or of another library.

        heads and the rest come from the file's metadata, if that holds them. The names of PyTorch's
        nn.MultiheadAttention, of Llama (q_proj ...), BERT and GPT-2 are known, behind the prefix.
        output_projection=False: the file has no W^O.
        """

    def to(self, type: Any) -> MultiHeadAttention:
        """
        A copy in another type, each weight rounded once: 'f64', 'f32', 'bf16' or 'f16'. Of layers that have a device also one in its memory: 'cuda', 'cuda:1', 'cpu'.
        """

    @property
    def device(self) -> str:
        """Where the weights are: 'cpu' or 'cuda:0'. Calls take arrays there."""

    def quantize(self) -> MultiHeadAttention:
        """A copy with weights of 8 bits, for inference: no gradients."""

    @property
    def quantized(self) -> bool:
        """Whether weights are of 8 bits."""

    def __repr__(self) -> str: ...

    __call__ = forward

class AttentionBlock:
    """
    Attention and a feed-forward network, each with residual and norm.

        post   y = norm(x + f(x))       pre   y = x + f(norm(x))       none   y = x + f(x)

    for each part f: self-attention, attention over a memory (cross=True), feed-forward
    (hidden_dim > 0).
    `attention` holds the options of MultiHeadAttention. x, y [batch, T, model_dim], memory
    [batch, Tm, memory_dim].

    >>> block = attend.AttentionBlock({'model_dim': 8, 'heads': 2}, hidden_dim=16, placement='pre')
    >>> block.forward(numpy.ones((1, 3, 8), 'float32'), causal=True).shape
    (1, 3, 8)
    """

    def __init__(self, attention: Mapping[str, Any], *, cross: bool = False, memory_dim: int = 0, hidden_dim: int = 0, activation: str = 'gelu', placement: str = 'post', norm: str = 'layer_norm', epsilon: float = 1e-05) -> None: ...

    class Saved:
        """What backward() needs from forward_train()."""

    def forward(self, x: ArrayT, memory: Array | KvCache | None = None, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, cross: Mapping[str, Any] | None = None, cache: KvCache | None = None, lengths: Array | None = None, context: Context | None = None) -> ArrayT:
        """
        y. The options are those of self-attention; `cross` is a dict of those over the memory.

        With a cache (block.attention.make_cache()) x are new tokens, and the memory of a decoder is a cache
        too (block.cross.make_cache(), filled by block.cross.append()).
        """

    def forward_train(self, x: ArrayT, memory: Array | None = None, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, cross: Mapping[str, Any] | None = None, context: Context | None = None) -> tuple[ArrayT, Saved]:
        """(y, saved); backward() takes saved."""

    def backward(self, dy: Array, saved: Saved, *, context: Context | None = None) -> BlockGradients:
        """
        Gradients at x, the memory, the options and the parameters, given dy at y.
        """

    def trace(self, x: Array, memory: Array | None = None, *, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, cross: Mapping[str, Any] | None = None, context: Context | None = None) -> Trace:
        """
        The steps of the parts, 'attention.weights', and the sums and norms between them.
        """

    @property
    def attention(self) -> MultiHeadAttention: ...

    @property
    def cross(self) -> MultiHeadAttention | None:
        """The attention over the memory; None without one."""

    @property
    def options(self) -> dict[str, Any]:
        """What it was made with."""

    def parameters(self) -> dict[str, Any]:
        """The weights by name: NumPy arrays that are the block's memory."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Writes the parameters as safetensors, with the options in the metadata.
        """

    @staticmethod
    def load(path: str | os.PathLike[str]) -> AttentionBlock:
        """A block that save() wrote."""

    def to(self, type: Any) -> AttentionBlock:
        """
        A copy in another type, each weight rounded once: 'f64', 'f32', 'bf16' or 'f16'. Of layers that have a device also one in its memory: 'cuda', 'cuda:1', 'cpu'.
        """

    @property
    def device(self) -> str:
        """Where the weights are: 'cpu' or 'cuda:0'. Calls take arrays there."""

    def quantize(self) -> AttentionBlock:
        """A copy with weights of 8 bits, for inference: no gradients."""

    @property
    def quantized(self) -> bool:
        """Whether weights are of 8 bits."""

    def __repr__(self) -> str: ...

    __call__ = forward

class LanguageModel:
    """
    A small language model made of the layers.

        tokens [batch, T] (int64 or int32)   logits [batch, T, vocabulary]

    >>> model = attend.LanguageModel(vocabulary=5, length=8, layers=1, model_dim=16)
    >>> model.forward(numpy.array([[0, 1, 2]])).shape
    (1, 3, 5)
    >>> len(model.generate([0, 1], 4))
    4
    """

    def __init__(self, *, vocabulary: int, length: int, layers: int = 2, model_dim: int = 64, heads: int = 4, hidden_dim: int = 0, activation: str = 'gelu', placement: str = 'pre', norm: str = 'layer_norm', type: Any = 'f32', seed: int = 0) -> None: ...

    class Saved:
        """What backward() needs from forward_train()."""

    def forward(self, tokens: ArrayT, caches: list[KvCache] | None = None, *, context: Context | None = None) -> ArrayT:
        """The logits; with the caches of make_caches() the tokens are new ones."""

    def trace(self, tokens: Array, *, context: Context | None = None) -> Trace:
        """Every step of every block: 'blocks.1.attention.weights'."""

    def make_caches(self, batch: int = 1, type: Any = None) -> list[KvCache]:
        """An empty cache for each block, of the model's type or 'i8'."""

    def generate(self, prompt: Sequence[int], count: int, temperature: float = 0.0, seed: int = 0, *, cache_type: Any = None, context: Context | None = None) -> list[int]:
        """
        `count` tokens after the prompt: the likeliest, or sampled with a temperature. The caches are of the model's type, or 'i8'.
        """

    @property
    def options(self) -> dict[str, Any]:
        """What it was made with."""

    def parameters(self) -> dict[str, Any]:
        """The weights by name: NumPy arrays that are the model's memory."""

    def forward_train(self, tokens: ArrayT, *, context: Context | None = None) -> tuple[ArrayT, Saved]:
        """(logits, saved); backward() takes saved."""

    def backward(self, dlogits: Array, saved: Saved, *, context: Context | None = None) -> dict[str, Any]:
        """Gradients at the parameters, by name."""

    def metadata(self) -> dict[str, str]:
        """The options as a file's metadata, for save_checkpoint()."""

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] = {}) -> None:
        """
        Writes the parameters as safetensors, with the options in the metadata.
        """

    @staticmethod
    def load(path: str | os.PathLike[str] | TensorFile) -> LanguageModel:
        """A model that save() wrote."""

    def to(self, type: Any) -> LanguageModel:
        """
        A copy in another type, each weight rounded once: 'f64', 'f32', 'bf16' or 'f16'. Of layers that have a device also one in its memory: 'cuda', 'cuda:1', 'cpu'.
        """

    def quantize(self) -> LanguageModel:
        """A copy with weights of 8 bits, for inference: no gradients."""

    @property
    def quantized(self) -> bool:
        """Whether weights are of 8 bits."""

    def __repr__(self) -> str: ...

    __call__ = forward

def cross_entropy(logits: Array, targets: Array, *, ignore: int = -100, label_smoothing: float = 0.0, gradient_scale: float = 1.0, context: Context | None = None) -> Loss:
    """
    The mean over the rows of -log softmax(logits)[target], with its gradient at the logits.

        logits [..., classes]   targets [...] (int64 or int32)

    Rows with the target `ignore` do not count. gradient_scale multiplies the gradient alone, before it is
    rounded: value of a LossScale.

    >>> loss = attend.cross_entropy(numpy.zeros((2, 4)), numpy.array([1, 3]))
    >>> round(loss.value, 4), loss.gradient.shape, loss.count
    (1.3863, (2, 4), 2)
    """

def mse(prediction: Array, target: Array, *, gradient_scale: float = 1.0, context: Context | None = None) -> Loss:
    """
    The mean over the elements of (prediction - target)^2, with its gradient at the prediction.

    >>> attend.mse(numpy.ones(3), numpy.zeros(3)).value
    1.0
    """

def accumulate(sum: dict[str, Any], more: Mapping[str, Array]) -> None:
    """
    sum += more, name by name, in place. An empty sum becomes a copy, of 16-bit gradients in f32.

    >>> total = {}
    >>> for _ in range(2): attend.accumulate(total, {'a': numpy.ones(2)})
    >>> total
    {'a': array([2., 2.])}
    """

def clip_gradients(gradients: Mapping[str, Array], max_norm: float) -> float:
    """
    Scales all gradients, in place, to a common norm of at most max_norm.

    Gives the norm they had.

    >>> gradients = {'a': numpy.array([3.0, 4.0])}
    >>> attend.clip_gradients(gradients, 1.0), gradients['a']
    (5.0, array([0.6, 0.8]))
    """

class LearningRate:
    """
    Rises to the peak over `warmup` steps, then stays, or falls to `minimum` at step `total`.

    decay is 'constant', 'linear' or 'cosine'. Steps count from 0.

    >>> attend.LearningRate(peak=0.1, warmup=10, total=100, decay='cosine').at(9)
    0.1
    """

    def __init__(self, *, peak: float = 0.001, warmup: int = 0, total: int = 0, decay: str = 'constant', minimum: float = 0.0) -> None: ...

    def at(self, step: int) -> float:
        """The rate of a step."""

class Optimizer:
    """What SGD and AdamW have in common."""

    def step(self, parameters: Mapping[str, Array], gradients: Mapping[str, Array], learning_rate: float) -> None:
        """Changes the parameters, in place, by the gradients of the same names."""

    @property
    def steps(self) -> int:
        """How many were made."""

    @property
    def kind(self) -> str:
        """'sgd' or 'adamw'"""

    def state(self) -> dict[str, Any]:
        """What it remembers, as copies."""

    def restore(self, steps: int, state: Mapping[str, Array], parameters: Mapping[str, Array]) -> None:
        """Takes back what state() gave."""

class SGD(Optimizer):
    """
    m = momentum m + g;  x -= learning_rate (m + weight_decay x)

    >>> x = {'a': numpy.ones(2)}
    >>> attend.SGD().step(x, {'a': numpy.ones(2)}, 0.5)
    >>> x['a']
    array([0.5, 0.5])
    """

    def __init__(self, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> None: ...

class AdamW(Optimizer):
    """
    Adam with decoupled weight decay.

        m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
        x -= learning_rate (weight_decay x + m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon))

    >>> x = {'a': numpy.ones(2)}
    >>> attend.AdamW(weight_decay=0.0).step(x, {'a': numpy.ones(2)}, 0.5)
    >>> x['a'].round(6)
    array([0.5, 0.5])
    """

    def __init__(self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, weight_decay: float = 0.01) -> None: ...

class LossScale:
    """
    Loss scaling, for models of f16.

    The gradient of the loss is multiplied by the scale before the backward pass, and the parameters'
    gradients are divided by it afterwards, so that small ones are not rounded to 0. A step whose gradients
    overflow is left out, and the scale divided by `factor`; after `interval` good steps it is multiplied.

        loss = attend.cross_entropy(logits, targets, gradient_scale=scale.value)
        gradients = model.backward(loss.gradient, saved)
        finite = scale.unscale(gradients)
        if finite:
            attend.clip_gradients(gradients, 1.0)
            optimizer.step(model.parameters(), gradients, rate)
        scale.update(finite)

    >>> scale = attend.LossScale()
    >>> scale.unscale({'a': numpy.array([numpy.inf], numpy.float16)})
    False
    >>> scale.update(False)
    >>> scale.value
    32768.0
    """

    def __init__(self, *, initial: float = 65536.0, factor: float = 2.0, interval: int = 2000) -> None: ...

    @property
    def value(self) -> float:
        """The scale."""

    @property
    def good_steps(self) -> int:
        """How many since the scale changed."""

    def unscale(self, gradients: dict[str, Any]) -> bool:
        """
        Divides the gradients by the scale; those of 16 bits become float32.

        The dict has new arrays then. False, and nothing is changed, if any of them is not finite.
        """

    def update(self, finite: bool) -> None:
        """
        Once a step, last, with what unscale() gave.

        Refused if the gradients were not finite at a scale of 1, where scaling cannot be the cause.
        """

    def restore(self, value: float, good_steps: int) -> None:
        """Takes back what value and good_steps were."""

def save_checkpoint(path: str | os.PathLike[str], parameters: Mapping[str, Array], optimizer: Optimizer, metadata: Mapping[str, str] = {}, loss_scale: LossScale | None = None) -> None:
    """
    Writes parameters, what the optimizer remembers and the loss scale as one safetensors file.
    """

def load_checkpoint(path: str | os.PathLike[str], parameters: Mapping[str, Array], optimizer: Optimizer, loss_scale: LossScale | None = None) -> dict[str, str]:
    """
    Puts a checkpoint back into parameters, optimizer and loss scale, and gives its metadata.

    Nothing is changed if anything does not fit. Training goes on with the bits it would have had.
    """

class PeerError(RuntimeError):
    """
    Another rank did not answer in time, is gone, or has given up. The Group takes no more calls.
    """

class Group:
    """
    Some ranks, and how bytes move between them.

    A class derived from it has two methods, which start a transfer and return an object with poll():
    True once it is done; and, if it knows, missing(): the ranks from which something is still to come,
    and moves(): whether large messages are on their way, so that there is no pause between two polls.
    What these two raise does not matter, unless it is no Exception, as KeyboardInterrupt.
    Every rank starts the same transfers in the same order, the next perhaps before the last is done.

    exchange(send, receive)   lists of `size` memoryviews of bytes: send[r] goes to rank r, which fills
                              its receive[this rank]; often of 0 bytes, and so are those of this rank
    broadcast(root, bytes)    the bytes of rank `root` to all

    The memory is valid until the transfer is done.
    """

    def __init__(self, rank: int, size: int) -> None: ...

    @property
    def rank(self) -> int:
        """This process's number, from 0 to size - 1."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def failure(self) -> str:
        """Why it takes no more calls; empty: it does."""

    @property
    def waited(self) -> float:
        """
        Seconds that calls have waited for other ranks with nothing else to do.
        """

    def exchange(self, send: Sequence[memoryview], receive: Sequence[memoryview]) -> Any:
        """
        Starts an exchange of all ranks with all; of a class derived from this.
        """

    def broadcast(self, root: int, bytes: memoryview) -> Any:
        """Starts a broadcast; of a class derived from this."""

class ThreadRanks:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None: ...

    def rank(self, rank: int) -> Group:
        """The Group of one of them."""

    def bytes_sent(self, rank: int) -> int:
        """Bytes that this rank has sent to others."""

class Layout:
    """
    Who owns which positions, of queries or of keys.

    lengths  of the sequences: one, whatever the batch, or those that are packed
    owners   for each sequence a list: the rank that owns each granule of so many positions
    ranks    how many there are

    A rank's arrays hold the positions that it owns in ascending order, sequence by sequence. Bits do not
    depend on it.

    >>> layout = attend.distributed.Layout.serpentine([1000], 2)
    >>> layout.owned(0), layout.owned(1), layout.runs(0)
    (488, 512, [(0, 0, 256, 0), (0, 768, 1000, 256)])
    """

    def __init__(self, lengths: Sequence[int], owners: Sequence[Sequence[int]], ranks: int, granule: int = 256) -> None: ...

    @staticmethod
    def serpentine(lengths: Sequence[int], ranks: int, granule: int = 256) -> Layout:
        """
        Granules dealt 0, 1, ... P - 1, P - 1, ... 0, 0, ...: balanced where attention is causal.
        """

    @staticmethod
    def contiguous(lengths: Sequence[int], ranks: int, granule: int = 256) -> Layout:
        """
        The first granules to rank 0, the next to rank 1, as many to each or one fewer.
        """

    @property
    def ranks(self) -> int:
        """How many ranks there are."""

    @property
    def granule(self) -> int:
        """Positions are dealt out by so many."""

    @property
    def lengths(self) -> list[int]:
        """Of the sequences."""

    @property
    def total(self) -> int:
        """Positions of all sequences."""

    def owned(self, rank: int) -> int:
        """How many positions a rank owns."""

    def owner(self, sequence: int, position: int) -> int:
        """The rank that owns a position."""

    def runs(self, rank: int) -> list[tuple[int, int, int, int]]:
        """A rank's positions: (sequence, begin, end, row of the rank's arrays)."""

    def __eq__(self, other: object) -> bool: ...

def balanced_layouts(queries: int, keys: int | None = None, *, ranks: int, batch: int = 1, **options: Any) -> tuple[Layout, Layout]:
    """
    Layouts of the queries and keys of a whole problem, so that ranks have as much to do.

    Granules are dealt to and fro or, where pairs are hidden by a window, lengths or packed sequences,
    given to whoever has least to do. Packed, queries and keys are those of all sequences.

    >>> queries, keys = attend.distributed.balanced_layouts(5000, ranks=4, causal=True)
    >>> queries == keys, [queries.owned(rank) for rank in range(4)]
    (True, [1280, 1280, 1280, 1160])
    """

def take_rows(layout: Layout, rank: int, whole: ArrayT, dim: int = 2) -> ArrayT:
    """
    A rank's rows of an array of the whole; `dim` is the one of the positions.
    """

def put_rows(layout: Layout, rank: int, rows: Array, whole: Array, dim: int = 2) -> None:
    """Writes a rank's rows into an array of the whole."""

class RankCost:
    """What a call will cost one rank."""

    @property
    def sent(self) -> int:
        """Bytes of tensors to other ranks."""

    @property
    def received(self) -> int:
        """Bytes of tensors from other ranks."""

    @property
    def memory(self) -> int:
        """Bytes beside the caller's arrays and workspaces."""

class DistributedPlan:
    """What a call over ranks will cost."""

    @property
    def scheme(self) -> str:
        """'heads' or 'gather': the one that is used forward."""

    @property
    def backward_scheme(self) -> str:
        """And backward."""

    @property
    def forward(self) -> list[RankCost]:
        """A RankCost for each rank."""

    @property
    def backward(self) -> list[RankCost]:
        """A RankCost for each rank."""

    def describe(self) -> str:
        """All of it in words."""

    def __repr__(self) -> str: ...

def distributed_plan(layouts: Layout | Sequence[Layout], *, heads: int, key_heads: int | None = None, d: int, dv: int | None = None, batch: int = 1, type: str = 'f32', k_type: str | None = None, v_type: str | None = None, scheme: Literal['automatic', 'heads', 'gather'] = 'automatic', bits: Literal['one_process', 'fast'] = 'one_process', **options: Any) -> DistributedPlan:
    """
    What a call over ranks will cost: bytes, memory, balance. Nothing is sent.
    """

def distributed_attention(group: Group, q: ArrayT, k: Array, v: Array, *, layouts: Layout | Sequence[Layout] | None = None, scheme: Literal['automatic', 'heads', 'gather'] = 'automatic', bits: Literal['one_process', 'fast'] = 'one_process', timeout: float = 300.0, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, out: ArrayT | None = None, return_lse: bool = False, context: Context | None = None, refused: BaseException | None = None) -> Any:
    """
    attend.distributed.attention() for a Group. All ranks are told of `refused`.
    """

def distributed_attention_backward(group: Group, q: ArrayT, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, layouts: Layout | Sequence[Layout] | None = None, scheme: Literal['automatic', 'heads', 'gather'] = 'automatic', bits: Literal['one_process', 'fast'] = 'one_process', timeout: float = 300.0, scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, causal: bool = False, window: WindowLike | None = None, query_offset: int | Array | None = None, key_offset: int | None = None, mask: Array | None = None, bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, blocks: BlocksLike | None = None, key_lengths: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, max_q: int | None = None, max_k: int | None = None, block_table: Array | None = None, k_scales: Array | None = None, v_scales: Array | None = None, dropout: DropoutLike | None = None, dlse: Array | None = None, context: Context | None = None) -> Any:
    """attend.distributed.attention_backward() for a Group."""
