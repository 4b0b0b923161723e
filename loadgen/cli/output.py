"""How results reach a person or a pipe: tables laid out for the terminal's width, sentences, JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from analysis.compare.regression import RegressionAnswer
from analysis.compare.types import Comparison
from analysis.report.balance import balance_table
from analysis.report.compared import comparison_sentences, comparison_tables, verdict_lines
from analysis.report.regressed import regression_sentences, regression_table
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
from analysis.report.types import CapacityAnswer
from analysis.slo import Slo
from analysis.text import printable
from analysis.units import format_duration
from loadgen import LedgerLine, ReplayedRun
from loadgen.common.documents import to_json

__all__ = [
    "print_answer",
    "print_comparison",
    "print_json",
    "print_lines",
    "print_regression",
    "print_run",
    "print_tables",
]

_DOUBTFUL = re.compile(r"[^ -~\n]")
_PIPE_WIDTH = 250  # a file or a pipe has no width: lines are not folded there


def print_answer(answer: CapacityAnswer, *, buckets: bool) -> None:
    """The tables and sentences of a sweep on stdout, after the verdict on a required rate."""
    if answer.requirement is not None:
        print_lines(answer.requirement.words)
    if answer.rates or answer.proofs:
        print_tables(verdict_table(answer), latency_table(answer), *([bucket_table(answer)] if buckets else []))
    print_lines(*sentences(answer))


def print_comparison(answer: Comparison) -> None:
    """The verdicts, tables and sentences of a comparison on stdout."""
    print_lines(*verdict_lines(answer))
    print_tables(*comparison_tables(answer))
    print_lines(*comparison_sentences(answer))


def print_regression(answer: RegressionAnswer) -> None:
    """The verdict, table and sentences of a gate against a baseline on stdout."""
    print_lines(answer.words)
    if answer.tested is not None:
        print_tables(regression_table(answer))
    print_lines(*regression_sentences(answer))


def print_run(line: LedgerLine, notes: Sequence[str], slo: Slo) -> None:
    """One run's latencies, what the server reported, and the verdict on stdout, from its ledger line."""
    verdict = line.verdict
    server = server_table(verdict)
    balance = [] if verdict.balance is None else [balance_table(verdict.balance)]
    print_tables(run_table(verdict), *balance, *([] if server is None else [server]))
    print_lines(*run_sentences(verdict, slo))
    if line.not_measured:
        print_lines(f"not measured: {'; '.join(line.not_measured)}")
    if line.diagnosis:
        print_lines("Diagnosis:", *(f"  {step}" for step in line.diagnosis.split("\n")))
    print_lines(*notes)
    if isinstance(line, ReplayedRun):
        print_lines(*_replayed_lines(line))


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


def print_json(value: object) -> None:
    """One JSON document on stdout, in which nothing can move a terminal: JSON escapes what is not printable."""
    text = to_json(value, indent=2).decode() + "\n"
    text = _DOUBTFUL.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)
    sys.stdout.buffer.write(text.encode())
    sys.stdout.flush()


def _replayed_lines(line: ReplayedRun) -> list[str]:
    """What only a replay has to say."""
    replayed = line.replay
    lines = [f"replayed: {replayed.origin}"]
    if (blocked := replayed.blocked) is not None:
        lines.append(
            "SEMI-OPEN: turns waited for the previous answer, so a slow server was offered less; this says nothing of "
            "a capacity"
        )
        waits = ""
        if blocked.p50_s is not None and blocked.p95_s is not None and blocked.max_s is not None:
            waits = (
                f" for p50 {format_duration(blocked.p50_s)}, p95 {format_duration(blocked.p95_s)}, at most "
                f"{format_duration(blocked.max_s)}, {format_duration(blocked.total_s)} in all"
            )
        lines.append(f"blocked: {blocked.blocked} of {blocked.turns} later turns{waits}")
    if (prefix := replayed.prefix) is not None:
        cached = "the server did not say" if prefix.cached is None else f"{prefix.cached:.2%} were"
        lines.append(f"prefix cache: the block ids allow {prefix.allowed:.2%} of input tokens to be cached; {cached}")
    return [*lines, f"schedule sha256 {replayed.schedule_sha256}", f"workload sha256 {replayed.workload_sha256}"]


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)
