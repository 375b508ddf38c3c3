#!/usr/bin/env python3
"""What an older C++ says about attend's headers: older_language_test.py INCLUDE COMPILER

Of C++17 every header complains once, that it needs C++20, and the compilation ends there. Those of C
compile.
"""
import os
import pathlib
import re
import subprocess
import sys

include, compiler = sys.argv[1:]
wrong = 0
headers = sorted(pathlib.Path(include, "attend").glob("*.h"))
for header in headers:
    done = subprocess.run([compiler, "-std=c++17", "-fsyntax-only", f"-I{include}", "-x", "c++", "-"],
                          input=f"#include <attend/{header.name}>\nint x = attend::unknown;\n"
                          if header.name not in ("c_api.h", "version.h") else
                          f"#include <attend/{header.name}>\n",
                          env={**os.environ, "LC_ALL": "C"}, text=True, capture_output=True)
    errors = re.findall(r"error: (.*)", done.stderr)
    if header.name in ("c_api.h", "version.h"):
        good = done.returncode == 0
    else:   # and the line by which it ends
        good = len(errors) == 2 and "attend needs C++20" in errors[0] and "nothing_else" in errors[1]
    if not good:
        wrong += 1
        print(f"{header.name}:\n{done.stderr}")
print(f"{len(headers)} headers, {wrong} wrong")
sys.exit(1 if wrong else 0)
