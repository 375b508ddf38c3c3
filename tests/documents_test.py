#!/usr/bin/env python3
"""Checks that the documents tell the truth about the tree they stand in.

    documents_test.py [--compiler CXX] [FOLDER]   FOLDER is the tree, by default the one this file is in
    documents_test.py --self-test                 proves on spoilt copies that mistakes are found

Examined are README.md, README.zh-CN.md, CONTRIBUTING.md, CHANGELOG.md and docs/**/*.md:
  - a block of code below `<!-- FILE [MARK] -->` is that file between its lines `// [MARK]` and `// [/MARK]`, without
    the indentation, or the whole of it where no mark is named; the README has one;
  - every relative link leads to a file, and to a heading of it if it names one;
  - every path of the tree that is written as code or drawn exists, and every test that is named;
  - the README's tables have every field of AttentionOptions, AttentionOutputs, AttentionGradients, and no other;
  - a document NAME.zh-CN.md has the blocks of code, links and figures of NAME.md, and as many headings and rows of
    tables; docs/notes has every page in both languages;
  - a document that speaks of "the notes" says which, or leads to docs/notes/README.md, which does;
  - no document names a machine's own paths;
  - with a compiler: the kernel of docs/adding_a_kernel.md compiles.
A mistake is printed as `file:line: rule: what was found`. Exit: 0 none, 1 some, 2 usage.
"""
import argparse
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

CHINESE = ".zh-CN.md"
FIELDS = ("AttentionOptions", "AttentionOutputs", "AttentionGradients")
# The first word of what counts as a path of the tree when it is written as code.
ROOTS = ("include", "src", "tests", "examples", "docs", "tools", "cmake")
# Named as examples: a file that the reader is to make.
TO_BE_MADE = {"src/cpu/plain.cpp", "src/cpu", "src/cuda"}
MACHINE = re.compile(r"(?<![\w.~])/(?:home|root|tmp|work|mnt|Users|var|opt)\b[^\s`)]*")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
FENCE = re.compile(r"^```.*?^```[^\n]*$", re.M | re.S)
# Code that is a file's, or a part of it.
PROGRAM = re.compile(r"^<!-- (\w+/[\w./-]+)(?: \[(\w+)\])?[^\n]*-->\n```\w*\n(.*?)^```$", re.M | re.S)
# Where tests are named: a paragraph that begins so.
HELD_BY = re.compile(r"^\*Held by\* (?:.+\n)+", re.M)
QUESTION = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
# Numbers that were computed or measured: with a point or with thousands.
FIGURE = re.compile(r"\d+(?:[.,]\d+)+")
ROW = re.compile(r"^\|.*\|$", re.M)
THE_NOTES = re.compile(r"\b[Tt]he (?:lecture )?notes?\b|笔记")
WHICH_NOTES = re.compile(r"five (?:introductory )?notes|五篇|\]\((?:[\w./]*notes/)?README(?:\.zh-CN)?\.md\)")


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def without_fences(text):
    """The text with fenced blocks blanked, so that lines keep their numbers."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def anchors(text):
    """The anchors of a document's headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ (.+)$", without_fences(text), re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def excerpt(root, name, mark):
    """A file, or its lines between two marks; None if there is no such thing."""
    if not (root / name).is_file():
        return None
    source = (root / name).read_text()
    if not mark:
        return source
    found = re.search(rf"^ *// \[{mark}\]\n(.*?)^ *// \[/{mark}\]$", source, re.M | re.S)
    return found and textwrap.dedent(found[1])


def check_programs(root, path, text):
    blocks = list(PROGRAM.finditer(text))
    if path == "README.md" and not blocks:
        yield path, 1, "the README has a program of the examples", "none"
    for match in blocks:
        name, mark, block = match.groups()
        if (source := excerpt(root, name, mark)) is None:
            yield path, line_of(text, match.start()), "a program has its file and its marks", match[0].split("\n")[0]
        elif block != source:
            yield path, line_of(text, match.start()), f"the program is that of {name}", "another text"


def check_links(root, path, text):
    for match in LINK.finditer(without_fences(text)):
        target, _, anchor = match[1].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (root / path).parent / target if target else root / path
        line = line_of(without_fences(text), match.start())
        if not file.exists():
            yield path, line, "a link leads to a file", match[1]
        elif anchor and anchor not in anchors(file.read_text()):
            yield path, line, "a link leads to a heading", match[1]


def check_paths(root, path, text):
    for match in (*CODE.finditer(without_fences(text)), *FENCE.finditer(text)):
        for word in re.finditer(r"[\w./*<>-]+", match[0]):
            name = word[0].rstrip("/.")
            if name.split("/")[0] not in ROOTS or "/" not in word[0] or name in TO_BE_MADE:
                continue
            if any(sign in name for sign in "*<>"):      # a pattern, like tests/<question>_test.cpp
                continue
            if not (root / name).exists():
                line = line_of(match.string, match.start() + word.start())
                yield path, line, "a path exists", word[0]


def questions(root):
    """The names of all tests; those of several types stand in headers."""
    for file in (*(root / "tests").rglob("*.cpp"), *(root / "tests/support").glob("*.h")):
        yield from re.findall(r"^(?:TYPED_)?TEST\w*\(\s*\w+,\s*(\w+)\)", file.read_text(), re.M)


def check_tests(root, path, text):
    known = set(questions(root)) if HELD_BY.search(text) else set()
    for paragraph in HELD_BY.finditer(text):
        for name in CODE.finditer(paragraph[0]):
            if not QUESTION.fullmatch(name[1]) or name[1] not in known:
                yield path, line_of(text, paragraph.start() + name.start()), "a test exists", name[1]


def fields_of(header, struct):
    """The names of a struct's members."""
    body = re.search(rf"^struct {struct} {{$(.*?)^}};$", header, re.M | re.S)
    if not body:
        return
    code = re.sub(r"//[^\n]*", "", body[1])
    for declaration in code.split(";"):
        for part in re.sub(r"\{[^}]*\}", "", declaration).split(","):
            if name := re.search(r"(\w+)\s*(?:=.*)?$", part.strip(), re.S):
                yield name[1]


def check_fields(root, path, readme):
    header = (root / "include/attend/options.h").read_text()
    for struct in FIELDS:
        fields = set(fields_of(header, struct))
        table = re.search(rf"^\| `{struct}` \|[^\n]*\n\|[-|]+\|\n((?:\|[^\n]*\n)+)", readme, re.M)
        if not fields or not table:
            yield path, 1, f"{struct} has fields and a table", f"{len(fields)} fields"
            continue
        rows = [line.split("|")[1] for line in table[1].splitlines()]
        named = {name for row in rows for name in CODE.findall(row)}
        line = line_of(readme, table.start())
        for name in sorted(fields - named):
            yield path, line, f"every field of {struct} is in its table", name
        for name in sorted(named - fields):
            yield path, line, f"{struct} has every field of its table", name


def check_translation(root, path, text):
    """The blocks of code, links, figures, headings and rows of the English document."""
    name = path.replace(CHINESE, ".md")
    if not (root / name).is_file():
        yield path, 1, "a translation has its original", name
        return
    both = [(root / name).read_text(), text]
    blocks = FENCE.findall(both[0])
    for n, match in enumerate(FENCE.finditer(text)):
        if n >= len(blocks) or match[0] != blocks[n]:
            yield path, line_of(text, match.start()), f"a block of code is that of {name}", match[0].split("\n")[1]
    prose = [without_fences(whole) for whole in both]
    # A heading's anchor is in its document's language: only the file is compared.
    links = [{link.replace(".zh-CN", "").partition("#")[0] for link in LINK.findall(whole)} for whole in prose]
    for link in sorted(links[0] ^ links[1]):
        yield path, 1, f"the links are those of {name}", link
    figures = [collections.Counter(FIGURE.findall(whole)) for whole in prose]
    for figure in sorted((figures[0] - figures[1]) + (figures[1] - figures[0])):
        yield path, 1, f"the figures are those of {name}", figure
    counts = [(len(list(anchors(whole))), len(FENCE.findall(whole)), len(ROW.findall(whole))) for whole in both]
    if counts[0] != counts[1]:
        yield (path, 1, f"every heading, block and row of {name} has its translation",
               "{} headings, {} blocks, {} rows, not {}, {}, {}".format(*counts[1], *counts[0]))


def check_both_languages(root):
    for file in sorted((root / "docs/notes").glob("*.md")):
        other = file.name.replace(CHINESE, ".md") if file.name.endswith(CHINESE) else file.stem + CHINESE
        if not (file.parent / other).exists():
            yield f"docs/notes/{file.name}", 1, "every page of docs/notes is there in both languages", other


def check_notes(path, text):
    if (found := THE_NOTES.search(text)) and not WHICH_NOTES.search(text):
        yield path, line_of(text, found.start()), "a document says which notes it speaks of", found[0]


def check_machine(path, text):
    for match in MACHINE.finditer(text):
        yield path, line_of(text, match.start()), "no path of a machine", match[0]


def check_kernel(root, compiler):
    path = "docs/adding_a_kernel.md"
    text = (root / path).read_text()
    block = re.search(r"<!-- kernel -->\n```cpp\n(.*?)^```$", text, re.M | re.S)
    if not block:
        yield path, 1, "the document has a marked kernel", "none"
        return
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "kernel.cpp"
        file.write_text(block[1])
        result = subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             f"-I{root / 'include'}", f"-I{root / 'src'}", str(file)], text=True, capture_output=True)
    if result.returncode != 0:
        yield path, line_of(text, block.start(1)), "the kernel compiles", result.stderr.strip()


def documents(root):
    for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        yield root / name
    yield from sorted((root / "docs").rglob("*.md"))


def check(root, compiler=None):
    """All mistakes of a tree, as (file, line, rule, found), and the number of documents read."""
    root = pathlib.Path(root).resolve()
    files = list(documents(root))
    mistakes = []
    for file in files:
        path = file.relative_to(root).as_posix()
        text = file.read_text()
        for rule in (check_links, check_paths, check_tests, check_programs):
            mistakes += rule(root, path, text)
        mistakes += check_machine(path, text)
        mistakes += check_notes(path, text)
        if path in ("README.md", "README.zh-CN.md"):
            mistakes += check_fields(root, path, text)
        if path.endswith(CHINESE):
            mistakes += check_translation(root, path, text)
    mistakes += check_both_languages(root)
    if compiler:
        mistakes += check_kernel(root, compiler)
    return mistakes, len(files)


# Each spoils one file of a copy of the tree: (file, text, its replacement, words of the rule broken).
SPOILS = (
    ("README.md", "{.causal = true});\n  for", "{});\n  for", "the program is"),
    ("examples/quick_start.cpp", "float x", "double x", "the program is"),
    ("examples/layers.cpp", ".out = 2", ".out = 4", "the program is"),
    ("examples/layers.cpp", "// [norm]", "// [norms]", "its file and its marks"),
    ("examples/c_api.c", "options.heads = 2", "options.heads = 4", "the program is"),
    ("README.md", "(docs/contract.md)", "(docs/promises.md)", "a link leads to a file"),
    ("docs/corrections.md", "#cost)", "#price)", "a link leads to a heading"),
    ("docs/architecture.md", "`src/core/mask.h`", "`src/core/masks.h`", "a path exists"),
    ("docs/architecture.md", "src/api/run.cpp\n", "src/api/ran.cpp\n", "a path exists"),
    ("README.md", "| `softcap` |", "| `soft_cap` |", "every field of AttentionOptions"),
    ("README.md", "| `lse` |", "| `lse`, `sum` |", "AttentionOutputs has every field"),
    ("include/attend/options.h", "TensorView dbias{};", "TensorView dbias{}; TensorView dmask{};",
     "every field of AttentionGradients"),
    ("README.zh-CN.md", "| `softcap` |", "| `soft_cap` |", "every field of AttentionOptions"),
    ("README.md", "find_package(attend REQUIRED)", "find_package(attend)", "a block of code is that of README.md"),
    ("README.zh-CN.md", "\n## 错误\n", "\n错误\n", "every heading, block and row"),
    ("docs/notes/single_head.zh-CN.md", "0.0776385", "0.0776386", "the figures are those of docs/notes/single_head.md"),
    ("docs/notes/sentence.md", "| 6 | nothing: uniform weights | |\n", "", "every heading, block and row"),
    ("docs/notes/around.md", "+ --> norm -->", "+ --> norm", "a block of code is that of docs/notes/around.md"),
    ("README.zh-CN.md", "[docs/contract.md](docs/contract.md)", "docs/contract.md", "the links are those of README.md"),
    ("docs/contract.md", "*Held by* ", "*Held by* `no_such_question`, ", "a test exists"),
    ("docs/notes/around.md", "the notes ([which](README.md))", "the notes", "a document says which notes"),
    ("docs/notation.md", "# Notation", "# Notation\n\nSee /home/me/notes.", "no path of a machine"),
)


def self_test(root):
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "tree"
        ignored = shutil.ignore_patterns("build", ".git", "__pycache__")
        shutil.copytree(root, copy, ignore=ignored)
        before = check(copy)[0]
        for path, text, replacement, rule in SPOILS:
            file = copy / path
            whole = file.read_text()
            if text not in whole:
                failures.append(f"{path} has no {text!r} to spoil")
                continue
            file.write_text(whole.replace(text, replacement, 1))
            found = [mistake for mistake in check(copy)[0] if mistake not in before]
            file.write_text(whole)
            if not any(rule in mistake[2] for mistake in found):
                failures.append(f"{replacement!r} in {path} should break `{rule}`, but: {found}")
    for failure in failures:
        print(failure)
    print(f"{len(SPOILS)} copies spoilt, {len(failures)} not found")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--compiler")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test(args.folder)
    mistakes, count = check(args.folder, args.compiler)
    for file, line, rule, found in mistakes:
        print(f"{file}:{line}: {rule}: {found}")
    print(f"{count} documents, {len(mistakes)} mistakes")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
