"""The examples of docs/models.md run."""
import doctest
import pathlib


def test_examples_of_the_page_run():
    page = pathlib.Path(__file__).parents[3] / "docs" / "models.md"
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0 and result.attempted > 9
