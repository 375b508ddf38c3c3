#!/usr/bin/env python3
"""Checks the object files of the kernels: a kernel shows its rows to the linker and nothing else.

    check_kernel_objects.py [--nm NM] --kernels FILE... --strict FILE... --objects OBJECT...
    check_kernel_objects.py --self-test

Kernels are named as in src/CMakeLists.txt (reference/attention.cpp). Strict ones are compiled for an
instruction set: what such an object offers as "weak" (inline functions, templates) the linker may
hand to callers on machines that cannot run it, so it offers none. A violation is printed as
`kernel: rule: what was found`. Exit: 0 none, 1 some, 2 usage.
"""
import argparse
import re
import subprocess
import sys

# (rule, letters of nm, what of those symbols is allowed)
RULES = (
    ("only rows of the kernel table are visible outside", "TDRBSGC", re.compile(r"attend::k[A-Z]\w*")),
    ("no global variables", "bBsSuC", re.compile(r"$.")),
)
STRICT_RULES = (
    # The personality routine's address is data, the same for every instruction set.
    ("no weak symbols", "WVwvu", re.compile(r"DW\.ref\.__gxx_personality_v0")),
)
# What a kernel may not call. Memory and std::string remain: the reason for declining is made of them.
FORBIDDEN = re.compile(r"(secure_)?getenv|v?f?s?n?printf|f?puts|f?write|putchar|abort|exit|malloc|calloc|"
                       r"free|mmap|__cxa_throw|__cxa_guard_acquire|pthread_\w+|syscall|std::cout|std::cerr")
SYMBOL = re.compile(r"^[0-9a-f ]* ([A-Za-z]) (.+)$", re.M)


def violations(listing, strict):
    """(rule, symbol) of what `nm -C` listed."""
    for letter, name in SYMBOL.findall(listing):
        for rule, letters, allowed in RULES + (STRICT_RULES if strict else ()):
            if letter in letters and not allowed.fullmatch(name):
                yield rule, name
        if letter == "U" and FORBIDDEN.fullmatch(name.split("@")[0]):
            yield "no allocation, output, environment, threads or exceptions", name


def self_test():
    good = ("0000000000000040 D attend::kReferenceForward\n"
            "0000000000000000 R attend::kNeonForward\n"
            "0000000000000010 t attend::(anonymous namespace)::run(attend::Task const&)\n"
            "0000000000000000 V DW.ref.__gxx_personality_v0\n"
            "                 U exp\n                 U operator new(unsigned long)\n")
    weak = "0000000000000000 W std::vector<int>::vector()\n"
    trials = [(good, False, []), (good, True, []), (good + weak, False, []),
              (good + weak, True, ["no weak symbols"])]
    for line, word in (("0000000000000000 T attend::helper(int)\n", "only rows"),
                       ("0000000000000000 D attend::table\n", "only rows"),
                       ("0000000000000000 b attend::(anonymous namespace)::counter\n", "global"),
                       ("                 U getenv\n", "environment"),
                       ("                 U __cxa_throw@CXXABI_1.3\n", "exceptions")):
        trials.append((good + line, False, [word]))
    wrong = 0
    for listing, strict, words in trials:
        found = [rule for rule, _ in violations(listing, strict)]
        if len(found) != len(words) or not all(w in f for w, f in zip(words, found)):
            wrong += 1
            print(f"wanted {words}, found {found} in:\n{listing}")
    print(f"{len(trials)} listings tried, {wrong} wrong")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--nm", default="nm")
    for name in ("kernels", "strict", "objects"):
        parser.add_argument(f"--{name}", nargs="*", default=[])
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if not args.kernels:
        parser.error("no kernels are named")

    count = 0
    for kernel in args.kernels:
        objects = [o for o in args.objects if o.endswith((f"/{kernel}.o", f"/{kernel}.obj"))]
        if len(objects) != 1:
            print(f"{kernel}: one object file: {objects}")
            count += 1
            continue
        listing = subprocess.run([args.nm, "-C", objects[0]], check=True, text=True,
                                 stdout=subprocess.PIPE).stdout
        for rule, name in violations(listing, kernel in args.strict):
            print(f"{kernel}: {rule}: {name}")
            count += 1
    print(f"{len(args.kernels)} kernel files, {len(args.strict)} strict, {count} violations")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
