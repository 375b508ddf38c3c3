"""tools/model_types.py, the sweep over every model type, takes nothing for a refusal or for a missing input that is a mistake."""
import pathlib
import sys
import types

import pytest
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools"))
import model_types  # noqa: E402

FUNCTIONS = transformers.AttentionInterface._global_mapping
ATTEND = None  # what is registered


def right(*given, **options):
    return ATTEND(*given, **options)


def wrong(*given, **options):
    out, weights = ATTEND(*given, **options)
    return out + 1, weights


def refused(*given, **options):
    return ATTEND(*given, **options, pages=3)


def raises(error):
    def function(*given, **options):
        raise error

    return function


def breaks(*given, **options):
    """In attend's own code, and not in words."""
    return ATTEND(given[0], None, *given[2:], **options)


def then(first, second):
    """In the two layers of the first run, and after it."""
    calls = []

    def function(*given, **options):
        calls.append(given)
        return (first if len(calls) <= 2 else second)(*given, **options)

    return function


ERRORS = (ValueError, KeyError, RuntimeError, AttributeError, IndexError, AssertionError)
CASES = {
    "right": (right, "agrees"), "wrong": (wrong, "wrong"), "refused": (refused, "refused"), "refused later": (then(right, refused), "refused"),
    "wrong before it is refused": (then(wrong, refused), "wrong"), "breaks": (breaks, "wrong"),
    "refused by others": (raises(NotImplementedError("attend: says somebody else")), "wrong"),
    **{error.__name__: (raises(error("attend")), "wrong") for error in ERRORS},
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_called_so(case, monkeypatch):
    function, state = CASES[case]
    monkeypatch.setattr(sys.modules[__name__], "ATTEND", FUNCTIONS["attend"])
    monkeypatch.setitem(FUNCTIONS, "attend", function)
    found = model_types.one("bert", transformers.BertModel, types.SimpleNamespace(generate=False, compiled=False))
    assert found["state"] == state, found
    assert found["calls"] > 0


def test_a_result_of_other_tensors_is_wrong():
    x, nothing = torch.ones(2, 3), (0.0, "")
    assert model_types.difference({"a": x, "b": x}, {"a": x, "b": x}, None) == nothing
    for found in ({"a": x}, {"a": x, "b": x, "c": x}, {"a": x, "c": x}, {"a": x, "b": x[:1]}, {"a": x, "b": x * torch.nan}, {}):
        assert model_types.difference(found, {"a": x, "b": x}, None)[0] == float("inf")
