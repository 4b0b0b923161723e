"""`loadgen calibrate`: what this machine's client can carry."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from analysis.report.tables import Table
from loadgen import Calibration, calibrate
from loadgen.cli import app
from loadgen.cli.display import open_display
from loadgen.cli.options import Json, Quiet
from loadgen.cli.output import print_json, print_lines, print_tables
from loadgen.cli.work import work

EXAMPLE = "Example: loadgen calibrate"

_COLUMNS = ("rate", "tokens", "requests", "core", "µs/request", "send lag", "TTFT error", "E2E error", "check")


@app.command("calibrate", epilog=EXAMPLE)
def calibrate_command(
    stamps: Annotated[
        Literal["kernel", "user"] | None, typer.Option("--stamps", help="Stamps of reads [default: the kernel's]")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=600, help="Measured load of each step.")] = 4.0,
    highest: Annotated[float, typer.Option("--highest", min=50, help="No rate above this one, requests/s.")] = 6400.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find out which rates this machine can offer and measure (about a minute)."""
    with open_display(quiet=quiet) as display:
        found = work(calibrate(stamps=stamps, seconds=seconds, highest=highest, progress=display.show))
    if as_json:
        print_json(found)
        return
    print_tables(_table(found))
    print_lines(*_sentences(found))


def _table(found: Calibration) -> Table:
    rows = tuple(
        (
            f"{step.rate:.4g}", str(step.output_tokens), str(step.requests), f"{step.cpu_share:.0%}",
            f"{step.cpu_s_per_request * 1e6:.0f}", _ms(step.send_lag_p99_s), _ms(step.ttft_error_p99_s),
            _ms(step.last_token_error_p99_s), "holds" if step.holds else "fails",
        )
        for step in sorted(found.steps, key=lambda step: (step.output_tokens, step.rate))
    )  # fmt: skip
    title = f"What this machine's client carries ({found.stamps} stamps; lag and errors: p99 in ms)"
    return Table(title=title, columns=_COLUMNS, rows=rows, left=frozenset({"check"}))


def _sentences(found: Calibration) -> list[str]:
    said = [f"{step.rate:.4g} requests/s fails: {step.reason}." for step in found.steps if not step.holds]
    if found.ceiling is None:
        return [*said, "This machine is too busy: no rate holds. Try again when it is idle, or use another one."]
    more = ", or more: the server of the calibration may have been the limit" if found.server_limited else ""
    half = found.ceiling / 2
    cost = f"{found.cpu_s_per_request * 1e6:.0f} µs of CPU, and {found.cpu_s_per_token * 1e6:.1f} µs a token"
    return [
        *said,
        f"Ceiling: {found.ceiling:.4g} requests/s of {found.tokens} tokens{more}. Offer up to half of it: "
        f"{half:.4g} requests/s.",
        f"A request costs {cost}.",
        "Kept for this machine: a sweep says so if its highest rate is above half of the ceiling.",
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
