"""Former path of `loadgen.experiment.run_plan`, kept for scripts that import it; the program itself does not."""

from __future__ import annotations

from loadgen.experiment.run_plan import criteria_of

__all__ = ["criteria_of"]
