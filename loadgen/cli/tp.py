"""`loadgen tp`: what tensor parallelism costs, and what a server's trace says of it."""

from __future__ import annotations

import typer

from loadgen.cli import app
from loadgen.cli.tpdiagnose import DIAGNOSE, diagnose_command
from loadgen.cli.tpnccl import NCCL, nccl_command
from loadgen.cli.tpplan import PLAN, plan_command
from loadgen.cli.tpprofile import PROFILE, profile_command

tp_app = typer.Typer(
    name="tp", help="Tensor parallelism: plan, read nccl-tests and profiles, diagnose.", no_args_is_help=True
)
app.add_typer(tp_app)

tp_app.command("plan", epilog=PLAN)(plan_command)
tp_app.command("nccl", epilog=NCCL)(nccl_command)
tp_app.command("profile", epilog=PROFILE)(profile_command)
tp_app.command("diagnose", epilog=DIAGNOSE)(diagnose_command)
