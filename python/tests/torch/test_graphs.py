"""Both operators in graphs of PyTorch's with sizes that are not known, with every option: the slow check of opcheck, so by ctest
it is a test of its own, python.graphs."""
import pytest
import torch
from attend.torch.operators import attention, attention_backward
from test_options import GRAPH, every_option, heard


@pytest.mark.parametrize("operator", [attention, attention_backward], ids=["forward", "backward"])
@every_option
def test_opcheck_in_a_graph(name, operator, monkeypatch):
    arguments = heard(name, monkeypatch)["forward" if operator is attention else "backward"]
    torch.library.opcheck(operator, *arguments, test_utils=GRAPH)


@pytest.mark.parametrize("operator", [attention, attention_backward], ids=["forward", "backward"])
@pytest.mark.parametrize("name", ["packed keys", "scales", "all"])
def test_opcheck_in_a_graph_of_some_heads_and_scores(name, operator, monkeypatch):
    arguments = heard(name, monkeypatch, weight_heads=[2, 0], return_scores="masked")["forward" if operator is attention else "backward"]
    torch.library.opcheck(operator, *arguments, test_utils=GRAPH)
