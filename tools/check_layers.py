#!/usr/bin/env python3
"""Checks that nothing in the source tree includes what lies above it: docs/architecture.md.

    tools/check_layers.py [FOLDER]      the tree, by default the one this file is in
    tools/check_layers.py --self-test   proves on small made-up trees that violations are found

A violation is printed as `file:line: rule: what was found`. Exit: 0 none, 1 some, 2 usage.
"""
import pathlib
import re
import sys
import tempfile

# The whole of the layering: which folders the files of a folder may include, besides their own and
# include/attend. Tests may include everything, so they are not here.
ALLOWED = {
    "include/attend": (),
    "src/core": (),
    "src/reference": ("src/core",),
    "src/cpu": ("src/core",),
    "src/cuda": ("src/core",),
    "src/plan": ("src/core",),                # kernels only as rows, declared in core/kernel.h
    "src/api": ("src/core", "src/plan"),
    "src/c_api": ("src/core",),               # as any program would: the public headers
    "src/layer": ("src/core", "src/plan", "src/api"),   # its products are planned
    "src/inspect": ("src/core",),
    "src/view": ("src/core",),
    "src/mpi": (),                            # as a program with MPI would
    "src/distributed": ("src/core", "src/plan", "src/api"),   # parts of calls, and their row sums
    "src/io": ("src/core",),
    "src/cases": (),
    "python": ("src/cases",),
    "cli": ("src/cases",),
    "bench": ("src/cases",),
    "examples": ("src/cases",),
}
PUBLIC = "include/attend"
OF_MPI = ("include/attend/mpi.h", "mpi.h")   # the one public header of a component with a dependency
SUFFIXES = {".h", ".cpp", ".cuh", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# <vector>, <cstdint>: no folder, no ending; or C's, which the C API needs
STANDARD = re.compile(r"[a-z_]+|std(def|int)\.h")


def layer_of(path):
    """The folder in ALLOWED that a path of the tree is in, or None."""
    return next((str(p) for p in pathlib.PurePath(path).parents if str(p) in ALLOWED), None)


def includes(file):
    """(line, bracket, name) of every #include of a file."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1], match[2]


def resolve(root, path, bracket, name):
    """The included file as a path of the tree, or None if it is not of this tree."""
    if bracket == "<":
        return f"include/{name}" if name.startswith("attend/") else None
    for folder in (pathlib.PurePath(path).parent, "src", layer_of(path)):
        candidate = (root / folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return f"src/{name}"


def check_edge(root, path, bracket, name, target):
    """The rule that one #include breaks, and what was found; or None."""
    layer = layer_of(path)
    if layer == PUBLIC and bracket == '"':
        return "public headers write <attend/...>", f'"{name}"'
    if target is None:
        if layer == PUBLIC and not STANDARD.fullmatch(name) and (path, name) != OF_MPI:
            return "public headers include <attend/...> and the standard library only", f"<{name}>"
        return None
    if not (root / target).is_file():
        return "an included file exists", target
    above = layer_of(target)
    if above is None:
        return f"{layer} includes known folders only", target
    if above not in (layer, PUBLIC, *ALLOWED[layer]):
        allowed = " ".join((layer, *([] if layer == PUBLIC else [PUBLIC]), *ALLOWED[layer]))
        return f"{layer} may include {allowed}", target
    return None


def find_cycles(edges):
    """Each cycle of {file: [(line, file)]} once, as the line that closes it."""
    done, path = set(), []

    def visit(file):
        path.append(file)
        for line, target in edges.get(file, ()):
            if target in path:
                around = path[path.index(target):] + [target]
                yield file, line, "files include each other", " -> ".join(around)
            elif target not in done:
                yield from visit(target)
        done.add(path.pop())

    for file in sorted(edges):
        if file not in done:
            yield from visit(file)


def check(root):
    """All violations of a tree, as (file, line, rule, found), and the number of files read."""
    root = pathlib.Path(root).resolve()
    violations, edges = [], {}
    for layer in ALLOWED:
        for file in sorted((root / layer).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix not in SUFFIXES or layer_of(path) != layer:
                continue
            edges[path] = []
            for line, bracket, name in includes(file):
                target = resolve(root, path, bracket, name)
                if broken := check_edge(root, path, bracket, name, target):
                    violations.append((path, line, *broken))
                if target:
                    edges[path].append((line, target))
    for folder in sorted((root / "src").glob("*")):
        if folder.is_dir() and f"src/{folder.name}" not in ALLOWED:
            violations.append((f"src/{folder.name}", 0, "a folder of src has a row in ALLOWED",
                               "none"))
    return violations + list(find_cycles(edges)), len(edges)


# Small trees for the self-test: files that are fine together, and one file more that is not.
GOOD = {
    "include/attend/tensor.h": "#include <vector>\n",
    "src/core/problem.h": "#include <attend/tensor.h>\n#include <sched.h>\n",
    "src/core/kernel.h": '#include "core/problem.h"\n',
    "src/reference/attention.cpp": '#include "core/kernel.h"\n#include "tiles.h"\n',
    "src/reference/tiles.h": "",
    "src/plan/plan.h": '#include "core/kernel.h"\n',
    "src/api/run.cpp": '#include "plan/plan.h"\n',
    "src/cases/cases.h": "#include <attend/tensor.h>\n",
    "cli/apply/command.cpp": '#include "frame/flags.h"\n#include "apply.h"\n',
    "cli/apply/apply.h": "",
    "cli/frame/flags.h": "",
    "examples/demo.cpp": "#include <attend/tensor.h>\n#include \"cases/cases.h\"\n",
    "include/attend/mpi.h": "#include <attend/tensor.h>\n#include <mpi.h>\n",
    "tests/any_test.cpp": '#include "api/run.h"\n#include "plan/plan.h"\n',
}
BAD = {
    "include/attend/a.h": ('#include "tensor.h"\n', "public headers write"),
    "include/attend/b.h": ("#include <sys/mman.h>\n", "standard library only"),
    "include/attend/mpi_too.h": ("#include <mpi.h>\n", "standard library only"),
    "include/attend/c.h": ("\n#include <attend/c.h>\n", "include each other"),
    "src/core/up.h": ('#include "plan/plan.h"\n', "src/core may include"),
    "src/core/round.h": ('#include "core/round.h"\n', "include each other"),
    "src/reference/up.cpp": ('#  include "plan/plan.h"\n', "src/reference may include"),
    "src/cpu/across.cpp": ('#include "reference/tiles.h"\n', "src/cpu may include"),
    "src/cuda/relative.cu": ('#include "../reference/tiles.h"\n', "src/cuda may include"),
    "src/plan/past.cpp": ('#include "reference/tiles.h"\n', "src/plan may include"),
    "src/api/past.cpp": ('#include "reference/tiles.h"\n', "src/api may include"),
    "src/layer/up.cpp": ('#include "reference/tiles.h"\n', "src/layer may include"),
    "src/cases/inside.cpp": ('#include "core/problem.h"\n', "src/cases may include"),
    "examples/inside.cpp": ('#include "core/problem.h"\n', "examples may include"),
    "bench/inside.cpp": ('#include "core/problem.h"\n', "bench may include"),
    "cli/inside.cpp": ('#include "../src/core/problem.h"\n', "cli may include"),
    "cli/apply/inside.cpp": ('#include "core/problem.h"\n', "cli may include"),
    "python/inside.cpp": ('#include "core/problem.h"\n', "python may include"),
    "src/api/lost.cpp": ('#include "core/no_such_file.h"\n', "an included file exists"),
    "src/api/tested.cpp": ('#include "../../tests/any_test.cpp"\n', "known folders only"),
    "src/utils/new.h": ("", "has a row in ALLOWED"),
}


def violations_of(files):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return check(folder)[0]


def self_test():
    failures = [f"a good tree is refused: {v}" for v in violations_of(GOOD)]
    for path, (text, rule) in BAD.items():
        found = violations_of({**GOOD, path: text})
        if len(found) != 1 or rule not in found[0][2] or not path.startswith(found[0][0]):
            failures.append(f"{path} should break `{rule}` once, but: {found}")
    # A cycle through two files is found once, in whichever of them it closes.
    pair = {"src/core/a.h": '#include "core/b.h"\n', "src/core/b.h": '#include "core/a.h"\n'}
    if [v[2] for v in violations_of({**GOOD, **pair})] != ["files include each other"]:
        failures.append("a cycle of two files is not found once")
    for failure in failures:
        print(failure)
    print(f"{len(BAD) + 2} trees tried, {len(failures)} wrong")
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) > 1 or arguments[:1] and arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    root = arguments[0] if arguments else pathlib.Path(__file__).resolve().parent.parent
    violations, count = check(root)
    for file, line, rule, found in violations:
        print(f"{file}:{line}: {rule}: {found}")
    print(f"{count} files, {len(violations)} violations")
    return 1 if violations or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
