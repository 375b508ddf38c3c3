#!/usr/bin/env python3
"""What `attend train` promises, seen from the shell.

    train_test.py TEST COMMAND      TEST is the name of a function below, COMMAND the program
"""
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time

COMMAND = ""


def attend(*arguments, status=0, **more):
    """Runs `attend train`; gives stdout. The status must be the one expected."""
    result = subprocess.run([COMMAND, "train", *map(str, arguments)], text=True,
                            capture_output=True, **more)
    assert result.returncode == status, (arguments, result.returncode, result.stderr)
    if status == 2:
        assert result.stderr.count("\n") == 1, result.stderr
        return result.stderr
    assert result.stderr == "" or status == 130, result.stderr   # no terminal: no progress
    return result.stdout


def trained(*arguments):
    result = json.loads(attend("--json", *arguments))
    assert result["schema"] == "attend.train/1", result
    return result


def text_file(folder):
    """About 20 000 characters with a little grammar, the same each time."""
    words = {"who": ["the cat", "a dog", "my sister", "an old man", "the café owner"],
             "does": ["sees", "likes", "finds", "paints", "never eats"],
             "what": ["the moon", "green apples", "a small boat", "nothing", "the river"]}
    state, lines = 1, []
    while sum(map(len, lines)) < 20000:
        chosen = []
        for kind in ("who", "does", "what"):
            state = (state * 1103515245 + 12345) % 2**31
            chosen.append(words[kind][state // 65536 % 5])
        lines.append(" ".join(chosen) + ".\n")
    path = folder / "text.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


SMALL = ("--model-dim", 16, "--heads", 2, "--batch", 4)   # a model that trains in no time


def documented(words):
    """The output that docs/command.md shows, as a pattern for any numbers."""
    page = (pathlib.Path(__file__).parents[2] / "docs/command.md").read_text(encoding="utf-8")
    block = page.split(f"```console\n$ attend train {words}\n")[1].split("```")[0]
    pattern = re.escape(block).replace(re.escape("..."), ".*")
    return re.sub(r"\d+(\\\.\d+)?", r"\\d+(\\.\\d+)?", pattern)


def induction(folder, seed, type_="f32"):
    """Two layers learn to continue repeated sequences, by an induction head in the second."""
    result = trained("--seed", seed, "--type", type_, "--checkpoint", folder / "end")
    assert result["type"] == type_, result
    if seed == 1 and type_ == "f32":
        assert re.fullmatch(documented("--seed 1"), attend("--resume", folder / "end"))
    assert result["accuracy"] >= 0.99, result
    assert result["induction_score"] >= 0.8, result
    assert result["induction_layer"] == 1 and result["reached"] is True, result
    assert max(result["scores"][0]) < 0.8, result        # the first layer cannot


def induction_seed_1(folder):
    induction(folder, 1)


def induction_seed_2(folder):
    induction(folder, 2)


def induction_seed_3(folder):
    induction(folder, 3)


def induction_bf16(folder):
    induction(folder, 1, "bf16")


def induction_f16(folder):
    induction(folder, 1, "f16")


def text_of_16_bits(folder):
    """Held-out losses within 0.02 nats of that of f32 (docs/command.md has those of a longer training)."""
    flags = ("--text", text_file(folder), "--steps", 100, "--model-dim", 32, "--batch", 16, "--learning-rate",
             0.01, "--generate", 0)
    losses = {type_: trained(*flags, "--type", type_)["held_out_loss"] for type_ in ("f32", "bf16", "f16")}
    assert losses["f32"] < 1.5, losses
    for type_ in ("bf16", "f16"):
        assert 0 < abs(losses[type_] - losses["f32"]) < 0.02, losses


def text_of_8_bits(folder):
    """The same model, with a cache and with weights of 8 bits: within 0.005 nats of f32."""
    checkpoint, model = folder / "checkpoint", folder / "model"
    flags = ("--text", text_file(folder), "--generate", 10)
    plain = trained(*flags, "--steps", 100, "--model-dim", 32, "--batch", 16, "--learning-rate", 0.01,
                    "--checkpoint", checkpoint)["held_out_loss"]

    def again(*more):
        return trained(*flags, "--resume", checkpoint, "--steps", 100, *more)["held_out_loss"]

    assert again() == plain < 1.5, plain
    cache, weights = again("--cache", "i8"), again("--weights", "i8", "--save", model)
    both = again("--cache", "i8", "--weights", "i8")
    assert 0 < abs(cache - plain) < 0.005, (cache, plain)
    assert 0 < abs(weights - plain) < 0.005, (weights, plain)
    assert 0 < abs(both - plain) < 0.005, (both, plain)
    header = header_of(model.read_bytes())[1]
    types = [header[name]["dtype"] for name in ("head.weight", "head.weight_scales", "tokens.weight")]
    assert types == ["I8", "F32", "F32"], types


def overflow(folder):
    """Gradients of f16 that overflow make no step: the scale is halved and the batch taken again, and the
    training is that of a smaller scale."""
    begin, end, whole = folder / "begin", folder / "end", folder / "whole"
    attend(*SMALL, "--type", "f16", "--steps", 3, "--checkpoint", begin)
    attend(*SMALL, "--type", "f16", "--steps", 8, "--save", whole)
    begin.write_bytes(with_metadata(begin.read_bytes(), "checkpoint.loss_scale", 2.0**40))
    result = trained("--resume", begin, "--steps", 8, "--save", end)
    assert result["skipped_steps"] >= 10 and 1 < result["loss_scale"] < 2.0**30, result
    assert result["steps"] == 8, result
    assert end.read_bytes() == whole.read_bytes()


def one_layer_cannot(folder):
    """The control: with all else equal, one layer stays far from it, and so does no training."""
    for arguments in (("--layers", 1, "--steps", 300), ("--steps", 1)):
        result = trained("--seed", 1, *arguments)
        assert result["accuracy"] < 0.8 and result["induction_score"] < 0.5, result
        assert result["reached"] is False, result


def text(folder):
    """Far below what the frequencies of characters give; and it writes words."""
    result = trained("--text", text_file(folder), "--steps", 250, "--model-dim", 32, "--batch", 16,
                     "--learning-rate", 0.01, "--generate", 80, "--prompt", "the c")
    assert result["held_out_loss"] < 1.0 < 2.5 < result["unigram_loss"], result
    assert len(result["sample"]) == 80, result
    words = set(re.findall(r"\w+", text_file(folder).read_text(encoding="utf-8")))
    written = re.findall(r"\w+", result["prompt"] + result["sample"])[:-1]
    known = sum(word in words for word in written)
    assert known >= 0.7 * len(written) >= 5, (known, written)


def resumed_is_uninterrupted(folder):
    """A training that is resumed gives the file of one that never stopped, bit for bit."""
    for extra in ((), ("--text", text_file(folder)), ("--type", "bf16"), ("--type", "f16")):
        whole, half, rest = folder / "whole", folder / "half", folder / "rest"
        attend(*SMALL, *extra, "--steps", 40, "--save", whole, "--seed", 5)
        # The same learning rates: --steps is that of the whole, and Ctrl-C ends the first part.
        process = subprocess.Popen([COMMAND, "train", *map(str, SMALL), *map(str, extra), "--steps",
                                    "40", "--seed", "5", "--checkpoint", str(half),
                                    "--checkpoint-every", "1"], stderr=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL)
        while not half.exists() and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        assert process.wait() in (130, 0)
        attend("--resume", half, *(extra if "--text" in extra else ()), "--save", rest)
        assert rest.read_bytes() == whole.read_bytes(), extra
        half.unlink()


def more_steps_go_on(folder):
    """Threads change no bit, and more steps than at first may be asked for."""
    whole, half, rest = folder / "whole", folder / "half", folder / "rest"
    for type_ in ("f32", "bf16", "f16"):
        flags = (*SMALL, "--type", type_)
        attend(*flags, "--steps", 30, "--save", whole, "--threads", 1)
        attend(*flags, "--steps", 13, "--checkpoint", half, "--threads", 3)
        attend("--resume", half, "--steps", 30, "--save", rest)
        models = [path.read_bytes() for path in (whole, rest)]
        assert models[0] == models[1], type_


def interrupt(folder):
    """The first Ctrl-C writes the checkpoint and ends with 130; a second one ends at once, but for the
    file that is being written."""
    def beside():
        return [p.name for p in folder.iterdir() if ".attend-" in p.name]

    for presses in (1, 2):
        checkpoint = folder / f"checkpoint{presses}"
        process = subprocess.Popen(
            [COMMAND, "train", "--steps", "100000", "--learning-rate", "1e-9", "--json", "--checkpoint",
             str(checkpoint), "--checkpoint-every", "1", "--model-dim", "128", "--batch", "1"], text=True, stderr=subprocess.PIPE,
            stdout=subprocess.PIPE)
        while not checkpoint.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        if presses == 2:
            while not beside() and process.poll() is None:
                time.sleep(0.0005)
            process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert out == "", out
        assert process.returncode in ((130,) if presses == 1 else (130, -signal.SIGINT)), err
        if presses == 1:
            assert "interrupted after step" in err and str(checkpoint) in err, err
        result = trained("--resume", checkpoint, "--steps", 1)   # whole: it is read
        assert result["steps"] >= 1, result
        assert not beside(), beside()


def files(folder):
    """The plot is an SVG picture, the model a file that says what it is."""
    attend(*SMALL, "--text", text_file(folder), "--steps", 3, "--plot", folder / "loss.svg",
           "--save", folder / "model")
    picture = (folder / "loss.svg").read_text()
    assert picture.startswith("<svg") and picture.endswith("</svg>\n"), picture
    header = (folder / "model").read_bytes()
    size = int.from_bytes(header[:8], "little")
    metadata = json.loads(header[8:8 + size])["__metadata__"]
    assert metadata["format"] == "attend.language_model", metadata
    assert "é" in metadata["text.characters"], metadata
    assert sorted(p.name for p in folder.iterdir()) == ["loss.svg", "model", "text.txt"]


def terminal(folder):
    """On a terminal the loss is plotted, in colour unless NO_COLOR is set; no line is too long."""
    for colour in (True, False):
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        environment |= {"TERM": "xterm", "LC_ALL": "C.UTF-8"} | ({} if colour else {"NO_COLOR": "1"})
        master, slave = pty.openpty()
        process = subprocess.Popen([COMMAND, "train", *map(str, SMALL), "--steps", "20"],
                                   stdout=slave, stderr=subprocess.DEVNULL, env=environment)
        os.close(slave)
        out = b""
        try:
            while part := os.read(master, 4096):
                out += part
        except OSError:                       # the other end is closed
            pass
        assert process.wait() == 0
        lines = out.decode().splitlines()
        assert "█" in out.decode() and any("step 1" in line for line in lines), lines
        assert (b"\033[" in out) == colour, lines
        assert max(len(re.sub(r"\033\[\d*m", "", line)) for line in lines) <= 80, lines


def header_of(file):
    """Of the bytes of a safetensors file: the size of its header, and what it says."""
    size = int.from_bytes(file[:8], "little")
    return size, json.loads(file[8:8 + size])


def with_metadata(checkpoint, key, value):
    """The bytes of a checkpoint (safetensors) with another value in its metadata."""
    size, header = header_of(checkpoint)
    header["__metadata__"][key] = str(value)
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    return len(words).to_bytes(8, "little") + words + checkpoint[8 + size:]


def mistakes(folder):
    """One line each, status 2, and no file."""
    path = text_file(folder)
    (folder / "short").write_text("abc")
    (folder / "almost").write_text("ab" * 160)
    (folder / "enough").write_text("ab" * 160 + "a")
    attend(*SMALL, "--steps", 1, "--text", folder / "enough")
    (folder / "bytes").write_bytes(b"abc\xff" * 1000)
    attend(*SMALL, "--steps", 2, "--checkpoint", folder / "induction", "--seed", 3)
    attend(*SMALL, "--steps", 2, "--checkpoint", folder / "text", "--text", path)
    (folder / "broken").write_bytes((folder / "induction").read_bytes()[:-1])
    (folder / "huge").write_bytes(with_metadata((folder / "induction").read_bytes(), "train.batch", 2**62))
    before = sorted(p.name for p in folder.iterdir())
    for arguments, words in (
            (("--steps", 0), "--steps"),
            (("--learning-rate", "fast"), "--learning-rate"),
            (("--learning-rate", -1), "--learning-rate"),
            (("--heads", 3), "heads 3"),
            (("--type", "f8"), "--type"),
            (("--text", folder / "none"), "cannot be opened"),
            (("--text", folder), "cannot be read"),
            (("--text", folder / "short"), "it needs at least 321"),
            (("--text", folder / "almost"), "has 320 characters; it needs at least 321"),
            (("--text", folder / "bytes"), "is not UTF-8 at byte 3"),
            (("--text", path, "--prompt", "§"), "has the character '§'"),
            (("--generate", 3), "--text"),
            (("--length", 3), "--text"),
            (("--checkpoint", folder / "no" / "x"), "x: cannot be written: No such file"),
            (("--save", folder), "is a folder"),
            (("--plot", folder / "new", "--save", f"{folder}/./new"), "is to be written twice"),
            (("--checkpoint-every", 3), "--checkpoint-every needs --checkpoint"),
            (("--resume", folder / "none"), "cannot be opened"),
            (("--resume", folder / "broken"), "broken"),
            (("--resume", path), "text.txt"),
            (("--resume", folder / "induction", "--model-dim", 8), "--model-dim"),
            (("--resume", folder / "induction", "--type", "f16"), "--type comes from the checkpoint"),
            (("--resume", folder / "induction", "--seed", 8), "--seed is 8"),
            (("--resume", folder / "induction", "--seed", 0), "--seed is 0"),
            (("--resume", folder / "induction", "--text", path), "it takes no --text"),
            (("--resume", folder / "text"), "it needs --text"),
    ):
        assert words in attend(*arguments, status=2), (arguments, words)
    path.write_text(path.read_text(encoding="utf-8") + "more", encoding="utf-8")
    huge = subprocess.run([COMMAND, "train", "--resume", folder / "huge"], text=True, capture_output=True)
    assert huge.returncode == 3 and f"batches of {2**62}" in huge.stderr, huge
    assert "is not the text" in attend("--resume", folder / "text", "--text", path, status=2)
    assert sorted(p.name for p in folder.iterdir()) == before


def main():
    global COMMAND
    test, COMMAND = globals()[sys.argv[1]], sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        test(pathlib.Path(folder))


if __name__ == "__main__":
    main()
