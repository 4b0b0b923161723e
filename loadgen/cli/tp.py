"""`loadgen tp`: what tensor parallelism costs, and what a server's trace says of it."""

from __future__ import annotations

import typer

from loadgen.cli import app
from loadgen.cli.tpprofile import PROFILE, profile_command

tp_app = typer.Typer(name="tp", help="Tensor parallelism: read profiles.", no_args_is_help=True)
app.add_typer(tp_app)

tp_app.command("profile", epilog=PROFILE)(profile_command)
