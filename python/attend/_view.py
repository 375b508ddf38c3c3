"""The page that shows the heads, from arrays, or from a model and a text."""
import errno
import html
import importlib
import os
import pathlib
import stat
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._attend import Context, view_page
from ._types import Array, LayerHeads

# One layer's array, or a list of them.
Arrays = Array | Sequence[Array]
# Called as progress(done, all), in heads; or whether a line on stderr says so.
Progress = bool | Callable[[int, int], object] | None


@dataclass(frozen=True)
class View:
    """The page as text; save it, or let a notebook show it.

    >>> q = numpy.ones((1, 2, 4, 8), 'float32')
    >>> attend.view(q, q, q, causal=True, tokens="a b a b".split()).save("heads.html")
    """

    html: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page, whole or not at all."""
        if not pathlib.Path(path).name:
            raise OSError(f"View.save: {os.fspath(path)!r} is not the name of a file")
        try:
            target, mode = place_to_write(path)
            part = target.with_name(f".attend-{os.getpid()}-{threading.get_ident()}.tmp")  # short: the file's own name may be long
            try:
                part.write_bytes(self.html.encode())
                if mode is not None:
                    part.chmod(mode)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:  # the caller knows the file by its own name
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None

    def _repr_html_(self) -> str:
        """The same bytes in a frame of their own, which keeps the page's rules and styles."""
        return (f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts allow-downloads" '
                'style="width: 100%; height: 720px; border: 0"></iframe>')

    def __repr__(self) -> str:
        return f"<attend.View of {len(self.html)} characters; .save(path) writes the page>"


def place_to_write(path: str | os.PathLike[str]) -> tuple[pathlib.Path, int | None]:
    """(the file that a path means, its permissions if it is there); OSError where no file can be put. What is no file must not be
    replaced by one: /dev/null would become one for everybody.
    """
    target = pathlib.Path(os.path.realpath(path))
    if target.is_dir():
        raise OSError(errno.EISDIR, "is a folder, not the name of a file", os.fspath(path))
    folder = target.parent
    if not folder.is_dir():
        raise OSError(errno.ENOENT, "there is no such folder to write into", os.fspath(path))
    if target.exists():
        if not target.is_file():
            raise OSError(errno.EINVAL, "is no regular file; it cannot be written whole or not at all", os.fspath(path))
        if not os.access(target, os.W_OK):  # a rename would not mind, but whoever made it read-only would
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return target, stat.S_IMODE(target.stat().st_mode)
    return target, None


def _is_list(x: Any) -> bool:
    return isinstance(x, (list, tuple)) and not isinstance(x, LayerHeads)


def _layers(q: Any, k: Any, v: Any, w_o: Any, names: Sequence[str] | None,
            options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A dict for each layer, from arrays, LayerHeads, or lists of them."""
    queries = list(q) if _is_list(q) else [q]
    count = len(queries)

    def each(x: Any, name: str) -> list[Any]:
        found = list(x) if _is_list(x) else [x] * (count if x is None else 1)
        if len(found) != count:
            raise ValueError(f"view: there are {count} q and {len(found)} {name}; each layer has one of each")
        return found

    layers = []
    for n, (one, key, value, output, name) in enumerate(
            zip(queries, each(k, "k"), each(v, "v"), each(w_o, "w_o"), each(names, "layer_names"))):
        if isinstance(one, LayerHeads) and (key is not None or value is not None):
            raise TypeError(f"view: layer {n} is of heads(), which has its own k and v")
        heads = one if isinstance(one, LayerHeads) else LayerHeads(one, key, value, [])
        if heads.k is None:
            found = "" if hasattr(one, "__dlpack__") else f"; q is a {type(one).__name__}, and view takes arrays, or what heads() returned"
            raise TypeError(f"view: layer {n} has no k{found}")
        layers.append({"name": name or "", "q": heads.q, "k": heads.k, "v": heads.v,
                       "options": dict(options), "contribution": heads.contribution, "w_o": output})
    return layers


def progress_of(given: Progress) -> Callable[[int, int], object] | None:
    """What to call: a line on stderr for True."""
    if given is None or given is False:
        return None
    if given is True:
        return lambda done, count: print(f"\rlooking at the heads: {done} of {count}", end="\n" if done == count else "",
                                         file=sys.stderr, flush=True)
    if not callable(given):
        raise TypeError(f"view: progress is True or a function of (done, all), found {type(given).__name__}")
    return given


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_model(x: Any) -> bool:
    """Whether it is a module of PyTorch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.nn.Module)


def _of_model(q: Any, k: Any, v: Any, options: Mapping[str, Any], **page: Any) -> View:
    """view() of a model, its tokenizer and a text, with what is given beside."""
    # By name, so that who checks the types of a program without PyTorch does not meet those of PyTorch.
    view_model: Any = importlib.import_module(".hf", __package__).view
    defaults = view.__kwdefaults__ or {}
    given = {name: value for name, value in page.items() if value is not defaults[name]}
    for name in (*given, *options):
        if name not in view_model.__kwdefaults__:
            raise TypeError(f"view: {name} does not go with a model, which has its own tokens, layers and options; what does "
                            f"are {', '.join(view_model.__kwdefaults__)}")
    page_of_model: View = view_model(q, k, v, **given, **options)
    return page_of_model


def view(q: Any, k: Any = None, v: Any = None, *, tokens: Sequence[str] | None = None,
         key_tokens: Sequence[str] | None = None, token_ids: Sequence[int] | None = None,
         compare: Any = None, names: tuple[str, str] = ("", ""),
         layer_names: Sequence[str] | None = None, title: str = "", language: str = "en",
         batch: int = 0, page_bytes: int = 16 << 20, tiles: int = 128,
         windows: Sequence[Sequence[int]] = (), open_run: int = 0, w_o: Any = None, progress: Progress = None,
         context: Context | None = None, **options: Any) -> View:
    """A page that shows every head: one HTML file, offline, for any length.

    q, k, v are as attention() takes them, [batch, heads, length, d]; lists of arrays are layers. In
    place of the three, what MultiHeadAttention.heads() returned, or a list of it. v may be missing.
    Options as in attention(), for all layers. Or a model of Transformers, its tokenizer and a text, with the
    arguments of attend.hf.view(): attend.view(model, tokenizer, "text", new_tokens=8).

    tokens               a text for each query, or for each key; without, the page shows positions
    key_tokens           texts of the keys, if they differ
    token_ids            numbers of the keys' tokens; without, equal texts are equal tokens
    compare              a second run to compare with: (q, k), (q, k, v), or what heads() returned
    names, layer_names   of the two runs, and of the layers
    title, language      'en' or 'zh'
    batch                which element of the batch
    page_bytes           the size of the page, at most, up to 64 MiB; what does not fit is reduced,
                         and the page says so
    tiles                of a map, in each direction, at most
    windows              (layer, head, query, queries, key, keys) whose weights are exact all the same
    open_run             of two runs, the one that is seen first: 0, or 1 for the second
    w_o                  W^O of each layer of the first run, [model_dim, heads * dv]: the page then has |v_j W^O_h|
    progress             True for a line on stderr, or a function that is told (heads done, all heads)

    >>> q = numpy.ones((1, 2, 4, 8), 'float32')
    >>> page = attend.view(q, q, q, causal=True, tokens="a b a b".split())
    >>> page.html[:15]
    '<!doctype html>'
    """
    if _is_model(q):
        return _of_model(**locals())
    for name, given in (("tokens", tokens), ("key_tokens", key_tokens)):
        if isinstance(given, str):
            raise TypeError(f"view: {name} is one str; give a list of them, as in {name}=text.split()")
        for text in given if given is not None else ():
            if not isinstance(text, str):
                raise TypeError(f"view: {name} are texts, found {type(text).__name__}; numbers go to token_ids")
            if not _is_utf8(text):
                raise ValueError(f"view: {name} has {text!r}, which is no UTF-8")
    texts = {"tokens": [] if tokens is None else [str(t) for t in tokens],
             "key_tokens": [] if key_tokens is None else [str(t) for t in key_tokens],
             "token_ids": [int(n) for n in (token_ids if token_ids is not None else [])]}
    runs = [{"name": names[0], "layers": _layers(q, k, v, w_o, layer_names, options), **texts}]
    if compare is not None:
        of_heads = isinstance(compare, LayerHeads) or (
            _is_list(compare) and len(compare) > 0 and isinstance(compare[0], LayerHeads))
        if not of_heads and (not isinstance(compare, (tuple, list)) or len(compare) not in (2, 3)):
            raise TypeError("view: compare is (q, k), (q, k, v) or what heads() returned")
        other_q, other_k, other_v = (compare, None, None) if of_heads else (*compare, None)[:3]
        runs.append({"name": names[1], **texts,
                     "layers": _layers(other_q, other_k, other_v, None, layer_names, options)})
    try:
        return View(view_page(runs, title, language, batch, page_bytes, tiles, windows, open_run,
                              progress_of(progress), context))
    except TypeError as error:
        if "the options are" not in str(error):
            raise
        raise TypeError(f"{error}; the arguments of the page are {', '.join(view.__kwdefaults__ or ())}") from None
