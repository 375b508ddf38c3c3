"""Which attentions of a model are meant: layers, chosen by name, by call, or by number."""
import fnmatch
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn


# Of the modules that will call; or of all attentions, with why one will not call, "" if it will.
Names = Iterable[str] | Mapping[str, str]


class Known(NamedTuple):
    """Of a model of which not everything is known: the modules that will call by their code, and all that may."""

    comes: list[str]
    may: list[str]


class Layer(NamedTuple):
    """One attention of a forward pass: the name of the module that calls, and which of its calls in this pass.

    A module is called once in most models; ALBERT calls one 12 times.
    """

    name: str
    call: int = 0

    def __str__(self) -> str:
        return self.name if self.call == 0 else f"{self.name} (call {self.call})"


def kind_of(name: str) -> str:
    """Names that differ in numbers alone are of one kind."""
    return re.sub(r"\d+", "*", name)


class Rule:
    """One layer, as the user says it: a name, which may hold * and ?, a pair (name, call), or a number."""

    def __init__(self, where: str, given: Any) -> None:
        self.given = given
        self.name: str | None = None
        self.call: int | None = None
        self.number: int | None = None
        self.wanted: list[str] = []  # of a rule that means several modules, their names, if they are known
        self.met: set[str] = set()  # the modules that called
        if isinstance(given, str):
            self.name = given
        elif isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
            self.name, self.call = given[0], _whole(where, "the call of a layer", given[1])
            if self.call < 0:
                raise ValueError(f"{where}: call {self.call} of layer {given[0]!r} is not there; the first is 0")
        elif isinstance(given, (tuple, list)) or isinstance(given, bool):
            raise TypeError(f"{where}: a layer is a name, a pair (name, call) or a number, found {given!r}")
        else:
            self.number = _whole(where, "a layer that is no name", given)

    def __str__(self) -> str:
        return repr(tuple(self.given) if isinstance(self.given, tuple) else self.given)

    def means(self, layer: Layer, order: int) -> bool:
        """Whether it is this one, the order-th attention of the pass."""
        if self.name is None:
            return self.number == order
        return self.call in (None, layer.call) and (
            self.name == layer.name or fnmatch.fnmatchcase(layer.name, self.name)
        )


class Rules:
    """The layers that were asked for; each must be met by a call, or it is an error at the end."""

    def __init__(self, where: str, layers: Any, names: Names | Known | None) -> None:
        """layers: one, several, or None: all. names: of the modules that will call, where that is known."""
        self.where = where
        self.open = names is None or isinstance(names, Known)  # whether others than those in names may call
        self.may: list[str] = []
        if isinstance(names, Known):
            names, self.may = names
        self.names = None if names is None else list(names)
        self.stays: dict[str, str] = {}  # modules that will not call, and why
        if isinstance(names, Mapping):
            self.names, self.stays = [x for x in names if not names[x]], {x: why for x, why in names.items() if why}
        self.everything = layers is None
        if layers is None:
            given = self.names or []
        elif isinstance(layers, (str, int)) or _is_pair(layers):
            given = [layers]
        elif isinstance(layers, Iterable):
            given = list(layers)
            if not given:
                raise ValueError(f"{where}: layers is empty; None is all of them")
        else:
            given = [layers]
        self.rules = [Rule(where, x) for x in given]
        self.numbered = any(rule.number is not None for rule in self.rules)
        self.kinds: set[str] = set()
        for rule in self.rules:
            self._resolve(rule)

    def _resolve(self, rule: Rule) -> None:
        """What can be known before anything runs. "*" wants all that it means, as None does."""
        known = self.names or []
        counted = bool(known) or not self.open  # else a number means the order of the calls
        self._refuse_what_stays(rule)
        if rule.number is not None:
            self._one_kind(known, rule)
            if rule.number < 0 or (counted and rule.number >= len(known)):
                how_many = f"the model has {len(known)} attentions, " if counted else ""
                raise ValueError(f"{self.where}: layer {rule.number} is not there; {how_many}the first is 0")
            if not counted:
                return
            rule.name = known[rule.number]
        rule.wanted = self.names_of(rule)
        if rule.wanted or self.names is None or any(rule.means(Layer(name, rule.call or 0), -1) for name in self.may):
            return
        what = f"the attentions are {_listed(known)}" if counted else "no module that may call attention has such a name"
        raise ValueError(f"{self.where}: layer {rule} is not there; {what}")

    def _refuse_what_stays(self, rule: Rule) -> None:
        """Or what is meant would be done to a part of the model, without a word. A number counts all of a kind."""
        if rule.number is None:
            found = [name for name in self.stays if rule.means(Layer(name, rule.call or 0), -1)]
        else:
            found = [name for name in self.stays if kind_of(name) in map(kind_of, self.names or [])]
        if not found:
            return
        if found == [rule.name]:
            raise ValueError(f"{self.where}: layer {rule} does not come to attend: {self.stays[found[0]]}")
        what = "counts" if rule.name is None else "means"
        lines = "".join(f"\n  {name}: {self.stays[name]}" for name in found[:8]) + ("\n  and more" if len(found) > 8 else "")
        raise ValueError(f"{self.where}: layer {rule} {what} attentions that do not come to attend; say others by name:{lines}")

    def _one_kind(self, names: Iterable[str], rule: Rule) -> None:
        kinds = sorted({kind_of(name) for name in names})
        if len(kinds) > 1:
            raise ValueError(
                f"{self.where}: layer {rule} may be any of {len(kinds)} kinds, {', '.join(kinds)}; say it by name"
            )

    def find(self, layer: Layer, order: int) -> list[Rule]:
        """Those that mean this call, the order-th attention of its pass."""
        if self.numbered:
            self._check_numbers(layer)
        found = [rule for rule in self.rules if rule.means(layer, order)]
        for rule in found:
            rule.met.add(layer.name)
        return found

    def _check_numbers(self, layer: Layer) -> None:
        """Whether a number still means one thing: a name that is known, or the order of the calls."""
        first, known = next(rule for rule in self.rules if rule.number is not None), self.names or []
        if self.open and layer.name not in known:
            self.kinds.add(kind_of(layer.name))
            self._one_kind([*known, *self.kinds], first)
            if known:
                raise ValueError(f"{self.where}: layer {first} was counted without {layer.name}, which calls too; say it by name")
        if layer.call == 0:
            return
        rule = next((x for x in self.rules if x.number is not None and x.name == layer.name), None)
        rule = first if rule is None and not known else rule
        if rule is not None:
            raise ValueError(
                f"{self.where}: layer {rule} may be any of several calls of {layer.name}, which is called more than "
                f"once in a forward pass; say ({layer.name!r}, call)"
            )

    def names_of(self, rule: Rule) -> list[str]:
        """Of the modules that a rule means, as far as that is known before anything runs."""
        known = self.names or []
        if rule.number is not None:
            return known[rule.number : rule.number + 1]
        found = [name for name in known if rule.means(Layer(name, rule.call or 0), -1)]
        return found or [name for name in self.may if name == rule.name]

    @property
    def any_layer(self) -> bool:
        """All are meant, and not all are known: whichever call comes."""
        return self.everything and self.open

    def unmet(self) -> list[str]:
        """What was asked for and did not call: a rule, or the names that are missing of the several it means."""
        found = []
        for rule in self.rules:
            if len(rule.wanted) > 1:
                missing = [name for name in rule.wanted if name not in rule.met]
                found += [repr(name if rule.call is None else (name, rule.call)) for name in missing]
            elif not rule.met:
                found.append(str(rule))
        return list(dict.fromkeys(found))


def heads_of(where: str, heads: Any, name: str = "heads") -> tuple[int, ...] | None:
    """None: all of them."""
    if heads is None:
        return None
    if isinstance(heads, (list, tuple)):  # torch.compile does not follow what is tried below
        given = [_whole(where, "a head", head) for head in heads]
    else:
        try:
            given = [operator.index(None if isinstance(heads, bool) else heads)]  # True is no head
        except TypeError:
            if isinstance(heads, (str, Mapping)) or not isinstance(heads, Iterable):
                raise TypeError(f"{where}: {name} takes a number, a list of numbers or None, found {heads!r}") from None
            given = [_whole(where, "a head", head) for head in heads]
    if not given:
        raise ValueError(f"{where}: {name} is empty; None is all of them")
    for head in given:
        if head < 0:
            raise ValueError(f"{where}: head {head} is not there; the first is 0")
    if len(set(given)) != len(given):
        raise ValueError(f"{where}: {name} holds {next(h for h in given if given.count(h) > 1)} twice")
    return tuple(given)


def check_heads(where: str, layer: str, heads: Iterable[int], count: int) -> None:
    for head in heads:
        if head >= count:
            raise ValueError(f"{where}: head {head} is not there; {layer} has {count} heads, the first is 0")


def known_heads(module: nn.Module) -> int | None:
    """How many heads a module will call with, by the names that models give that number; None: not known."""
    for holder in (module, getattr(module, "config", None)):
        for name in ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads"):
            count = getattr(holder, name, None)
            if isinstance(count, int):
                return count
    return None


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and not isinstance(given[1], str)


def _whole(where: str, what: str, x: Any) -> int:
    try:
        if not isinstance(x, bool):
            return operator.index(x)
    except TypeError:
        pass
    raise TypeError(f"{where}: {what} is a whole number, found {x!r}")


def _listed(names: list[str], most: int = 12) -> str:
    if not names:
        return "none"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
