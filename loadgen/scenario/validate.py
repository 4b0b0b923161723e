"""Settings made of what a user wrote; what is wrong with them is one line that names the key or option."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from loadgen.common.errors import ScenarioError
from loadgen.scenario.mistakes import meant

__all__ = ["validated"]

_Settings = TypeVar("_Settings", bound=BaseModel)


def validated(settings: type[_Settings], values: Mapping[str, Any], where: str, *, option: bool) -> _Settings:
    """The settings of these keys; `where` they are from, and whether they were written as options, is for the error.

    Raises `ScenarioError` with one line that names the key.
    """
    try:
        return settings.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key, settings.model_fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known keys are {', '.join(settings.model_fields)}"
            if isinstance(first["input"], Mapping):
                hint = f"; there are no tables: the keys of [{key}] stand at the top of the file"
            elif known := meant(key):
                hint = f"; {known}"
            raise ScenarioError(f"{where or 'options'}: unknown key {key!r}{hint}") from None
        text = first["msg"].removeprefix("Value error, ")
        if key:
            text = f"{'--' + key.replace('_', '-') if option else key}: {text}"
            if first["type"] != "value_error" and key != "header":  # whose value is a secret
                text += f" (got {first['input']!r})"
        raise ScenarioError(f"{where}: {text}" if where else text) from None
