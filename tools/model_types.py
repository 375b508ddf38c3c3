#!/usr/bin/env python3
"""Every model type of the installed Transformers that a tiny config makes, with attend beside eager attention.

    tools/model_types.py [--only NAME ...] [--seconds 40] [--jobs 1] [--traced] [--compiled] [--results FILE]

A model of random weights runs on random inputs: without padding, with padding at the right and at the left, and generates some tokens if it
can. Its results with attend are those with eager attention, or attend refuses it in words: anything else is "wrong", whatever else raises
among it. Each type is a process with a limit of time. --traced takes the masks that torch.compile and torch.export get; --compiled runs models inside torch.compile.
What no tiny config or no guessed input makes is counted and listed. With --results it goes on where it stood. Exit: 1 if one is wrong.
"""
import argparse
import collections
import inspect
import json
import multiprocessing
import os
import pathlib
import signal
import sys
import time
import traceback

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import masking_utils  # noqa: E402, F401
from transformers.models.auto import configuration_auto, modeling_auto  # noqa: E402

import attend.hf.masks  # noqa: E402

BATCH, LENGTH, WORDS, WRONG = 2, 12, 99, 1e-3
SIZES = {  # names of numbers in configs, and what they become
    8: ("head_dim", "d_kv", "attention_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_channels", "num_mel_bins", "d_state", "mamba_d_state",
        "linear_key_head_dim", "linear_value_head_dim", "state_size", "mamba_head_dim", "mamba_d_head", "num_mel_channels"),
    4: ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads", "attention_heads",
        "num_attention_heads_text", "qk_rope_head_dim", "mamba_n_heads", "mamba_num_heads", "linear_num_key_heads", "linear_num_value_heads",
        "index_n_heads", "patch_size", "rotary_dim", "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    2: ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_key_value_heads", "n_head_kv",
        "num_kv_heads", "num_decoder_layers", "num_encoder_layers", "depth", "num_hidden_layers_text", "num_experts_per_tok", "top_k",
        "moe_topk", "num_experts_per_token", "moe_top_k", "layers"),
    1: ("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "mamba_n_groups", "n_groups", "num_nextn_predict_layers"),
    32: ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim", "image_size", "hidden_dim", "text_hidden_size",
         "word_embed_proj_dim", "d_embed", "embedding_dim", "width", "num_channels_hidden", "decoder_hidden_size"),
    24: ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "dim_feedforward", "n_inner", "moe_intermediate_size",
         "shared_expert_intermediate_size", "expert_ffn_hidden_size", "ffn_hidden_size", "mlp_dim", "d_inner"),
    16: ("q_lora_rank", "kv_lora_rank", "projection_dim", "o_lora_rank", "index_head_dim"),
    64: ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "max_sequence_length", "mamba_expand_dim"),
    6: ("sliding_window", "attention_window_size", "index_topk"),
    WORDS: ("vocab_size", "text_vocab_size", "codebook_size", "vocab_size_per_layer_input"),
}
BY_NAME = {name: size for size, names in SIZES.items() for name in names}
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "image_token_id", "video_token_id", "audio_token_id",
          "image_token_index", "cls_token_id", "sep_token_id", "mask_token_id", "forced_bos_token_id", "forced_eos_token_id")


def smaller(config):
    """{name: value} of what a config becomes when it is made anew."""
    found = {}
    for name, value in config.to_dict().items():
        try:
            part = getattr(config, name, None)
        except Exception:  # it differs by layer
            part = None
        if isinstance(part, transformers.PreTrainedConfig):
            found[name] = {**part.to_dict(), **smaller(part), "model_type": part.model_type}
        elif type(value) is int and name in BY_NAME:
            found[name] = min(value, BY_NAME[name]) if value >= 0 else value
        elif name in TOKENS and type(value) is int:
            found[name] = {"pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1}.get(name, WORDS - 1 - TOKENS.index(name))
        elif name in TOKENS and isinstance(value, list):
            found[name] = WORDS - 3
        elif isinstance(value, list) and name in ("depths", "hidden_sizes", "num_attention_heads", "num_heads", "embed_dims"):
            found[name] = [{"depths": 1}.get(name, 4 if "heads" in name else 32)] * len(value)
        elif isinstance(value, float) and "dropout" in name or name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
            found[name] = 0.0
        elif name == "compress_rates":
            found[name] = {k: 4 for k in value}
        elif name in ("rope_parameters", "rope_scaling") and isinstance(value, dict) and "rope_theta" in value:
            found[name] = {**value, "mrope_section": [2, 1, 1]}
    if "qk_rope_head_dim" in found:
        found["head_dim"] = found["qk_rope_head_dim"]
        found["num_key_value_heads"] = found.get("num_attention_heads")
    elif "head_dim" in config.to_dict() and "num_attention_heads" in found:
        found["head_dim"] = 8
    if hasattr(config, "attention_types"):
        found["attention_types"] = [[["global", "local"], 1]]
    if type(found.get("num_hidden_layers")) is int:
        for name in ("layer_types", "block_types", "layers_block_type", "mlp_layer_types", "attn_layer_indices"):
            if isinstance(getattr(config, name, None), (list, tuple)):
                kinds = list(dict.fromkeys(getattr(config, name)))  # one of each kind
                found["num_hidden_layers"] = max(found["num_hidden_layers"], len(kinds))
        for name in ("layer_types", "layers_block_type", "mlp_layer_types", "no_rope_layers", "block_types"):
            if isinstance(getattr(config, name, None), (list, tuple)):
                kinds = list(dict.fromkeys(getattr(config, name)))
                found[name] = (kinds * found["num_hidden_layers"])[: found["num_hidden_layers"]]
    return found


OTHERWISE = ({}, {"num_key_value_heads": 4}, {"codebook_size": 64}, {"layer_types": None}, {"head_dim": 8})  # where {} is refused


def made(model_type):
    config = configuration_auto.CONFIG_MAPPING[model_type]()
    for changes in OTHERWISE:
        known = {name: x for name, x in changes.items() if name in config.to_dict()}
        try:
            return type(config)(**{k: x for k, x in {**smaller(config), **known}.items() if x is not None})
        except Exception as e:
            if not changes:
                first = e
    raise first


def random_weights(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1 and p.is_floating_point():
                p.copy_(torch.randn(p.shape, generator=generator) * 0.2)
            elif p.is_floating_point() and not p.isfinite().all():
                p.zero_()


def guesses(model, config):
    """Inputs by the names of the model's arguments."""
    names = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 60, (BATCH, LENGTH), generator=generator)
    last = getattr(getattr(config, "text_config", config), "eos_token_id", None)
    if type(last) is int and 0 <= last < WORDS:
        ids[:, 6] = last  # CLIP and its like look there
    vision = getattr(config, "vision_config", config)
    size, channels = getattr(vision, "image_size", 32), getattr(vision, "num_channels", 3)
    size = size if isinstance(size, int) else 32
    channels = channels if isinstance(channels, int) else 3
    bins = next((getattr(c, n) for c in (config, getattr(config, "audio_config", config)) for n in ("num_mel_bins", "feature_size", "num_mel_channels")
                 if isinstance(getattr(c, n, None), int)), 8)
    frames = 2 * getattr(config, "max_source_positions", 24)
    pixels = torch.randn(BATCH, channels, size, size, generator=generator)
    sound = torch.randn(BATCH, 2000, generator=generator)
    possible = {
        "input_ids": ids, "decoder_input_ids": ids[:, :6], "pixel_values": pixels, "input_features": torch.randn(BATCH, bins, frames, generator=generator),
        "input_values": sound, "pixel_values_videos": torch.randn(BATCH, 4, channels, size, size, generator=generator),
    }
    main = getattr(model, "main_input_name", "input_ids")
    given = {}
    if main in possible and main in names:
        given[main] = possible[main]
    elif "input_ids" in names:
        given["input_ids"] = ids
    if names.get("decoder_input_ids") is not None and getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = possible["decoder_input_ids"]
    if "input_ids" in names and getattr(config, "vision_config", None) is not None and "input_ids" not in given:
        given["input_ids"] = ids
    both = dict(given)
    if "pixel_values" in names and "pixel_values" not in given and type(config).__name__.startswith(("Clip", "CLIP", "Siglip", "Align", "Owl", "XCLIP", "Group")):
        both["pixel_values"] = pixels
    return both


def paddings(given, names):
    """(name, inputs, which tokens count)"""
    yield "none", given, None
    if "attention_mask" not in names or "input_ids" not in given:
        return
    length = given["input_ids"].size(1)
    real = torch.arange(length) < torch.tensor([length, length - 4]).unsqueeze(1)
    for side, mask in (("right", real), ("left", real.flip(1))):
        yield side, {**given, "input_ids": given["input_ids"] * mask, "attention_mask": mask.long()}, mask


def tensors(x, path=""):
    if isinstance(x, torch.Tensor):
        if x.is_floating_point():
            yield path, x
    elif isinstance(x, dict):
        for key, value in x.items():
            if "past_key" not in str(key) and "mask" not in str(key) and "router" not in str(key) and "loss" not in str(key):
                yield from tensors(value, f"{path}.{key}")
    elif isinstance(x, (tuple, list)):
        for n, value in enumerate(x):
            yield from tensors(value, f"{path}[{n}]")


def difference(found, wanted, real):
    """(the largest, in units of the largest number or 1; where a tensor is of another shape, or missing)"""
    found, wanted, worst = list(tensors(found)), list(tensors(wanted)), 0.0
    if [path for path, _ in found] != [path for path, _ in wanted]:
        return float("inf"), f"{len(found)} tensors, not {len(wanted)}"
    for (path, a), (_, b) in zip(found, wanted):
        if a.shape != b.shape:
            return float("inf"), path
        if real is not None and a.shape[:2] == real.shape:
            a, b = a[real], b[real]
        if a.numel() == 0:
            continue
        if not b.isfinite().all():
            b, a = b.nan_to_num(0, 0, 0), torch.where(b.isfinite(), a, 0)
        e = ((a.double() - b.double()).abs().max() / b.abs().max().clamp_min(1)).item()
        worst = max(worst, e if e == e else float("inf"))
    return worst, ""


class Calls:
    """What came to attend, and how masks were missing."""

    def __init__(self):
        self.count, self.without = 0, collections.Counter()
        functions = transformers.AttentionInterface._global_mapping
        attention = functions["attend"]

        def counting(module, query, key, value, attention_mask=None, *args, **kwargs):
            self.count += 1
            q, k, mask = query, key, attention_mask
            if mask is None and q.size(2) > 1:
                self.without[f"{type(module).__name__} attribute {getattr(module, 'is_causal', 'missing')} argument {kwargs.get('is_causal', 'missing')} "
                             f"{'q = k' if q.size(2) == k.size(2) else 'q != k'}"] += 1
            return attention(module, query, key, value, attention_mask, *args, **kwargs)

        functions["attend"] = counting


OURS = pathlib.Path(attend.__file__).parent


def is_refusal(error):
    """One in words of attend's: it says so, and is raised in attend's own code. Anything else that only the run with attend raises is a
    mistake of somebody's.
    """
    where = traceback.extract_tb(error.__traceback__)[-1].filename
    return (isinstance(error, (NotImplementedError, ValueError, TypeError)) and pathlib.Path(where).is_relative_to(OURS)
            and str(error).startswith(("attend", "attention")))


def one(model_type, cls, given_arguments):
    """{"state": ...} of one type."""
    calls = Calls()
    result = {"type": model_type, "class": cls.__name__}
    try:
        config = made(model_type)
        torch.manual_seed(0)
        eager = cls._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        random_weights(eager)
    except Exception as e:
        return result | {"state": "no tiny config", "why": f"{type(e).__name__}: {e}"[:200]}
    result["parameters"] = sum(p.numel() for p in eager.parameters())
    given = guesses(eager, config)
    names = inspect.signature(eager.forward).parameters
    wanted = {}
    try:
        with torch.no_grad():
            for side, inputs, real in paddings(given, names):
                torch.manual_seed(3)
                wanted[side] = eager(**inputs)
                torch.manual_seed(3)
                again = eager(**inputs)
                if difference(again, wanted[side], real)[0] > 0:
                    return result | {"state": "draws at random"}
    except Exception as e:
        return result | {"state": "no input", "why": f"{side}: {type(e).__name__}: {e}"[:200]}
    if not any(list(tensors(x)) for x in wanted.values()):
        return result | {"state": "no input", "why": "no tensors in the result"}
    tokens = None
    if given_arguments.generate and cls.can_generate() and "input_ids" in given:
        options = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True)
        real = torch.arange(LENGTH) >= torch.tensor([0, 4]).unsqueeze(1)
        prompt = {"input_ids": given["input_ids"] * real, "attention_mask": real.long()}
        try:
            with torch.no_grad():
                tokens = eager.generate(**prompt, **options)
        except Exception as e:
            result["generate"] = f"eager: {type(e).__name__}: {e}"[:120]
    worst = 0.0
    try:
        ours = cls._from_config(made(model_type), dtype=torch.float32, attn_implementation="attend").eval()
        ours.load_state_dict(eager.state_dict())
        report = attend.hf.check(ours)
        result["comes"], result["stays"] = len(report.comes), len(report.stays)
        model = torch.compile(ours, backend="eager") if given_arguments.compiled else ours
        with torch.no_grad():
            for side, inputs, real in paddings(given, names):
                torch.manual_seed(3)
                e, path = difference(model(**inputs), wanted[side], real)
                result[side], worst = e, max(worst, e)
                if path:
                    result["why"] = f"{side}: {path}"
            if tokens is not None:
                found = ours.generate(**prompt, **options)
                e = difference(list(found.logits), list(tokens.logits), None)[0]
                result["generated"], worst = e, max(worst, e)
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        why = f"{type(e).__name__} ({pathlib.Path(where.filename).name}:{where.lineno}): {e}"[:260]
        result |= {"state": "refused" if is_refusal(e) and worst <= WRONG else "wrong", "why": why, "error": worst}
    else:
        result |= {"state": "agrees" if worst <= WRONG else "wrong", "error": worst}
    if len(calls.without):
        result["without"] = dict(calls.without)
    result["calls"] = calls.count
    return result


def limited(model_type, cls, arguments, path):
    def work():
        torch.set_num_threads(1)
        transformers.utils.logging.set_verbosity_error()
        signal.alarm(arguments.seconds)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2), os.dup2(null, 1)
        try:
            found = one(model_type, cls, arguments)
        except Exception as e:
            found = {"type": model_type, "class": cls.__name__, "state": "no input", "why": f"sweep: {type(e).__name__}: {e}"[:200]}
        pathlib.Path(path).write_text(json.dumps(found))

    return multiprocessing.get_context("fork").Process(target=work)


def classes(only):
    """(model type, class): the base model, and what generates."""
    found = {}
    for mapping in (modeling_auto.MODEL_MAPPING_NAMES, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
                    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES):
        for model_type, name in mapping.items():
            for one_name in (name if isinstance(name, (tuple, list)) else [name])[:1]:
                if not only or model_type in only:
                    found.setdefault((model_type, one_name), None)
    return list(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--traced", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--no-generate", dest="generate", action="store_false")
    parser.add_argument("--results", type=pathlib.Path)
    arguments = parser.parse_args()
    attend.hf.register()
    if arguments.traced:
        attend.hf.masks._is_traced = lambda *given: True
    torch.set_num_threads(1)
    results, running, path = [], [], f"/tmp/model_types.{os.getpid()}"
    waiting = classes(arguments.only)
    if arguments.results is not None and arguments.results.exists():
        results = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    known = {(x["type"], x["class"]) for x in results}
    waiting = [x for x in waiting if x not in known]
    print(f"{len(known)} classes are known, {len(waiting)} to go", flush=True)

    def keep(x):
        results.append(x)
        print(json.dumps(x), flush=True)
        if arguments.results is not None:
            with arguments.results.open("a") as file:
                file.write(json.dumps(x) + "\n")

    def collect(block):
        for entry in list(running):
            process, file, model_type, name, start = entry
            process.join(arguments.seconds + 5 if block else 0)
            if process.is_alive() and not block:
                continue
            if process.is_alive():
                process.kill()
            running.remove(entry)
            try:
                x = json.loads(pathlib.Path(file).read_text())
                os.unlink(file)
            except (OSError, ValueError):
                x = {"type": model_type, "class": name, "state": "no answer in time"}
            x["seconds"] = round(time.time() - start, 1)
            keep(x)

    for n, (model_type, name) in enumerate(waiting):
        try:
            cls = getattr(transformers, name)
        except Exception as e:
            keep({"type": model_type, "class": name, "state": "no tiny config", "why": str(e)[:100]})
            continue
        while len(running) >= arguments.jobs:
            collect(False)
            time.sleep(0.02)
        file = f"{path}.{n}"
        process = limited(model_type, cls, arguments, file)
        process.start()
        running.append((process, file, model_type, name, time.time()))
    while running:
        collect(True)
    counts = collections.Counter(x["state"] for x in results)
    print(dict(counts))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
