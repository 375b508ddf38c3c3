"""Do the README's Python lines, and the examples in Python, run as they stand?"""
import pathlib
import re
import runpy

README = pathlib.Path(__file__).parents[2] / "README.md"


def blocks(torch):
    """The README's programs that need PyTorch, or those that do not."""
    found = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
    return [text for text in found if ("torch" in text.partition("\n")[0]) == torch]


def test_the_lines_for_numpy_run():
    assert blocks(torch=False)
    for text in blocks(torch=False):
        names = {}
        exec(text, names)
        assert names["y"].shape == (2, 10, 512)


def test_the_examples_run():
    examples = sorted((README.parent / "examples").glob("*.py"))
    assert examples
    for example in examples:
        runpy.run_path(str(example))
