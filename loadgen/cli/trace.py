"""`loadgen trace`: look at a trace before it is replayed, or write it in another format."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from analysis.text import printable
from loadgen.cli import app
from loadgen.cli.options import Json, takes
from loadgen.cli.output import print_json, print_lines, print_tables
from loadgen.cli.tracetables import description_lines, joint_table, length_table, plain, rate_plot
from loadgen.scenario.overrides import Overrides
from loadgen.scenario.reading import Converting, Describing, read_files
from loadgen.scenario.settings import parse_window_s
from loadgen.scenario.validate import validated
from traces.describe import describe
from traces.read import files_of
from traces.transform import window as cut
from traces.write import STDOUT, WRITERS, refuse_target, write_trace

trace_app = typer.Typer(name="trace", help="Read production traces: describe, convert.", no_args_is_help=True)
app.add_typer(trace_app)

_FILE = "gzip, zstd, bzip2, xz, zip and tar are seen through; - is standard input, and a quoted pattern names files."
Files = Annotated[list[str], typer.Argument(help=f"The trace, in one or several files; {_FILE}", show_default=False)]

DESCRIBE = "Example: loadgen trace describe traces/samples/steps.csv --max-model-len 4096"
CONVERT = "Example: loadgen trace convert azure.csv trace.jsonl --to mooncake"


@trace_app.command("describe", epilog=DESCRIBE)
@takes(Describing, "describe")
def describe_command(
    overrides: Overrides,
    files: Files,
    as_json: Json = False,
) -> None:
    """Say what a trace holds: rate, burstiness, lengths and their joint shape, shared prefixes, sessions."""
    chosen = validated(Describing, overrides.values, "", option=True)
    trace, report = read_files(files, chosen)
    sha256, name, lead_ns, window_ns = trace.sha256, None, 0, None
    if chosen.window is not None:
        part = cut(trace, *parse_window_s(chosen.window))
        trace, name, lead_ns, window_ns = part.trace, part.name, part.lead_ns, part.window_ns
    found = describe(
        trace, max_model_len=chosen.max_model_len, series_bins=chosen.bins, lead_ns=lead_ns, window_ns=window_ns
    )
    if as_json:
        print_json({"read": asdict(report), "sha256": sha256, "window": name, **plain(asdict(found))})
        return
    print_lines(*report.lines(), f"sha256 {sha256}", *([] if name is None else [name]), *description_lines(found))
    print_tables(length_table(found), joint_table(found))
    print_lines(*rate_plot(found))


@trace_app.command("convert", epilog=CONVERT)
@takes(Converting, "convert")
def convert_command(
    overrides: Overrides,
    source: Annotated[str, typer.Argument(help=f"The trace; {_FILE}", show_default=False)],
    target: Annotated[str, typer.Argument(help="The file to write; - is standard output.", show_default=False)],
    to: Annotated[str, typer.Option(help="Format to write: " + ", ".join(WRITERS) + ".", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Write a trace in another format; what that cannot hold is said."""
    chosen = validated(Converting, overrides.values, "", option=True)
    refuse_target(target, force=force, sources=files_of(source))
    trace, report = read_files(source, chosen, max_tokens=chosen.max_model_len)
    written = write_trace(trace, target, to, force=force)
    if as_json and target != STDOUT:
        print_json({"read": asdict(report), "written": asdict(written), "sha256": trace.sha256})
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
