#!/usr/bin/env python3
"""attend bench: its table, its numbers, its mistakes. usage: bench_test.py PATH_OF_ATTEND"""
import json
import math
import re
import unittest

import command
from command import CommandTest, attend


def built_with_clock():
    done = attend("bench", "--quick", "--suite", "notes", "--filter", "B2_")
    return "without Google Benchmark" not in done.err


class Table(CommandTest):
    def cases(self, *words):
        found = self.run_json("bench", "--list", *words)
        self.assertEqual(found["schema"], "attend.bench.list/1")
        return found["cases"]

    def test_suites_and_names(self):
        cases = self.cases()
        names = [case["name"] for case in cases]
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual(list(dict.fromkeys(case["suite"] for case in cases)),
                         ["notes", "bert", "gpt", "long", "decode", "backward", "layer", "length",
                          "growth", "inspect", "cache"])
        self.assertEqual(self.run_ok("bench", "--list").split(), names)
        self.assertEqual([case["name"] for case in self.cases("--suite", "bert,decode")],
                         [name for name in names if name.split("/")[0] in ("bert", "decode")])
        self.assertEqual([case["name"] for case in self.cases("--filter", "T20_.*train$")],
                         ["layer/B32_H8_T20_d64_train"])
        quick = [case["name"] for case in self.cases("--quick")]
        self.assertEqual(quick, [case["name"] for case in cases if case["quick"]])
        self.assertTrue(0 < len(quick) < len(names))

    def test_operations_and_bytes(self):
        cases = {case["name"]: case for case in self.cases()}
        forward = 4 * 32 * 8 * 20 * 20 * 64
        self.assertEqual(cases["notes/B32_H8_T20_d64"]["flops"], forward)
        self.assertEqual(cases["backward/B32_H8_T20_d64"]["flops"], 2.5 * forward)
        projections = 8 * 32 * 20 * 512**2
        self.assertEqual(cases["layer/B32_H8_T20_d64"]["flops"], projections + forward)
        self.assertEqual(cases["layer/B32_H8_T20_d64_train"]["flops"],
                         3 * projections + 3.5 * forward)
        rows, top, everything = (cases[f"inspect/B1_H4_T1024_d64_{what}"]["flops"] for what in ("rows", "top8", "all"))
        self.assertEqual((rows, top), (everything / 2, everything / 2))
        self.assertEqual(everything, cases["inspect/B1_H4_T1024_d64"]["flops"])
        full, half = (cases[f"long/B1_H4_T4096_d128{mask}"]["flops"] for mask in ("", "_causal"))
        self.assertEqual((full, half), (4 * 4 * 4096**2 * 128, full / 2))
        self.assertIsNone(cases["notes/B32_H8_T20_d64"]["bytes"])
        grouped = cases["decode/B8_H32_K8_Q1_T2048_d128"]
        self.assertEqual(grouped["bytes"], 2 * 8 * 8 * 2048 * 128 * 4)
        self.assertEqual((grouped["queries"], grouped["key_heads"]), (1, 8))

    def test_types(self):
        for type, size in (("f64", 8), ("f32", 4), ("bf16", 2), ("f16", 2)):
            cases = self.cases("--type", type)
            self.assertEqual({case["type"] for case in cases}, {type})
            suffix = "" if type == "f32" else "_" + type
            self.assertEqual([case["name"] for case in cases], [case["name"] + suffix for case in self.cases()])
            grouped = next(case for case in cases if case["name"].startswith("decode/B8_"))
            self.assertEqual(grouped["bytes"], 2 * 8 * 8 * 2048 * 128 * size)
            self.assertEqual([case["flops"] for case in cases], [case["flops"] for case in self.cases()])


class Measurement(CommandTest):
    def test_peak(self):
        found = self.run_json("bench", "--peak", "--quick", "--threads", 1)
        self.assertEqual(found["cases"], [])
        self.assertEqual(found["peak"]["threads"], 1)
        self.assertGreater(found["peak"]["flops"], 1e8)
        self.assertGreater(found["peak"]["read_bytes"], 1e7)
        self.assertEqual((found["type"], found["peak"]["type"]), ("f32", "f32"))

    def test_peak_of_a_type(self):
        """That of tiles where this machine has them, else that of f32; and it says which."""
        for type in ("bf16", "f16", "f64"):
            found = self.run_json("bench", "--peak", "--quick", "--threads", 1, "--type", type)
            self.assertEqual(found["type"], type)
            self.assertGreater(found["peak"]["flops"], 1e8)
            tiles = found["peak"]["instructions"] == "AMX"
            self.assertEqual(found["peak"]["type"], type if tiles else "f32")
            kernel = {"bf16": "cpu.amx.forward", "f16": "cpu.amx_fp16.forward"}.get(type, "none")
            done = attend("apply", "--model-dim", 64, "--heads", 2, "--length", 64, "--type", type, "--kernel", kernel)
            self.assertEqual(tiles, done.status == 0, done.err)
            text = self.run_ok("bench", "--peak", "--quick", "--threads", 1, "--type", type)
            self.assertIn(f"(AMX in {type})" if tiles else f" in f32, not {type})", text)

    def test_quick_notes(self):
        if not built_with_clock():
            self.skipTest("built without Google Benchmark")
        found = self.run_json("bench", "--quick", "--suite", "notes", "--save", "times.json")
        self.assertEqual(found, json.loads((self.folder / "times.json").read_text()))
        self.assertEqual(found["schema"], "attend.bench/1")
        self.assertEqual(len(found["cases"]), 3)
        for case in found["cases"]:
            self.assertTrue(0 < case["fastest"] <= case["seconds"] <= case["slowest"], case)
            self.assertTrue(math.isclose(case["flops_per_second"], case["flops"] / case["seconds"]))
            self.assertTrue(math.isclose(case["share_of_peak"],
                                         case["flops_per_second"] / found["peak"]["flops"]))
            self.assertTrue(case["kernel"].endswith(".forward"), case["kernel"])
            self.assertIn(case["kernel"], case["plan"])

    def test_each_operation_in_each_type(self):
        if not built_with_clock():
            self.skipTest("built without Google Benchmark")
        for type in ("f64", "bf16", "f16"):
            found = self.run_json("bench", "--quick", "--filter", "(notes|backward|layer)/B2_", "--type", type)
            self.assertEqual([case["name"] for case in found["cases"]],
                             [f"{name}_{type}" for name in ("notes/B2_H8_T10_d64", "backward/B2_H8_T10_d64",
                                                            "layer/B2_H8_T10_d64", "layer/B2_H8_T10_d64_train")])
            for case in found["cases"]:
                self.assertIn(type, case["plan"])
                self.assertTrue(math.isclose(case["share_of_peak"],
                                             case["flops_per_second"] / found["peak"]["flops"]))

    def test_each_operation_has_a_row(self):
        if not built_with_clock():
            self.skipTest("built without Google Benchmark")
        text = self.run_ok("bench", "--quick", "--filter", "(notes|backward|layer)/B2_")
        rows = re.findall(r"^(\w+/\S+) +[\d.]+ [mu]?s .* GFLOP/s .* (\S+)$", text, re.M)
        self.assertEqual([row[0] for row in rows],
                         ["notes/B2_H8_T10_d64", "backward/B2_H8_T10_d64", "layer/B2_H8_T10_d64",
                          "layer/B2_H8_T10_d64_train"])
        self.assertTrue(rows[1][1].endswith(".backward"), rows)

    def test_statistics_are_timed_beside_forward(self):
        if not built_with_clock():
            self.skipTest("built without Google Benchmark")
        found = self.run_json("bench", "--quick", "--suite", "inspect", "--filter", "causal", "--threads", 1)
        self.assertEqual([case["operation"] for case in found["cases"]],
                         ["forward", "inspect_rows", "inspect_top", "inspect_all"])
        self.assertTrue(all(case["kernel"].endswith(".inspect") for case in found["cases"][1:]), found)

    def test_a_forced_kernel_is_the_one_timed(self):
        if not built_with_clock():
            self.skipTest("built without Google Benchmark")
        done = attend("bench", "--quick", "--filter", "notes/B2_", "--json",
                      env={"ATTEND_KERNEL": "forward:reference.forward"})
        self.assertEqual(json.loads(done.out)["cases"][0]["kernel"], "reference.forward")


class Mistakes(CommandTest):
    def test_are_one_line(self):
        self.fails(2, "no suite 'nots'; did you mean notes", "bench", "--suite", "nots")
        self.fails(2, "--type: bf17 not in {f64,f32,bf16,f16}", "bench", "--type", "bf17")
        self.fails(2, "no regular expression: [", "bench", "--filter", "[")
        self.fails(2, "no case has a name with B99", "bench", "--filter", "B99")
        self.fails(2, "cannot be written", "bench", "--quick", "--filter", "notes/B2_",
                   "--save", "no/such/folder.json")


if __name__ == "__main__":
    command.main()
