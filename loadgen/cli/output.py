"""How results reach a person or a pipe: tables laid out for the terminal's width, sentences, JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from analysis.report.server import server_table
from analysis.report.tables import (
    Table,
    bucket_table,
    latency_table,
    run_sentences,
    run_table,
    sentences,
    verdict_table,
)
from analysis.slo import Slo
from analysis.text import printable
from analysis.units import format_duration
from analysis.verdict import RunVerdict

__all__ = ["print_answer", "print_json", "print_lines", "print_run", "print_tables"]

_DOUBTFUL = re.compile(r"[^ -~\n]")
_PIPE_WIDTH = 250  # a file or a pipe has no width: lines are not folded there


def print_answer(answer: Mapping[str, Any], *, buckets: bool) -> None:
    """The tables and sentences of a sweep on stdout."""
    if answer["rates"]:
        print_tables(verdict_table(answer), latency_table(answer), *([bucket_table(answer)] if buckets else []))
    print_lines(*sentences(answer))


def print_run(line: Mapping[str, Any], notes: Sequence[str], slo: Slo) -> None:
    """One run's latencies, what the server told, and the verdict on stdout, from its ledger line."""
    verdict = RunVerdict.from_dict(line["verdict"])
    told = server_table(verdict)
    print_tables(run_table(verdict), *([] if told is None else [told]))
    print_lines(*run_sentences(verdict, slo))
    if absent := line.get("not_measured"):
        print_lines(f"not measured: {'; '.join(absent)}")
    if why := line.get("diagnosis"):
        print_lines("Diagnosis:", *(f"  {step}" for step in why.split("\n")))
    print_lines(*notes)
    if (replayed := line.get("replay")) is not None:
        print_lines(*_replayed_lines(replayed))


def print_tables(*tables: Table) -> None:
    """Tables on stdout, folded to the terminal's width."""
    console = _console()
    for table in tables:
        laid_out = RichTable(
            title=Text(printable(table.title)),
            box=box.SIMPLE_HEAD,
            title_justify="left",
            pad_edge=False,
            collapse_padding=True,
        )
        for column in table.columns:
            laid_out.add_column(
                Text(printable(column)), justify="left" if column in table.left else "right", overflow="fold"
            )
        for row in table.rows:
            laid_out.add_row(*(Text(printable(cell)) for cell in row))
        console.print(laid_out)


def print_lines(*lines: str) -> None:
    """Sentences on stdout, each folded between words."""
    console = _console()
    for line in lines:
        console.print(Text(printable(line)))


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON document on stdout, in which nothing can move a terminal: JSON escapes what is not printable."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
    text = _DOUBTFUL.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)
    sys.stdout.buffer.write(text.encode())
    sys.stdout.flush()


def _replayed_lines(told: Mapping[str, Any]) -> list[str]:
    """What only a replay has to say."""
    lines = [f"replayed: {told['origin']}"]
    if (blocked := told["blocked"]) is not None:
        lines.append(
            "SEMI-OPEN: turns waited for the previous answer, so a slow server was offered less; this says nothing of "
            "a capacity"
        )
        waits = (
            f" for p50 {format_duration(blocked['p50_s'])}, p95 {format_duration(blocked['p95_s'])}, at most "
            f"{format_duration(blocked['max_s'])}, {format_duration(blocked['total_s'])} in all"
            if blocked["blocked"]
            else ""
        )
        lines.append(f"blocked: {blocked['blocked']} of {blocked['turns']} later turns{waits}")
    if (prefix := told["prefix"]) is not None:
        cached = "the server did not say" if prefix["cached"] is None else f"{prefix['cached']:.2%} were"
        lines.append(
            f"prefix cache: the block ids allow {prefix['allowed']:.2%} of input tokens to be cached; {cached}"
        )
    return [*lines, f"schedule sha256 {told['schedule_sha256']}", f"workload sha256 {told['workload_sha256']}"]


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)
