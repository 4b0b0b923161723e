"""The order of the variants within each replicate, so that a drift of the machine favours none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

__all__ = ["run_order", "williams"]


def run_order(variants: Sequence[str]) -> Callable[[int], tuple[str, ...]]:
    """Replicate r's order of the variants: ABBA for two, rows of a Williams design for more. Deterministic.

    Raises `ValueError` for no variant or one named twice.
    """
    if not variants or len(set(variants)) < len(variants):
        raise ValueError("an order needs variants of different names")
    rows = williams(len(variants))
    return partial(_row, tuple(tuple(variants[k] for k in row) for row in rows))


def _row(rows: Sequence[tuple[str, ...]], replicate: int) -> tuple[str, ...]:
    return rows[replicate % len(rows)]


def williams(n: int) -> tuple[tuple[int, ...], ...]:
    """A Latin square of 0..n−1 in which each follows each other one equally often (Williams, 1949).

    n rows for an even n; for an odd n as many more, which are the first ones backwards.
    """
    first = [0]
    for k in range(1, n):
        first.append((k + 1) // 2 if k % 2 else n - k // 2)
    rows = [tuple((value + shift) % n for value in first) for shift in range(n)]
    if n % 2 and n > 1:
        rows += [tuple(reversed(row)) for row in rows]
    return tuple(rows)
