"""The examples of docs/models.md run."""
import doctest
import pathlib
import re

import words
from tiny import tiny

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "models.md"


def test_examples_of_the_page_run():
    result = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0 and result.attempted > 9


def test_the_five_lines_run(tmp_path, monkeypatch):
    """As they stand there, with a tiny random model in a folder in place of the hub's."""
    tiny("llama").save_pretrained(tmp_path / "model")
    words.word_level().save_pretrained(tmp_path / "model")
    (block,) = re.findall(r"^```python\n(import attend, transformers\n.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    lines = block.splitlines()
    assert len(lines) == 5 and lines[1].startswith("name = ")
    monkeypatch.chdir(tmp_path)
    exec("\n".join([lines[0], "name = 'model'", *lines[2:]]), {})
    assert "LlamaForCausalLM" in (tmp_path / "heads.html").read_text("utf-8")
