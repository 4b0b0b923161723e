"""A command's options, made from the fields of its settings, which hold their help, panel and default.

`takes(Scenario, "sweep")` gives a command the options of `sweep` and, as `overrides`, what the user set.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel

from loadgen.scenario.option import Option, options_of
from loadgen.scenario.overrides import Overrides

__all__ = ["Json", "Quiet", "ScenarioFile", "takes"]

ScenarioFile = Annotated[str | None, typer.Option("--scenario", help="TOML file, or the name of a ready one (demo).")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]

_TYPES: Final[dict[str, type]] = {"text": str, "texts": list[str], "int": int, "float": float, "flag": bool}


def takes(
    settings: type[BaseModel], name: str, *, without: Collection[str] = (), into: str = "overrides"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of the settings that `name` has, but for those `without`.

    The command receives those the user set as the parameter `into`.
    """
    options = [option for option in options_of(settings, name) if option.name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            given = {option.name: arguments.pop(option.name) for option in options}
            set_by_user = {key: value for key, value in given.items() if value not in (None, [])}
            command(**{into: Overrides(set_by_user)}, **arguments)

        own = inspect.signature(command, eval_str=True).parameters
        parameters = [own[parameter] for parameter in own if parameter != into] + [
            inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_typed(option))
            for option in options
        ]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def _typed(option: Option) -> Any:
    shown = typer.Option(
        option.flag,
        help=option.help,
        metavar=option.metavar or None,
        rich_help_panel=option.panel,
        show_default=False,  # the help names it
        hidden=option.hidden,
    )
    return Annotated[_TYPES[option.kind] | None, shown]
