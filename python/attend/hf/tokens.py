"""Tokens as a reader knows them: the marks of sub-words shown as the spaces that they stand for.

    GPT-2's bytes       "Ġthe"    " the"     "Ċ": a new line; bytes that are no text by themselves: "\\xe2"
    SentencePiece       "▁the"    " the"     "<0x0A>": a new line
    WordPiece           "##ing"   "ing"      and a word that begins: " the"
"""
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def texts_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """A text for each token."""
    special = set(getattr(tokenizer, "all_special_ids", ()))
    read = _reader(_mark(tokenizer))
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    return [str(x) if n in special or x is None else read(_str(x)) for n, x in zip(ids, tokens)]


def _str(token: Any) -> str:
    return token.decode("utf-8", "backslashreplace") if isinstance(token, bytes) else str(token)


def _mark(tokenizer: Any) -> str:
    """Of the three, the one that most of the vocabulary's tokens have; "": a vocabulary without."""
    counts = {"Ġ": 0, "▁": 0, "##": 0}
    for token in getattr(tokenizer, "get_vocab", dict)():
        for mark in counts:
            if len(token) > len(mark) and _str(token).startswith(mark):
                counts[mark] += 1
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] else ""


def _reader(mark: str) -> Callable[[str], str]:
    return {"Ġ": _of_bytes, "▁": _of_sentence_piece, "##": _of_word_piece}.get(mark, str)


def _of_bytes(token: str) -> str:
    known = _bytes_of_characters()
    if not all(c in known for c in token):  # added to the vocabulary as it is
        return token
    return bytes(known[c] for c in token).decode("utf-8", "backslashreplace")


def _of_sentence_piece(token: str) -> str:
    byte = _BYTE.fullmatch(token)
    if byte:
        return bytes([int(byte[1], 16)]).decode("utf-8", "backslashreplace")
    return token.replace("▁", " ")


def _of_word_piece(token: str) -> str:
    return token[2:] if token.startswith("##") and len(token) > 2 else " " + token


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """GPT-2 writes a byte that is a visible character of Latin-1 as that one, the others as U+0100 and following, in order."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [n for n in range(256) if n not in visible]
    return {chr(n): n for n in visible} | {chr(0x100 + place): n for place, n in enumerate(others)}
