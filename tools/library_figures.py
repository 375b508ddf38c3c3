#!/usr/bin/env python3
"""How large attend's library is and how long it took to compile.

BUILD is a folder that Ninja built. The time is that of all files of the library one after the other,
as Ninja noted it: of one core, on a machine that did nothing else and without ccache.
"""
import argparse
import pathlib

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build", metavar="BUILD", type=pathlib.Path)
build = parser.parse_args().build
if not (build / ".ninja_log").is_file():
    parser.error(f"{build} has no .ninja_log: Ninja did not build there")
seconds = {}   # a file compiled twice counts once
for line in (build / ".ninja_log").read_text().splitlines()[1:]:
    begin, end, _, output, _ = line.split("\t")
    if output.startswith("src/CMakeFiles/attend.dir/"):
        seconds[output] = (int(end) - int(begin)) / 1000
kernels = sum(time for output, time in seconds.items() if "/cpu/" in output)
print(f"{len(seconds)} files, {sum(seconds.values()):.0f} s, of which {kernels:.0f} s for the kernels")
for library in sorted((build / "src").glob("libattend.*")):
    if not library.is_symlink():
        print(f"{library.name}: {library.stat().st_size / 1e6:.1f} MB")
