#!/usr/bin/env python3
"""Checks that every header compiles alone, so that a file may include it first.

    tools/check_headers.py [FOLDER] -- COMPILER FLAGS...   every .h of include/attend and src of the tree
    tools/check_headers.py --self-test -- COMPILER FLAGS...

Left out are headers that some .cpp of src includes before anything else, as the build shows that they do, and
headers of vectors that only another architecture has. Exit: 0 none, 1 some do not, 2 usage.
"""
import concurrent.futures
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

# What headers of an instruction set need to be compiled here, besides the flags, by how their names begin; None: not on
# this architecture.
X86 = platform.machine() in ("x86_64", "AMD64")
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]
FLAGS = {
    "avx2": AVX2 if X86 else None,
    "avx512_bf16": [*AVX512, "-mavx512bf16"] if X86 else None,
    "avx512": AVX512 if X86 else None,
    "pairs": [*AVX512, "-mavx512bf16"] if X86 else None,
    "amx": [*AVX512, "-mavx512bf16", "-mavx512vbmi", "-mamx-tile", "-mamx-bf16"] if X86 else None,
    "neon": None if X86 else [],
}


def errors_of(header, compiler):
    """What the compiler says of one header, or "" if it is content or cannot be asked."""
    more = next((flags for begin, flags in FLAGS.items() if header.name.startswith(begin)), [])
    if more is None:
        return ""
    # As another file would include it: a header that is compiled itself may not say #pragma once.
    done = subprocess.run([*compiler, *more, "-fsyntax-only", "-x", "c++", "-"], text=True,
                          input=f'#include "{header.resolve()}"\n', stderr=subprocess.PIPE)
    return "" if done.returncode == 0 else done.stderr


def included_first(root):
    """The headers that a .cpp of src begins with."""
    found = set()
    for file in (root / "src").rglob("*.cpp"):
        first = re.search(r'^#include ["<]([^">]+)', file.read_text(), re.M)
        if first:
            found |= {(folder / first[1]).resolve() for folder in (file.parent, root / "src", root / "include")}
    return found


def check(root, compiler):
    known = included_first(root)
    headers = sorted({*(root / "include/attend").rglob("*.h"), *(root / "src").rglob("*.h")} - known)
    compiler = [*compiler, f"-I{root / 'include'}", f"-I{root / 'src'}"]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for header, errors in zip(headers, pool.map(lambda h: errors_of(h, compiler), headers)):
            if errors:
                failed += 1
                print(f"{header.relative_to(root)} does not compile alone:\n{errors[:600]}")
    print(f"{len(headers)} headers, {failed} of them do not compile alone")
    return failed


def self_test(compiler):
    """One header that does, one that needs another before it, and one of those that a source file begins with."""
    with tempfile.TemporaryDirectory() as folder:
        src = pathlib.Path(folder) / "src"
        src.mkdir()
        (src / "whole.h").write_text("#pragma once\ninline int one() { return 1; }\n")
        (src / "half.h").write_text("#pragma once\ninline int two() { return one() + 1; }\n")
        (src / "first.h").write_text("#pragma once\ninline int three() { return one() + 2; }\n")
        (src / "first.cpp").write_text('#include "first.h"\n')
        return 0 if check(pathlib.Path(folder).resolve(), compiler) == 1 else 1


def main():
    words = sys.argv[1:]
    if "--" not in words or words[-1] == "--":
        print(__doc__, file=sys.stderr)
        return 2
    at = words.index("--")
    own, compiler = words[:at], words[at + 1:]
    if own == ["--self-test"]:
        return self_test(compiler)
    root = pathlib.Path(own[0] if own else pathlib.Path(__file__).parent.parent).resolve()
    return 1 if check(root, compiler) else 0


if __name__ == "__main__":
    sys.exit(main())
