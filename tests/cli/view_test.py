#!/usr/bin/env python3
"""attend view and attend inspect: their numbers against the formulas, every kind of input, and what
they say to bad ones. usage: view_test.py PATH_OF_ATTEND"""
import base64
import json
import math
import re
import struct
import unittest
import zlib

import command
from command import CommandTest, Tensor, attention, load_safetensors, multi_head, numbers, save_safetensors

SENTENCE = "the cat and the dog"


def read_page(path):
    """The data of a page, each blob unpacked."""
    text = path.read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    blobs = re.findall(r'<script type="text/plain" id="blob-\d+">([^<]*)</script>', text)

    def unpack(x):
        if isinstance(x, dict) and "blob" in x:
            raw = zlib.decompress(base64.b64decode(blobs[x["blob"]]), -15)
            count = math.prod(x["shape"])
            form = {"f32": "f", "f16": "e", "bf16": "H", "i32": "i", "u16": "H", "log16": "H", "u8": "B", "log8": "B"}.get(x["type"])
            return Tensor(x["shape"], struct.unpack(f"<{count}{form}", raw)) if form else raw
        if isinstance(x, dict):
            return {key: unpack(value) for key, value in x.items()}
        return [unpack(value) for value in x] if isinstance(x, list) else x

    return unpack(data)


class Inputs(CommandTest):
    """q, k, v [2, 4, 5, 6] on two key heads."""

    def setUp(self):
        super().setUp()
        self.q, self.k, self.v = (numbers((2, h, 5, 6), n, "f4") for n, h in enumerate((4, 2, 2), 1))
        for name in "qkv":
            self.save(f"{name}.npy", getattr(self, name))
        self.arrays = ("--q", "q.npy", "--k", "k.npy")
        self.all = (*self.arrays, "--v", "v.npy")

    def page(self, *arguments):
        self.run_ok("view", *arguments, "--output", "page.html")
        return read_page(self.folder / "page.html")

    def weights_on(self, layer, h, i, j):
        """Of a causal layer, from what is embedded."""
        q, k, scale = layer["q"], layer["k"], layer["scale"]
        group = q.shape[0] // k.shape[0]
        s = scale * sum(q.at(h, i, d) * k.at(h // group, j, d) for d in range(q.shape[2]))
        hidden = layer["causal"] and j > i + layer["query_offset"]
        return 0 if hidden else math.exp(s - layer["lse"].at(h, i))


class View(Inputs):
    def test_the_numbers_on_the_page_are_those_of_the_formulas(self):
        data = self.page(*self.all, "--causal", "--batch", 1, "--text", SENTENCE, "--title", "A <title>")
        self.assertEqual((data["format"], data["title"], data["notes"]), ("attend.view/2", "A <title>", []))
        run = data["runs"][0]
        self.assertEqual(run["tokens"], SENTENCE.split())
        layer = run["layers"][0]
        _, weights, lse, _ = attention(self.q, self.k, self.v, causal=True)
        for h in range(4):
            for i in range(5):
                self.assertAlmostEqual(layer["lse"].at(h, i), lse.at(1, h, i), 5)
                for j in range(5):
                    self.assertAlmostEqual(self.weights_on(layer, h, i, j), weights.at(1, h, i, j), 5)
                    byte = layer["tiles"]["mean"].at(h, i, j)
                    shown = 2 ** ((byte - 255) / 8) if byte else 0
                    self.assertLessEqual(abs(shown - weights.at(1, h, i, j)), 0.05 * weights.at(1, h, i, j))
                    self.assertEqual(layer["tiles"]["visible"].at(0, i, j), 2 if j <= i else 0)
                self.assertEqual((layer["rows"]["from"], layer["rows"]["count"], layer["rows"]["k"]), (0, 5, 5))
                best = sorted(range(i + 1), key=lambda j: -weights.at(1, h, i, j))
                self.assertEqual([layer["rows"]["keys"].at(h, i, n) for n in range(5)], best + [65535] * (4 - i))
                for n, j in enumerate(best):
                    self.assertAlmostEqual(2 ** (-layer["rows"]["weights"].at(h, i, n) / 2048), weights.at(1, h, i, j),
                                           delta=1.7e-4 * weights.at(1, h, i, j))
            received = [sum(weights.at(1, h, i, j) for i in range(5)) for j in range(5)]
            for j in range(5):
                self.assertAlmostEqual(layer["mass"].at(h, j), received[j], 5)
        self.assertEqual(len(layer["labels"]), 4)
        self.assertIsNotNone(layer["metrics"]["duplicate"][0])

    def test_many_layers_from_files_and_dimensions(self):
        data = self.page("--q", "q.npy", "q.npy", "--k", "k.npy", "k.npy")
        self.assertEqual([layer["name"] for layer in data["runs"][0]["layers"]], ["layer 0", "layer 1"])
        self.assertIsNone(data["runs"][0]["layers"][0]["v"])
        for name, x in (("q", self.q), ("k", self.k)):
            self.save(f"{name}5.npy", Tensor((3, *x.shape), x.data * 3, "f4"))
        self.assertEqual(len(self.page("--q", "q5.npy", "--k", "k5.npy")["runs"][0]["layers"]), 3)
        save_safetensors(self.folder / "layers.safetensors",
                         {f"block.{n}.{x}": getattr(self, x) for n in range(2) for x in "qkv"})
        data = self.page("layers.safetensors", "--causal")
        self.assertEqual([layer["name"] for layer in data["runs"][0]["layers"]], ["block.0", "block.1"])
        self.assertTrue(data["runs"][0]["layers"][1]["causal"])

    def test_layers_are_counted_not_spelled(self):
        """A file of twelve layers as PyTorch writes it: sorted by letter."""
        layers = {f"layers.{n}.attn.{x}": Tensor(getattr(self, x).shape, [e + n / 8 for e in getattr(self, x).data], "f4")
                  for n in range(12) for x in "qk"}
        save_safetensors(self.folder / "layers.safetensors", dict(sorted(layers.items())))
        names = [f"layers.{n}.attn" for n in range(12)]
        data = self.page("layers.safetensors", "--window", "5,1,0,2,0,3", "--tiles", 1)
        found = data["runs"][0]["layers"]
        self.assertEqual([layer["name"] for layer in found], names)
        windows = [window for window in found[5]["windows"] if window["keys"] == 3]
        self.assertEqual(len(windows), 1)
        _, weights, _, _ = attention(layers["layers.5.attn.q"], layers["layers.5.attn.k"], self.v)
        for i in range(2):
            for j in range(3):
                self.assertAlmostEqual(windows[0]["weights"].at(i, j), weights.at(0, 1, i, j), 5)
        inspected = self.run_json("inspect", "layers.safetensors", "--window", "5,1,0,2,0,3")
        self.assertEqual([layer["name"] for layer in inspected["layers"]], names)
        for n, weight in enumerate(inspected["windows"][0]["weights"]):
            self.assertAlmostEqual(weight, weights.at(0, 1, n // 3, n % 3), 5)
        message = self.fails(2, "say which", "inspect", "--q", "layers.safetensors", "--k", "k.npy")
        listed = [int(n) for n in re.findall(r"layers\.(\d+)\.attn\.q", message)]
        self.assertEqual(listed, list(range(len(listed))))
        self.assertGreater(len(listed), 2)

    def test_names_with_numbers_are_sorted_as_people_count(self):
        names = ["", "a2", "a2.b1", "a10", "a10.b9", "a10.b10", "b", "b01", "b1", "b1c", "b20", "c18446744073709551616",
                 "c18446744073709551617"]
        tensors = {f"{name}{'.' if name else ''}{x}": self.q if x == "q" else self.k for name in names for x in "qk"}
        save_safetensors(self.folder / "names.safetensors", dict(sorted(tensors.items(), key=lambda each: each[0][::-1])))
        found = [layer["name"] for layer in self.page("names.safetensors")["runs"][0]["layers"]]
        self.assertEqual(found, ["layer 0", *names[1:]])

    def test_the_heads_of_the_constructed_sentence_are_named_by_what_they_do(self):
        """Four of them find something in one or two rows and rest on token 0 in all others."""
        self.run_ok("explain", "sentence", "--save-layer", "layer.safetensors", "--save-input", "x.npy")
        data = self.page("--weights", "layer.safetensors", "--input", "x.npy", "--text", "The cat sat on the mat")
        self.assertEqual([label["name"] for label in data["runs"][0]["layers"][0]["labels"]],
                         ["previous token", "first token", "selective", "selective", "selective", "selective",
                          "uniform", "mixed"])

    def test_a_layer_with_an_input(self):
        w = {f"{x}.weight": numbers((8, 8), n) for n, x in enumerate("qkvo", 3)}
        save_safetensors(self.folder / "layer.safetensors", w)
        self.save("x.npy", x := numbers((1, 5, 8), 9))
        data = self.page("--weights", "layer.safetensors", "--heads", 2, "--input", "x.npy", "--causal",
                         "--rotary", "halves", "--rotary-dim", 2, "--rotary-base", 100)
        self.assertEqual(data["runs"][0]["layers"][0]["heads"], 2)
        data = self.page("--weights", "layer.safetensors", "--heads", 2, "--input", "x.npy", "--causal")
        layer = data["runs"][0]["layers"][0]
        # Head 0 alone: what it adds to the output is its contribution.
        only = dict(w, **{"v.weight": Tensor((8, 8), [e if n < 32 else 0 for n, e in
                                                      enumerate(w["v.weight"].data)])})
        y = multi_head(x, x, x, only, 2, causal=True)
        norm = sum(math.sqrt(sum(y.at(0, t, e) ** 2 for e in range(8))) for t in range(5)) / 5
        self.assertAlmostEqual(layer["metrics"]["contribution"][0], norm, 4)
        v = [sum(x.at(0, 3, e) * w["v.weight"].at(c, e) for e in range(8)) for c in range(4)]
        self.assertAlmostEqual(layer["value_norm"].at(0, 3), math.hypot(*v), 4)
        output = [sum(w["o.weight"].at(m, c) * v[c] for c in range(4)) for m in range(8)]
        self.assertAlmostEqual(layer["output_norm"].at(0, 3), math.hypot(*output), 4)

    def test_a_trace_knows_its_options(self):
        w = {f"{x}.weight": numbers((8, 8), n, "f4") for n, x in enumerate("qkvo", 3)}
        save_safetensors(self.folder / "layer.safetensors", w)
        self.save("x.npy", numbers((1, 5, 8), 9, "f4"))
        self.save("bias.npy", numbers((5, 5), 8, "f4"))
        for flags in ((), ("--causal",), ("--window-left", 1), ("--bias", "bias.npy", "--scale", 0.7),
                      ("--sinks", "0.5,1", "--causal"), ("--softcap", 2)):
            layer = ("--weights", "layer.safetensors", "--heads", 2, "--input", "x.npy", *flags)
            self.run_ok("apply", *layer, "--trace", "t.safetensors")
            traced = self.page("t.safetensors")["runs"][0]["layers"][0]
            direct = self.page(*layer)["runs"][0]["layers"][0]
            self.close(traced["lse"], direct["lse"], 1e-5)
            self.close(traced["mass"], direct["mass"], 1e-5)
            both = [layer["tiles"]["visible"] for layer in (traced, direct)]   # of all heads, or of each
            self.assertEqual(*(x.data * (2 // x.shape[0]) for x in both))
            self.assertEqual(traced["causal"], "--causal" in flags)

    def test_two_runs_are_compared(self):
        for name in ("before", "after"):
            save_safetensors(self.folder / f"{name}.safetensors", {x: getattr(self, x) for x in "qkv"})
        data = self.page("before.safetensors", "after.safetensors")
        self.assertEqual([run["name"] for run in data["runs"]], ["before", "after"])
        for folder in ("run/1", "run/2"):
            (self.folder / folder).mkdir(parents=True)
            save_safetensors(self.folder / folder / "heads.safetensors", {x: getattr(self, x) for x in "qkv"})
        data = self.page("run/1/heads.safetensors", "run/2/heads.safetensors")
        self.assertEqual([run["name"] for run in data["runs"]], ["1", "2"])
        data = self.page(*self.all, "--compare-type", "bf16")
        self.assertEqual([run["name"] for run in data["runs"]], ["f32", "bf16"])
        a, b = (run["layers"][0]["lse"].data for run in data["runs"])
        self.assertNotEqual(a, b)
        self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 0.05)
        self.assertEqual(data["open"], 0)

    def test_the_page_opens_on_the_run_that_is_asked_for(self):
        data = self.page(*self.all, "--compare-type", "bf16", "--open-run", 1)
        self.assertEqual(data["open"], 1)
        self.fails(2, "--open-run 1 needs two runs to compare, there is one", "view", *self.all, "--open-run", 1)
        self.fails(2, "--open-run", "view", *self.all, "--compare-type", "bf16", "--open-run", 2)

    def large(self):
        """Flags of two layers that a page of everything has no room for in 1.2 MiB."""
        self.wide = [numbers((1, 4, 200, 64), n, "f4") for n in (1, 2)]
        for name, x in zip("qk", self.wide):
            self.save(f"{name}_wide.npy", x)
        return "--q", "q_wide.npy", "q_wide.npy", "--k", "k_wide.npy", "k_wide.npy"

    def test_a_page_that_is_reduced_says_so_and_has_its_windows(self):
        words = (*self.large(), "--page-size", 1.2, "--window", "1,1,7,2,30,4", "--tiles", 2)
        data = self.page(*words, "--language", "zh")
        self.assertEqual((data["language"], len(data["notes"])), ("zh", 3))
        layer = data["runs"][0]["layers"][1]
        self.assertLessEqual((self.folder / "page.html").stat().st_size, 1.2 * 2 ** 20)
        self.assertEqual((layer["q"], layer["entropy"].shape), (None, (4, 200)))
        self.assertEqual((layer["tiles"]["rows"], layer["tiles"]["queries"]), (2, 128))
        q, k = ([x.at(0, 1, i, d) for d in range(64)] for x, i in zip(self.wide, (8, 33)))
        lse = layer["lse"].at(1, 8)
        self.assertAlmostEqual(layer["windows"][0]["weights"].at(1, 3),
                               math.exp(sum(a * b for a, b in zip(q, k)) / 8 - lse), 5)
        for language, note in (("en", "q and k, with which every weight is exact, are there for 1 of 2 layers. Everything takes"),
                               ("zh", "2 层中有 1 层带有 q 和 k，其中每个权重都是精确的。全部需要")):
            data = self.page(*words, "--language", language)
            self.assertIn(note, data["notes"][0])
            self.assertIn("--window 1,HEAD,QUERY,QUERIES,KEY,KEYS", data["runs"][0]["layers"][1]["why"])
        self.assertEqual(self.page(*words[:-6])["notes"], [])

    def test_a_page_that_is_too_small_is_refused_and_nothing_is_written(self):
        message = self.fails(2, "the page takes at least", "view", *self.all, "--page-size", 0.01, "--output", "small.html")
        self.assertRegex(message, r"at least \d+ bytes, for maps and scores of 4 heads, .* page_bytes is 10485, and may be up to")
        self.assertFalse((self.folder / "small.html").exists())

    def test_numbers_have_the_type_that_they_had(self):
        data = self.page(*self.all, "--compare-type", "bf16")
        one, other = (run["layers"][0]["q"] for run in data["runs"])
        for x, bits in zip(one.data, other.data):
            self.assertAlmostEqual(struct.unpack("<f", struct.pack("<I", bits << 16))[0], x, delta=abs(x) / 256)

    def test_a_page_is_called_by_its_text_or_its_first_file(self):
        self.assertEqual(self.page(*self.arrays)["title"], "q.npy")
        self.assertEqual(self.page(*self.arrays, "--text", SENTENCE)["title"], SENTENCE)

    def test_npy_files_are_q_k_and_v(self):
        for given, flags in ((("q.npy", "k.npy", "v.npy"), self.all), (("q.npy", "k.npy"), self.arrays)):
            for name, files in (("a.html", given), ("b.html", flags)):
                self.run_ok("view", *files, "--title", "one", "--output", name)
            self.assertEqual(*((self.folder / name).read_bytes() for name in ("a.html", "b.html")))
            self.assertEqual(self.run_ok("inspect", *given), self.run_ok("inspect", *flags))

    def test_json_says_what_was_written(self):
        found = self.run_json("view", *self.all, "--output", "page.html")
        self.assertEqual(found["schema"], "attend.view/1")
        self.assertEqual(found["bytes"], (self.folder / "page.html").stat().st_size)
        self.assertEqual(found["runs"][0]["layers"][0]["q"], [2, 4, 5, 6])


class Inspect(Inputs):
    def test_the_numbers_are_those_of_the_formulas(self):
        found = self.run_json("inspect", *self.arrays, "--causal", "--rows", "--top-k", 2, "--text", SENTENCE,
                              "--local-width", 1, "--tile-rows", 2, "--tile-columns", 2,
                              "--output", "s.safetensors")
        _, weights, lse, _ = attention(self.q, self.k, self.v, causal=True)
        self.assertEqual(found["schema"], "attend.inspect/1")
        layer = found["layers"][0]
        for row in layer["rows"]:
            b, h, i = row["batch"], row["head"], row["query"]
            p = [weights.at(b, h, i, j) for j in range(5)]
            self.assertAlmostEqual(row["lse"], lse.at(b, h, i), 5)
            self.assertAlmostEqual(row["maximum"], max(p), 5)
            self.assertAlmostEqual(row["entropy"], -sum(x * math.log(x) for x in p if x), 5)
            best = sorted(range(i + 1), key=lambda j: -p[j])[:2]
            self.assertEqual([top["key"] for top in row["top"]], best)
        for head in layer["heads"]:
            b, h = head["batch"], head["head"]
            previous = sum(weights.at(b, h, i, i - 1) for i in range(1, 5)) / 5
            self.assertAlmostEqual(head["previous"], previous, 5)
            self.assertIsNotNone(head["duplicate"])
        tensors, metadata = load_safetensors(self.folder / "s.safetensors")
        self.assertEqual(metadata["format"], "attend.inspect")
        self.close(tensors["lse"], lse, 1e-5)
        self.assertEqual(tensors["tile_mean"].shape, (2, 4, 2, 2))
        self.assertEqual(tensors["head.previous"].data[5], layer["heads"][5]["previous"])

    def test_rows_come_with_their_largest_keys_and_the_mass_of_each_key(self):
        layer = self.run_json("inspect", *self.arrays, "--rows")["layers"][0]
        _, weights, _, _ = attention(self.q, self.k, self.v)
        self.assertEqual({len(row["top"]) for row in layer["rows"]}, {3})
        self.assertEqual(len(layer["key_mass"]), 8)
        for head in layer["key_mass"]:
            for j, mass in enumerate(head["mass"]):
                wanted = sum(weights.at(head["batch"], head["head"], i, j) for i in range(5))
                self.assertAlmostEqual(mass, wanted, 5)
        text = self.run_ok("inspect", *self.arrays, "--rows", "--text", SENTENCE)
        shown = "".join(f" {layer['key_mass'][4 + h]['mass'][4]:9.4f}" for h in range(4))
        self.assertIn(f"\n    4 dog           {shown}\n", text)
        self.assertRegex(text, r"\n  key sequence 1        mass 0    mass 1")

    def test_the_table_is_for_people(self):
        text = self.run_ok("inspect", *self.arrays, "--causal", "--rows", "--top-k", 1, "--text", SENTENCE)
        self.assertIn("layer 0: q [2, 4, 5, 6], k [2, 2, 5, 6]", text)
        self.assertIn("entropy", text)
        self.assertRegex(text, r"sequence 1\n    0  \w")
        self.assertRegex(text, r"\n    3 dog  ")
        self.assertNotIn("contribution", text, "nobody asked a layer")

    def test_tokens_come_in_three_ways(self):
        (self.folder / "tokens.json").write_text(json.dumps(SENTENCE.split()))
        (self.folder / "tokens.txt").write_text("\n".join(SENTENCE.split()) + "\n")
        (self.folder / "blank.txt").write_text("\n".join(SENTENCE.split()) + "\n\n\n")
        by_text = self.run_ok("inspect", *self.arrays, "--text", SENTENCE)
        for file in ("tokens.json", "tokens.txt", "blank.txt"):
            self.assertEqual(self.run_ok("inspect", *self.arrays, "--tokens", file), by_text)
            self.assertEqual(self.run_ok("inspect", *self.arrays, "--tokens", file, "--key-tokens", file), by_text)


class BadInput(Inputs):
    def test_nothing_or_too_much_to_show(self):
        for name in ("view", "inspect"):
            self.fails(2, "nothing to show: give a safetensors file, or --q and --k", name)
            self.fails(2, "one of them", name, *self.arrays, "--weights", "w.safetensors")
            self.fails(2, "--input needs --weights", name, "--input", "x.npy")
            self.fails(2, "--q, --k and --v have 1, 0 and 0 files; a layer is one of --q", name, "--q", "q.npy")
            self.fails(2, "give --input, or --query and --memory", name, "--weights", "w.safetensors")
            self.fails(2, "--query and --memory come together", name, "--weights", "w.safetensors",
                       "--query", "q.npy")

    def test_files_that_are_missing_or_of_another_kind(self):
        for name in ("view", "inspect"):
            self.fails(2, "none.npy: cannot be opened", name, "--q", "none.npy", "--k", "k.npy")
            self.fails(2, "none.safetensors: cannot be opened", name, "none.safetensors")
            self.fails(2, "none.json: cannot be opened", name, *self.arrays, "--tokens", "none.json")
            self.save("whole.npy", Tensor((1, 1, 2, 2), [1, 2, 3, 4], "i8"))
            self.fails(2, "q is i64; it must be f64, f32, bf16 or f16", name, "--q", "whole.npy", "--k", "k.npy")
            save_safetensors(self.folder / "other.safetensors", {"x": self.q})
            self.fails(2, "no tensors are named q and k", name, "other.safetensors")
            (self.folder / "bad.json").write_text('{"a": 1}')
            self.fails(2, "bad.json: is no JSON list of tokens", name, *self.arrays, "--tokens", "bad.json")
            (self.folder / "deep.json").write_text('["a", ["b"]]')
            self.fails(2, "token 1 is neither a text nor a number", name, *self.arrays, "--tokens", "deep.json")

    def test_npy_in_place_of_safetensors(self):
        for name in ("view", "inspect"):
            self.fails(2, "q.npy is an npy file; give arrays by --q, --k and --v", name, "q.npy")
            self.fails(2, "q, k and v are files, or given by", name, "q.npy", "k.npy", "--v", "v.npy")
            self.fails(2, "q.npy is an npy file; the weights of a layer are named tensors", name,
                       "--weights", "q.npy", "--input", "k.npy")
        self.fails(2, "there are 3 files; give one, or two to compare", "view", *["a.safetensors"] * 3)
        self.fails(2, "there are 2 files; give one, or q.npy, k.npy and v.npy", "inspect", *["a.safetensors"] * 2)
        self.fails(2, "q.npy is an npy file; the weights of a layer", "explain", "q.npy", "a.safetensors")
        self.fails(2, "q.npy is an npy file; give all of q.npy, k.npy and v.npy", "explain", "q.npy")

    def test_sizes_that_do_not_fit(self):
        self.save("k3.npy", numbers((2, 3, 5, 6), 2, "f4"))
        self.save("k5.npy", numbers((2, 2, 2, 5, 6), 2, "f4"))
        self.save("q5.npy", numbers((3, 2, 4, 5, 6), 2, "f4"))
        for name in ("view", "inspect"):
            self.fails(2, "k has 3 heads, q has 4", name, "--q", "q.npy", "--k", "k3.npy")
            self.fails(2, "both are [layers, batch, heads, length, d]", name, "--q", "q5.npy", "--k", "k5.npy")
            for nothing in ("", " "):
                self.fails(2, "--text", name, *self.arrays, "--text", nothing)
            self.fails(2, "--text and --tokens mean the same; give one", name, *self.arrays, "--text", "a", "--tokens", "b")
        self.fails(2, "view: there are 2 tokens, layer 0 has 5 queries and 5 keys", "view", *self.arrays,
                   "--text", "too few")
        self.fails(2, "there are 2 tokens and 5 keys", "inspect", *self.arrays, "--text", "too few")
        self.fails(2, "there is no batch element 2; there are 2", "view", *self.arrays, "--batch", 2)
        self.fails(2, "runs to compare have equal sizes", "view", *self.pair(self.q, numbers((2, 2, 5, 6), 1, "f4")))
        self.fails(2, "--compare-type is for one run", "view", *self.pair(self.q, self.q), "--compare-type", "bf16")

    def pair(self, *queries):
        for n, q in enumerate(queries):
            save_safetensors(self.folder / f"{n}.safetensors", {"q": q, "k": self.k})
        return [f"{n}.safetensors" for n in range(len(queries))]

    def test_flags_of_the_page(self):
        self.fails(2, "'page.txt' must end in .html", "view", *self.arrays, "--output", "page.txt")
        self.fails(2, "'s.npy' must end in .safetensors", "inspect", *self.arrays, "--output", "s.npy")
        self.fails(2, "--window is LAYER,HEAD,QUERY,QUERIES,KEY,KEYS", "view", *self.arrays, "--window", "1,2")
        self.fails(2, "--page-size", "view", *self.arrays, "--page-size", 65)
        self.fails(2, "--page-size: 'nan' is not a finite number from 0 to 64", "view", *self.arrays, "--page-size", "nan")
        self.fails(2, "a window is of layer 1", "view", *self.arrays, "--window", "1,0,0,1,0,1")

    def test_inspect_shows_exact_weights_of_a_window(self):
        self.run_ok("apply", *self.all, "--save-weights", "w.npy", "--causal")
        out = self.run_ok("inspect", *self.arrays, "--causal", "--window", "0,1,2,2,1,3", "--json")
        weights = json.loads(out)["windows"][0]["weights"]
        self.assertEqual(len(weights), 6)
        self.assertEqual(weights[2], 0.0)  # query 2 does not see key 3
        self.assertIn("weights of layer 0, head 1", self.run_ok("inspect", *self.arrays, "--window", "0,1,2,2,1,3"))
        self.fails(2, "--window is of layer 1; there are 1", "inspect", *self.arrays, "--window", "1,0,0,1,0,1")

    def test_packed_rows_name_their_own_keys(self):
        out = self.run_ok("inspect", "--q", self.save("pq.npy", numbers((1, 1, 6, 4))), "--k", self.save("pk.npy", numbers((1, 1, 6, 4), 3)),
                          "--cu-seqlens-q", "0,3,6", "--text", "a b c d e f", "--rows", "--causal")
        row = next(line for line in out.splitlines() if line.split()[:2] == ["0", "d"])
        self.assertEqual(row.split()[5:], ["d", "1.000"])

    def test_hostile_tokens_reach_the_terminal_as_text(self):
        out = self.run_ok("inspect", *self.arrays, "--rows", "--text", "\x1b[31m b c d e")
        self.assertNotIn("\x1b", out)

    def test_traces_whose_tensors_do_not_fit(self):
        square = {name: numbers((1, 2, 3, 3)) for name in ("scores", "scaled_scores", "masked_scores", "weights")}
        rest = {"lse": numbers((1, 2, 3)), "q_heads": numbers((1, 2, 3, 4)), "k_heads": numbers((1, 2, 3, 4))}
        trace = {"format": "attend.trace"}
        for name, shape in (("scaled_scores", (1, 1, 1, 1)), ("weights", (1, 2, 3, 2)), ("lse", (1, 2, 2)),
                            ("k_heads", (1, 2, 5, 4)), ("masked_scores", (3, 3))):
            save_safetensors(self.folder / "bad.safetensors", {**square, **rest, name: numbers(shape)}, trace)
            for command in ("view", "inspect"):
                self.fails(2, "which does not fit weights", command, "bad.safetensors")
        empty = {name: numbers((1, 0, 3, 3)) for name in square}
        save_safetensors(self.folder / "bad.safetensors",
                         {**empty, "lse": numbers((1, 0, 3)), "q_heads": numbers((1, 0, 3, 4)),
                          "k_heads": numbers((1, 0, 3, 4))}, trace)
        self.fails(2, "a trace has [batch, heads, queries, keys]", "view", "bad.safetensors")
        save_safetensors(self.folder / "bad.safetensors", {"q_heads": rest["q_heads"], "k_heads": rest["k_heads"]}, trace)
        self.fails(2, "the trace has no weights", "view", "bad.safetensors")

    def test_traces_without_q_and_with_flags(self):
        self.run_ok("apply", *self.all, "--trace", "bare.safetensors")
        self.fails(2, "the trace has no q_heads and k_heads; trace a layer", "view", "bare.safetensors")
        self.run_ok("apply", "--model-dim", 8, "--heads", 2, "--length", 3, "--trace", "t.safetensors")
        self.fails(2, "--causal is given by the trace", "view", "t.safetensors", "--causal")

    def test_nan_is_told_on_the_page(self):
        self.save("nan.npy", Tensor(self.q.shape, [math.nan, *self.q.data[1:]], "f4"))
        data = self.page("--q", "nan.npy", "--k", "k.npy")
        self.assertEqual(data["notes"], ["layer 0: q has 1 numbers that are not finite; weights that see them "
                                         "are NaN."])

    def test_nan_is_told_by_inspect(self):
        self.save("nan.npy", Tensor(self.q.shape, [math.nan, *self.q.data[1:]], "f4"))
        note = "layer 0: q has 1 numbers that are not finite; weights that see them are NaN."
        layer = self.run_json("inspect", "--q", "nan.npy", "--k", "k.npy")["layers"][0]
        self.assertEqual(layer["notes"], [note])
        self.assertEqual([head["label"] == "not finite" for head in layer["heads"]], [True] + [False] * 7)
        text = self.run_ok("inspect", "--q", "nan.npy", "--k", "k.npy")
        self.assertRegex(text, r"\n    0  not finite        0.00")
        self.assertIn(note, text)
        self.assertEqual(self.run_json("inspect", *self.arrays)["layers"][0]["notes"], [])

    def test_empty_sequences_are_refused(self):
        self.save("none.npy", Tensor((1, 4, 0, 6), [], "f4"))
        self.fails(2, "there is nothing to show: 4 heads, 0 queries, 0 keys", "view", "--q", "none.npy",
                   "--k", "none.npy")


if __name__ == "__main__":
    command.main()
