"""A trace's description as lines, tables and a plot of plain text."""

from __future__ import annotations

import math
import shutil
import sys
from typing import Any, Final

import numpy as np

from analysis.report.tables import Table
from analysis.units import format_duration
from traces.describe import Description

__all__ = ["description_lines", "joint_table", "length_table", "plain", "rate_plot"]

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_MOST_BAR: Final = 60


def plain(value: Any) -> Any:
    """A value as JSON holds it: arrays as lists, keys as text, what is not a number as null."""
    if isinstance(value, dict):
        return {f"{key:g}" if isinstance(key, float) else str(key): plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def description_lines(found: Description) -> list[str]:
    """What is no table, a fact a line."""
    shape = "none (gaps of zero, or all equal)" if math.isnan(found.gamma_shape) else f"{found.gamma_shape:.4f}"
    lines = [
        f"{found.rows} requests; {found.arrivals}",
        f"Gamma shape of gaps: {shape} by maximum likelihood, {found.gamma_shape_moments:.4f} by moments (1/CV²)",
        f"lengths correlate by {found.joint.pearson:.3f} (Pearson), {found.joint.spearman:.3f} (Spearman)",
    ]
    if found.prefix is not None:
        prefix = found.prefix
        lines.append(
            f"prefix reuse, at most: {prefix.tokens:.2%} of input tokens, {prefix.blocks:.2%} of blocks, in "
            f"{prefix.requests:.2%} of requests; {prefix.distinct_blocks} distinct blocks of {prefix.block_tokens} "
            "tokens"
        )
    if found.sessions is not None:
        sessions = found.sessions
        lines.append(
            f"{sessions.count} sessions: turns p50 {sessions.turns_p50}, p99 {sessions.turns_p99}, most "
            f"{sessions.turns_max}; {sessions.follow_ups:.2%} of requests follow another turn"
        )
    if found.over_long is not None:
        lines.append(f"{found.over_long:.2%} of requests have more than {found.max_model_len} tokens in all")
    return lines


def length_table(found: Description) -> Table:
    """Quantiles of both lengths."""
    sides = (("input", found.input), ("output", found.output))
    names = ["max" if q == 1 else f"p{q * 100:g}" for q in found.input.quantiles]
    return Table(
        title="Lengths, tokens",
        columns=("side", "sum", "mean", *names),
        rows=tuple(
            (name, f"{side.total:,}", f"{side.mean:.1f}", *(str(v) for v in side.quantiles.values()))
            for name, side in sides
        ),
        left=frozenset({"side"}),
    )


def joint_table(found: Description) -> Table:
    """Share of requests by class of input (rows) and output (columns)."""
    joint = found.joint
    rows, columns = _classes(joint.input_edges), _classes(joint.output_edges)
    return Table(
        title="Joint shape: share of requests by input (rows) and output (columns), cut at p25, p50, p75 and p95",
        columns=("input", *(f"out {name}" for name in columns)),
        rows=tuple(
            (f"in {name}", *(f"{share:.1%}" for share in shares))
            for name, shares in zip(rows, joint.shares, strict=True)
        ),
        left=frozenset({"input"}),
    )


def _classes(edges: tuple[int, ...]) -> list[str]:
    return [f"≤ {edges[0]}", *(f"..{edge}" for edge in edges[1:]), f"> {edges[-1]}"]


def rate_plot(found: Description, *, width: int | None = None) -> list[str]:
    """The rate over time, a bar a line, in at most `width` columns (the terminal's; 100 where there is none).

    Bars are of block elements, or of `#` where the output's encoding has none.
    """
    columns = shutil.get_terminal_size((100, 24)).columns if width is None else width
    rates = found.series / found.series_bin_s
    starts = [format_duration(i * found.series_bin_s) if i else "0s" for i in range(len(rates))]
    side = max(map(len, starts))
    shown = [f"{rate:.4g}" for rate in rates]
    value = max(map(len, shown))
    room = max(min(_MOST_BAR, columns - side - value - 4), 1)
    scale = room / float(rates.max()) if rates.max() > 0 else 0.0
    bars = [_bar(float(rate) * scale) for rate in rates]
    title = f"requests/s over time, a bar for each {format_duration(found.series_bin_s)}"
    return [title, *(f"{at:>{side}} {n:>{value}} {bar}" for at, n, bar in zip(starts, shown, bars, strict=True))]


def _bar(length: float) -> str:
    eighths = int(np.rint(length * 8))
    bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    try:
        bar.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#" * round(length)
    return bar
