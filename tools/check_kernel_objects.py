#!/usr/bin/env python3
"""Checks the object files of the kernels: a kernel shows its rows to the linker and nothing else, and
the sums of its products stay in registers.

    check_kernel_objects.py [--nm NM] [--objdump OBJDUMP] --kernels FILE... [--strict FILE...]
                            [--products FILE...] --objects OBJECT...
    check_kernel_objects.py --self-test

Kernels are named as in src/CMakeLists.txt (reference/attention.cpp). Strict ones are compiled for an
instruction set: what such an object offers as "weak" (inline functions, templates) the linker may
hand to callers on machines that cannot run it, so it offers none. Those with products have functions
named product_tile; of each of these, every innermost loop that multiplies and adds is looked at: a
vector that it stores to the stack or loads from there is a sum without a register. A violation is
printed as `kernel: rule: what was found`. Exit: 0 none, 1 some, 2 usage.
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
    # The personality routine's address is data, the same for every instruction set; clang's way to
    # std::terminate is two calls.
    ("no weak symbols", "WVwvu", re.compile(r"DW\.ref\.__gxx_personality_v0|__clang_call_terminate")),
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


# ---- The code of the products: what objdump lists ----------------------------------------------------

PRODUCT = "product_tile"
TILES = re.compile(r"\ttdp(bf16|fp16)ps\b")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^ *([0-9a-f]+):\t(\S+)\s*(.*)$")
TARGET = re.compile(r"(?:^|\s)([0-9a-f]+) <")
JUMP = re.compile(r"j\w+|b(\.\w+)?|cbn?z|tbn?z")
END = re.compile(r"ret\w?|jmpq?|br?")   # what follows is not reached from here
PADDING = re.compile(r"(.*\b)?nop\w*\b.*|xchg +%ax,%ax")   # between what jumps away and what is jumped to
FUSED = re.compile(r"vfn?m(add|sub)\d+[ps][sd]|fml[as]|fn?m(add|sub)|bfmmla|vdpbf16ps")
VECTOR = re.compile(r"%[xyz]mm\d|\b[qvdsh]\d+\b")
# The register that an address begins with: 0x20(%rsp), [sp, #32].
BASE = re.compile(r"\((%\w+)|\[(\w+)")
# What an instruction reads and what it writes, if that is a register: `lea 0x20(%rsp),%rax`,
# `add x0, sp, #32`. Those of READS_ONLY write memory, the flags or nothing.
OPERANDS = (re.compile(r"(?P<read>.*),(?P<written>%\w+)"),
            re.compile(r"(?P<written>[xw]\d+), (?P<read>.*)"))
REGISTER = re.compile(r"%\w+|\bsp\b|\bx\d+\b")
READS_ONLY = re.compile(r"cmp|test|st[rpu]|cb|tb")


def functions(listing):
    """(name, [(address, mnemonic, operands, jump target or None)]) of what `objdump -d -C` listed."""
    name, code = None, []
    for line in listing.splitlines() + ["0 <>:"]:
        if match := FUNCTION.match(line):
            if name is not None:
                yield name, code
            name, code = match[1], []
        elif match := INSTRUCTION.match(line):
            address, mnemonic, operands = match.groups()
            target = TARGET.search(operands) if JUMP.fullmatch(mnemonic) else None
            operands = re.split(r" <|\s+(?:#|//) ", operands)[0]
            code.append((int(address, 16), mnemonic, operands, target and int(target[1], 16)))


def follow(pointers, mnemonic, operands):
    """Which registers point to the stack after an instruction: those made of others that do."""
    match = next(filter(None, (form.fullmatch(operands) for form in OPERANDS)), None)
    if match is None or READS_ONLY.match(mnemonic):
        return pointers
    read, written = set(REGISTER.findall(match["read"])), match["written"]
    if written.startswith("%") and mnemonic in ("add", "sub"):
        read.add(written)
    loads = "(" in match["read"] and mnemonic != "lea"
    if mnemonic in ("lea", "mov", "add", "sub") and not loads and read & pointers:
        return pointers | {written}
    loaded = {written, *re.findall(r"^[xw]\d+(?=,)", match["read"])} if mnemonic == "ldp" else {written}
    return pointers - {re.sub("^%e", "%r", name).replace("w", "x") for name in loaded - {"%rsp"}}


def ways(code):
    """{address: the addresses that may come next}."""
    after = {}
    for n, (address, mnemonic, _, target) in enumerate(code):
        after[address] = [following[0] for following in code[n + 1:n + 2] if not END.fullmatch(mnemonic)]
        if target is not None:
            after[address].append(target)
    return after


def stack_vectors(code, after):
    """Addresses of the instructions that move a vector to or from the stack. What may point there is
    followed along every way through the function, as compilers move code behind the end; where no
    way is seen to lead (a table of jumps), from the line above."""
    pointers, found, above = {}, set(), frozenset({"%rsp", "sp"})
    by_address = {address: (mnemonic, operands) for address, mnemonic, operands, _ in code}

    def behind(address):
        mnemonic, operands = by_address[address]
        pointing = pointers[address]
        if not VECTOR.search(operands):
            return follow(pointing, mnemonic, operands)
        if any(base in pointing for match in BASE.findall(operands) for base in match):
            found.add(address)
        return pointing

    for start, instruction in by_address.items():
        new = []
        if start not in pointers and PADDING.fullmatch(" ".join(instruction)):
            continue
        if start not in pointers:
            pointers[start], new = above, [start]
        while new:
            address = new.pop()
            pointing = behind(address)
            for place in filter(by_address.get, after[address]):
                known = pointers.get(place)
                if known is None or not pointing <= known:
                    pointers[place] = pointing | (known or frozenset())
                    new.append(place)
        above = behind(start)
    return found


def reached(start, edges, without):
    """What can be reached from a place along the edges, but not by way of `without`."""
    found, new = {start} - {without}, [start] if start != without else []
    while new:
        for place in edges.get(new.pop(), ()):
            if place != without and place not in found:
                found.add(place)
                new.append(place)
    return found


def hot_loops(code, after):
    """The addresses of each innermost loop that has fused multiply-adds. A loop has a head, which
    every way from the beginning comes by, and is all from where one gets back to it: code that the
    compiler has moved behind the end jumps back, too, and is none."""
    fused = {address for address, mnemonic, _, _ in code if FUSED.fullmatch(mnemonic)}
    before = {}
    for address, places in after.items():
        for place in places:
            before.setdefault(place, []).append(address)
    loops = []
    for head in {target for *_, target in code if target in after}:
        outside = reached(code[0][0], after, head)
        back = [place for place in before[head] if place not in outside]
        if back:
            loops.append({head}.union(*(reached(place, before, head) for place in back)))
    loops = [loop for loop in loops if loop & fused]
    return [loop for loop in loops if not any(other < loop for other in loops)]


def spills(listing):
    """(rule, where and what) of the products that `objdump -d -C` listed."""
    products = 0
    for name, code in functions(listing):
        if PRODUCT not in name or "[clone .cold" in name:
            continue
        products += 1
        name = name.replace("attend::(anonymous namespace)::", "")
        after = ways(code)
        loops, moved = hot_loops(code, after), stack_vectors(code, after)
        if not loops:
            yield "a product has a loop of fused multiply-adds", name
        found = [f"{address:x}: {mnemonic} {operands}" for address, mnemonic, operands, _ in code
                 if address in moved and any(address in loop for loop in loops)]
        if found:
            yield "the sums of a product stay in registers", f"{found[0]}, {len(found)} in all, of {name}"
    if products == 0 and not TILES.search(listing):   # whose sums are registers of their own
        yield "there are products to look at", f"no function {PRODUCT}"


# A product of few sums, as GCC makes it, to be changed in one place.
X86 = """0000000000000720 <void attend::(anonymous namespace)::product_tile<F32, 1, 2>(Operands)>:
     720:\tpush   %rbp
     721:\tmov    %rsp,%rbp
     724:\tand    $0xffffffffffffffe0,%rsp
     728:\tmov    0x40(%rbp),%r8
     72c:\tlea    0x8(%rsi),%rax
     730:\tvmovups (%rsi),%ymm3
     734:\tvmovups 0x20(%rdx),%ymm0
     738:\tmov    0x8(%rsp),%rcx
     73c:\tvbroadcastss (%rax,%rcx,4),%ymm2
     742:\tvfmadd231ps %ymm0,%ymm2,%ymm3
     747:\tcmp    %r8,%rcx
     74a:\tjne    734 <void attend::(anonymous namespace)::product_tile<F32, 1, 2>(Operands)+0x14>
     74c:\tvmovaps %ymm3,-0x20(%rsp)
     750:\tret
"""
# The same with a first step that stands behind the end, and reads a vector from the stack.
MOVED = X86.replace("mov    0x40(%rbp),%r8", "je     751 <void attend::(anonymous namespace)::product_tile>") + """\
     751:\tvmovaps -0x20(%rsp),%ymm0
     755:\tvfmadd231ps %ymm0,%ymm2,%ymm3
     75a:\tjmp    734 <void attend::(anonymous namespace)::product_tile<F32, 1, 2>(Operands)+0x14>
"""
# A loop that is gone back into from two places; and one that is entered at its test, before another.
TWICE = """0000000000000700 <product_tile>:
     700:\tvmovups (%rdx),%ymm0
     704:\tvfmadd231ps %ymm0,%ymm2,%ymm3
     709:\tjne    700 <product_tile>
     70b:\tvxorps %ymm4,%ymm4,%ymm4
     70f:\tjne    700 <product_tile>
     711:\tret
"""
BOTTOM = """0000000000000700 <product_tile>:
     700:\tjmp    70b <product_tile+0xb>
     702:\tvmovups (%rdx),%ymm0
     706:\tvfmadd231ps %ymm0,%ymm2,%ymm3
     70b:\tcmp    %r8,%rcx
     70e:\tjne    702 <product_tile+0x2>
     710:\tvfmadd231ps %ymm0,%ymm2,%ymm3
     715:\tjne    710 <product_tile+0x10>
     717:\tret
"""
ARM = """0000000000000530 <void attend::(anonymous namespace)::product_tile<F64, 1, 2>(Operands)>:
     530:\tstp\tx29, x30, [sp, #-64]!
     534:\tmov\tx29, sp
     538:\tstp\td8, d9, [sp, #32]
     53c:\tadd\tx4, x12, #0x40
     540:\tldr\tq24, [x3, x15]
     544:\tldp\tq3, q2, [x4]
     548:\tldr\tx9, [sp, #16]
     54c:\tfmla\tv6.2d, v3.2d, v24.d[0]
     550:\tcmp\tx3, x10
     554:\tb.ne\t540 <void attend::(anonymous namespace)::product_tile<F64, 1, 2>(Operands)+0x10>  // b.any
     558:\tldp\td8, d9, [sp, #32]
     55c:\tret
"""
# As clang makes it: the loop stands behind the end, and its registers led to the stack in between.
BEHIND = """0000000000000800 <product_tile>:
     800:\tsub\tx9, sp, #0xc0
     804:\tldp\tx13, x9, [x0]
     808:\tb.ge\t820 <product_tile+0x20>
     80c:\tmov\tx13, sp
     810:\tldr\tq0, [x13, #96]
     814:\tadd\tx9, x13, #0x60
     818:\tret
     820:\tadd\tx4, x13, x9, lsl #2
     824:\tldr\tq1, [x4], #16
     828:\tldr\tq2, [x13]
     82c:\tfmla\tv3.4s, v1.4s, v2.s[0]
     830:\tb.le\t824 <product_tile+0x24>
     834:\tb\t80c <product_tile+0xc>
"""

# Padding behind a jump, where the same register leads to the stack, before the loop's first step.
PADDED = """0000000000000900 <product_tile>:
     900:\tmov    (%rdi),%rdx
     903:\tjne    930 <product_tile+0x30>
     905:\tvfmadd231pd (%rdx){1to8},%zmm4,%zmm3
     90b:\tjg     905 <product_tile+0x5>
     910:\tlea    -0x78(%rsp),%rdx
     915:\tvmovsd (%rdx),%xmm0
     919:\tjmp    940 <product_tile+0x40>
     91e:\tdata16 cs nopw 0x0(%rax,%rax,1)
     929:\txchg   %ax,%ax
     930:\tadd    $0x8,%rdx
     934:\tjmp    905 <product_tile+0x5>
     940:\tret
"""


def products_wrong():
    """Tries spills() on listings, good and spoilt; prints and counts what it got wrong."""
    registers, loop, there = "stay in registers", "has a loop", "are products"
    trials = (
        (X86, "", "", None), (ARM, "", "", None), (MOVED, "", "", None),
        (MOVED, "mov    0x8(%rsp),%rcx", "vmovss 0x8(%rsp),%xmm4", registers),
        (MOVED, "jmp    734", "jmp    74c", None), (MOVED, "jmp    734", "je     751", registers),
        (TWICE, "", "", None), (TWICE, "vxorps %ymm4,%ymm4,%ymm4", "vmovups %ymm4,(%rsp)", registers),
        (BOTTOM, "", "", None), (BOTTOM, "(%rdx),%ymm0", "(%rsp),%ymm0", registers),
        (X86, "0x20(%rdx),%ymm0", "0x20(%rsp),%ymm0", registers),
        (X86, "%ymm0,%ymm2,%ymm3", "-0x40(%rbp),%ymm2,%ymm3", registers),
        (X86, "mov    %rsp,%rbp", "mov    %rdi,%rbp", None),        # %rbp is a register like others
        (X86, "lea    0x8(%rsi),%rax", "lea    0x8(%rsp),%rax", registers),
        (X86, "mov    0x40(%rbp),%r8", "lea    0x8(%rbp),%rdx", registers),
        (X86.replace("and    $0xffffffffffffffe0,%rsp", "lea    0x8(%r8),%rbp"),
         "mov    0x40(%rbp),%r8", "lea    (%rdx,%rbp,4),%rdx", None),   # it was the stack's before
        (X86, "vfmadd231ps", "vdpbf16ps", None), (X86, "vfmadd231ps", "vmulps", loop), (X86, "jne    734", "jne    750", loop),
        (ARM, "q24, [x3, x15]", "q24, [sp, #160]", registers),
        (ARM, "ldp\tq3, q2, [x4]", "str\tq3, [x29, #48]", registers),
        (ARM, "add\tx4, x12,", "add\tx4, sp,", registers),
        (ARM, "fmla", "bfmmla", None), (ARM.replace("fmla", "bfmmla"), "q24, [x3, x15]", "q24, [sp, #160]", registers),
        (ARM, "fmla", "fadd", loop), (ARM, "b.ne\t540", "b.ne\t558", loop),
        (BEHIND, "", "", None), (BEHIND, "ldp\tx13, x9, [x0]", "ldp\tx13, x8, [x0]", registers),
        (BEHIND, "b.ge\t820 <product_tile+0x20>", "br\tx8", registers),   # nobody knows from where
        (BEHIND, "ldr\tq0, [x13, #96]", "b.ne\t820 <product_tile+0x20>", registers),
        (PADDED, "", "", None), (PADDED, "data16 cs nopw 0x0(%rax,%rax,1)", "mov    %rax,%rcx", registers),
        (X86, "product_tile", "sum_tile", there), ("", "", "", there),
    )
    wrong = 0
    for listing, text, other, word in trials:
        found = [rule for rule, _ in spills(listing.replace(text, other) if text else listing)]
        if len(found) != (word is not None) or not all(word in rule for rule in found):
            wrong += 1
            print(f"wanted {word}, found {found} with {text!r} -> {other!r} in:\n{listing}")
    print(f"{len(trials)} products tried, {wrong} wrong")
    return wrong


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
    return 1 if wrong + products_wrong() else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--objdump", default="objdump")
    for name in ("kernels", "strict", "products", "objects"):
        parser.add_argument(f"--{name}", nargs="*", default=[])
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if not args.kernels:
        parser.error("no kernels are named")

    def output(*command):
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout

    count = 0
    for kernel in args.kernels:
        objects = [o for o in args.objects if o.endswith((f"/{kernel}.o", f"/{kernel}.obj"))]
        if len(objects) != 1:
            print(f"{kernel}: one object file: {objects}")
            count += 1
            continue
        found = list(violations(output(args.nm, "-C", objects[0]), kernel in args.strict))
        if kernel in args.products:
            found += spills(output(args.objdump, "-d", "-C", "--no-show-raw-insn", objects[0]))
        for rule, what in found:
            print(f"{kernel}: {rule}: {what}")
        count += len(found)
    print(f"{len(args.kernels)} kernel files, {len(args.strict)} strict, {len(args.products)} with "
          f"products, {count} violations")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
