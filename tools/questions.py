#!/usr/bin/env python3
"""The measurements behind docs/questions.md and docs/questions.zh-CN.md.

    ./run python tools/questions.py --measure   measures everything (minutes) and writes docs/questions.json
    tools/questions.py                          puts the tables of docs/questions.json into both documents
    tools/questions.py --check                  exits with 1 if that would change them

Measuring needs the package attend, NumPy and the command attend (--attend PATH, else that of build/release).
What depends on the seed is the mean of three. What is timed is the shortest of several runs of one thread, in
seconds of the processor, so that other programs count little.
"""
import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/questions.json"
DOCUMENTS = {"en": ROOT / "docs/questions.md", "zh": ROOT / "docs/questions.zh-CN.md"}
SEEDS = (0, 1, 2)


# ---- measuring -----------------------------------------------------------------------------------------


def shortest(attend, work, runs=7):
    """Processor seconds of the fastest of several runs of work(context), by one thread."""
    context, times = attend.Context(threads=1), []
    for _ in range(runs + 1):   # the first one warms up
        begin = time.process_time()
        work(context)
        times.append(time.process_time() - begin)
    return min(times)


def measure_heads(attend, numpy, command):
    """The induction task with 1 to 16 heads in a width of 64; and the time of one layer of width 512."""
    x = numpy.random.default_rng(0).standard_normal((1, 512, 512)).astype("float32")
    rows = []
    for heads in (1, 2, 4, 8, 16):
        runs = []
        for seed in SEEDS:
            done = subprocess.run([command, "train", "--heads", str(heads), "--model-dim", "64", "--steps", "600",
                                   "--seed", str(seed), "--json"], check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout))
        layer = attend.MultiHeadAttention(model_dim=512, heads=heads)
        rows.append({"heads": heads, "d_k": 64 // heads,
                     "parameters": runs[0]["parameters"],
                     "accuracy": [run["accuracy"] for run in runs],
                     "induction_score": [run["induction_score"] for run in runs],
                     "steps": [run["steps"] for run in runs],
                     "layer_ms": 1e3 * shortest(attend, lambda one: layer.forward(x, context=one))})
    return rows


def measure_cost(attend, numpy):
    """A layer of width 512 with 8 heads: the four projections, and attention between them."""
    rows, rng = [], numpy.random.default_rng(0)
    linear = attend.Linear(512, 512)
    for length in (16, 64, 256, 1024, 4096):
        x = rng.standard_normal((1, length, 512)).astype("float32")
        q = rng.standard_normal((1, 8, length, 64)).astype("float32")
        rows.append({"length": length,
                     "projection_flops": 8 * length * 512**2, "attention_flops": 4 * length**2 * 512,
                     "projection_ms": 1e3 * 4 * shortest(attend, lambda one: linear.forward(x, context=one)),
                     "attention_ms": 1e3 * shortest(attend, lambda one: attend.attention(q, q, q, context=one), 5)})
    return rows


def measure_scale(attend, numpy):
    """Entropy of the weights and norm of the gradient at the scores, with and without 1 / sqrt(d_k):
    64 keys, 256 queries, independent normal numbers."""
    rows, rng = [], numpy.random.default_rng(0)
    for d in (4, 16, 64, 256, 1024):
        q, k, v, dout = (rng.standard_normal((1, 1, n, d)) for n in (256, 64, 64, 256))
        dout /= numpy.linalg.norm(dout, axis=-1, keepdims=True)
        row = {"d_k": d}
        for name, scale in (("without", 1.0), ("with", 1 / math.sqrt(d))):
            bias = numpy.zeros((1, 1, 256, 64))   # its gradient is the one at the scores
            out, lse, p = attend.attention(q, k, v, scale=scale, bias=bias, return_lse=True, return_weights=True)
            found = attend.attention_backward(q, k, v, out, lse, dout, scale=scale, bias=bias)
            row[name] = {"entropy": float(-(p * numpy.log(numpy.maximum(p, 1e-300))).sum(-1).mean()),
                         "largest": float(p.max(-1).mean()),
                         "gradient": float(numpy.linalg.norm(found.dbias, axis=-1).mean())}
        rows.append(row)
    return rows


def through(layers, x, dy):
    """(y, dx) of a stack of layers."""
    saved = []
    for layer in layers:
        x, kept = layer.forward_train(x)
        saved.append(kept)
    for layer, kept in zip(reversed(layers), reversed(saved)):
        dy = layer.backward(dy, kept).dx
    return x, dy


def measure_depth(attend, numpy):
    """A stack of attention layers: the gradient that reaches the input, and how different the tokens still
    are, with nothing around them, with the residual, with residual and norm after or before."""
    rng, rows = numpy.random.default_rng(0), []
    x, dy = (rng.standard_normal((1, 32, 64)) for _ in range(2))
    kinds = {"alone": None, "residual": "none", "post": "post", "pre": "pre"}
    for depth in (1, 4, 16, 64):
        row = {"depth": depth}
        for name, placement in kinds.items():
            layers = []
            for n in range(depth):
                options = {"model_dim": 64, "heads": 4, "type": "f64", "seed": n}
                layers.append(attend.MultiHeadAttention(**options) if placement is None else
                              attend.AttentionBlock(options, placement=placement))
            y, dx = through(layers, x, dy)
            apart = numpy.linalg.norm(y - y.mean(1, keepdims=True)) / numpy.linalg.norm(y)
            row[name] = {"gradient": float(numpy.linalg.norm(dx) / numpy.linalg.norm(dy)),
                         "apart": float(apart)}
        rows.append(row)
    return rows


def induction(numpy, rng, size=32):
    """Sequences of eight different tokens, twice; asked is the second half."""
    tokens = numpy.array([rng.permutation(24)[:8] for _ in range(size)])
    tokens = numpy.concatenate([tokens, tokens], 1).astype("int64")
    targets = numpy.full_like(tokens, -100)
    targets[:, 8:15] = tokens[:, 9:]
    return tokens, targets


def measure_depth_loss(attend, numpy):
    """The loss of the induction task after 150 steps, by depth and by what stands around the layers."""
    rows = []
    for layers in (2, 4, 8):
        row = {"layers": layers}
        for placement in ("none", "post", "pre"):
            losses = []
            for seed in SEEDS:
                model = attend.LanguageModel(vocabulary=24, length=16, layers=layers, placement=placement, seed=seed)
                optimizer, rate = attend.AdamW(), attend.LearningRate(peak=4e-3, warmup=20)
                rng = numpy.random.default_rng(seed)
                for step in range(150):
                    tokens, targets = induction(numpy, rng)
                    logits, saved = model.forward_train(tokens)
                    loss = attend.cross_entropy(logits, targets)
                    gradients = model.backward(loss.gradient, saved)
                    attend.clip_gradients(gradients, 1.0)
                    optimizer.step(model.parameters(), gradients, rate.at(step))
                losses.append(float(loss.value))
            row[placement] = losses
        rows.append(row)
    return rows


def measure_parallel(attend, numpy):
    """256 tokens of a causal layer at once, and one after the other, as a generation must; and into how
    many tasks a call falls that no other one waits for."""
    x = numpy.random.default_rng(0).standard_normal((1, 256, 512)).astype("float32")
    layer = attend.MultiHeadAttention(model_dim=512, heads=8)

    def one_by_one(one):
        cache = layer.make_cache(1, 256)
        for n in range(256):
            layer.forward(x[:, n:n + 1], cache=cache, causal=True, context=one)

    shapes = {"one_head": (1, 1, 1024, 1024), "eight_heads": (1, 8, 512, 512), "batch": (8, 8, 128, 128),
              "decode": (1, 8, 1, 16384)}
    cores = []
    for name, (batch, heads, queries, keys) in shapes.items():
        rng = numpy.random.default_rng(0)
        q = rng.standard_normal((batch, heads, queries, 64)).astype("float32")
        k = rng.standard_normal((batch, heads, keys, 64)).astype("float32")
        plan = attend.Plan.attention(q, k, k).describe()
        tasks, then = re.search(r"^tasks +(\d+) then (\d+)", plan, re.M).groups()
        cores.append({"case": name, "shape": [batch, heads, queries, keys], "tasks": int(tasks), "then": int(then)})
    return {"at_once_ms": 1e3 * shortest(attend, lambda one: layer.forward(x, causal=True, context=one)),
            "one_by_one_ms": 1e3 * shortest(attend, one_by_one, 3), "cores": cores}


def processor():
    found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else os.uname().machine


def measure(command):
    import attend
    import numpy
    results = {"processor": processor()}
    for name, work in (("heads", lambda: measure_heads(attend, numpy, command)),
                       ("cost", lambda: measure_cost(attend, numpy)), ("scale", lambda: measure_scale(attend, numpy)),
                       ("depth", lambda: measure_depth(attend, numpy)),
                       ("depth_loss", lambda: measure_depth_loss(attend, numpy)),
                       ("parallel", lambda: measure_parallel(attend, numpy))):
        print("measuring", name, file=sys.stderr, flush=True)
        results[name] = work()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


# ---- writing -------------------------------------------------------------------------------------------


def mean(values):
    return sum(values) / len(values)


def digits(value):
    """Three digits that count."""
    return f"{value:.0f}" if 100 <= value < 1e5 else f"{value:.3g}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def percent(part, whole):
    return f"{100 * part / whole:.0f} %" if part / whole >= 0.01 else f"{100 * part / whole:.1f} %"


def tables(results, language):
    """The tables by name."""
    def words(english, chinese):
        return (english if language == "en" else chinese).split("|")
    made = {"machine": results["processor"] + words(", one thread", "，单线程")[0]}
    made["heads"] = table(
        words("heads|d_k|parameters|accuracy|induction score|steps|layer of 512, 512 tokens",
              "头数|d_k|参数|准确率|归纳得分|步数|宽 512 的层，512 个词元"),
        [(row["heads"], row["d_k"], f"{row['parameters']:,}", f"{mean(row['accuracy']):.3f}",
          f"{mean(row['induction_score']):.2f}", digits(mean(row["steps"])), digits(row["layer_ms"]) + " ms")
         for row in results["heads"]])
    made["cost"] = table(
        words("tokens|projections|attention|share of attention, counted|share, measured",
              "词元数|投影|注意力|注意力占比（按运算量）|占比（实测）"),
        [(row["length"], digits(row["projection_ms"]) + " ms", digits(row["attention_ms"]) + " ms",
          percent(row["attention_flops"], row["attention_flops"] + row["projection_flops"]),
          percent(row["attention_ms"], row["attention_ms"] + row["projection_ms"])) for row in results["cost"]])
    made["scale"] = table(
        words("d_k|entropy without|with|largest weight without|with|gradient without|with",
              "d_k|熵：不缩放|缩放|最大权重：不缩放|缩放|梯度：不缩放|缩放"),
        [(row["d_k"], *(f"{row[kind][what]:.3f}" for what in ("entropy", "largest", "gradient")
                        for kind in ("without", "with"))) for row in results["scale"]])
    kinds = ("alone", "residual", "post", "pre")
    made["gradient"] = table(
        words("layers|attention alone|with residual|residual, then norm|norm, then residual",
              "层数|只有注意力|加残差|残差后归一化|归一化后残差"),
        [(row["depth"], *(digits(row[kind]["gradient"]) for kind in kinds)) for row in results["depth"]])
    made["apart"] = table(
        words("layers|attention alone|with residual|residual, then norm|norm, then residual",
              "层数|只有注意力|加残差|残差后归一化|归一化后残差"),
        [(row["depth"], *(digits(row[kind]["apart"]) for kind in kinds)) for row in results["depth"]])
    made["loss"] = table(
        words("layers|residual alone|residual, then norm|norm, then residual",
              "层数|只有残差|残差后归一化|归一化后残差"),
        [(row["layers"], *(f"{mean(row[kind]):.3f}" for kind in ("none", "post", "pre")))
         for row in results["depth_loss"]])
    parallel = results["parallel"]
    made["tokens"] = table(
        words("256 tokens|all at once|one by one, with a cache", "256 个词元|一次算完|逐个生成（带缓存）"),
        [("", digits(parallel["at_once_ms"]) + " ms", digits(parallel["one_by_one_ms"]) + " ms")])
    names = {"one_head": words("one head", "单头"),
             "eight_heads": words("8 heads", "8 个头"),
             "batch": words("8 sequences of 8 heads", "8 个序列，各 8 个头"),
             "decode": words("one query of 8 heads (decode)", "8 个头的一个查询（解码）")}
    made["cores"] = table(
        words("call|queries|keys|tasks at once|then, to join parts of the keys",
              "调用|查询数|键数|可同时进行的任务|随后合并各段键的任务"),
        [(names[row["case"]][0], row["shape"][2], row["shape"][3], row["tasks"], row["then"] or "-")
         for row in parallel["cores"]])
    return made


def filled(text, made):
    def replaced(match):
        return f"<!-- table {match[1]} -->\n{made[match[1]]}\n<!-- /table -->"
    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- /table -->", replaced, text, flags=re.S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--attend", default=str(ROOT / "build/release/cli/attend"))
    args = parser.parse_args()
    if args.measure:
        measure(args.attend)
    results, status = json.loads(RESULTS.read_text()), 0
    for language, path in DOCUMENTS.items():
        text, made = path.read_text(), tables(results, language)
        for name in made:
            if f"<!-- table {name} -->" not in text:
                print(f"{path.relative_to(ROOT)}: has no place for the table {name}")
                status = 1
        new = filled(text, made)
        if args.check and new != text:
            print(f"{path.relative_to(ROOT)}: differs from docs/questions.json; tools/questions.py renews it")
            status = 1
        elif new != text:
            path.write_text(new)
    return status


if __name__ == "__main__":
    sys.exit(main())
