#!/usr/bin/env python3
"""attend apply against the formulas in f64, every flag of it. usage: apply_test.py PATH_OF_ATTEND"""
import json
import math
import os
import re
import struct
import subprocess

import command
from command import (CommandTest, Tensor, attend, attention, concat, linear, load_safetensors,
                     multi_head, numbers, save_safetensors)


def tearDownModule():
    """Every flag that help lists was used by a test."""
    text = attend("apply", "--help").out
    flags = set(re.findall(r"^\s+(?:-\w,)?(--[a-z-]+)", text, re.M))
    assert len(flags) > 60, flags
    missing = sorted(flags - command.USED - {"--help"})
    if missing:
        raise AssertionError(f"no test gives {' '.join(missing)}")


class Bare(CommandTest):
    def setUp(self):
        super().setUp()
        self.q, self.k = numbers((2, 4, 3, 6), 1), numbers((2, 2, 5, 6), 2)
        self.v = numbers((2, 2, 5, 7), 3)
        self.inputs = ["apply"]
        for name in "qkv":
            self.inputs += [f"--{name}", self.save(f"{name}.npy", getattr(self, name))]

    def agrees(self, *flags, **options):
        self.run_ok(*self.inputs, *flags, "--output", "y.npy", "--save-weights", "w.npy",
                    "--save-lse", "lse.npy")
        out, weights, lse, _ = attention(self.q, self.k, self.v, **options)
        self.close(self.load("y.npy"), out)
        self.close(self.load("w.npy"), weights)
        self.close(self.load("lse.npy"), lse)

    def test_plain(self):
        self.agrees()

    def test_weights_of_chosen_heads(self):
        """Heads 3 and 1 of 4, in that order: the bytes of each sequence's heads."""
        self.run_ok(*self.inputs, "--save-weights", "all.npy")
        self.run_ok(*self.inputs, "--save-weights", "w.npy", "--weight-heads", "3,1")
        all_heads, chosen, size = self.load("all.npy").data, self.load("w.npy"), 3 * 5
        self.assertEqual(chosen.shape, (2, 2, 3, 5))
        wanted = [x for b in range(2) for h in (3, 1) for x in all_heads[(b * 4 + h) * size:(b * 4 + h + 1) * size]]
        self.assertEqual(list(chosen.data), wanted)

    def test_causal(self):
        self.agrees("--causal", causal=True)

    def test_window_and_offset(self):
        self.agrees("--window-left", 1, "--window-right", 2, "--query-offset", 1,
                    left=1, right=2, offset=1)
        self.agrees("--causal", "--query-offset", "2,-1", causal=True, offset=[2, -1])
        self.agrees("--causal", "--query-offset", 257, "--key-offset", 256, causal=True, offset=1)

    def test_scale_and_softcap(self):
        self.agrees("--scale", 0.3, "--softcap", 1.5, scale=0.3, softcap=1.5)

    def test_mask(self):
        mask = Tensor((2, 1, 1, 5), [1, 0, 1, 1, 0, 0, 0, 0, 0, 0], "b1")   # the second hides all
        self.agrees("--mask", self.save("m.npy", mask), mask=mask)

    def test_bias_alibi_and_softcap(self):
        bias = numbers((4, 3, 5), 9)
        self.save("b.npy", bias)
        slopes = [0.5, 0.25, 0.125, 0]
        for flag in ((), ("--bias-before-softcap",)):
            self.agrees("--bias", "b.npy", "--alibi", "0.5,0.25,0.125,0", "--softcap", 2, *flag,
                        bias=bias, alibi=slopes, softcap=2, bias_before_softcap=bool(flag))

    def test_sinks(self):
        sinks = Tensor((4,), [0.5, -1, 2, 0])
        self.agrees("--sinks", self.save("s.npy", sinks), sinks=sinks.data)

    def test_blocks(self):
        blocks = Tensor((1, 4, 2, 2), [1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0], "u1")
        self.agrees("--blocks", self.save("b.npy", blocks), "--blocks-query-size", 2,
                    "--blocks-key-size", 3, blocks=blocks, block_sizes=(2, 3))

    def test_key_lengths(self):
        self.agrees("--key-lengths", "5,2", "--causal", lengths=[5, 2], causal=True)

    def test_dropout(self):
        self.agrees("--dropout", 0.5, "--seed", 2**40 + 7, "--dropout-offset", 3,
                    "--dropout-origin", "1,2,3,4,9", dropout=0.5, seed=2**40 + 7, dropout_offset=3,
                    origin=(1, 2, 3, 4, 9))

    def test_scores(self):
        stages = attention(self.q, self.k, self.v, softcap=1, causal=True)[3]
        for stage, wanted in stages.items():
            self.run_ok(*self.inputs, "--softcap", 1, "--causal", "--save-scores", "s.npy",
                        "--score-stage", stage)
            self.close(self.load("s.npy"), wanted)

    def test_packed_sequences(self):
        q, k, v = (numbers((1, 2, n, 4), n) for n in (5, 6, 6))
        for name, tensor in zip("qkv", (q, k, v)):
            self.save(f"{name}.npy", tensor)
        self.run_ok(*self.inputs, "--cu-seqlens-q", "0,2,5", "--cu-seqlens-k", "0,4,6", "--causal",
                    "--output", "y.npy")
        found = self.load("y.npy")

        def rows(x, begin, end):
            return Tensor((1, 2, end - begin, 4), [x.at(0, h, t, e) for h in range(2)
                                                   for t in range(begin, end) for e in range(4)])
        for (a, b), (c, d) in (((0, 2), (0, 4)), ((2, 5), (4, 6))):
            part = attention(rows(q, a, b), rows(k, c, d), rows(v, c, d), causal=True)[0]
            self.close(rows(found, a, b), part)

    def test_pages(self):
        pages_k, pages_v = numbers((4, 2, 2, 6), 5), numbers((4, 2, 2, 7), 6)
        table = [[3, 0, 1], [2, 3, 0]]
        self.save("k.npy", pages_k), self.save("v.npy", pages_v)
        self.save("t.npy", Tensor((2, 3), sum(table, []), "i4"))
        self.run_ok(*self.inputs, "--block-table", "t.npy", "--key-lengths", "5,3", "--causal",
                    "--output", "y.npy")

        def dense(pages, d):
            return Tensor((2, 2, 6, d), [pages.at(table[b][j // 2], h, j % 2, e) for b in range(2)
                                         for h in range(2) for j in range(6) for e in range(d)])
        self.k, self.v = dense(pages_k, 6), dense(pages_v, 7)
        wanted = attention(self.q, self.k, self.v, lengths=[5, 3], causal=True)[0]
        self.close(self.load("y.npy"), wanted)

    def test_worked_example_of_single_head(self):
        """Two tokens: weights and outputs as the formulas give them."""
        for name, data in (("q", [1, 3, 2, .5]), ("k", [.5, 2, 1, 3]), ("v", [0, 4, 1, 2])):
            self.save(f"{name}.npy", Tensor((2, 2), data))
        done = self.run_json(*self.inputs, "--save-weights", "w.npy")
        for found, wanted in zip(done["output"]["values"], [0.9223615, 2.1552770, 0.7428167, 2.5143666]):
            self.assertAlmostEqual(found, wanted, 7)
        for found, wanted in zip(self.load("w.npy").data, [0.0776385, 0.9223615, 0.2571833, 0.7428167]):
            self.assertAlmostEqual(found, wanted, 7)
        self.assertRegex(self.run_ok(*self.inputs), r"0\.9223615 +2\.155277\n +0\.7428167 +2\.514367\n")

    def test_trace(self):
        text = self.run_ok(*self.inputs, "--causal", "--trace", "t.safetensors")
        tensors, metadata = load_safetensors(self.folder / "t.safetensors")
        out, weights, _, stages = attention(self.q, self.k, self.v, causal=True)
        self.close(tensors["heads"], out)
        self.close(tensors["weights"], weights)
        self.close(tensors["scaled_scores"], stages["raw"])
        self.close(tensors["masked_scores"], stages["masked"])
        self.assertEqual(metadata["weights.formula"], "softmax(masked_scores)")
        for name, tensor in tensors.items():
            self.assertRegex(text, rf"(?m)^{name} +\{str(list(tensor.shape))}")

    def test_safetensors_in_and_out(self):
        save_safetensors(self.folder / "in.safetensors", {"a": self.q, "b": self.k, "c": self.v})
        self.run_ok("apply", "--q", "in.safetensors:a", "--k", "in.safetensors:b", "--v",
                    "in.safetensors:c", "--output", "r.safetensors:y", "--save-lse", "r.safetensors")
        tensors, _ = load_safetensors(self.folder / "r.safetensors")
        out, _, lse, _ = attention(self.q, self.k, self.v)
        self.assertEqual(sorted(tensors), ["lse", "y"])
        self.close(tensors["y"], out)
        self.close(tensors["lse"], lse)

    def test_types(self):
        self.agrees("--type", "f64")
        wanted = attention(self.q, self.k, self.v)[0]
        for kind, digits in (("f32", 1e-6), ("f16", 3e-3), ("bf16", 3e-2)):
            self.run_ok(*self.inputs, "--type", kind, "--output", "y.safetensors", "--save-weights",
                        "w.npy")
            self.assertEqual(self.load("w.npy").type, "f4")
            if kind != "bf16":
                self.close(load_safetensors(self.folder / "y.safetensors")[0]["output"], wanted, digits)

    def test_kernel_and_threads(self):
        first = self.run_json(*self.inputs, "--threads", 1)
        self.assertRegex(first["kernel"], r"^(cpu|reference)\..*forward$")
        self.assertEqual(first["threads"], 1)
        forced = self.run_json(*self.inputs, "--kernel", "textbook.forward", "--threads", 2)
        self.assertEqual(forced["kernel"], "textbook.forward")
        self.assertEqual(first["output"]["checksum"],
                         self.run_json(*self.inputs, "--threads", 2)["output"]["checksum"])

    def test_seeded(self):
        sizes = ["apply", "--batch", 2, "--heads", 4, "--key-heads", 2, "--length", 3, "--key-length",
                 5, "--d-k", 6, "--d-v", 7]
        one, again, other = (self.run_json(*sizes, "--seed", seed) for seed in (1, 1, 2))
        self.assertEqual(one["output"]["shape"], [2, 4, 3, 7])
        self.assertEqual(one["inputs"]["k"]["shape"], [2, 2, 5, 6])
        self.assertEqual(one["output"]["checksum"], again["output"]["checksum"])
        self.assertNotEqual(one["output"]["checksum"], other["output"]["checksum"])

    def test_json_of_a_path_that_is_not_utf8(self):
        path = os.fsencode(self.folder) + b"/y\xff.npy"
        done = subprocess.run([command.ATTEND, *self.inputs, "--output", path, "--json"],
                              cwd=self.folder, capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(json.loads(done.stdout)["files"], [f"{self.folder}/y\ufffd.npy"])
        self.assertTrue(os.path.exists(path))

    def test_json_has_its_fields(self):
        done = self.run_json(*self.inputs, "--output", "y.npy")
        self.assertEqual(list(done), ["schema", "mode", "kernel", "threads", "seconds", "inputs",
                                      "output", "files"])
        self.assertEqual(done["schema"], "attend.apply/1")
        self.assertEqual(list(done["output"]),
                         ["shape", "type", "min", "max", "mean", "not_finite", "checksum"])
        found = self.load("y.npy")
        self.assertEqual(done["output"]["min"], min(found.data))
        self.assertEqual(done["output"]["max"], max(found.data))
        self.assertAlmostEqual(done["output"]["mean"], math.fsum(found.data) / len(found.data), 12)
        state = 0xcbf29ce484222325
        for byte in struct.pack(f"<{len(found.data)}d", *found.data):
            state = (state ^ byte) * 0x100000001b3 % 2**64
        self.assertEqual(done["output"]["checksum"], f"{state:016x}")


def draw_weights(model, q, k, v, key_dim=None, value_dim=None, bias=True):
    w = {"q.weight": numbers((q, model), 11), "k.weight": numbers((k, key_dim or model), 12),
         "v.weight": numbers((v, value_dim or key_dim or model), 13), "o.weight": numbers((model, q), 14)}
    if bias:
        w |= {f"{n}.bias": numbers((w[f"{n}.weight"].shape[0],), 20 + i) for i, n in enumerate("qkvo")}
    return w


class Layer(CommandTest):
    def test_weights_from_a_file(self):
        x, w = numbers((2, 3, 8), 1), draw_weights(8, 12, 6, 6)   # d_k 3, 4 heads on 2
        w["o.weight"] = numbers((8, 12), 14)
        save_safetensors(self.folder / "l.safetensors", w)
        self.save("x.npy", x)
        self.run_ok("apply", "--weights", "l.safetensors", "--heads", 4, "--key-heads", 2, "--input",
                    "x.npy", "--causal", "--output", "y.npy")
        self.close(self.load("y.npy"), multi_head(x, x, x, w, 4, 2, causal=True))

    def test_prefix_and_orientation(self):
        x, w = numbers((1, 3, 4), 1), draw_weights(4, 6, 6, 6, bias=False)
        turned = {}
        for name, tensor in w.items():
            rows, columns = tensor.shape
            short = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O"}[name[0]]
            turned[f"deep.{short}.weight"] = Tensor((columns, rows), [
                tensor.at(r, c) for c in range(columns) for r in range(rows)])
        save_safetensors(self.folder / "l.safetensors", turned)
        self.save("x.npy", x)
        self.run_ok("apply", "--weights", "l.safetensors", "--heads", 2, "--prefix", "deep.",
                    "--orientation", "in_out", "--input", "x.npy", "--output", "y.npy")
        self.close(self.load("y.npy"), multi_head(x, x, x, w, 2))

    def test_cross_attention(self):
        w = draw_weights(4, 6, 6, 6, 5, 3)
        query, key, value = numbers((2, 3, 4), 1), numbers((2, 6, 5), 2), numbers((2, 6, 3), 3)
        save_safetensors(self.folder / "l.safetensors", w)
        for name, tensor in (("q", query), ("k", key), ("v", value)):
            self.save(f"{name}.npy", tensor)
        self.run_ok("apply", "--weights", "l.safetensors", "--heads", 3, "--query", "q.npy", "--key",
                    "k.npy", "--value", "v.npy", "--output", "y.npy", "--save-weights", "w.npy")
        self.close(self.load("y.npy"), multi_head(query, key, value, w, 3))
        self.assertEqual(self.load("w.npy").shape, (2, 3, 3, 6))

    def test_memory_is_key_and_value(self):
        w = draw_weights(4, 4, 4, 4, 5)
        query, memory = numbers((2, 3, 4), 1), numbers((2, 6, 5), 2)
        save_safetensors(self.folder / "l.safetensors", w)
        self.save("q.npy", query), self.save("m.npy", memory)
        self.run_ok("apply", "--weights", "l.safetensors", "--heads", 2, "--query", "q.npy",
                    "--memory", "m.npy", "--output", "y.npy")
        self.close(self.load("y.npy"), multi_head(query, memory, memory, w, 2))

    def test_seeded_layer_and_its_file(self):
        """What --save-layer writes is what was used."""
        x = numbers((1, 3, 8), 1)
        self.save("x.npy", x)
        self.run_ok("apply", "--input", "x.npy", "--model-dim", 8, "--heads", 2, "--d-k", 3, "--d-v",
                    5, "--seed", 4, "--save-layer", "l.safetensors", "--output", "y.npy")
        w, metadata = load_safetensors(self.folder / "l.safetensors")
        self.assertEqual(metadata["heads"], "2")
        self.close(self.load("y.npy"), multi_head(x, x, x, w, 2))
        again = self.run_json("apply", "--weights", "l.safetensors", "--input", "x.npy")
        self.assertEqual(again["output"]["values"], self.load("y.npy").data)

    def test_without_bias_and_output_projection(self):
        x = numbers((3, 8), 1)
        self.save("x.npy", x)
        self.run_ok("apply", "--input", "x.npy", "--heads", 2, "--no-projection-bias",
                    "--no-output-projection", "--save-layer", "l.safetensors", "--output", "y.npy")
        w = load_safetensors(self.folder / "l.safetensors")[0]
        self.assertEqual(sorted(w), ["k.weight", "q.weight", "v.weight"])
        batched = Tensor((1, 3, 8), x.data)
        wanted = multi_head(batched, batched, batched, w, 2)
        self.close(self.load("y.npy"), Tensor((3, 8), wanted.data))

    def test_file_without_output_projection(self):
        """It has to be said that there is none, for one matrix of all heads and for one a head."""
        x = numbers((1, 3, 8), 1)
        w = {name: t for name, t in draw_weights(8, 6, 6, 6).items() if name[0] != "o"}
        save_safetensors(self.folder / "l.safetensors", w)
        self.save("x.npy", x)
        words = ["apply", "--weights", "l.safetensors", "--heads", 2, "--input", "x.npy"]
        err = self.fails(2, "there is no o.weight", *words)
        self.assertIn("needs --no-output-projection", err)
        self.run_ok(*words, "--no-output-projection", "--output", "y.npy")
        wanted = multi_head(x, x, x, w, 2)
        self.close(self.load("y.npy"), wanted)
        self.run_ok("apply", "--model-dim", 8, "--heads", 1, "--d-k", 6, "--length", 1, "--type", "f64",
                    "--save-layer", "one.safetensors")
        one, metadata = load_safetensors(self.folder / "one.safetensors")
        self.assertIn("o.weight", one)
        save_safetensors(self.folder / "l.safetensors",
                         {("" if name == "o.bias" else "head.0.") + name: t for name, t in one.items()},
                         metadata)
        self.run_ok("apply", "--weights", "l.safetensors", "--input", "x.npy",
                    "--no-output-projection", "--output", "y.npy")
        del one["o.weight"], one["o.bias"]
        self.close(self.load("y.npy"), multi_head(x, x, x, one, 1))

    def test_other_widths_are_drawn(self):
        done = self.run_json("apply", "--model-dim", 8, "--heads", 2, "--key-dim", 6, "--value-dim", 4,
                             "--length", 3, "--key-length", 5, "--batch", 2)
        self.assertEqual({name: entry["shape"] for name, entry in done["inputs"].items()},
                         {"query": [2, 3, 8], "key": [2, 5, 6], "value": [2, 5, 4]})
        self.assertEqual(done["parameters"], 8 * 8 + 6 * 8 + 4 * 8 + 8 * 8 + 4 * 8)

    def test_rotary(self):
        """Scores of rotated rows: the trace's q and k heads are turned by the position."""
        for pairing in ("halves", "neighbours"):
            self.run_ok("apply", "--model-dim", 4, "--heads", 1, "--length", 3, "--rotary", pairing,
                        "--rotary-base", 100, "--rotary-dim", 2, "--type", "f64", "--trace",
                        "t.safetensors")
            t = load_safetensors(self.folder / "t.safetensors")[0]
            a, b = 0, 1   # the only pair, of either kind
            for position in range(3):
                x, y = t["q"].at(0, position, a), t["q"].at(0, position, b)
                c, s = math.cos(position), math.sin(position)
                self.assertAlmostEqual(t["q_heads"].at(0, 0, position, a), x * c - y * s, 12)
                self.assertAlmostEqual(t["q_heads"].at(0, 0, position, b), x * s + y * c, 12)

    def test_trace_sums_contributions(self):
        self.run_ok("apply", "--model-dim", 6, "--heads", 3, "--length", 2, "--type", "f64", "--trace",
                    "t.safetensors", "--output", "y.npy")
        t = load_safetensors(self.folder / "t.safetensors")[0]
        y = self.load("y.npy")
        self.close(t["output"], y)
        for i in range(2):
            for e in range(6):
                total = math.fsum(t["contributions"].at(0, h, i, e) for h in range(3))
                self.assertAlmostEqual(total, y.at(0, i, e), 12)

    def test_converts_weights_and_inputs(self):
        x, w = numbers((2, 3, 8), 1, "f4"), draw_weights(8, 8, 8, 8)
        save_safetensors(self.folder / "l.safetensors", w)
        self.save("x.npy", x)
        words = ["apply", "--weights", "l.safetensors", "--heads", 2, "--input", "x.npy"]
        self.fails(2, "input is f32, the layer is f64; --type f64 converts", *words)
        self.run_ok(*words, "--type", "f64", "--output", "y.npy")
        exact = self.load("x.npy")
        self.close(self.load("y.npy"), multi_head(exact, exact, exact, w, 2))


def layer_norm(x, weight, bias, epsilon):
    out, width = [], x.shape[-1]
    for r in range(len(x.data) // width):
        row = x.data[r * width:(r + 1) * width]
        mean = math.fsum(row) / width
        deviation = math.sqrt(math.fsum((a - mean) ** 2 for a in row) / width + epsilon)
        out += [(a - mean) / deviation * weight.data[e] + bias.data[e] for e, a in enumerate(row)]
    return Tensor(x.shape, out)


def added(a, b):
    return Tensor(a.shape, [x + y for x, y in zip(a.data, b.data)])


class Block(CommandTest):
    def part(self, w, name):
        return {k[len(name) + 1:]: v for k, v in w.items() if k.startswith(name + ".")}

    def test_decoder_post_norm(self):
        self.run_ok("apply", "--block", "--cross", "--model-dim", 8, "--heads", 2, "--memory-dim", 6,
                    "--hidden-dim", 10, "--activation", "relu", "--placement", "post", "--norm",
                    "layer_norm", "--epsilon", 1e-3, "--type", "f64", "--length", 3, "--key-length", 4,
                    "--causal", "--cross-key-lengths", "3", "--trace", "t.safetensors", "--save-layer",
                    "b.safetensors", "--output", "y.npy", "--save-weights", "w.npy", "--save-lse",
                    "lse.npy", "--save-scores", "s.npy")
        w, _ = load_safetensors(self.folder / "b.safetensors")
        t, _ = load_safetensors(self.folder / "t.safetensors")
        # The inputs are drawn by the seed: residual_1 = x + attention(x) gives x back.
        x = Tensor((1, 3, 8), [a - b for a, b in zip(t["residual_1"].data, t["attention.output"].data)])
        norm = lambda n, y: layer_norm(y, w[f"norm_{n}.weight"], w[f"norm_{n}.bias"], 1e-3)
        one = norm(1, added(x, multi_head(x, x, x, self.part(w, "attention"), 2, causal=True)))
        self.close(t["norm_1"], one, 1e-9)
        heads = attention(t["cross.q_heads"], t["cross.k_heads"], t["cross.v_heads"], lengths=[3])[0]
        c = self.part(w, "cross")
        two = norm(2, added(one, linear(concat(heads), c["o.weight"], c["o.bias"])))
        f = self.part(w, "feed_forward")
        up = linear(two, f["up.weight"], f["up.bias"])
        up = Tensor(up.shape, [max(a, 0) for a in up.data])
        three = norm(3, added(two, linear(up, f["down.weight"], f["down.bias"])))
        self.close(self.load("y.npy"), three, 1e-9)
        self.close(self.load("w.npy"), t["attention.weights"])
        self.close(self.load("lse.npy"), t["attention.lse"])
        self.close(self.load("s.npy"), t["attention.masked_scores"])

    def test_file_of_a_block(self):
        x, memory = numbers((2, 3, 8), 1, "f4"), numbers((2, 4, 8), 2, "f4")
        mask = Tensor((4,), [1, 1, 0, 1], "b1")
        self.save("x.npy", x), self.save("m.npy", memory), self.save("mask.npy", mask)
        first = self.run_json("apply", "--block", "--heads", 2, "--input", "x.npy", "--memory", "m.npy",
                              "--cross-mask", "mask.npy", "--norm", "rms_norm", "--placement",
                              "pre", "--activation", "swiglu", "--hidden-dim", 12, "--save-layer",
                              "b.safetensors")
        words = ["apply", "--block", "--weights", "b.safetensors", "--input", "x.npy", "--memory", "m.npy"]
        again = self.run_json(*words, "--cross-mask", "mask.npy")
        self.assertEqual(first["output"], again["output"])
        self.assertNotEqual(first["output"], self.run_json(*words)["output"])
        wide = self.run_json(*words, "--cross-mask", "mask.npy", "--type", "f64")
        for a, b in zip(first["output"]["values"], wide["output"]["values"]):
            self.assertAlmostEqual(a, b, 5)


if __name__ == "__main__":
    command.main()
