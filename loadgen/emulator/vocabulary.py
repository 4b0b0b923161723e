"""The emulator's tokenizer: text to token ids and back, without loss.

Ids below 256 are bytes. Above them are words: the common words that text prompts are made of, bare (as a text begins)
and with the space before them (as it goes on), then made-up ones, a space and three syllables, one for each further id.
So a text of N common words is N tokens, as with the byte-pair vocabularies of real models; anything else is taken
byte by byte. Every text comes back whole from its ids, and every sequence of ids from 512 on comes back from its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from loadgen.plan.prompts import WORDS

__all__ = ["decode", "encode", "piece"]

_BARE, _SPACED, _MADE_UP = 256, 256 + len(WORDS), 256 + 2 * len(WORDS)
_KNOWN: Final = {word: _BARE + n for n, word in enumerate(WORDS)} | {f" {w}": _SPACED + n for n, w in enumerate(WORDS)}
_SYLLABLES: Final = tuple(f"{consonant}{vowel}" for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou")
_BASE: Final = len(_SYLLABLES)
_DIGITS: Final = {syllable: n for n, syllable in enumerate(_SYLLABLES)}
_FIRST_DIGITS: Final = {syllable.capitalize(): n for syllable, n in _DIGITS.items()}  # no common word is capitalised
_MADE_UP_LENGTH: Final = 7
_PIECES: Final = re.compile(r" ?[A-Za-z]+| |[^A-Za-z ]+")


def encode(text: str, vocab_size: int) -> npt.NDArray[np.int64]:
    """The ids of a text, all below `vocab_size` (256 at least); shape (tokens,)."""
    ids: list[int] = []
    for part in _PIECES.findall(text):
        known = _KNOWN.get(part)
        if known is None:
            known = _made_up(part)
        if known is not None and known < vocab_size:
            ids.append(known)
        else:
            ids += part.encode("utf-8", "surrogatepass")
    return np.array(ids, dtype=np.int64)


def decode(ids: Iterable[int]) -> str:
    """The text of ids, none of them negative; bytes that are not UTF-8 become U+FFFD."""
    return b"".join(map(piece, ids)).decode("utf-8", "replace")


@lru_cache(maxsize=8192)
def piece(token_id: int) -> bytes:
    """The bytes of one token."""
    if token_id < _BARE:
        return bytes((token_id,))
    if token_id < _SPACED:
        return WORDS[token_id - _BARE].encode()
    if token_id < _MADE_UP:
        return b" " + WORDS[token_id - _SPACED].encode()
    rest, third = divmod(token_id - _MADE_UP, _BASE)
    first, second = divmod(rest, _BASE)
    return f" {_SYLLABLES[first].capitalize()}{_SYLLABLES[second]}{_SYLLABLES[third]}".encode()


def _made_up(part: str) -> int | None:
    if len(part) != _MADE_UP_LENGTH or part[0] != " ":
        return None
    first, second, third = _FIRST_DIGITS.get(part[1:3]), _DIGITS.get(part[3:5]), _DIGITS.get(part[5:7])
    if first is None or second is None or third is None:
        return None
    return _MADE_UP + (first * _BASE + second) * _BASE + third
