"""Do the README's lines for PyTorch run as they stand?"""
import pathlib
import re

README = pathlib.Path(__file__).parents[3] / "README.md"


def test_the_lines_for_pytorch_run(capsys):
    programs = [text for text in re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
                if "torch" in text.partition("\n")[0]]
    assert programs
    for text in programs:
        names = {}
        exec(text, names)
        assert names["y"].shape == (1, 8, 10, 64)
    assert "self_attn" in capsys.readouterr().out
