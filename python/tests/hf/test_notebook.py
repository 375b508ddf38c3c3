"""The notebook runs, with a tiny random model in place of a real one."""
import json
import pathlib

import torch
import words
from tiny import tiny

import attend

NOTEBOOK = pathlib.Path(__file__).parents[3] / "examples" / "models.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    tiny("llama").save_pretrained(tmp_path)
    words.word_level().save_pretrained(tmp_path)
    monkeypatch.setenv("ATTEND_MODEL", str(tmp_path))
    cells = ["".join(x["source"]) for x in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if x["cell_type"] == "code"]
    names = {}
    for cell in cells:
        exec(compile(cell, str(NOTEBOOK), "exec"), names)
    assert len(cells) == 5 and "2 of 2 attentions come to attend" in capsys.readouterr().out
    page = eval(cells[1].splitlines()[-1], names)  # what a notebook shows
    assert isinstance(page, attend.View)
    losses = names["losses"]
    assert len(losses) == 3 and len(set(losses.values())) == 3  # the edits change something
    assert names["weights"].shape == (48, 48) and abs(names["weights"].sum(1) - 1).max() < 1e-5
