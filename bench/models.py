#!/usr/bin/env python3
"""Whole models, and their attention alone, on attend beside Transformers' eager and sdpa.

    bench/models.py [--cases NAME ...] [--types f32 bf16] [--rounds 21] [--threads N] [--cpu] [--jobs N] [--json FILE] [--write]
    bench/models.py --join FILE.json ... [--write]

One process and one copy of the weights: in each round every implementation has its turn, and another is the first. A token of
a decode is a round, so that it has at least as many as it has tokens. Attention alone is the time inside of the attention functions
during that same run: with what they do about strides, masks and types, without the making of the mask. A ratio is that of one
round, sdpa / attend, so that a machine that becomes slower is slower for both; shown are the median of the rounds and its 95 %
interval. With --cpu times are those of the processor, of all threads together: for --threads 1 on a machine that others use
too. The weights are those of the tests (python/tests/hf/real.py), downloaded once. All of it takes about ten minutes. At the end
come the lines of docs/models.md, which --write puts there, where all cases were measured; --join has them from files of
runs of some cases each. With --jobs every case and type is a process of its own, so many at a time, the longest first: for a machine of more
cores than threads are measured; --json then has what is there, should the run be cut off. Exit: 1 if a median is below its bar.
"""
import argparse
import concurrent.futures
import json
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers
from pairs import middle

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python" / "tests" / "hf"))
import real  # noqa: E402

import attend.hf  # noqa: E402

NAMES = ("eager", "sdpa", "attend")
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
CPU_TIME = "--cpu" in sys.argv
WHOLE, ALONE, CAPTURED = 0.98, 1.0, 1.05  # the bars: whole model, attention alone, a captured head


def now():
    return time.process_time() if CPU_TIME else time.perf_counter()


class Clock:
    """The time inside of the attention functions."""

    def __init__(self, model):
        self.seconds = 0.0
        functions = transformers.AttentionInterface._global_mapping
        eager = sys.modules[type(model).__module__].eager_attention_forward
        for name in NAMES:  # eager is each model's own, and is found here first
            found = functions.get(name)
            functions[name] = self.timed(eager if name == "eager" else getattr(found, "timed", found))

    def timed(self, function):
        def call(*arguments, **keywords):
            start = now()
            result = function(*arguments, **keywords)
            self.seconds += now() - start
            return result

        call.timed = function
        return call


def texts(tokenizer, batch, length, mixed=False):
    """Token numbers of no meaning; attention takes as long for any."""
    ids = torch.randint(5, tokenizer.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))
    real_ones = torch.ones_like(ids)
    if mixed:
        real_ones = (torch.arange(length) < torch.linspace(length // 8, length, batch).long().unsqueeze(1)).long()
    return {"input_ids": ids, "attention_mask": real_ones}


# A case of a model is a generator: up to the first yield nothing is counted, and what lies between two others is its turn of a round.

def encoding(batch, length, mixed=False, **more):
    def case(model, tokenizer):
        given = texts(tokenizer, batch, length, mixed)

        def steps():
            yield
            model(**given, **more)
            yield

        return steps

    return case


def prefill(length):
    return encoding(1, length, logits_to_keep=1)


def decode(prompt, count):
    """As generate() does it, a token at a time, after a prompt that is not counted."""
    def case(model, tokenizer):
        given = texts(tokenizer, 1, prompt + count)["input_ids"]

        def steps():
            cache = transformers.DynamicCache(config=model.config)
            model(input_ids=given[:, :prompt], past_key_values=cache, logits_to_keep=1)
            yield
            for n in range(prompt, prompt + count):
                model(input_ids=given[:, n : n + 1], past_key_values=cache)
                yield

        return steps

    return case


CASES = {
    "minilm 1 x 32": (real.minilm, encoding(1, 32)), "minilm 1 x 128": (real.minilm, encoding(1, 128)),
    "minilm 32 x 128": (real.minilm, encoding(32, 128)), "minilm 32 x 16 to 128": (real.minilm, encoding(32, 128, mixed=True)),
    "smollm2 prefill 512": (real.smollm2, prefill(512)), "smollm2 prefill 1024": (real.smollm2, prefill(1024)),
    "smollm2 decode 64": (real.smollm2, decode(128, 64)),
}
HEAD = "captured head"  # a case as well, of its own kind


def one_pass(model, clock, names, run, most=None):
    """[{name: (seconds of the whole, of attention)}] of its rounds, of the first `most`."""
    steps, rounds = {}, []
    for name in names:
        model.set_attn_implementation(name)
        steps[name] = run()
        next(steps[name])
    while most is None or len(rounds) < most:
        turns = {}
        for name in names:
            model.set_attn_implementation(name)
            clock.seconds, start = 0.0, now()
            if next(steps[name], "ended"):
                return rounds
            turns[name] = now() - start, clock.seconds
        rounds.append(turns)
        names = names[1:] + names[:1]  # another is the first
    return rounds


def measured(model, tokenizer, case, rounds):
    """[{name: (whole, attention)}] of each round."""
    clock = Clock(model)
    run = case(model, tokenizer)
    one_pass(model, clock, NAMES, run, 1)  # the first time takes longer
    found = []
    while len(found) < rounds:
        n = len(found)
        found += one_pass(model, clock, NAMES[n % 3 :] + NAMES[: n % 3], run)
    return found


def captured(model, tokenizer, rounds, length=512):
    """Seconds of a prefill without a capture, and with one head's weights: [(plain, captured)]."""
    given = texts(tokenizer, 1, length)
    model.set_attn_implementation("attend")
    layer = attend.hf.check(model).comes[len(model.model.layers) // 2]

    def plain():
        start = now()
        model(**given, logits_to_keep=1)
        return now() - start

    def one_head():
        with attend.hf.capture(model, layers=layer, heads=4):
            return plain()

    plain(), one_head()
    return [(plain(), one_head()) if n % 2 else (one_head(), plain())[::-1] for n in range(rounds)]


def line(name, type_name, found):
    """A case as numbers."""
    whole, alone = ([[turns[name][place] for turns in found] for name in NAMES] for place in (0, 1))
    result = {"case": name, "type": type_name, "rounds": len(found)}
    for what, (eager, sdpa, ours) in (("whole", whole), ("attention", alone)):
        result[what] = {
            "eager_ms": 1e3 * statistics.median(eager), "sdpa_ms": 1e3 * statistics.median(sdpa),
            "attend_ms": 1e3 * statistics.median(ours), "of_sdpa": middle([a / b for a, b in zip(sdpa, ours)]),
            "of_eager": middle([a / b for a, b in zip(eager, ours)]),
        }
    result["share"] = statistics.median(a / w for a, w in zip(alone[2], whole[2]))
    return result


def shown(x):
    if "captured" in x:
        return (f"{x['case']:<22} {x['type']:<4}  {x['ms']:.1f} ms, with one head of one layer captured "
                "{:.3f}x ({:.3f} to {:.3f})".format(*x["captured"]))
    words = f"{x['case']:<22} {x['type']:<4}"
    for what in ("whole", "attention"):
        of = x[what]
        low, high = of["of_sdpa"][1:]
        words += (f"  {what} {of['eager_ms']:8.2f} {of['sdpa_ms']:8.2f} {of['attend_ms']:8.2f} ms  {of['of_sdpa'][0]:.2f}x of sdpa "
                  f"({low:.2f} to {high:.2f}), {of['of_eager'][0]:.2f}x of eager")
    return words + f"  attention is {100 * x['share']:.0f} % of the model"


TITLES = {
    "minilm 1 x 32": "MiniLM, 1 x 32 tokens", "minilm 1 x 128": "MiniLM, 1 x 128 tokens", "minilm 32 x 128": "MiniLM, 32 x 128 tokens",
    "minilm 32 x 16 to 128": "MiniLM, 32 texts of 16 to 128 tokens", "smollm2 prefill 512": "SmolLM2, prefill of 512 tokens",
    "smollm2 prefill 1024": "SmolLM2, prefill of 1024 tokens", "smollm2 decode 64": "SmolLM2, decode of 64 tokens",
}


def as_table(results):
    """A case in each of its types, then the next."""
    rows = ["| | whole model: sdpa / attend | eager / attend | attention alone: sdpa / attend | eager / attend | attention's share |",
            "|---|---|---|---|---|---|"]
    for x in sorted((x for x in results if "captured" not in x), key=lambda x: ([*TITLES].index(x["case"]), [*TYPES].index(x["type"]))):
        ratios = [f"{x[what][of][0]:.2f}" for what in ("whole", "attention") for of in ("of_sdpa", "of_eager")]
        rows.append(" | ".join([f"| {TITLES[x['case']]}, {long_name(x['type'])}", *ratios, f"{100 * x['share']:.0f} % |"]))
    return "\n".join(rows)


def circumstances(threads, rounds):
    """What a table says of the run that it is from."""
    processor = pathlib.Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*: (.*)$", processor, re.M)
    return (f"Medians of {rounds} rounds of {'processor time' if CPU_TIME else 'time'} and more, {threads} thread{'s' * (threads != 1)}, "
            f"{found[1] if found else platform.machine()}{' with AMX' * ('amx_tile' in processor)}, PyTorch "
            f"{torch.__version__.partition('+')[0]}, Transformers {transformers.__version__}")


def as_lines(results, words):
    """What docs/models.md says of them."""
    heads = {x["type"]: f"{max(0.0, 100 * (x['captured'][0] - 1)):.0f} % in {long_name(x['type'])}" for x in results if "captured" in x}
    text = f"{words}:\n\n{as_table(results)}\n"
    if heads:
        text += (f"\nThe weights of one captured head of one layer take {', '.join(heads.values())} more time at 512 tokens, under "
                 "`torch.no_grad()`; where gradients are recorded they are a pass of their own over that head.\n")
    return text


def joined(files):
    """(results, circumstances) of runs that differ in nothing but their cases."""
    try:
        runs = [json.loads(file.read_text("utf-8")) for file in files]
    except (OSError, ValueError) as wrong:
        raise SystemExit(f"not all files can be read: {wrong}") from None
    if len(different := {run["circumstances"] for run in runs}) > 1:
        raise SystemExit("these runs are of different circumstances:\n" + "\n".join(sorted(different)))
    results = [x for run in runs for x in run["results"]]
    names = [(x["case"], x["type"]) for x in results]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SystemExit(f"more than one run has {twice}")
    return results, different.pop()


def all_of(results):
    return {(x["case"], x["type"]) for x in results} == {(case, kind) for case in (*CASES, HEAD) for kind in TYPES}


PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "models.md"
PLACE = re.compile(r"(?<=<!-- table speed -->\n).*?(?=<!-- /table -->)", re.S)


def write(lines, page=PAGE):
    text, places = PLACE.subn(lambda _: lines, page.read_text("utf-8"))
    if places != 1:
        raise SystemExit(f"{page} has {places} places for the table")
    page.write_text(text, "utf-8")


def long_name(type_name):
    return str(TYPES[type_name]).removeprefix("torch.")


def report(results, words, to_page):
    lines = as_lines(results, words)
    print(f"\n{lines}")
    if to_page:
        write(lines)
    below = [f"{x['case']} {x['type']}: {what}" for x in results for what in missed(x)]
    print("\n".join(["below the bar:", *below]) if below else "no median is below its bar")
    return 1 if below else 0


def missed(x):
    """The bars that the median of a case misses."""
    if "captured" in x:
        return ["a captured head"] * (x["captured"][0] > CAPTURED)
    return [what for what, bar in (("whole", WHOLE), ("attention", ALONE)) if x[what]["of_sdpa"][0] < bar]


def in_turn(chosen, given):
    """The results of (case, type), one after the other in this process."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(given.threads)
    attend.hf.register()
    models = {}
    for name, type_name in chosen:
        source, case = CASES.get(name, (real.smollm2, None))
        if source not in models:
            models[source] = source()
        model, tokenizer = models[source][0].to(TYPES[type_name]), models[source][1]
        with torch.no_grad():
            if case is None:
                rows = captured(model, tokenizer, given.rounds)
                yield {"case": name, "type": type_name, "ms": 1e3 * statistics.median(a for a, _ in rows),
                       "captured": middle([b / a for a, b in rows])}
            else:
                yield line(name, type_name, measured(model, tokenizer, case, given.rounds))


# The last of a long run should not be one that takes long.
LONGEST_FIRST = ("smollm2 prefill 1024", HEAD, "smollm2 decode 64", "smollm2 prefill 512")


def in_processes(chosen, given):
    """The same, each from a process of its own, given.jobs at a time. What the weights are unpacked to is there before."""
    for source in {CASES.get(name, (real.smollm2, None))[0] for name, _ in chosen}:
        source()

    def one(case):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "result.json")
            command = [sys.executable, __file__, "--cases", case[0], "--types", case[1], "--rounds", str(given.rounds), "--threads",
                       str(given.threads), "--json", str(file), *["--cpu"] * CPU_TIME]
            done = subprocess.run(command, capture_output=True, text=True)
            if not file.exists():
                raise SystemExit(f"{' '.join(case)} ended with {done.returncode}:\n{done.stderr}")
            return joined([file])[0][0]

    chosen = sorted(chosen, key=lambda case: LONGEST_FIRST.index(case[0]) if case[0] in LONGEST_FIRST else len(LONGEST_FIRST))
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(one, case) for case in chosen]):
            yield future.result()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[*CASES, HEAD], help="parts of their names")
    parser.add_argument("--types", nargs="+", default=[*TYPES], choices=TYPES)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--write", action="store_true", help="the table into docs/models.md")
    parser.add_argument("--join", nargs="+", type=pathlib.Path, metavar="FILE", help="what --json wrote, instead of measuring")
    given = parser.parse_args()
    if given.join:
        results, words = joined(given.join)
        if given.write and not all_of(results):
            parser.error("--write takes all cases and types")
        return report(results, words, given.write)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, attend {attend.__version__}, {given.threads} threads, "
          f"{given.rounds} rounds; milliseconds are of eager, sdpa, attend")
    chosen = [(name, kind) for kind in given.types for name in (*CASES, HEAD) if any(part in name for part in given.cases)]
    if given.write and not all_of({"case": name, "type": kind} for name, kind in chosen):
        parser.error("--write takes all cases and types")
    words, results, start = circumstances(given.threads, given.rounds), [], time.monotonic()
    for x in (in_processes if given.jobs > 1 else in_turn)(chosen, given):
        print(shown(x), flush=True)
        results.append(x)
        if given.json:  # after each, should the run be cut off
            given.json.write_text(json.dumps({"circumstances": words, "results": results}, indent=1) + "\n")
    print(f"{(time.monotonic() - start) / 60:.1f} minutes")
    return report(results, words, given.write)


if __name__ == "__main__":
    sys.exit(main())
