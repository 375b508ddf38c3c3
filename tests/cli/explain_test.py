#!/usr/bin/env python3
"""What `attend explain` shows: the true numbers of the worked examples in both languages, those of files, and
what it says to input that it cannot take.
usage: explain_test.py PATH_OF_ATTEND"""
import json
import math
import os
import pty
import re
import subprocess

import command
from command import Tensor, attend, attention, multi_head, numbers, save_safetensors
from explained import ExplainTest, matrices, width

# True values, and those of the notes beside them (docs/corrections.md).
SINGLE = {"S": [[6.5, 10], [2, 3.5]],
          "Z": [[4.5961941, 7.0710678], [1.4142136, 2.4748737]],
          "A": [[0.0776385, 0.9223615], [0.2571833, 0.7428167]],
          "O": [[0.9223615, 2.1552770], [0.7428167, 2.5143666]]}
SINGLE_SAID = ["[[3.5, 11], [1.5, 5.5]]", "[[2.47, 7.78], [1.06, 3.89]]",
               "[[0.006, 0.994], [0.047, 0.953]]", "[[0.994, 2.012], [0.953, 2.094]]"]
TWO = {"Q_0": [[0, 1.45], [-0.95, -0.45]], "Q_1": [[2.05, -0.5], [-0.27, 0.94]],
       "A_0": [[0.1859659, 0.8140341], [0.2496915, 0.7503085]],
       "A_1": [[0.6693704, 0.3306296], [0.7467815, 0.2532185]],
       "concat": [[-0.7733324, -0.0966648, 1.2829394, -0.0238934],
                  [-0.7127930, 0.0244139, 1.4625331, -0.1353653]],
       "output": [[-0.8027186, 0.9873389, -0.5625799, 1.0120556],
                  [-0.9145439, 1.2535455, -0.5419409, 1.3716358]]}
TWO_SAID = ["[[0.85, -0.05], [-0.29, 0.74]]", "[[2.15, 0.65], [-1.32, 1.02]]"]


def phrases(explained):
    """What --json tells in words."""
    yield from (explained["title"], *explained["opening"])
    for step in explained["steps"]:
        yield from (step["title"], *step["remarks"], *step["drawing"])
        yield from (text for claim in step["claims"] for text in claim.values())
        table = step.get("table", {"header": [], "rows": []})
        yield from (cell for row in (table["header"], *table["rows"]) for cell in row)


class Notes(ExplainTest):
    def check_example(self, name, wanted, said):
        for language in ("en", "zh"):
            words = ("explain", name, "--language", language)
            found = self.run_json(*words, "--html", "page.html")
            self.assertEqual(found["schema"], "attend.explain/1")
            for matrix, rows in wanted.items():
                self.close_rows(matrices(found)[matrix]["values"], rows)
            text = self.run_ok(*words)
            for rows in wanted.values():
                for value in (value for row in rows for value in row):
                    self.assertIn(f"{value:g}" if value == round(value, 4) else f"{value:.7f}", text)
            page, data = self.page_data()
            claims = [claim["said"][language] for step in data["steps"] for claim in step["claims"]]
            for rows in said:
                self.assertIn(rows, text)
                self.assertTrue(any(rows in claim for claim in claims), rows)
            self.assertIn("the notes:" if language == "en" else "笔记：", text)
            self.assertEqual(data["language"], language)
            for matrix, rows in wanted.items():
                self.close_rows(matrices(data)[matrix]["values"], rows)
            for line in text.splitlines():
                self.assertLessEqual(width(line), 80, line)

    def test_single_head(self):
        self.check_example("single-head", SINGLE, SINGLE_SAID)

    def test_two_heads(self):
        self.check_example("two-heads", TWO, TWO_SAID)

    def test_each_wrong_number_has_its_reason(self):
        found = self.run_json("explain", "single-head")
        claims = {step["id"]: step["claims"] for step in found["steps"]}
        self.assertIn("transpose", claims["scores"][0]["why"])
        self.assertIn("[[0.005, 0.995], [0.056, 0.944]]", claims["weights"][0]["why"])
        self.assertIn("0.743", claims["heads"][1]["true"])

    def test_norms_and_angles(self):
        found = self.run_json("explain", "single-head")
        rows = next(step for step in found["steps"] if step["id"] == "geometry")["table"]["rows"]
        q, k = [(1, 3), (2, 0.5)], [(0.5, 2), (1, 3)]
        for row in rows:
            a, b = q[int(row[0])], k[int(row[1])]
            dot = a[0] * b[0] + a[1] * b[1]
            angle = math.degrees(math.acos(min(1, dot / math.hypot(*a) / math.hypot(*b))))
            self.assertAlmostEqual(float(row[2]), math.hypot(*a), delta=1e-4)
            self.assertAlmostEqual(float(row[3]), math.hypot(*b), delta=1e-4)
            self.assertAlmostEqual(float(row[5].rstrip("°")), angle, delta=0.06)
            self.assertAlmostEqual(float(row[6]), dot, delta=1e-6)

    def test_sentence(self):
        found = self.run_json("explain", "sentence", "--head", 5)
        weights = matrices(found)["A_5"]["values"]
        self.assertGreaterEqual(weights[3][5], 0.95)   # on -> mat
        self.assertEqual(found["tokens"], ["The", "cat", "sat", "on", "the", "mat"])
        text = self.run_ok("explain", "sentence")
        self.assertIn("CONSTRUCTED", text)
        self.assertIn("██", text)
        for line in text.splitlines():
            self.assertLessEqual(width(line), 80, line)
        self.assertIn("人工构造", self.run_ok("explain", "sentence", "--language", "zh"))

    def test_sentence_shows_numbers_and_not_zeros(self):
        """Of the matrices a part that is not all zeros, of long sums the products that are not, and weights
        that are too small for their decimals as 3.8e-11."""
        for head in range(6):
            found = self.run_json("explain", "sentence", "--head", head)
            for name, matrix in matrices(found).items():
                if name not in ("lse", "X") and not name.startswith("b"):
                    self.assertTrue(any(map(any, matrix["values"])), (head, name))
        text = self.run_ok("explain", "sentence")
        self.assertIn("W_0^Q  [512, 64] rows 64-71, columns 0-7", text)
        self.assertIn("Q_0[0, 0] = 1 x 48 + 511 x 0 = 48", text)
        self.assertIn("3.8e-11", text)
        weights = text.split("A_0  [6, 6]")[1].split("lse_0")[0]
        self.assertNotIn("0.0000", weights)
        self.assertIn("第 64-71 行，第 0-7 列", self.run_ok("explain", "sentence", "--language", "zh"))

    def test_everything_counts_from_0(self):
        for name in ("single-head", "two-heads", "sentence", "shapes"):
            for language in ("en", "zh"):
                text = self.run_ok("explain", name, "--language", language)
                self.assertNotRegex(text, r"head_1, \.\.\.|head_h\b|near v_2|接近 v_2")

    def test_the_notes_are_introduced(self):
        """Before they are spoken of."""
        for name in ("single-head", "two-heads", "sentence", "shapes"):
            text = self.run_ok("explain", name)
            self.assertLess(text.index("introductory notes"), text.index("the notes:"))
            self.assertIn("docs/notes", text)
            text = self.run_ok("explain", name, "--language", "zh")
            self.assertLess(text.index("五篇注意力入门笔记"), text.index("笔记："))

    def test_each_language_alone(self):
        """No Chinese in English; of English in Chinese the names of files, of formulas and of shapes."""
        names = set("docs notes corrections softmax sqrt angle concat Concat MultiHead Attention model head heads "
                    "output Output scores weights token feature reshape transpose FLOP bytes".split())
        for name in ("single-head", "two-heads", "sentence", "shapes"):
            for language, found in (("en", r"[\u3000-\u9fff\uff00-\uffef]+"), ("zh", r"[a-zA-Z]{4,}")):
                words = ("explain", name, "--language", language)
                text = self.run_ok(*words)
                self.assertEqual(set(re.findall(found, text)) - names, set(), words)
                for phrase in phrases(self.run_json(*words)):
                    self.assertEqual(set(re.findall(found, phrase)) - names, set(), words)

    def test_shapes(self):
        text = self.run_ok("explain", "shapes")
        for part in ("[32, 20, 512]", "[32, 8, 20, 64]", "[32, 8, 20, 20]", "1,048,576 + 2,048"):
            self.assertIn(part, text)
        words = ("shapes", "--batch", 2, "--length", 10, "--model-dim", 768, "--heads", 12)
        text = self.run_ok("explain", *words)
        for part in ("[2, 10, 768]", "[2, 12, 10, 64]", "[2, 12, 10, 10]"):
            self.assertIn(part, text)


class Files(ExplainTest):
    def setUp(self):
        super().setUp()
        self.q, self.k, self.v = numbers((1, 2, 3, 4), 1), numbers((1, 2, 5, 4), 2), numbers((1, 2, 5, 4), 3)
        self.save("q.npy", self.q), self.save("k.npy", self.k), self.save("v.npy", self.v)

    def test_q_k_v(self):
        out, weights, _, _ = attention(self.q, self.k, self.v, causal=True)
        found = matrices(self.run_json("explain", "q.npy", "k.npy", "v.npy", "--causal"))
        for h in range(2):
            self.close_rows(found[f"A_{h}"]["values"],
                            [[weights.at(0, h, i, j) for j in range(5)] for i in range(3)], 1e-12)
            self.close_rows(found[f"O_{h}"]["values"],
                            [[out.at(0, h, i, e) for e in range(4)] for i in range(3)], 1e-12)
        self.assertEqual(found["M_0"]["values"][0][4], "-inf")
        self.assertIn("-inf", self.run_ok("explain", "q.npy", "k.npy", "v.npy", "--causal"))

    def test_options(self):
        words = ("q.npy", "k.npy", "v.npy", "--softcap", 2, "--alibi", "0.5,0.25", "--sinks", "1,-1")
        _, weights, _, stages = attention(self.q, self.k, self.v, softcap=2, alibi=[0.5, 0.25], sinks=[1, -1])
        found = matrices(self.run_json("explain", *words))
        self.close_rows(found["A_1"]["values"],
                        [[weights.at(0, 1, i, j) for j in range(5)] for i in range(3)], 1e-12)
        self.close_rows(found["C_0"]["values"],
                        [[stages["softcapped"].at(0, 0, i, j) for j in range(5)] for i in range(3)], 1e-12)

    def layer(self):
        w = {f"{name}.weight": numbers((8, 8), n) for n, name in enumerate("qkvo", 1)}
        w.update({f"{name}.bias": numbers((8,), n) for n, name in enumerate("qkvo", 5)})
        save_safetensors(self.folder / "l.safetensors", w, {"heads": "2"})
        x = numbers((2, 4, 8), 9)
        self.save("x.npy", x)
        return w, x

    def test_layer(self):
        w, x = self.layer()
        y = multi_head(x, x, x, w, 2)
        found = self.run_json("explain", "l.safetensors", "x.npy", "--sequence", 1, "--html", "page.html")
        self.close_rows(matrices(found)["output"]["values"],
                        [[y.at(1, t, e) for e in range(8)] for t in range(4)], 1e-11)
        _, data = self.page_data()
        self.assertIn(["b_0^Q", 0, 0], matrices(data)["Q_0"]["how"][0][0][1])

    def test_rotary(self):
        self.layer()
        words = ("--rotary", "halves", "--rotary-dim", 2)
        self.run_ok("apply", "--weights", "l.safetensors", "--input", "x.npy", *words, "--save-weights", "w.npy")
        weights = self.load("w.npy")
        explained = self.run_json("explain", "l.safetensors", "x.npy", *words)
        self.assertIn("rotary", json.dumps(explained["steps"][1]["remarks"]))
        self.close_rows(matrices(explained)["A_1"]["values"],
                        [[weights.at(0, 1, i, j) for j in range(4)] for i in range(4)], 1e-12)

    def test_trace(self):
        self.layer()
        self.run_ok("apply", "--weights", "l.safetensors", "--input", "x.npy", "--trace", "t.safetensors")
        found = matrices(self.run_json("explain", "t.safetensors"))
        again = matrices(self.run_json("explain", "l.safetensors", "x.npy"))
        for name in ("S_0", "A_1", "concat", "output"):
            self.assertEqual(found[name]["values"], again[name]["values"])
        self.run_ok("apply", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--trace", "bare.safetensors")
        self.assertNotIn("Q_0", matrices(self.run_json("explain", "bare.safetensors")))
        self.run_ok("apply", "--block", "--model-dim", 8, "--heads", 2, "--length", 3, "--trace",
                    "block.safetensors")
        self.assertIn("output", matrices(self.run_json("explain", "block.safetensors")))

    def test_large_problems_show_a_corner(self):
        for name in "qkv":
            self.save(f"{name}.npy", numbers((1, 3, 40, 24), ord(name)))
        text = self.run_ok("explain", "q.npy", "k.npy", "v.npy", "--head", 2)
        self.assertRegex(text, r"Q_2  \[40, 24\] top left 8 x \d")
        self.assertIn("head 1", text)
        for line in text.splitlines():
            self.assertLessEqual(width(line), 80, line)

    def test_nan_is_said(self):
        self.q.data[0] = math.nan
        self.save("q.npy", self.q)
        text = self.run_ok("explain", "q.npy", "k.npy", "v.npy")
        self.assertIn("Q holds 1 numbers that are not finite", text)
        self.assertRegex(text, r"[|│]\?{10}[|│]")   # the row of five keys is drawn as unknown

    def test_saved_sentence(self):
        self.run_ok("explain", "sentence", "--save-layer", "s.safetensors", "--save-input", "s.npy")
        found = matrices(self.run_json("explain", "s.safetensors", "s.npy", "--head", 4))
        self.assertGreaterEqual(found["A_4"]["values"][4][5], 0.95)   # the -> mat


class Mistakes(ExplainTest):
    def setUp(self):
        super().setUp()
        self.save("q.npy", numbers((1, 2, 3, 4), 1)), self.save("k.npy", numbers((1, 2, 5, 4), 2))
        self.save("v.npy", numbers((1, 2, 5, 4), 3)), self.save("x.npy", numbers((2, 3, 8), 4))

    def test_words(self):
        self.fails(2, "there is nothing called singlehead; did you mean single-head?", "explain", "singlehead")
        self.fails(2, "there is nothing called zebra; there are single-head, two-heads", "explain", "zebra")
        self.fails(2, "there are single-head, two-heads, sentence, shapes, or files", "explain", "zzzzzzzzzzz")
        self.fails(2, "subject", "explain")
        self.fails(2, "--language", "explain", "single-head", "--language", "fr")
        self.fails(2, "--causal is not for single-head", "explain", "single-head", "--causal")
        self.fails(2, "--head is not for two-heads", "explain", "two-heads", "--head", 1)
        self.fails(2, "--batch is not for sentence", "explain", "sentence", "--batch", 1)
        self.fails(2, "--tokens is not for sentence", "explain", "sentence", "--tokens", "t")
        self.fails(2, "--length is not for files", "explain", "q.npy", "k.npy", "v.npy", "--length", 1)
        self.fails(2, "--head is 8, the layer has 8 heads", "explain", "sentence", "--head", 8)
        self.fails(2, "--heads 7 does not divide --model-dim 512", "explain", "shapes", "--heads", 7)
        self.fails(2, "64 bits", "explain", "shapes", "--length", 2**40, "--model-dim", 2**40)

    def test_files(self):
        self.fails(2, "no.npy: cannot be opened", "explain", "no.npy", "k.npy", "v.npy")
        self.fails(2, "4 files are none of these", "explain", "q.npy", "k.npy", "v.npy", "x.npy")
        self.fails(2, "must be [batch, heads, length, d] or [length, d]", "explain", "x.npy", "k.npy", "v.npy")
        self.fails(2, "k has", "explain", "q.npy", self.save("k3.npy", numbers((1, 2, 5, 3), 2)), "v.npy")
        self.fails(2, "q is i64", "explain", self.save("i.npy", Tensor((1, 2), [1, 2], "i8")), "k.npy", "v.npy")
        self.fails(2, "there is nothing to explain", "explain", self.save("e.npy", Tensor((1, 2, 0, 4), [])),
                   "k.npy", "v.npy")
        self.fails(2, "67,108,864 numbers; at most 16,777,216 are explained", "explain",
                   self.save("long.npy", numbers((8192, 1), 1)), "long.npy", "long.npy")
        self.fails(2, "--text: the value is empty", "explain", "q.npy", "k.npy", "v.npy", "--text", "")
        self.fails(2, "--head is 2, there are 2 heads", "explain", "q.npy", "k.npy", "v.npy", "--head", 2)
        self.fails(2, "--sequence is 1, there are 1 sequences", "explain", "q.npy", "k.npy", "v.npy",
                   "--sequence", 1)
        self.fails(2, "--dropout cannot be explained", "explain", "q.npy", "k.npy", "v.npy", "--dropout", 0.5)
        self.fails(2, "cannot be written", "explain", "single-head", "--html", "no_folder/p.html")
        save_safetensors(self.folder / "l.safetensors", {"one": numbers((2, 2))})
        self.fails(2, "is no saved trace", "explain", "l.safetensors")
        self.fails(2, "l.safetensors", "explain", "l.safetensors", "x.npy", "--heads", 2)
        square = {name: numbers((1, 1, 2, 2)) for name in ("scores", "scaled_scores", "masked_scores", "weights")}
        save_safetensors(self.folder / "t.safetensors", {**square, "lse": numbers((1, 1, 3)),
                                                         "heads": numbers((1, 1, 2, 2))})
        self.fails(2, "lse is [1, 1, 3], which does not fit weights [1, 1, 2, 2]", "explain", "t.safetensors")
        save_safetensors(self.folder / "t.safetensors", {**square, "lse": numbers((1, 1, 2)), "heads": numbers((1, 1, 2, 2)),
                                                         "softcapped_scores": numbers((1, 1, 1, 1))})
        self.fails(2, "softcapped_scores is [1, 1, 1, 1], which does not fit", "explain", "t.safetensors", "--html", "p.html")
        save_safetensors(self.folder / "two.safetensors", {"a.weights": square["weights"],
                                                           "b.weights": square["weights"]})
        self.fails(2, "--prefix is one of 'a.' 'b.'", "explain", "two.safetensors")

    def test_tokens(self):
        words = ("explain", "q.npy", "k.npy", "v.npy")
        self.fails(2, "--text has 3 tokens, there are 5 keys", *words, "--text", "a b c")
        (self.folder / "t.txt").write_text("a\nb\n")
        self.fails(2, "t.txt has 2 tokens, there are 5 keys", *words, "--tokens", "t.txt")
        self.fails(2, "--text and --tokens mean the same; give one", *words, "--tokens", "t.txt", "--text", "a b c d e")
        (self.folder / "t.json").write_text('{"a": 1}')
        self.fails(2, "is no JSON list of tokens", *words, "--tokens", "t.json")
        self.fails(2, "no.txt: cannot be opened", *words, "--tokens", "no.txt")
        self.assertIn("four", self.run_ok(*words, "--text", "one two three four five"))


class Colour(ExplainTest):
    def on_terminal(self, **env):
        main, end = pty.openpty()
        process = subprocess.Popen([command.ATTEND, "explain", "single-head"], stdout=end,
                                   env={**os.environ, "TERM": "xterm", **env})
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:   # the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(main)
        self.assertEqual(process.wait(), 0)
        return shown.decode()

    def test_on_a_terminal_only(self):
        self.assertIn("\x1b[36m", self.on_terminal())
        self.assertNotIn("\x1b[", self.on_terminal(NO_COLOR="1"))
        self.assertNotIn("\x1b[", self.run_ok("explain", "single-head"))

    def test_without_unicode(self):
        done = attend("explain", "sentence", env={"LC_ALL": "C"})
        self.assertEqual(done.status, 0)
        self.assertIn("|##", done.out)
        self.assertNotIn("█", done.out)


if __name__ == "__main__":
    command.main()
