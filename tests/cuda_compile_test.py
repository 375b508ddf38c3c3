#!/usr/bin/env python3
"""The kernels for GPUs compile, and what they became can be put into libraries of x86-64 and aarch64 alike.

    cuda_compile_test.py CMAKE SOURCE BUILD [--compilers CXX...]

Says how long the modules took, beside what was set as bars: five minutes for all of them on two cores, 12 seconds of
compiling each. A slow or busy machine takes longer; that is no failure. A module that was compiled by an earlier run is
told with the time it took then."""
import argparse
import pathlib
import resource
import shutil
import subprocess
import sys
import time

EACH, ALL = 12, 300    # seconds


def seconds_of_modules(log):
    """What ninja wrote down of each module, the last time that it was compiled: (name, seconds)."""
    found = {}
    for line in log.read_text().splitlines():
        parts = line.split("\t")
        if len(parts) == 5 and parts[3].endswith(".bin"):
            found[pathlib.Path(parts[3]).stem] = (int(parts[1]) - int(parts[0])) / 1000
    return sorted(found.items(), key=lambda one: -one[1])


def report(modules, wall):
    total = sum(seconds for _, seconds in modules)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(modules)} modules: {total:.0f} s of compiling, so {total / 2:.0f} s on two cores (the bar: {ALL}); "
          f"this run took {wall:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor time")
    above = [f"{name} {seconds:.1f} s" for name, seconds in modules if seconds > EACH]
    print(f"more than {EACH} s: {', '.join(above) or 'none'}")
    for name, seconds in modules:
        print(f"  {name:<24} {seconds:6.1f} s")


def embed(compiler, source, build, images):
    """All modules as one object of this compiler's machine."""
    object_file = build / f"modules.{pathlib.Path(compiler).name}.o"
    subprocess.run([compiler, "-std=c++20", f"-I{source}/src", "-c", build / "src/cuda/modules.cpp", "-o", object_file],
                   check=True)
    held = object_file.read_bytes()
    object_file.unlink()
    missing = [image.name for image in images if image.read_bytes() not in held]
    if not images or missing:
        raise SystemExit(f"{compiler}: the object does not hold {', '.join(missing) or 'any module'}")
    return int.from_bytes(held[18:20], "little")    # e_machine


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cmake")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--compilers", nargs="*", default=[])
    a = parser.parse_args()
    begun = time.monotonic()
    subprocess.run([a.cmake, "-S", a.source, "-B", a.build, "-G", "Ninja", "-DATTEND_CUDA=ON"], check=True)
    subprocess.run([a.cmake, "--build", a.build, "--target", "attend_cuda_modules", "-j2"], check=True)
    report(seconds_of_modules(a.build / ".ninja_log"), time.monotonic() - begun)
    images = sorted((a.build / "src/cuda").glob("*.bin"))
    machines = {62: "x86-64", 183: "aarch64"}
    for compiler in filter(shutil.which, a.compilers):
        machine = embed(compiler, a.source, a.build, images)
        print(f"{len(images)} modules in an object for {machines.get(machine, machine)}, by {compiler}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
