"""bench/models.py measures what it says: every implementation in every round, attention inside of the whole, and the bars."""
import json
import pathlib
import sys

import pytest
import torch
import transformers
import words
from tiny import tiny

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench"))
import models  # noqa: E402


@pytest.fixture(autouse=True)
def functions_as_they_were():
    functions = transformers.AttentionInterface._global_mapping
    before = dict(functions)
    yield
    functions.clear()
    functions.update(before)


@pytest.mark.parametrize("name, case", [("bert", models.encoding(3, 16, mixed=True)), ("llama", models.prefill(9)),
                                        ("llama", models.decode(5, 4))])
def test_every_implementation_has_its_turns(name, case, monkeypatch):
    model, calls = tiny(name), []

    def counted(self, function):
        def call(*arguments, **keywords):
            calls.append(function.__name__)
            self.seconds += 1.0
            return function(*arguments, **keywords)

        call.timed = function
        return call

    monkeypatch.setattr(models.Clock, "timed", counted)
    with torch.no_grad():
        found = models.measured(model, words.word_level(), case, 3)
    assert [{key: alone for key, (_, alone) in turns.items()} for turns in found] == [dict.fromkeys(models.NAMES, 2)] * len(found)
    assert len(found) == (4 if case.__qualname__.startswith("decode") else 3)  # a pass of four tokens, or three of one round
    assert all(whole > 0 for turns in found for whole, _ in turns.values())
    assert [next(iter(turns)) for turns in found[:3]] == ["eager", "sdpa", "attend"]
    assert {x: calls.count(x) for x in set(calls)} == {
        x: len(calls) // 3 for x in ("eager_attention_forward", "sdpa_attention_forward", "attend_attention")
    }


def test_ratios_and_bars():
    rows = [{"eager": (4.0, 2.0), "sdpa": (2.0, 1.0), "attend": (2.1, 0.5)}] * 5
    x = models.line("smollm2 prefill 512", "f32", rows)
    assert x["whole"]["of_sdpa"][0] == pytest.approx(2.0 / 2.1) and x["attention"]["of_eager"][0] == 4.0
    assert x["share"] == pytest.approx(0.5 / 2.1) and models.missed(x) == ["whole"]
    assert models.missed({"captured": (1.06, 1.04, 1.07)}) and not models.missed({"captured": (1.04, 1.03, 1.07)})
    assert models.missed(x | {"whole": {"of_sdpa": (0.97, 0.9, 1.1)}}) == ["whole"]  # by the median, though its interval is not below
    slow = models.line("smollm2 decode 64", "f32", [{**rows[0], "attend": (2.0, 1.5)}] * 5)
    assert models.missed(slow) == ["attention"]  # a token at a time after 128: the bar is there from 32 tokens on
    assert models.as_table([x, {"captured": (1.0, 1.0, 1.0)}]).splitlines()[2:] == [
        "| SmolLM2, prefill of 512 tokens, float32 | 0.95 | 1.90 | 2.00 | 4.00 | 24 % |"]
    assert "0.95x of sdpa" in models.shown(x) and "attention is 24 % of the model" in models.shown(x)


def test_the_table_is_that_of_the_page(tmp_path):
    rows = [{"eager": (4.0, 2.0), "sdpa": (2.0, 1.0), "attend": (2.1, 0.5)}] * 5
    results = [models.line(case, kind, rows) for kind in models.TYPES for case in models.CASES]
    lines = models.as_lines([*results, {"type": "f32", "captured": (1.02, 1.0, 1.1)}, {"type": "bf16", "captured": (0.99, 0.9, 1.1)}],
                            models.circumstances(2, 21))
    table, here = models.as_table(results).splitlines(), models.PAGE.read_text("utf-8")
    page = here.splitlines()
    start = page.index(table[0])
    assert [row.split(" | ")[0] for row in page[start : start + len(table)]] == [row.split(" | ")[0] for row in table]
    assert "2 % in float32, 0 % in bfloat16 more time" in lines and "Medians of 21 rounds of time and more, 2 threads" in lines
    copy = tmp_path / "models.md"
    copy.write_text(here, "utf-8")
    models.write(lines, copy)
    written = copy.read_text("utf-8")
    assert lines in written and len(models.PLACE.split(written)) == 2 and models.PLACE.split(written) == models.PLACE.split(here)


def test_runs_of_some_cases_are_joined(tmp_path):
    rows = [{"eager": (4.0, 2.0), "sdpa": (2.0, 1.0), "attend": (1.9, 0.5)}] * 5

    def kept(name, words, *results):
        (tmp_path / name).write_text(json.dumps({"circumstances": words, "results": results}))
        return tmp_path / name

    first = kept("1", "here", *(models.line(case, "f32", rows) for case in models.CASES))
    second = kept("2", "here", *(models.line(case, "bf16", rows) for case in models.CASES))
    third = kept("3", "here", *({"case": models.HEAD, "type": kind, "ms": 9.0, "captured": (1.0, 0.9, 1.1)} for kind in models.TYPES))
    results, words = models.joined([first, second, third])
    assert words == "here" and models.all_of(results) and not models.all_of(models.joined([first, third])[0])
    assert "9.0 ms" in models.shown(results[-1]) and "1.000x (0.900 to 1.100)" in models.shown(results[-1])
    with pytest.raises(SystemExit, match="more than one run has .*'smollm2 decode 64', 'f32'"):
        models.joined([first, second, first])
    with pytest.raises(SystemExit, match="different circumstances:\nelsewhere\nhere"):
        models.joined([first, kept("4", "elsewhere")])
