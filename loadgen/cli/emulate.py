"""`loadgen emulate`: the embedded emulator as a server of its own, and profiles fitted to a measured run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli import app
from loadgen.common import defaults
from loadgen.common.errors import UsageError
from loadgen.emulator.serve import serve

EXAMPLE = """
Example: loadgen emulate llama8b-80gb --port 8000 --set scheduler.max_num_seqs=64

Fit: loadgen emulate llama8b-80gb --fit results/mine --out mine.toml
"""


@app.command("emulate", epilog=EXAMPLE)
def emulate_command(
    profile: Annotated[str, typer.Argument(help="Name of a ready profile, or a TOML file.")] = defaults.PROFILE,
    host: Annotated[str, typer.Option(help="Address to bind; the default is loopback.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key of the profile; repeatable.")
    ] = None,
    truth_log: Annotated[
        Path | None, typer.Option(help="Write when each request arrived and was answered, JSON lines.")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(metavar="RESULTS", help="Serve nothing: fit the profile's step times to this measured run."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --fit: write the fitted profile to this TOML file.")] = None,
) -> None:
    """Serve a simulated vLLM (no real model) until stopped."""
    if fit is not None:
        _fit(profile, settings or (), fit, out)
    elif out is not None:
        raise UsageError("--out is where --fit writes its profile: give --fit RESULTS too")
    else:
        serve(profile, host=host, port=port, truth_log=truth_log, settings=settings or ())


def _fit(profile: str, settings: Sequence[str], results: Path, out: Path | None) -> None:
    from loadgen.emulator.fitting import fit_profile, write_profile

    fitted = fit_profile(profile, settings, results)
    fit = fitted.fit
    typer.echo(f"{profile} fitted to {results}: {fit.passes} of {fit.seen} passes, {fit.stalls} stalls left out")
    for name, estimate, unit in (
        ("step.overhead_ms", fit.overhead_s, 1e-3),
        ("card.effective_gb_per_s", fit.bytes_per_s, 1e9),
        ("card.effective_tflops", fit.flops_per_s, 1e12),
    ):
        typer.echo(f"  {name:<24} {estimate.value / unit:>10.5g} ± {estimate.error / unit:.2g}")
    typer.echo(f"  median pass {fit.duration_s * 1e3:.4g} ms; bound by FLOPs from {fit.balance_tokens:.0f} tokens on")
    typer.echo(
        f"  residuals, share of a pass: rms {100 * fit.rms:.2g} %, p50 {100 * fit.p50:.2g} %, "
        f"p95 {100 * fit.p95:.2g} %, largest {100 * fit.largest:.2g} %"
    )
    if out is not None:
        write_profile(out, fitted)
        typer.echo(f"written to {out}")
