"""The `loadgen` command: one module a subcommand, errors as one line, exit codes as in loadgen.common.errors.

A subcommand's module is imported when it is called: the list of them is printed without numpy, pandas or pydantic.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Final, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from analysis.text import printable
from loadgen.common.errors import LoadgenError, UsageError
from loadgen.common.interrupts import EXIT_CODE, advice, end, interruptible
from traces.errors import TraceError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: Final = {
    "sweep": "Find the largest arrival rate at which every replicate keeps the joint SLO.",
    "compare": "Compare configurations of a server per GPU, on the same arrivals and requests.",
    "gate": "Test one rate and nothing else, or whether a server is worse than a baseline, with an exit code for CI.",
    "run": "Offer one rate once (or N requests at a time) and judge it.",
    "check": "Find out what a server can do, with at most ten small requests (some 8 seconds).",
    "calibrate": "Find out which rates this machine can offer and measure (about a minute).",
    "replay": "Send a trace's requests at their own instants, with their lengths and shared prefixes, and judge the "
    "run.",
    "trace": "Read production traces: describe, convert.",
    "tp": "Tensor parallelism: plan, read nccl-tests and profiles, diagnose.",
    "show": "Print the result of an experiment again.",
    "emulate": "Serve a simulated vLLM (no real model) until stopped.",
}
"""The subcommands in the order of the help, each with its module's name and the first line of its help."""
_INTERRUPTED: Final = 130  # what typer makes of Ctrl-C
_PIPE_CLOSED: Final = 141  # as a shell says of a program that ended by SIGPIPE
_BUG: Final = 70
_CLICK = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class _Commands(TyperGroup):
    """The subcommands, each imported when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # one that was not imported has a name and a line in the list, which is all that is asked of it
        self.commands = {
            name: self.commands.get(name) or TyperCommand(name, help=said) for name, said in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the subcommand that is called."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = _subcommand(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="loadgen",
    cls=_Commands,
    help="Open-loop load generator and SLO capacity finder for OpenAI-compatible LLM servers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cache
def _group() -> Any:
    """The command line, made once a process: that takes 100 ms."""
    return typer.main.get_command(app)


@cache
def _subcommand(name: str) -> Any:
    importlib.import_module(f"{__name__}.{name}")  # which registers it
    registered = typer.main.get_command(app)
    assert isinstance(registered, TyperGroup)
    return registered.commands[name]


def _version(asked: bool) -> None:
    if asked:
        from loadgen import __version__

        typer.echo(f"loadgen {__version__}")
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
    _open_streams()
    with interruptible():
        code = _explained()
        sys.exit(_flushed(code))


def _explained() -> int:
    """The exit code, after a line for whoever has to know."""
    try:
        return _run()
    except LoadgenError as error:
        kept = advice() if error.exit_code == EXIT_CODE else ""
        return _complain("; ".join(text for text in (str(error), kept) if text), error.exit_code)
    except TraceError as error:
        return _complain(str(error), UsageError.exit_code)
    except KeyboardInterrupt:
        end()
    except BrokenPipeError:
        return _PIPE_CLOSED
    except OSError as error:
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            return _bug(error)
        return _complain(f"{error.filename or 'the output cannot be written'}: {error.strerror}", UsageError.exit_code)
    except Exception as error:
        if isinstance(error, _CLICK):
            return _usage(error)
        return _bug(error)


def _run() -> int:
    try:
        code = _group()(prog_name="loadgen", standalone_mode=False)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich both make an exit code 1 of it
            raise BrokenPipeError from None
        raise
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    return code or 0


def _usage(error: Exception) -> int:
    """What is wrong with the command line, in one line; a command without what it needs shows its help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return UsageError.exit_code  # the help was printed
    from loadgen.scenario.mistakes import remedy

    text = " ".join(str(error.format_message()).split())  # type: ignore[attr-defined]
    where = context.command_path if context is not None else "loadgen"
    return _complain("; ".join((remedy(text) or text.rstrip("."), f"{where} --help lists what there is")), 2)


def _bug(error: Exception) -> int:
    if os.environ.get("LOADGEN_DEBUG"):
        raise error
    hint = "LOADGEN_DEBUG=1 shows where; please report it"
    return _complain(f"a bug in loadgen: {type(error).__name__}: {error} ({hint})", _BUG)


def _open_streams() -> None:
    """Standard output and error that can be written to, whatever their encoding, and if they were closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for the process's life
        elif isinstance(stream, io.TextIOWrapper):  # an encoding without some sign must not end the program
            stream.reconfigure(errors="replace")


def _flushed(code: int) -> int:
    """The exit code once all output is out: whoever reads it may have left, or the disk may be full."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            code = code or _PIPE_CLOSED
        else:
            code = code or _complain(f"the output cannot be written: {error.strerror}", UsageError.exit_code)
    try:
        sys.stderr.flush()
    except OSError:  # a reader of the progress that left changes no result
        _discard(sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    """Nothing more can be written to it: not even the interpreter's last flush may fail."""
    with suppress(OSError, io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _complain(text: str, code: int) -> int:
    with suppress(OSError):
        sys.stderr.write(f"loadgen: {printable(text)}\n")
        sys.stderr.flush()
    return code
