"""What the targets of a comparison must have in common for their runs to be pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from loadgen.common.errors import TargetUnfit
from loadgen.experiment.compare.setup import ComparisonSetup
from loadgen.results.types import Manifest

__all__ = ["check_alike"]


def check_alike(setup: ComparisonSetup, manifests: Mapping[str, Manifest]) -> tuple[str, ...]:
    """Lines worth saying about targets that may be compared.

    Raises `TargetUnfit` for variants that serve different models, unless the user named the model of each, and for
    variants that take requests in different formats.
    """
    first, *others = setup
    at = manifests[first.name].target
    lines = []
    for other in others:
        to = manifests[other.name].target
        if to.model != at.model:
            said = f"{first.name} serves {at.model} and {other.name} serves {to.model}"
            if first.settings.model is None or other.settings.model is None:
                raise TargetUnfit(
                    f"different models cannot be compared: {said}; if they are the same weights under two names, name "
                    "the model of each variant: name=URL,model=NAME"
                )
            lines.append(f"{said}, as the variants say")
        if to.format != at.format:
            pairs = (
                (one.name, getattr(at.format, one.name), getattr(to.format, one.name)) for one in fields(at.format)
            )
            differing = ", ".join(f"{name} {old} and {new}" for name, old, new in pairs if old != new)
            raise TargetUnfit(
                f"{first.name} and {other.name} take requests in different formats ({differing}), so their runs are no "
                "pairs: choose one that both take, such as --prompt text or --endpoint completions"
            )
    return tuple(lines)
