"""`loadgen trace`: look at a trace before it is replayed, or write it in another format."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from analysis.text import printable
from loadgen.cli import app
from loadgen.cli.output import print_json, print_lines, print_tables
from loadgen.cli.tracetables import description_lines, joint_table, length_table, plain, rate_plot
from loadgen.common.errors import ScenarioError
from loadgen.scenario.settings import parse_window_s
from loadgen.scenario.tracefile import Reading
from traces.describe import describe
from traces.read import files_of
from traces.transform import window as cut
from traces.write import STDOUT, WRITERS, refuse_target, write_trace

trace_app = typer.Typer(name="trace", help="Read production traces: describe, convert.", no_args_is_help=True)
app.add_typer(trace_app)

_FILE = "gzip, zstd, bzip2, xz, zip and tar are seen through; - is standard input, and a quoted pattern names files."
Files = Annotated[list[str], typer.Argument(help=f"The trace, in one or several files; {_FILE}", show_default=False)]
Format = Annotated[str | None, typer.Option(help="Its format, where the content does not tell (see docs/traces.md).")]
Map = Annotated[
    str | None,
    typer.Option("--map", metavar="NAME=COLUMN,…",
                 help="Columns of any table, or paths such as usage.prompt_tokens: "
                 "timestamp=…,input=…,output=…[,session=…,hashes=…]."),
]  # fmt: skip
Unit = Annotated[str | None, typer.Option(help="Unit of the timestamps with --map: iso, s, ms, us or ns.")]
BlockTokens = Annotated[int | None, typer.Option(help="Tokens a block id stands for, instead of the format's own.")]
OnInvalid = Annotated[str, typer.Option(help="Rows that cannot be used: error, drop or clip.", metavar="POLICY")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

DESCRIBE = "Example: loadgen trace describe traces/samples/steps.csv --max-model-len 4096"
CONVERT = "Example: loadgen trace convert azure.csv trace.jsonl --to mooncake"


@trace_app.command("describe", epilog=DESCRIBE)
def describe_command(
    files: Files,
    format: Format = None,  # noqa: A002 - the option's name
    mapping: Map = None,
    unit: Unit = None,
    block_tokens: BlockTokens = None,
    on_invalid: OnInvalid = "error",
    max_model_len: Annotated[int | None, typer.Option(help="Also the share of requests with more tokens.")] = None,
    window: Annotated[
        str | None, typer.Option(help="Only this part of it, such as 10m..40m; its silence counts.", metavar="A..B")
    ] = None,
    bins: Annotated[int, typer.Option(help="Bars of the plot of the rate over time.", min=1, max=1000)] = 24,
    as_json: Json = False,
) -> None:
    """Say what a trace holds: rate, burstiness, lengths and their joint shape, shared prefixes, sessions."""
    reading = Reading(format=format, map=mapping, unit=unit, block_tokens=block_tokens, on_invalid=on_invalid)
    try:
        span = None if window is None else parse_window_s(window)
    except ValueError as fault:
        raise ScenarioError(f"--window: {fault}") from None
    trace, report = reading.read(files)
    sha256, name, lead_ns, window_ns = trace.sha256, None, 0, None
    if span is not None:
        part = cut(trace, *span)
        trace, name, lead_ns, window_ns = part.trace, part.name, part.lead_ns, part.window_ns
    found = describe(trace, max_model_len=max_model_len, series_bins=bins, lead_ns=lead_ns, window_ns=window_ns)
    if as_json:
        print_json({"read": asdict(report), "sha256": sha256, "window": name, **plain(found)})
        return
    print_lines(*report.lines(), f"sha256 {sha256}", *([] if name is None else [name]), *description_lines(found))
    print_tables(length_table(found), joint_table(found))
    print_lines(*rate_plot(found))


@trace_app.command("convert", epilog=CONVERT)
def convert_command(
    source: Annotated[str, typer.Argument(help=f"The trace; {_FILE}", show_default=False)],
    target: Annotated[str, typer.Argument(help="The file to write; - is standard output.", show_default=False)],
    to: Annotated[str, typer.Option(help="Format to write: " + ", ".join(WRITERS) + ".", show_default=False)],
    format: Format = None,  # noqa: A002 - the option's name
    mapping: Map = None,
    unit: Unit = None,
    block_tokens: BlockTokens = None,
    on_invalid: OnInvalid = "error",
    max_model_len: Annotated[
        int | None, typer.Option(help="Rows with more tokens in all cannot be used: --on-invalid decides.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Write a trace in another format; what that cannot hold is said."""
    reading = Reading(
        format=format,
        map=mapping,
        unit=unit,
        block_tokens=block_tokens,
        on_invalid=on_invalid,
        max_model_len=max_model_len,
    )
    refuse_target(target, force=force, sources=files_of(source))
    trace, report = reading.read(source)
    written = write_trace(trace, target, to, force=force)
    if as_json and target != STDOUT:
        result: dict[str, Any] = {"read": asdict(report), "written": asdict(written), "sha256": trace.sha256}
        print_json(result)
        return
    show = print_lines if target != STDOUT else _beside
    show(
        *report.lines(),
        f"wrote {written.path}: {written.rows} rows as {written.format} ({written.hint})",
        f"not held by {written.format}: {', '.join(written.lost)}",
    )


def _beside(*lines: str) -> None:
    """Sentences on stderr, where stdout holds the trace."""
    for line in lines:
        typer.echo(printable(line), err=True)
