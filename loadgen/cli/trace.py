"""`loadgen trace`: look at a trace before it is replayed, or write it in another format."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.cli import app
from loadgen.cli.output import print_json, print_lines, print_tables
from loadgen.cli.tracetables import description_lines, joint_table, length_table, plain, rate_plot
from loadgen.tracefile import Reading
from traces.describe import describe
from traces.write import WRITERS, write_trace

trace_app = typer.Typer(name="trace", help="Read production traces: describe, convert.", no_args_is_help=True)
app.add_typer(trace_app)

File = Annotated[Path, typer.Argument(help="The trace; gzip and zstd are seen through.", show_default=False)]
Format = Annotated[str | None, typer.Option(help="Its format, where the content does not tell (see docs/traces.md).")]
Map = Annotated[
    str | None,
    typer.Option("--map", help="Columns of any table: timestamp=…,input=…,output=…[,session=…,hashes=…].",
                 metavar="NAME=COLUMN,…"),
]  # fmt: skip
Unit = Annotated[str | None, typer.Option(help="Unit of the timestamps with --map: iso, s, ms, us or ns.")]
BlockTokens = Annotated[int | None, typer.Option(help="Tokens a block id stands for, instead of the format's own.")]
OnInvalid = Annotated[str, typer.Option(help="Rows that cannot be used: error, drop or clip.", metavar="POLICY")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

DESCRIBE = "Example: loadgen trace describe traces/samples/steps.csv --max-model-len 4096"
CONVERT = "Example: loadgen trace convert azure.csv trace.jsonl --to mooncake"


@trace_app.command("describe", epilog=DESCRIBE)
def describe_command(
    file: File,
    format: Format = None,  # noqa: A002 - the option's name
    mapping: Map = None,
    unit: Unit = None,
    block_tokens: BlockTokens = None,
    on_invalid: OnInvalid = "error",
    max_model_len: Annotated[int | None, typer.Option(help="Also the share of requests with more tokens.")] = None,
    bins: Annotated[int, typer.Option(help="Bars of the plot of the rate over time.", min=1, max=1000)] = 24,
    as_json: Json = False,
) -> None:
    """Say what a trace holds: rate, burstiness, lengths and their joint shape, shared prefixes, sessions."""
    reading = Reading(format=format, map=mapping, unit=unit, block_tokens=block_tokens, on_invalid=on_invalid)
    trace, report = reading.read(str(file))
    found = describe(trace, max_model_len=max_model_len, series_bins=bins)
    if as_json:
        print_json({"read": asdict(report), "sha256": trace.sha256, **plain(found)})
        return
    print_lines(*report.lines(), f"sha256 {trace.sha256}", *description_lines(found))
    print_tables(length_table(found), joint_table(found))
    print_lines(*rate_plot(found))


@trace_app.command("convert", epilog=CONVERT)
def convert_command(
    source: File,
    target: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)],
    to: Annotated[str, typer.Option(help="Format to write: " + ", ".join(WRITERS) + ".", show_default=False)],
    format: Format = None,  # noqa: A002 - the option's name
    mapping: Map = None,
    unit: Unit = None,
    block_tokens: BlockTokens = None,
    on_invalid: OnInvalid = "error",
    max_model_len: Annotated[
        int | None, typer.Option(help="Rows with more tokens in all cannot be used: --on-invalid decides.")
    ] = None,
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
    trace, report = reading.read(str(source))
    written = write_trace(trace, target, to)
    if as_json:
        result: dict[str, Any] = {"read": asdict(report), "written": asdict(written), "sha256": trace.sha256}
        print_json(result)
        return
    print_lines(
        *report.lines(),
        f"wrote {written.path}: {written.rows} rows as {written.format} ({written.hint})",
        f"not held by {written.format}: {', '.join(written.lost)}",
    )
