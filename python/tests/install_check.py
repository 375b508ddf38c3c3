#!/usr/bin/env python3
"""Does the package install into an empty environment, whole, and say what it lacks?

    install_check.py SOURCE      the tree; run by the interpreter that has nanobind and scikit-build-core

It builds the wheel, installs it into a new environment, looks at what came, runs the README's lines there, and
configures once without CLI11, which must print the line that installs it. Minutes: under ./run test --soak.
"""
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile

PARTS = ("attend/__init__.py", "attend/_attend.pyi", "attend/py.typed", "attend/onnx.py", "attend/torch/__init__.py")


def run(*command, **options):
    print("+", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, text=True, **options)


def main(source, folder):
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--disable-pip-version-check",
        "--wheel-dir", folder, "-C", f"build-dir={folder / 'build'}", source)
    wheel, = folder.glob("attend_cpp-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    missing = [part for part in PARTS if part not in names]
    for pattern in (r"attend/_attend\..*\.so", r".*/scripts/attend", r".*/LICENSE"):
        missing += [] if any(re.fullmatch(pattern, name) for name in names) else [pattern]
    assert not missing, f"{wheel.name} lacks {missing}"
    assert not any(name.endswith(".h") for name in names), "headers are not for the wheel"

    venv.create(folder / "empty", with_pip=True)
    python = folder / "empty/bin/python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", wheel)
    lines = re.search(r"^```python\n(.*?)^```$", (source / "README.md").read_text(), re.M | re.S)[1]
    numpy = {"PYTHONPATH": sysconfig.get_path("platlib")}          # the only thing it needs
    run(python, "-c", lines + "\nassert y.shape == (2, 10, 512)", cwd=folder, env=numpy)
    found = run(folder / "empty/bin/attend", "--version", capture_output=True).stdout
    assert found.startswith("attend "), found

    asked = subprocess.run(["cmake", "-S", source, "-B", folder / "lacking", "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON"],
                           text=True, capture_output=True)
    assert asked.returncode != 0 and "apt-get install libcli11-dev" in asked.stderr, asked.stderr


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(temporary))
    print("installed, complete, and it runs")
