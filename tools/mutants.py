#!/usr/bin/env python3
"""Breaks the library in named ways, one at a time, and shows which tests notice.

    tools/mutants.py                    every mutant
    tools/mutants.py --only NAME ...    these
    tools/mutants.py --list             their names, and what each of them does
    tools/mutants.py --dry-run          only checks that every text to replace is there, once, and that
                                        the copy of the tree can be configured

Works on a copy of the tree, in --build-dir (build/mutants), where each mutant is an incremental build.
First the copy must pass as it is. Exit: 0 every mutant was caught, 1 one survived, 2 something else is
wrong: a text to replace that is not in the sources exactly once, a mutant that does not compile, tests
that fail without any mutant.
"""
import argparse
import concurrent.futures
import dataclasses
import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("CMakeLists.txt", "cmake", "include", "src", "tests", "tools", "web")

# Test programs to begin with: the quick ones and those that catch most. After the first that fails no
# more are begun. All others follow, but for those that have nothing to do with what is computed.
FIRST = ("worked_examples", "traps_meaning", "traps_hidden", "dtype", "errors", "planner", "run",
         "softmax_state", "properties_algebra", "properties_hidden", "properties_merge",
         "properties_parts",
         "properties_rows", "gradient")
LEFT_OUT = re.compile("parallel|io_|view")
SECONDS = 3600                                # after which one of them hangs

REFERENCE = "src/reference/attention.cpp"
ROW = "src/reference/row.h"
MERGE = "src/reference/merge.cpp"
MASK = "src/core/mask.h"
SEQUENCE = "src/core/sequence.h"
PHILOX = "src/core/philox.h"
SOFTMAX = "src/core/softmax_state.h"


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    does: str                                 # what is wrong then
    changes: tuple                            # (file, exact text, text in its place), ...


def mutant(name, does, *changes):
    return Mutant(name, does, changes)


MUTANTS = (
    # ---- The ten that every attention library should be safe from ----
    mutant("no_scale", "scores are q . k, not scaled",
           (ROW, "s.raw = p.scale * dot(row.q, row.k, p.d);", "s.raw = dot(row.q, row.k, p.d);")),
    mutant("mask_inverted", "0 in the mask means visible",
           (MASK, "call.mask.offset(b, h, i, j)) == 0)", "call.mask.offset(b, h, i, j)) != 0)")),
    mutant("offset_by_one", "without query_offset the last query stands one key too far",
           (SEQUENCE, "s.offset = s.k_length - s.q_length;",
            "s.offset = s.k_length - s.q_length + 1;")),
    mutant("heads_tiled", "query head h uses key head h % key heads",
           (ROW, "key_row(problem, call, t, sequence, h / problem.group(), j)",
            "key_row(problem, call, t, sequence, h % problem.kv_heads, j)")),
    mutant("softcap_after_bias", "the bias is capped too, asked for or not",
           (ROW, "s.capped = p.bias_before_softcap ? s.raw + bias : s.raw;",
            "s.capped = s.raw + bias;"),
           (ROW, "s.masked = p.bias_before_softcap ? s.capped : s.capped + bias;",
            "s.masked = s.capped;")),
    mutant("hidden_row_uniform", "a row that sees no key gives the mean of v, not 0",
           (REFERENCE, "  divide(o, p.dv, total);",
            "  for (std::int64_t j = 0; total.l == 0 && j < row.sequence.k_length; ++j) {\n"
            "    row.load_value(j);\n"
            "    for (std::int64_t x = 0; x < p.dv; ++x)\n"
            "      o[x] += row.v[x] / static_cast<double>(row.sequence.k_length);\n"
            "  }\n"
            "  for (std::int64_t x = 0; total.l != 0 && x < p.dv; ++x) o[x] /= total.l;")),
    mutant("short_mask_padded_with_0", "keys past the end of a short mask are visible",
           (MASK, "  if (problem.mask) keys.end = std::min(keys.end, problem.mask_keys);\n", ""),
           (MASK, "if (problem.mask && load_integer", "if (problem.mask && j < problem.mask_keys && "
            "load_integer")),
    mutant("missing_rescale", "values summed so far keep the old maximum's weight",
           (REFERENCE, "part_o[x] = part_o[x] * rescale + kept * row.v[x];",
            "part_o[x] = part_o[x] + kept * row.v[x];")),
    mutant("dbias_not_reduced", "dbias gets the first of the rows that share it, not their sum",
           (REFERENCE, "return size == 1 ? KeyRange{0, full} : KeyRange{at, at + 1};",
            "return KeyRange{size == 1 && full == 0 ? 1 : at, at + 1};")),
    mutant("dropout_mask_reused", "every head of every batch element drops the same weights",
           (PHILOX, "(b + draws.b) * draws.heads + h + draws.h;",
            "draws.b * draws.heads + draws.h + 0 * (b + h);")),

    # ---- Step 1, scores ----
    mutant("gradient_not_scaled", "dq and dk miss the scale",
           (REFERENCE, "p.bias_before_softcap ? ds : after_cap, p.scale * ds}",
            "p.bias_before_softcap ? ds : after_cap, ds}")),
    mutant("raw_scores_capped", "the raw scores handed out are those after the softcap",
           (REFERENCE, "stage == ScoreStage::raw          ? s.raw",
            "stage == ScoreStage::raw          ? s.capped")),

    # ---- Step 2, mask ----
    mutant("causal_off_by_one", "a query does not see its own position",
           (MASK, "keys.end = std::min(keys.end, position + 1);",
            "keys.end = std::min(keys.end, position);")),
    mutant("window_left_off_by_one", "the window begins one key late",
           (MASK, "keys.begin = position - problem.window_left;",
            "keys.begin = position - problem.window_left + 1;")),
    mutant("window_right_off_by_one", "the window ends one key early",
           (MASK, "keys.end = position + problem.window_right + 1;",
            "keys.end = position + problem.window_right;")),
    mutant("alibi_sign", "far keys are preferred",
           (MASK, "sum -= slope * std::abs", "sum += slope * std::abs")),
    mutant("alibi_without_distance", "keys behind the query get a bonus",
           (MASK, "std::abs(static_cast<double>(i + s.offset - j))",
            "static_cast<double>(i + s.offset - j)")),
    mutant("alibi_without_offset", "distances ignore where the queries stand",
           (MASK, "static_cast<double>(i + s.offset - j)", "static_cast<double>(i - j)")),
    mutant("short_bias_padded_with_0", "keys past the end of a short bias are visible",
           (MASK, "  if (problem.bias) keys.end = std::min(keys.end, problem.bias_keys);\n", ""),
           (MASK, "return problem.bias && load(", "return problem.bias && j < problem.bias_keys && "
            "load(")),
    mutant("hidden_by_bias_is_read", "a key with a bias of -inf still touches the sum",
           (MASK, "call.bias.offset(b, h, i, j)) == kMinusInfinity;",
            "call.bias.offset(b, h, i, j)) > 0 && false;")),
    mutant("key_lengths_ignored", "keys past key_lengths are visible",
           (SEQUENCE, "s.k_length = problem.key_lengths ? entry(call.key_lengths, b) : s.k_stored;",
            "s.k_length = problem.key_lengths && problem.keys == KeyAddressing::paged\n"
            "                   ? entry(call.key_lengths, b) : s.k_stored;")),
    mutant("hidden_blocks_counted", "visited_blocks counts what was skipped",
           (ROW, "    if (block_visible(p, row.call, b, row.h, row.i, j)) {\n      ++entered;",
            "    ++entered;\n    if (block_visible(p, row.call, b, row.h, row.i, j)) {")),
    mutant("softcap_gradient_missing", "the derivative of tanh is taken for 1",
           (REFERENCE, "ds *= 1 - (s.capped / p.softcap) * (s.capped / p.softcap);", "ds *= 1;")),
    mutant("dbias_before_cap", "dbias is that of bias_before_softcap, asked for or not",
           (REFERENCE, "p.bias_before_softcap ? ds : after_cap, p.scale", "ds, p.scale")),
    mutant("dalibi_sign", "dalibi has the other sign",
           (REFERENCE, "dalibi -= gradient.dadded", "dalibi += gradient.dadded")),

    # ---- Step 3, softmax ----
    mutant("sum_not_rescaled", "the sum keeps the old maximum's weight",
           (SOFTMAX, "l = l * step.rescale + step.p;", "l = l + step.p;")),
    mutant("chunks_not_rescaled", "earlier chunks of keys keep their own maximum's weight",
           (REFERENCE, "o[x] = o[x] * mine + part_o[x] * other;", "o[x] = o[x] + part_o[x] * other;")),
    mutant("chunks_misplaced", "chunks end one key early: other bits than the parts of a merge",
           (REFERENCE, "if (j / kChunk != chunk) close_chunk();\n    chunk = j / kChunk;",
            "if ((j + 1) / kChunk != chunk) close_chunk();\n    chunk = (j + 1) / kChunk;")),
    mutant("maximum_not_rounded", "rescales are not powers of two: bits depend on the blocks",
           (SOFTMAX, "return to_far ? -above(to, m) : m - std::ceil(log2_units(to));",
            "return to_far ? -above(to, m) : log2_units(from) - log2_units(to);")),
    mutant("fraction_of_log2", "the digits of a weight come from log2 units, which round",
           (SOFTMAX, "return ((s - m * kLn2High) - m * kLn2Low) * std::numbers::log2e;",
            "return s * std::numbers::log2e - m;")),
    mutant("far_scores_in_log2", "scores far from 0 round before they are subtracted",
           (SOFTMAX, "return std::abs(s) >= kFar;", "return false && std::abs(s) >= kFar;")),
    mutant("lse_in_log2", "lse adds bits to nats",
           (SOFTMAX, "std::ceil(log2_units(top)) * std::numbers::ln2",
            "std::ceil(log2_units(top))")),
    mutant("sink_ignored", "the sink does not join the sum",
           (REFERENCE, "if (sink != kMinusInfinity) total.add(", "if (false) total.add(")),
    mutant("delta_missing", "softmax's gradient lacks the sum over the row",
           (REFERENCE, "(dp - row.delta + row.dlse)", "(dp + row.dlse)")),
    mutant("dlse_ignored", "the gradient at lse is dropped",
           (REFERENCE, "(dp - row.delta + row.dlse)", "(dp - row.delta)")),
    mutant("dlse_ignored_by_the_sink", "the gradient at lse does not reach dsinks",
           (REFERENCE, "(row.dlse - row.delta);", "(0 - row.delta);")),
    mutant("empty_part_counts", "merge takes a part without keys for one with a weight",
           (MERGE, "    if (lse == kMinusInfinity) continue;\n", "")),

    mutant("state_counts_sinks_again", "every part of the keys counts the sink",
           (REFERENCE, "if (!sink_counted) add_sink(row, total);", "add_sink(row, total);")),
    mutant("state_begins_anew", "a partial state forgets the keys before the last part",
           (REFERENCE, "if (state.kind == StateKind::empty) continue;", "continue;")),
    mutant("key_offset_ignored", "a part's first key is at position 0",
           (SEQUENCE, "  s.offset -= call.key_offset;\n", "")),

    # ---- Step 4, values, and dropout ----
    mutant("values_of_the_first_head", "every head of a group gives its gradient only once",
           (REFERENCE, "h < (kv_head + 1) * p.group(); ++h) {\n    for_queries(",
            "h <= kv_head * p.group(); ++h) {\n    for_queries(")),
    mutant("dropout_not_scaled", "the weights that are kept are not made larger",
           (PHILOX, "65536.0 / (65536.0 - problem.drop_below) : 0;", "1 : 0;")),
    mutant("dropout_without_heads", "the heads of a batch element drop the same weights",
           (PHILOX, "draws.heads + h + draws.h;",
            "draws.heads + 0 * h + draws.h;")),
    mutant("dropout_without_offset", "every step of a training drops the same weights",
           (PHILOX, "static_cast<std::uint32_t>(row), draws.offset}",
            "static_cast<std::uint32_t>(row), 0}")),
    mutant("dropout_in_backward_differs", "backward drops other weights than forward did",
           (REFERENCE, "const double keep = dropout_factor(p, row.call, row.sequence.b, row.h, row.i, j);",
            "const double keep = dropout_factor(p, row.call, row.sequence.b, row.h, row.i + 1, j);")),
    mutant("dropout_by_pairs", "two neighbouring keys share a draw",
           (PHILOX, ">> (j % 2 * 16)) & 0xFFFF;", ">> 0) & 0xFFFF;")),

    # ---- Around the kernel ----
    mutant("ties_away", "the 16-bit types round ties away from zero",
           ("src/core/dtype.cpp", "(bits + half - 1 + ((bits >> drop) & 1)) >> drop;",
            "(bits + half) >> drop;")),
    mutant("overlap_unchecked", "outputs may lie on top of inputs",
           ("src/api/checker.cpp", "if (overlap(w->view, other.view))",
            "if (false && overlap(w->view, other.view))")),
    mutant("strands_share_scratch", "two threads work in the same memory",
           ("src/api/run.cpp", "static_cast<std::size_t>(strand) * workspace.per_strand;",
            "static_cast<std::size_t>(0 * strand) * workspace.per_strand;")),
)


class Broken(Exception):
    """Something that makes the whole check worthless."""


# ---- The copy of the tree --------------------------------------------------------------------------

def copy_tree(to):
    """The sources under `to`, touching only what differs, so that builds stay incremental."""
    wanted = set()
    for name in COPIED:
        files = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*"))
        for file in files:
            target = to / file.relative_to(ROOT)
            if not file.is_file() or "__pycache__" in file.parts:
                continue
            wanted.add(target)
            if not target.is_file() or not filecmp.cmp(file, target, shallow=False):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
                shutil.copymode(file, target)
    for file in list(to.rglob("*")):
        if file.is_file() and file not in wanted:
            file.unlink()


def mutate(tree, one, write=True):
    """Applies the mutant's changes; returns {file: original text}."""
    originals, texts = {}, {}
    for name, old, new in one.changes:
        file = tree / name
        text = texts.get(file) or file.read_text()
        if (count := text.count(old)) != 1:
            raise Broken(f"{one.name}: {name} holds {count} times, not once: {old!r}")
        originals.setdefault(file, text)
        texts[file] = text.replace(old, new)
    for file, text in texts.items():
        if write:
            file.write_text(text)
    return originals


# ---- Building and running --------------------------------------------------------------------------

class Build:
    def __init__(self, folder, jobs):
        self.tree, self.folder, self.jobs = folder / "source", folder / "build", jobs
        self.tests = []

    def command(self, *words):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Broken(f"{' '.join(map(str, words[:4]))} ... failed:\n{done.stdout[-4000:]}")
        return done.stdout

    def configure(self, only):
        # Half of the mutants change headers of every kernel. clang compiles those in a third of g++'s
        # time, and without the last optimisations in less.
        compiler = ["-DCMAKE_CXX_COMPILER=clang++"] if shutil.which("clang++") else []
        self.command("cmake", "-S", self.tree, "-B", self.folder, "-G", "Ninja", *compiler,
                     "-DCMAKE_BUILD_TYPE=Release", "-DATTEND_KERNEL_OPTIONS=-O1",
                     "-DATTEND_BUILD_COMMAND=OFF", "-DATTEND_BUILD_EXAMPLES=OFF", "-DATTEND_INSTALL=OFF",
                     "-DATTEND_WERROR=OFF")
        targets = self.command("cmake", "--build", self.folder, "--target", "help")
        known = set(re.findall(r"^(\w+)_test: phony", targets, re.MULTILINE))
        known -= set(filter(LEFT_OUT.match, known))
        if missing := [name for name in (*FIRST, *only) if name not in known]:
            raise Broken(f"there is no test program {', '.join(missing)}")
        self.tests = only or [*FIRST, *sorted(known - set(FIRST))]

    def build(self):
        self.command("cmake", "--build", self.folder, "-j", str(self.jobs), "--target",
                     *(f"{name}_test" for name in self.tests))

    def failures(self, every):
        """[(test program, what failed)]: of the first that fails, or of every one."""
        found, stop, lock = [], threading.Event(), threading.Lock()

        def run(name):
            if stop.is_set():
                return
            if failure := self.failure_of(name):
                with lock:
                    found.append((name, failure))
                if not every:
                    stop.set()

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(run, self.tests))
        return found

    def failure_of(self, name):
        """What failed first in a test program, or None."""
        program = self.folder / "tests" / f"{name}_test"
        environment = {key: value for key, value in os.environ.items() if key != "ATTEND_KERNEL"}
        try:
            done = subprocess.run(
                [program, "--gtest_brief=1", "--gtest_fail_fast"], timeout=SECONDS, env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        except subprocess.TimeoutExpired:
            return f"no end after {SECONDS} s"
        if done.returncode == 0:
            return None
        failed = re.search(r"^\[  FAILED  \] ([^\s,(]+)", done.stdout, re.MULTILINE)
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        return failed[1] if failed else how


def catch(build, one, every):
    """(what caught it, seconds)."""
    begin = time.monotonic()
    originals = mutate(build.tree, one)
    try:
        build.build()
        failures = build.failures(every)
    except Broken as error:
        raise Broken(f"{one.name}: {error}") from None
    finally:
        for file, text in originals.items():
            file.write_text(text)
    return failures, time.monotonic() - begin


def check(build, mutants, every):
    print(f"the tree as it is, with {len(build.tests)} test programs", flush=True)
    build.build()
    if failures := build.failures(every=True):
        raise Broken("the tests fail without any mutant: "
                     + "; ".join(f"{name}: {test}" for name, test in failures))
    rows = []
    for number, one in enumerate(mutants, 1):
        print(f"[{number}/{len(mutants)}] {one.name}: {one.does}", flush=True)
        rows.append((one, *catch(build, one, every)))
        print(f"    {caught_by(rows[-1][1])} ({rows[-1][2]:.0f} s)", flush=True)
    return rows


def caught_by(failures):
    return "; ".join(f"{name}: {test}" for name, test in failures) or "NOTHING caught it"


def table(rows):
    width = max(len(one.name) for one, _, _ in rows)
    lines = [f"{'mutant':{width}}  seconds  caught by"]
    for one, failures, seconds in rows:
        lines.append(f"{one.name:{width}}  {seconds:7.0f}  {caught_by(failures)}")
    survived = sum(not failures for _, failures, _ in rows)
    return "\n".join(lines + [f"{len(rows) - survived} of {len(rows)} mutants caught"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build/mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--tests", nargs="+", metavar="NAME", default=[],
                        help="run these test programs only")
    parser.add_argument("--all-tests", action="store_true",
                        help="go on after the first test program that notices")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    by_name = {one.name: one for one in MUTANTS}
    if unknown := [name for name in arguments.only if name not in by_name]:
        parser.error(f"there is no mutant {', '.join(unknown)}; --list names them")
    mutants = [by_name[name] for name in arguments.only] or list(MUTANTS)
    if arguments.list:
        width = max(map(len, by_name))
        print("\n".join(f"{one.name:{width}}  {one.does}" for one in mutants))
        return 0
    try:
        for one in mutants:
            mutate(ROOT, one, write=False)
        build = Build(arguments.build_dir.resolve(), arguments.jobs)
        copy_tree(build.tree)
        build.configure(arguments.tests)
        if arguments.dry_run:
            return 0
        rows = check(build, mutants, arguments.all_tests)
    except Broken as error:
        print(f"mutants.py: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    return 0 if all(failures for _, failures, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
