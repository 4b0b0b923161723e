"""The `loadgen` command: one module a subcommand, errors as one line, exit codes as in loadgen.errors."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from loadgen.errors import LoadgenError, UsageError
from traces.errors import TraceError

__all__ = ["app", "main"]

app = typer.Typer(
    name="loadgen",
    help="Open-loop load generator and SLO capacity finder for OpenAI-compatible LLM servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from loadgen.record.manifest import versions

        typer.echo(f"loadgen {versions()['loadgen']}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; every expected failure is one line on stderr and its exit code."""
    for command in ("sweep", "run", "check", "replay", "trace", "show", "emulate"):
        importlib.import_module(f"loadgen.cli.{command}")  # importing a command registers it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an encoding without some sign must not end the program
            stream.reconfigure(errors="replace")

    try:
        app()
    except LoadgenError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except TraceError as error:
        _complain(str(error))
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:
        _complain("stopped")
        sys.exit(5)
    except BrokenPipeError:
        # the reader of our output left; nothing more can be said on it, not even by the interpreter's last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if os.environ.get("LOADGEN_DEBUG"):
            raise
        _complain(f"a bug in loadgen: {type(error).__name__}: {error} (LOADGEN_DEBUG=1 shows where; please report it)")
        sys.exit(70)


def _complain(text: str) -> None:
    Console(stderr=True, highlight=False).print(f"loadgen: {text}", markup=False, soft_wrap=True)
