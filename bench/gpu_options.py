"""Times the options of scores and weights on a GPU, for bench/gpu.py: each beside the kernel without options, the portable
kernel, and PyTorch's efficient attention, cuDNN and flash where they can compute it. Each result is compared with the
portable kernel's, over one batch, before it counts."""
import math
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attend
from gpu_times import turns

TOKENS, WIDTH, LENGTH = 16384, 2048, 4096  # in all; heads * d; of a sequence
SHAPES = ((64, False), (128, False), (128, True), (256, False))  # d, causal
BLOCK, SHOWN = 128, 0.5  # rows and columns of a block; how many are visible
DECODE = (128, 16, 32, 8, 8192)  # d, batch, heads, key heads, keys
ALLOWED = 1e-2
PORTABLE = "cuda.portable.forward"
MASKS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
OTHERS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def options_of(heads, queries, keys, causal):
    """{name: (what attend is given, what PyTorch is given or None)}"""
    seen = torch.rand(1, 1, queries, keys, device="cuda") < 0.9
    seen[..., 0] = True
    bias = torch.randn(1, heads, queries, keys, device="cuda", dtype=torch.bfloat16)
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device="cuda") / heads)
    distance = torch.arange(keys, device="cuda") - torch.arange(keys - queries, keys, device="cuda")[:, None]
    alibi = (-slopes[:, None, None] * distance.abs())[None].to(torch.bfloat16)
    if causal:
        alibi.masked_fill_(distance > 0, -math.inf)
    found = {
        "softcap": ({"softcap": 30.0}, None),
        "sinks": ({"sinks": torch.randn(heads, device="cuda")}, None),
        "ALiBi": ({"alibi": slopes}, {"attn_mask": alibi}),
    }
    if queries == 1:
        return found
    found["dropout"] = {"dropout": (0.1, 7, 0)}, {"dropout_p": 0.1, "is_causal": causal}
    if causal:
        return found
    visible = torch.rand(1, 1, queries // BLOCK, keys // BLOCK, device="cuda") < SHOWN
    visible[..., 0] = True
    each = visible.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)
    return {"mask": ({"mask": seen}, {"attn_mask": seen}), "bias": ({"bias": bias}, {"attn_mask": bias}),
            "blocks": ({"blocks": (visible, BLOCK, BLOCK)}, {"attn_mask": each}), **found}


def peers(q, k, v, asked, grouped):
    for name, backend in (MASKS if "attn_mask" in asked else OTHERS).items():
        def call(backend=backend):
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, enable_gqa=grouped, **asked)
        try:
            call()
        except RuntimeError as e:
            print(f"  {name} declines {', '.join(asked)}: {str(e).splitlines()[0][:80]}")
            continue
        yield name, call


def measured(case, rounds):
    """The case with "seconds" and "errors"."""
    grouped, causal = case["heads"] != case["kv_heads"], case["causal"]

    def draw(heads, length):
        return torch.randn(case["batch"], heads, length, case["d"], device="cuda", dtype=torch.bfloat16)

    q, k, v = draw(case["heads"], case["queries"]), draw(case["kv_heads"], case["length"]), draw(case["kv_heads"], case["length"])
    few = [x[:1] for x in (q, k, v)]
    launches, portable, errors = {"nothing attend": lambda: attend.attention(q, k, v, causal=causal)}, {}, {}
    for name, (given, asked) in options_of(case["heads"], case["queries"], case["length"], causal).items():
        ours = lambda given=given: attend.attention(q, k, v, causal=causal, **given)
        plan = attend.Plan.attention(*few, causal=causal, kernel=PORTABLE, **given)
        theirs = lambda plan=plan, given=given: plan.run(*few, causal=causal, **given)
        wanted, chosen = theirs().double(), attend.Plan.attention(q, k, v, causal=causal, **given).kernel
        assert chosen == "cuda.sm90.forward", chosen
        errors[name] = ((ours()[:1].double() - wanted).norm() / wanted.norm()).item()
        launches[f"{name} attend"], portable[name] = ours, theirs
        for peer, call in peers(q, k, v, asked, grouped) if asked else ():
            launches[f"{name} {peer}"] = call
    found = {name: statistics.median(times) for name, times in turns(launches, rounds).items()}
    slow = {f"{name} portable": statistics.median(times) * case["batch"] for name, times in turns(portable, 1).items()}
    return case | {"seconds": found | slow, "error": errors, "wrong": [name for name, e in errors.items() if not e < ALLOWED]}


def cases():
    for d, causal in SHAPES:
        batch, heads = TOKENS // LENGTH, WIDTH // d
        yield {"d": d, "batch": batch, "heads": heads, "kv_heads": heads, "queries": LENGTH, "length": LENGTH, "causal": causal,
               "work": 4 * batch * heads * LENGTH**2 * d // (2 if causal else 1)}
    d, batch, heads, kv_heads, length = DECODE
    yield {"d": d, "batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": 1, "length": length, "causal": False,
           "work": 4 * batch * kv_heads * length * d}


def line(case):
    return (f"options d {case['d']} B{case['batch']} H{case['heads']}/{case['kv_heads']} Q {case['queries']} T {case['length']}"
            f"{' causal' * case['causal']}: " + ", ".join(f"{name} {case['work'] / t / 1e12:.4g}" for name, t in
            case["seconds"].items()) + " T/s; errors " + ", ".join(f"{name} {e:.1e}" for name, e in case["error"].items())
            + f"{' WRONG: ' + ' '.join(case['wrong']) if case['wrong'] else ''}")
