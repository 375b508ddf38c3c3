"""Is the package what its documents and its stub say?"""
import doctest
import inspect
import pathlib
import re
import shutil
import subprocess
import sys

import numpy
import pytest

import attend

SOURCES = pathlib.Path(__file__).parents[1]
PUBLIC = [(name, getattr(attend, name)) for name in attend.__all__]


def test_examples_in_docstrings_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    parser = doctest.DocTestParser()
    for name, thing in [("attend", attend), *PUBLIC]:
        names = {"attend": attend, "numpy": numpy}
        runner.run(parser.get_doctest(inspect.getdoc(thing) or "", names, name, None, 0))
    assert runner.summarize().failed == 0
    assert runner.tries > 60


def test_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = SOURCES.parent / "docs" / "python.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.failed == 0 and result.attempted > 15


@pytest.mark.parametrize("name, thing", PUBLIC)
def test_everything_public_is_described(name, thing):
    assert inspect.getdoc(thing)
    for member in dir(thing) if isinstance(thing, type) and thing.__module__ == "attend._attend" else []:
        if not member.startswith("_"):
            assert getattr(thing, member).__doc__, f"{name}.{member}"


def test_the_stub_is_what_the_module_says(tmp_path):
    """Where it is not: ./run python -m nanobind.stubgen -m attend._attend -p python/stub.pat
    -o python/attend/_attend.pyi"""
    made = tmp_path / "_attend.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "attend._attend", "-p",
                    SOURCES / "stub.pat", "-o", made], check=True)
    assert made.read_text() == (SOURCES / "attend" / "_attend.pyi").read_text()


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf: apt-get install binutils")
def test_the_module_links_no_mpi():
    """Whichever MPI there is comes with mpi4py."""
    dynamic = subprocess.run(["readelf", "-d", "-W", attend._attend.__file__], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert needed and not [name for name in needed if re.search("mpi|open-(rte|pal)|pmi", name)], needed


TYPED = """
import numpy, attend
q = numpy.ones((1, 1, 2, 4))
attend.attention(q, q, q, causal=True, window=(1, None)).astype("f4")
attend.attention(q, q, q, return_lse=True)[1].astype("f4")
layer = attend.MultiHeadAttention(model_dim=8, heads=2, rotary=attend.Rotary())
layer.forward(q, mask=q > 0).astype("f4")
attend.cross_entropy(q, q).value + 1.0
"""


def test_types_are_checked(tmp_path):
    """In one run, as mypy reads all types of NumPy first: a file with a mistake, and one without."""
    (tmp_path / "right.py").write_text(TYPED)
    (tmp_path / "wrong.py").write_text(TYPED + "attend.attention(q, q, q, causal='yes')\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-incremental", "right.py", "wrong.py"],
                          capture_output=True, text=True, env={"MYPYPATH": str(SOURCES)}, cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1 and re.match(r"wrong\.py:\d+: error: No overload", errors[0]), done.stdout + done.stderr


def test_the_version_is_the_librarys():
    header = (SOURCES.parent / "include" / "attend" / "version.h").read_text()
    numbers = re.findall(r"#define ATTEND_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    assert attend.__version__ == attend.version() == ".".join(numbers)


def test_the_module_is_not_installed_beside_the_library(tmp_path):
    script = pathlib.Path(attend.__file__).parent.parent / "cmake_install.cmake"
    if not script.exists():
        pytest.skip("this is no build tree")
    subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={tmp_path}", "-P", script], check=True)
    assert not list(tmp_path.rglob("*_attend*"))


@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm, of binutils")
def test_the_module_shows_nothing_but_its_entry():
    # Else a statically linked standard library is mixed with PyTorch's or NumPy's copy of it, and streams crash.
    table = subprocess.run(["nm", "-D", "--defined-only", attend._attend.__file__], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in table.stdout.splitlines()] == ["PyInit__attend"]


def test_importing_loads_no_other_library():
    code = "import attend, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "attend" in loaded.stdout.split()
    assert not {"torch", "ml_dtypes", "onnx", "jax", "mpi4py"} & set(loaded.stdout.split())
