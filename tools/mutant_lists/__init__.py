"""The mutants: realistic mistakes, each by name, by the part of the library that they are made in.

A change is (file, old, new), where the text `old` stands in the file exactly once; or, where it does not,
(file, around, old, new): `around` does, and `old` in it. Both texts are expressions or, if `old` ends with
a semicolon, statements. The tools build all of them at once, behind a switch that is read at run time:

    an expression    (mutant(17) ? (new) : (old))
    statements       { if (mutant(17)) { new } else { old } }

So neither may declare what is used behind it, nor stand where only a constant may. One change may lie
within another.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    does: str             # what is wrong then
    changes: tuple
    tests: tuple          # programs that are tried first
    equivalent: str       # why no test can notice; such a mutant is listed, and not run


def mutant(name, does, *changes, tests=(), equivalent=""):
    return Mutant(name, does, changes, tests, equivalent)
