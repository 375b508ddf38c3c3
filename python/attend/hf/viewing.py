"""view(): from a model and a text to the page."""
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

import attend
from attend._attend import view_page
from attend._view import Progress, View, progress_of
from attend.torch.analysis import output_projection, projection_matrix

from .observing import Attention, observe


def _output_weights(model: nn.Module, x: Attention) -> Tensor | None:
    """W^O [features, heads * dv] of a layer, where its name is known."""
    try:
        w = projection_matrix(output_projection(model, x.layer)).detach()
    except LookupError:
        return None
    fits = w.dim() == 2 and w.size(0) == x.q.size(1) * x.v.size(3) and w.is_floating_point()
    return w.t() if fits and w.device.type == "cpu" else None


def view(
    model: nn.Module, tokenizer: Any, text: str | Mapping[str, Any], *, new_tokens: int = 0, target: str | None = None,
    part: str | None = None, layers: Any = None, title: str | None = None, language: str = "en", batch: int = 0,
    page_bytes: int = 16 << 20, tiles: int = 128, windows: Sequence[Sequence[int]] = (), progress: Progress = None,
    context: "attend.Context | None" = None,
) -> View:
    """A page that shows every head of a model of Transformers while it reads a text.

    text         what the model reads; or a dict of its inputs, whose row `batch` is shown (tokenizer may be None: positions
                 instead of tokens)
    new_tokens   how many tokens it generates, greedily; the page shows them too
    target       of an encoder-decoder: what the decoder reads
    part         of an encoder-decoder: "cross", the decoder's attention to the encoder, "encoder" or "decoder"
    layers       by name ("*" stands for anything) or number; None: all

    The rest as in attend.view(). The model computes its attention with attend for this, without dropout, and
    is afterwards as it was. Every layer has the options that the model used: causal, window, softcap, sinks, padding.

    >>> attend.hf.view(model, tokenizer, "The cat sat on the mat", new_tokens=8).save("heads.html")
    """
    found = observe(model, tokenizer, text, part=part, layers=layers, new_tokens=new_tokens, target=target, batch=batch)
    run = {
        "name": "", "tokens": found.tokens, "key_tokens": found.key_tokens, "token_ids": found.token_ids,
        "layers": [
            {"name": name, "q": x.q, "k": x.k, "v": x.v, "options": x.options, "contribution": [], "w_o": _output_weights(model, x)}
            for name, x in zip(found.layer_names, found.attentions)
        ],
    }
    if title is None:
        title = type(model).__name__ + (f", {found.name}" if found.name else "")
    return View(view_page([run], title, language, batch, page_bytes, tiles, windows, 0, progress_of(progress), context,
                          command="python -m attend.hf view"))
