"""python -m attend.hf: what it writes and prints, and how it refuses."""
import json
import os
import re
import runpy
import shutil
import sys

import pytest
import tiny_gguf
import torch
import transformers
import words
from safetensors.torch import load_file, save_file
from test_view import data_of
from tiny import tiny

import attend
import attend.hf.loading
from attend.hf.__main__ import main

TEXT = "w5 w9 w3 w5 w9 w20"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder and its tokenizer, as they are kept in files."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("models") / "decoder"
    model = tiny("gemma2")
    model.generation_config.eos_token_id = None
    model.save_pretrained(place)
    words.word_level().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "two"
    tiny("t5").save_pretrained(place)
    words.word_level().save_pretrained(place)
    return place


def test_view_writes_the_page(folder, tmp_path, capsys):
    page = tmp_path / "heads.html"
    assert main(["view", str(folder), "--text", TEXT, "--new-tokens", "3", "--output", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    run = data_of(attend.View(page.read_text()))["runs"][0]
    assert run["tokens"][:6] == TEXT.split() and len(run["tokens"]) == 9 and len(run["layers"]) == 2
    assert [x["window"] for x in run["layers"]] == [[3, -1], None] and run["layers"][0]["softcap"] == 2.0


def test_a_window_is_exact_on_a_page_that_is_reduced(folder, tmp_path, capsys):
    """The page says the command that would store a cell, and that command stores it."""
    page, text = tmp_path / "heads.html", " ".join(f"w{3 + 7 * n % 40}" for n in range(96))
    given = ["view", str(folder), "--text", text, "--output", str(page)]
    assert main([*given, "--page-size", "0.01"]) == 2
    least = int(re.search(r"takes at least (\d+) bytes", capsys.readouterr().err)[1])
    given += ["--page-size", str((least + 12000) / 2**20)]  # room for a little, and not for q and k
    assert main(given) == 0
    data = data_of(attend.View(page.read_text()))
    assert data["command"] == "python -m attend.hf view" and data["runs"][0]["layers"][1]["q"] is None
    assert "python -m attend.hf view ... --window 1,HEAD" in data["runs"][0]["layers"][1]["why"]
    assert main([*given, "--window", "1,2,60,1,17,1", "--window", "0,0,5,2,1,3"]) == 0
    layers = data_of(attend.View(page.read_text()))["runs"][0]["layers"]
    places = [[[w[name] for name in ("head", "query", "queries", "key", "keys")] for w in x["windows"]] for x in layers]
    assert places == [[[0, 5, 2, 1, 3]], [[2, 60, 1, 17, 1]]]
    capsys.readouterr()
    for wrong, told in (("1,2,3", "'1,2,3' is not LAYER,HEAD"), ("1,2,a,1,1,1", "'a' is no number"), ("9,0,0,1,0,1", "layer")):
        try:
            status = main([*given, "--window", wrong])
        except SystemExit as stop:
            status = stop.code
        assert status == 2 and told in capsys.readouterr().err


def test_text_may_be_a_file(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    assert main(["inspect", str(folder), "--text-file", str(tmp_path / "text.txt"), "--layers", "*.1.*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [x["module"] for x in found["layers"]] == ["model.layers.1.self_attn"] and found["tokens"] == TEXT.split()


def test_inspect_has_the_numbers_of_inspect(folder, capsys):
    assert main(["inspect", str(folder), "--text", TEXT, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model, _ = attend.hf.loading.load(str(folder))
    ids = torch.tensor([[5, 9, 3, 5, 9, 20]])
    with torch.no_grad(), attend.hf.capture(model, what="stats", inspect={"tokens": ids[0].numpy()}) as run:
        model(ids)
    for layer, stats in zip(found["layers"], (run[x].stats for x in run.layers)):
        for head, wanted in zip(layer["heads"], stats.heads):
            assert (head["label"], head["induction"], head["entropy"]) == (wanted.label, wanted.induction, wanted.entropy)
    assert main(["inspect", str(folder), "--text", TEXT]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (2 + 4) and lines[0] == "layers.0: q [1, 4, 6, 8], k [1, 2, 6, 8]"
    assert lines[2].split()[0] == "0" and stats.heads[3].label in lines[-1]


def test_a_gguf_file(tmp_path, capsys):
    """By its own name, and a folder that holds nothing else says that name."""
    tiny_gguf.write(tmp_path / "tiny.gguf")
    assert main(["inspect", str(tmp_path / "tiny.gguf"), "--text", "ab b a b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == ["ab", " b", " a", " b"]
    assert [(x["module"], len(x["heads"])) for x in found["layers"]] == [(f"model.layers.{n}.self_attn", 4) for n in (0, 1)]
    assert main(["generate", str(tmp_path / "tiny.gguf"), "--text", "ab b", "--new-tokens", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["token_ids"]) <= 3
    for command in (["inspect"], ["generate"], ["view", "--output", str(tmp_path / "page.html")]):
        assert main([command[0], str(tmp_path), "--text", "ab", *command[1:]]) == 2
        assert "has no config.json; it has the GGUF file tiny.gguf, which can be named itself" in capsys.readouterr().err


def test_generate_prints_the_text(folder, capsys):
    model, tokenizer = attend.hf.loading.load(str(folder))
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    model.set_attn_implementation("eager")
    wanted = model.generate(ids, max_new_tokens=5, do_sample=False)[0, 6:]
    assert main(["generate", str(folder), "--text", TEXT, "--new-tokens", "5"]) == 0
    assert capsys.readouterr().out == tokenizer.decode(wanted, skip_special_tokens=True) + "\n"


def test_an_encoder_decoder(two, capsys):
    assert main(["inspect", str(two), "--text", TEXT, "--target", "w7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["part"] == "cross" and found["tokens"] == ["<pad>", "w7"] and found["key_tokens"] == TEXT.split()
    assert main(["generate", str(two), "--text", TEXT, "--new-tokens", "2"]) == 0


REFUSED = {
    "no_such_folder": (["./nowhere"], "neither a folder nor a file"),
    "not_in_the_cache": (["somebody/some-model-that-is-not-here"], "some-model"),
    "no_layer": (["FOLDER", "--layers", "h.0"], "layer 'h.0' is not there"),
    "no_part": (["FOLDER", "--part", "cross"], "part 'cross' is not there"),
    "no_encoder": (["FOLDER", "--target", "w5"], "has no encoder"),
    "two_without_target": (["TWO"], "say what the decoder reads"),
    "no_room": (["FOLDER", "--page-size", "0.01"], "the page takes at least"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_words(case, folder, two, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given, words_of_it = REFUSED[case]
    given = [{"FOLDER": str(folder), "TWO": str(two)}.get(x, x) for x in given]
    output = [] if "--output" in given else ["--output", "page.html"]
    assert main(["view", *given, "--text", TEXT, *output]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("attend.hf view: ") and told.err.count("\n") == 1 and words_of_it in told.err and not told.out
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("command", ["generate", "inspect", "view"])
def test_a_model_that_computes_attention_by_itself(command, tmp_path, capsys):
    """Without the refusal it would generate, and attend would have no part in it."""
    sizes = {"vocab_size": words.WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**sizes)).save_pretrained(tmp_path)
    words.word_level().save_pretrained(tmp_path)
    given = [command, str(tmp_path), "--text", TEXT, *["--output", str(tmp_path / "page.html")] * (command == "view")]
    assert main(given) == 2
    told = capsys.readouterr()
    assert not told.out and f"attend.hf {command}: not every attention of this OpenAIGPTLMHeadModel comes to attend: transformer.h.0.attn: " in told.err


def test_a_model_that_makes_attentions_that_it_knows_alone(tmp_path, capsys):
    """Transformers says KeyError: 'attend'."""
    config = transformers.GPTJConfig(vocab_size=words.WORDS, n_embd=32, n_layer=1, n_head=4, n_positions=64, rotary_dim=4)
    transformers.GPTJForCausalLM(config).save_pretrained(tmp_path)
    words.word_level().save_pretrained(tmp_path)
    assert main(["generate", str(tmp_path), "--text", TEXT]) == 2
    told = capsys.readouterr()
    assert not told.out and "not every attention of this GPTJForCausalLM comes to attend: its code makes attentions that" in told.err
    with pytest.raises(NotImplementedError, match="not every attention of this GPTJForCausalLM comes to attend"):
        attend.view(transformers.GPTJForCausalLM(config), words.word_level(), TEXT)


@pytest.mark.parametrize("output, told", [("nowhere/page.html", "there is no such folder to write into"),
                                          (".", "is a folder, not the name of a file"), ("pipe", "is no regular file; it cannot be written whole or not at all")])
def test_where_nothing_can_be_written_no_model_is_loaded(output, told, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    monkeypatch.setattr("attend.hf.loading.load", lambda *_, **__: pytest.fail("it was loaded"))
    assert main(["view", str(folder), "--text", TEXT, "--output", output]) == 2
    assert capsys.readouterr().err == f"attend.hf view: --output: {output}: {told}\n"


def test_a_text_that_is_not_utf_8(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_bytes(b"caf\xe9")
    assert main(["generate", str(folder), "--text-file", str(tmp_path / "text.txt")]) == 2
    assert capsys.readouterr().err == (
        f"attend.hf generate: --text-file: {tmp_path / 'text.txt'} is no text in UTF-8: byte 3 is 0xe9\n"
    )


def test_files_that_are_no_models(tmp_path, capsys):
    (tmp_path / "model.bin").write_bytes(b"none")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    for name, words_of_it in (("model.bin", "is no GGUF file"), ("", "the GGUF file x.gguf, which can be named itself")):
        assert main(["generate", str(tmp_path / name), "--text", "w5"]) == 2
        assert words_of_it in capsys.readouterr().err


def without_weights(source, place, keep):
    """A copy of a model whose file holds these of its weights."""
    shutil.copytree(source, place)
    weights = {name: x for name, x in load_file(source / "model.safetensors").items() if keep(name)}
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    return place


def test_weights_that_are_not_there_are_named(folder, tmp_path, capsys):
    """Transformers draws them at random, and what tells it is switched off here."""
    place = without_weights(folder, tmp_path / "part", lambda name: not name.endswith("layers.1.self_attn.q_proj.weight"))
    assert main(["inspect", str(place), "--text", TEXT, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) and told.err == (
        f"attend.hf inspect: {place} does not have all weights of Gemma2ForCausalLM; these are random: model.layers.1.self_attn.q_proj.weight\n"
    )
    assert main(["inspect", str(folder), "--text", TEXT, "--json"]) == 0 and not capsys.readouterr().err


def test_weights_of_another_size_and_files_that_are_cut_off(folder, tmp_path, capsys):
    place = without_weights(folder, tmp_path / "cut", lambda name: True)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"intermediate_size": 28}))
    assert main(["generate", str(place), "--text", TEXT]) == 2
    assert "has weights of other sizes than its config says: model.layers.0.mlp.down_proj.weight, " in capsys.readouterr().err
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:3000])
    assert main(["generate", str(place), "--text", TEXT]) == 2
    assert f"attend.hf generate: {place} has weights that cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["view"], ["view", "x", "--text", "a"], ["generate", "x"], ["look", "x"],
                                   ["generate", "x", "--text", "a", "--new-tokens", "-1"],
                                   ["view", "x", "--text", "a", "--output", "x.html", "--page-size", "65"],
                                   ["view", "x", "--text", "a", "--output", "x.html", "--page-size", "many"]])
def test_usage(given, capsys):
    with pytest.raises(SystemExit) as error:
        main(given)
    assert error.value.code == 2 and capsys.readouterr().err.startswith("usage: ")


def test_generate_nothing(folder, capsys):
    assert main(["generate", str(folder), "--text", TEXT, "--new-tokens", "0"]) == 2
    assert "--new-tokens is 0" in capsys.readouterr().err


def test_as_a_module(monkeypatch, capsys):
    """Importing attend.hf and its help need no Transformers."""
    monkeypatch.setattr(attend, "hf", attend.hf)  # this one comes back
    for name in [x for x in sys.modules if x == "attend.hf" or x.startswith("attend.hf.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(sys, "argv", ["attend.hf", "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("attend.hf", run_name="__main__")
    assert stop.value.code == 0 and "GGUF" in capsys.readouterr().out
