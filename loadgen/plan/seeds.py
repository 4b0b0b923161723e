"""Where every random number of an experiment comes from: named streams, and seeds declared before the first request.

A replicate is named by its root. Everything random in it comes from streams of that root, one for each purpose, so that
changing what one stream is used for moves nothing else (method, section 4).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from typing import Final, Literal, get_args

import numpy as np

__all__ = ["SEED_BITS", "StreamName", "derive", "fresh_roots", "parse_seeds", "salt", "side_root", "stream"]

StreamName = Literal["arrivals", "lengths", "content", "sampling", "order", "routing"]
SEED_BITS: Final = 48  # wide enough that two of a book's thousand derived seeds meet with odds of 1 to 10^8
_MAX_SEED: Final = 2**63
_MAX_LIST: Final = 10_000
_ITEM = re.compile(r"(\d+)(?:\s*\.\.\s*(\d+))?", re.ASCII)


def _digest64(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def stream(root: int, name: StreamName, *, extra: str = "") -> np.random.Generator:
    """The generator of one purpose of one replicate: SeedSequence([root, first 8 bytes of SHA-256(name)]).

    The bytes are read big-endian. `extra` mixes one more word of the same kind in, for content that must not repeat
    across rates; empty adds nothing. Raises `ValueError` for an unknown name or a negative root.
    """
    if name not in get_args(StreamName):
        raise ValueError(f"no stream is called {name!r}; there are {', '.join(get_args(StreamName))}")
    if root < 0:
        raise ValueError(f"seed {root} is negative")
    entropy = [root, _digest64(name)] + ([_digest64(extra)] if extra else [])
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def derive(master: int, kind: str, count: int, *, taken: Collection[int] = ()) -> tuple[int, ...]:
    """`count` distinct seeds of 48 bits for one use (`roots`, `confirm/0`, `spares`, ...), none of them in `taken`.

    A longer list begins with the shorter one, so asking for more replicates keeps those there are.
    """
    if master < 0:
        raise ValueError(f"seed {master} is negative")
    seeds: list[int] = []
    position = 0  # part of the entropy, so that the count asked for cannot shift the seeds before it
    while len(seeds) < count:
        word = np.random.SeedSequence([master, _digest64(kind), position]).generate_state(1, np.uint64)[0]
        seed = int(word) >> (64 - SEED_BITS)
        if seed not in seeds and seed not in taken:
            seeds.append(seed)
        position += 1
    return tuple(seeds)


def fresh_roots(master: int, rate_index: int, count: int) -> tuple[int, ...]:
    """The roots of one rate under `--seeding fresh`, where no two rates share any."""
    return derive(master, f"roots/{rate_index}", count)


def side_root(root: int, override: int | None) -> int:
    """The root of a replicate's arrivals, or of its workload, under `--arrival-seed` or `--workload-seed`.

    Without one it is the replicate's own. With one it depends on both, so that replicates stay independent: the seed
    itself in place of every root would offer the same load R times over.
    """
    return root if override is None else derive(override, f"side/{root}", 1)[0]


def parse_seeds(text: str, *, count: int | None = None) -> tuple[int, ...]:
    """Seeds from `101..112` (both ends), `1,5,9` or a mixture, in the order written.

    Raises `ValueError` for anything else, for a seed named twice, and where `count` is given and is not their number.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = _ITEM.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a list of seeds; write 101..112 or 1,5,9")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last >= _MAX_SEED:
            raise ValueError(f"seed {last} is too large; seeds are below 2^63")
        if last < first:
            raise ValueError(f"seeds {part.strip()!r} run backwards; write {last}..{first}")
        if len(seeds) + last - first + 1 > _MAX_LIST:
            raise ValueError(f"{text!r} names more than {_MAX_LIST} seeds")
        seeds.extend(range(first, last + 1))
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1}) if len(set(seeds)) < len(seeds) else []
    if twice:
        raise ValueError(f"seed {twice[0]} is named twice: a repeated seed repeats the run and adds no evidence")
    if count is not None and len(seeds) != count:
        raise ValueError(f"{len(seeds)} seeds for {count} runs: name as many seeds as runs, or leave runs out")
    return tuple(seeds)


def salt(experiment: str, variant: str, rate: float, replicate: int, attempt: int) -> str:
    """The run's `cache_salt`: first 16 hex digits of SHA-256 over the five, written as a JSON list (method, section 4).

    Two attempts at one run differ in it, so that the second finds none of the first one's prefixes in the cache.
    """
    named = json.dumps([experiment, variant, float(rate), replicate, attempt], separators=(",", ":"))
    return hashlib.sha256(named.encode()).hexdigest()[:16]
