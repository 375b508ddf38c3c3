"""python -m attend.hf view|inspect|generate MODEL --text "..." """
import argparse
import json
import pathlib
import sys
import warnings
from typing import Any

_EPILOG = """\
MODEL is a folder with config.json and weights, a GGUF file, or a name of the hub that is in the local cache
(--download fetches it). Nothing else is asked of any network, and no code that comes with a model is run.

exit status: 0 success, 2 a flag or an input cannot be accepted, 3 not enough memory, 130 Ctrl-C
"""


def main(words: list[str] | None = None) -> int:
    given = _parser().parse_args(words)
    try:
        return {"view": _view, "inspect": _inspect, "generate": _generate}[given.command](given)
    except MemoryError as error:
        return _failed(given, error or "there is not enough memory", 3)
    except KeyboardInterrupt:
        return 130
    except (ImportError, LookupError, NotImplementedError, OSError, TypeError, ValueError) as error:
        return _failed(given, error, 2)
    except RuntimeError as error:
        return _failed(given, error, 3 if "memory" in str(error) else 2)


def _failed(given: argparse.Namespace, why: Any, status: int) -> int:
    text = " ".join(str(why).split()).removeprefix("view: ") or type(why).__name__
    print(f"attend.hf {given.command}: {text[:2000]}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attend.hf", description="Models of Transformers on attend.", epilog=_EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("model", metavar="MODEL", help="a folder, a GGUF file, or a name of the hub")
    text = common.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", help="what the model reads")
    text.add_argument("--text-file", metavar="FILE", help="the same from a file, UTF-8")
    common.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"),
                        help="auto: that of the weights")
    common.add_argument("--threads", type=_count, default=0, metavar="N", help="0: as PyTorch has it")
    common.add_argument("--download", action="store_true", help="fetch a model of the hub that is not here")
    shown = argparse.ArgumentParser(add_help=False)
    shown.add_argument("--new-tokens", type=_count, default=0, metavar="N", help="generate as many, and show them too")
    shown.add_argument("--target", help="of an encoder-decoder: what the decoder reads")
    shown.add_argument("--part", choices=("cross", "encoder", "decoder"), help="of an encoder-decoder; cross if it is not given")
    shown.add_argument("--layers", action="append", metavar="NAME", help="these alone; * stands for anything")

    view = commands.add_parser("view", parents=[common, shown], help="writes the page that shows every head")
    view.add_argument("--output", required=True, metavar="FILE.html")
    view.add_argument("--title")
    view.add_argument("--language", default="en", choices=("en", "zh"))
    view.add_argument("--page-size", type=_mebibytes, default=16 << 20, metavar="MIB",
                      help="that the page may have: 16, or up to 64; what does not fit is reduced")
    view.add_argument("--window", action="append", type=_window, default=[], metavar="LAYER,HEAD,QUERY,QUERIES,KEY,KEYS",
                      help="a part of a head whose weights are exact all the same; layers by their number on the page")
    inspect = commands.add_parser("inspect", parents=[common, shown], help="prints what every head looks at, in numbers")
    inspect.add_argument("--json", action="store_true")
    generate = commands.add_parser("generate", parents=[common], help="prints the text that follows, greedily")
    generate.add_argument("--new-tokens", type=_count, default=64, metavar="N")
    generate.add_argument("--json", action="store_true")
    return parser


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return number


def _text_of(file: str) -> str:
    try:
        return pathlib.Path(file).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--text-file: {file} is no text in UTF-8: byte {error.start} is {error.object[error.start]:#04x}") from None


def _check_output(file: str) -> None:
    """Before the model is loaded, which takes its time."""
    from attend._view import place_to_write

    try:
        place_to_write(file)
    except OSError as error:
        raise OSError(f"--output: {file}: {error.strerror}") from None


def _mebibytes(text: str) -> int:
    """MiB, as `attend view --page-size` has them, in bytes."""
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 < size <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 64")
    return int(size * (1 << 20))


def _window(text: str) -> list[int]:
    """As `attend view --window` has it."""
    numbers = [_count(number) for number in text.split(",")]
    if len(numbers) != 6:
        raise argparse.ArgumentTypeError(f"{text!r} is not LAYER,HEAD,QUERY,QUERIES,KEY,KEYS")
    return numbers


def _loaded(given: argparse.Namespace) -> tuple[Any, Any, str]:
    """(model, tokenizer, text)"""
    text = given.text if given.text_file is None else _text_of(given.text_file)
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError(f"{error.name} is not installed: pip install torch transformers") from error
    from .loading import load

    transformers.utils.logging.set_verbosity_error()
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    if given.threads:
        torch.set_num_threads(given.threads)
    with warnings.catch_warnings(record=True) as told:
        model, tokenizer = load(given.model, dtype=given.dtype, download=given.download)
    for x in told:
        print(f"attend.hf {given.command}: {str(x.message).removeprefix('attend.hf: ')}", file=sys.stderr)
    if tokenizer is None:
        raise ValueError(f"{given.model} has no tokenizer, which a text needs")
    return model, tokenizer, text


def _view(given: argparse.Namespace) -> int:
    from .viewing import view

    _check_output(given.output)
    model, tokenizer, text = _loaded(given)
    page = view(model, tokenizer, text, new_tokens=given.new_tokens, target=given.target, part=given.part, layers=given.layers,
                title=given.title, language=given.language, page_bytes=given.page_size, windows=given.window, progress=sys.stderr.isatty())
    page.save(given.output)
    print(f"wrote {given.output}")
    return 0


_MEANS = ("entropy", "maximum", "distance", "previous", "first", "diagonal", "local", "duplicate", "induction")


def _inspect(given: argparse.Namespace) -> int:
    import numpy

    import attend

    from .observing import observe

    model, tokenizer, text = _loaded(given)
    part = observe(model, tokenizer, text, new_tokens=given.new_tokens, target=given.target, part=given.part, layers=given.layers)
    tokens = numpy.array(part.token_ids, "int64") if part.token_ids else None
    layers = []
    for name, x in zip(part.layer_names, part.attentions):
        found = attend.inspect(x.q, x.k, tokens=tokens, **x.options)
        layers.append((name, x, found.heads))
    if given.json:
        print(json.dumps({
            "schema": "attend.hf.inspect/1", "part": part.name, "tokens": part.tokens, "key_tokens": part.key_tokens or part.tokens,
            "layers": [{
                "name": name, "module": x.layer.name, "call": x.layer.call,
                "heads": [{"head": h.head, "label": h.label, "score": _finite(h.score)}
                          | {n: _finite(getattr(h, n)) for n in _MEANS} for h in heads],
            } for name, x, heads in layers],
        }))
        return 0
    for name, x, heads in layers:
        print(f"{name}: q {list(x.q.shape)}, k {list(x.k.shape)}")
        print(" head  looks at         score" + "".join(f" {n:>9}" for n in _MEANS))
        for h in heads:
            numbers = "".join(f" {v:9.3f}" if v == v else " " * 9 + "-" for v in (getattr(h, n) for n in _MEANS))
            print(f" {h.head:4}  {h.label:<15} {h.score:6.2f}{numbers}")
    return 0


def _finite(x: float) -> float | None:
    return x if abs(x) < float("inf") else None


def _generate(given: argparse.Namespace) -> int:
    import torch

    from .inputs import check_generates, generated, tokenized
    from .observing import attentions_of

    if given.new_tokens == 0:
        raise ValueError("--new-tokens is 0; nothing would be generated")
    model, tokenizer, text = _loaded(given)
    attentions_of(model)
    inputs = tokenized(model, tokenizer, text)
    check_generates(model, inputs, given.new_tokens)
    with torch.no_grad():
        ids = generated(model, inputs, given.new_tokens)[0].tolist()
    if not model.config.is_encoder_decoder:
        ids = ids[inputs["input_ids"].size(1):]
    words = tokenizer.decode(ids, skip_special_tokens=True)
    print(json.dumps({"schema": "attend.hf.generate/1", "text": words, "token_ids": ids}) if given.json else words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
