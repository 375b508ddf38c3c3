"""A model and its tokenizer from what is here: a folder, a GGUF file, or a name in the local cache of the hub."""
import pathlib
import warnings
from typing import Any

from .registration import NAME, register


def load(name: str, *, dtype: str = "auto", download: bool = False) -> tuple[Any, Any]:
    """(model, tokenizer or None: there is none), ready to run on attend. Of a folder or a name the class is the one that its config names,
    of a GGUF file the language model. No code that comes with a model is run. Weights that are not there, and so are random, are named in a
    warning.
    """
    register()
    import transformers

    from .telling import quiet

    place, file = _place(name)
    where = {**file, "local_files_only": not download, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(place, **where)
    except OSError as error:
        if place != name or pathlib.Path(name).exists() or download:
            raise
        raise FileNotFoundError(
            f"{name} is no folder or file here, nor is it in the local cache of the hub; --download (download=True) fetches it"
        ) from error
    cls = transformers.AutoModelForCausalLM if file else _class_of(transformers, config)
    with quiet():  # each command refuses what does not come
        model = _weights(cls, name, place, dtype=dtype, attn_implementation=NAME, **where).eval()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, **where)
    except (OSError, ValueError, KeyError):
        tokenizer = None
    return model, tokenizer


def _weights(cls: Any, name: str, place: str, **options: Any) -> Any:
    """The model. Transformers draws at random what a file does not hold, and tells it as a report that may be switched off."""
    from safetensors import SafetensorError

    try:
        model, found = cls.from_pretrained(place, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    except SafetensorError as error:
        raise OSError(f"{name} has weights that cannot be read: {error}") from error
    except KeyError as error:
        if error.args != (NAME,):
            raise
        raise NotImplementedError(  # of models whose code has a class for each attention that it knows
            f"not every attention of this {cls.__name__} comes to attend: its code makes attentions that it knows itself alone"
        ) from error
    other = sorted(x[0] if isinstance(x, tuple) else x for x in found["mismatched_keys"])
    if other:
        raise ValueError(f"{name} has weights of other sizes than its config says: {_listed(other)}")
    missing = sorted(found["missing_keys"])
    if missing:
        warnings.warn(f"attend.hf: {name} does not have all weights of {cls.__name__}; these are random: {_listed(missing)}", stacklevel=3)
    return model


def _listed(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _place(name: str) -> tuple[str, dict[str, str]]:
    path = pathlib.Path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            files = sorted(x.name for x in path.glob("*.gguf"))
            hint = f"; it has the GGUF file {files[0]}, which can be named itself" if files else ""
            raise FileNotFoundError(f"{name} has no config.json{hint}")
        return str(path), {}
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError(f"{name} is no GGUF file; other models are named by their folder")
        return str(path.parent), {"gguf_file": path.name}
    if path.suffix or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"{name} is neither a folder nor a file, nor the name of a model")
    return name, {}


def _class_of(transformers: Any, config: Any) -> Any:
    for architecture in config.architectures or ():
        found = getattr(transformers, architecture, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return transformers.AutoModel
