"""`loadgen emulate`: the embedded emulator as a server of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli import app
from loadgen.emulator.serve import serve

EXAMPLE = "Example: loadgen emulate llama8b-80gb --port 8000 --set scheduler.max_num_seqs=64"


@app.command("emulate", epilog=EXAMPLE)
def emulate_command(
    profile: Annotated[str, typer.Argument(help="Name of a ready profile, or a TOML file.")] = "fcfs",
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key of the profile; repeatable.")
    ] = None,
    truth_log: Annotated[
        Path | None, typer.Option(help="Write when each request arrived and was answered, JSON lines.")
    ] = None,
) -> None:
    """Serve a simulated vLLM (no real model) until stopped."""
    serve(profile, host=host, port=port, truth_log=truth_log, settings=settings or ())
