"""register(): Transformers learns the name "attend"."""
from typing import Any

from attend.torch.code import NAME

TESTED = "5.23.0"


def register() -> None:
    """Makes attn_implementation="attend" known to Transformers, for every model that is made or loaded from now on.

    Attention and masks both: without the second, Transformers would leave out every mask. Runs a tiny random model
    on it first and compares with Transformers' own attention; a second call does nothing. Models that
    are there already take model.set_attn_implementation("attend"). A model that is made, loaded or set to attend from now
    on, and computes some of its attention by itself all the same, is named in a warning.

    >>> attend.hf.register()
    """
    transformers = _transformers()
    from .interface import attend_attention
    from .masks import attend_mask
    from .patterns import check_known
    from .telling import listen

    functions, masks = (
        interface._global_mapping for interface in (transformers.AttentionInterface, transformers.AttentionMaskInterface)
    )
    if functions.get(NAME) is attend_attention and masks.get(NAME) is attend_mask:
        return
    check_known()
    transformers.AttentionInterface.register(NAME, attend_attention)
    transformers.AttentionMaskInterface.register(NAME, attend_mask)
    try:
        _try_it()
    except Exception:
        del functions[NAME], masks[NAME]
        raise
    listen(transformers.PreTrainedModel)


def _transformers() -> Any:
    """The package, if it is one whose interface is known."""
    try:
        import transformers
    except ImportError as e:
        raise ImportError(
            "attend.hf needs the package transformers, which is not installed here: pip install transformers"
        ) from e
    try:
        import inspect

        from transformers import AttentionInterface, AttentionMaskInterface, masking_utils  # noqa: F401
        from transformers.utils.import_utils import is_tracing  # noqa: F401

        missing = {"q_length", "kv_length", "q_offset", "kv_offset", "mask_function", "attention_mask"}
        missing -= set(inspect.signature(masking_utils.sdpa_mask).parameters)
        AttentionInterface.get_interface
    except (ImportError, AttributeError) as e:
        raise ImportError(_too_old(transformers, str(e))) from e
    if missing:
        raise ImportError(_too_old(transformers, f"its masks do not take {', '.join(sorted(missing))}"))
    return transformers


def _too_old(transformers: Any, why: str) -> str:
    return (
        f"attend.hf cannot use transformers {getattr(transformers, '__version__', '?')}, which has another interface "
        f"for attention ({why}); it is tested with {TESTED}"
    )


def _try_it() -> None:
    """Two sequences, one padded at its left, through two layers with grouped heads."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    sizes: Any = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=8, num_key_value_heads=2, **sizes)
    with torch.random.fork_rng([]), torch.device("cpu"), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaModel._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
        inputs = {"input_ids": torch.arange(10).view(2, 5) % 8, "attention_mask": real}
        wanted = model(**inputs).last_hidden_state
        model.set_attn_implementation(NAME)
        found = model(**inputs).last_hidden_state
    error = (found - wanted)[real.bool()].abs().max().item()
    if not error <= 1e-4:
        raise RuntimeError(
            f"attend.hf: a tiny Llama gives other numbers with attend than with Transformers' own attention (by {error:.1e}); "
            f"it is tested with transformers {TESTED}"
        )
