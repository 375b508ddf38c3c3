#!/usr/bin/env python3
"""Mistakes that the compiler must refuse: compile_fail_test.py FILE COMPILER...

A file compiles as it is, and does not with -DWRONG. Then the first error is in the line marked
`// here`, and a line of the compiler's complaint matches the expression behind `// expect:`.
"""
import os
import pathlib
import re
import subprocess
import sys


def compile_file(file, *flags):
    done = subprocess.run([*sys.argv[2:], "-std=c++20", "-fsyntax-only", *flags, file], text=True,
                          env={**os.environ, "LC_ALL": "C"},  # messages in English
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


file = sys.argv[1]
lines = pathlib.Path(file).read_text().splitlines()
here = [number for number, line in enumerate(lines, 1) if line.endswith("// here")]
expected = [line.split(": ", 1)[1] for line in lines if line.startswith("// expect: ")]
if len(here) != 1 or len(expected) != 1:
    sys.exit(f"{file}: needs one line that ends in `// here` and one `// expect: ...`")

code, complaint = compile_file(file)
if code != 0:
    sys.exit(f"{file}: does not compile even without the mistake:\n{complaint}")
code, complaint = compile_file(file, "-DWRONG")
if code == 0:
    sys.exit(f"{file}: the mistake compiles")
first = re.search(r"^(.*?):(\d+):\d+: (?:fatal )?error: ", complaint, re.M)
if not first or first[1] != file or int(first[2]) != here[0]:
    sys.exit(f"{file}: the first error is not in line {here[0]}:\n{complaint}")
if not re.search(expected[0], complaint):
    sys.exit(f"{file}: the complaint does not match `{expected[0]}`:\n{complaint}")
print(f"{file}:{here[0]}: refused, for the expected reason")
