"""`loadgen emulate`: the embedded emulator as a server of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from loadgen.cli import app
from loadgen.emulator.serve import serve

EXAMPLE = "Example: loadgen emulate fcfs --port 8000"


@app.command("emulate", epilog=EXAMPLE)
def emulate_command(
    profile: Annotated[str, typer.Argument(help="Name of a ready profile, or a TOML file.")] = "fcfs",
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000,
) -> None:
    """Serve a simulated vLLM (no real model) until stopped."""
    serve(profile, host=host, port=port)
