"""A batching profile whose step-time constants come from a measured run (`analysis.tp.fit`).

Model, split, scheduler and collectives are the profile's, and have to be those of the server that was measured;
overhead, FLOPs/s and bytes/s are the run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from analysis.tp.fit import Fit, Server, fit_passes
from analysis.tp.passes import NotIdentified, Passes, find_passes, joined
from loadgen.common.errors import ResultsError, UsageError
from loadgen.emulator.engine.profile import BatchingProfile
from loadgen.emulator.profiles import ProfileFile, read_profile
from loadgen.results.events import read_events
from loadgen.results.store import read_run

__all__ = ["FittedProfile", "fit_profile", "write_profile"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedProfile:
    """A fit, and the file of the profile with the fitted constants in it."""

    fit: Fit
    file: ProfileFile


def fit_profile(name: str, settings: Sequence[str], results: Path) -> FittedProfile:
    """The fit of a measured run, and the profile with the fitted constants in it.

    All sealed runs in the results directory are used together. Raises `UsageError` for a profile of another kind,
    `ResultsError` for a directory without runs or one that does not identify the constants.
    """
    file = read_profile(name, settings)
    profile = file.profile()
    if not isinstance(profile, BatchingProfile):
        raise UsageError(
            f"--fit: profile {name} is of kind {profile.kind}; choose a batching one, such as llama8b-80gb"
        )
    if profile.parallel.replicas > 1:
        raise UsageError(f"--fit: profile {name} has several replicas; measure and fit one (parallel.replicas = 1)")
    server = Server(
        shape=profile.shape(),
        ranks=profile.parallel.tensor_parallel_size,
        weight_bits=profile.model.weight_bits,
        kv_element_bytes=profile.model.kv_cache_bytes,
        fabric=profile.cost().fabric,
    )
    try:
        fit = fit_passes(joined([_passes(run) for run in _runs(results)]), server)
    except NotIdentified as error:
        raise ResultsError(f"--fit {results}: {error}") from None
    fitted = ProfileFile(where="the fit", tables=file.tables)
    fitted.tables["description"] = f"{profile.description}; step times fitted to a measured run"
    fitted.tables["card"] |= {
        "effective_tflops": _rounded(fit.flops_per_s.value / 1e12),
        "effective_gb_per_s": _rounded(fit.bytes_per_s.value / 1e9),
    }
    fitted.tables["step"]["overhead_ms"] = _rounded(fit.overhead_s.value * 1e3)
    fitted.profile()  # refuses constants that no server has
    return FittedProfile(fit=fit, file=fitted)


def write_profile(path: Path, fitted: FittedProfile) -> None:
    """Write the profile as TOML. Raises `UsageError` where a file is, or cannot be."""
    fit = fitted.fit
    head = [
        f"# Step times fitted by least squares to {fit.passes} of {fit.seen} passes of a measured run; residuals: rms",
        f"# {100 * fit.rms:.2g} % of a pass, p95 {100 * fit.p95:.2g} %. All else is the profile it started from.",
    ]
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write("\n".join([*head, fitted.file.text()]))
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}; choose another name") from None


def _rounded(value: float) -> float:
    """Six digits: more than any measured run is good for."""
    return float(f"{value:.6g}")


def _runs(results: Path) -> list[Path]:
    """The sealed runs below a results directory, or the one it is."""
    runs = [
        path.parent for path in sorted(results.rglob("requests.parquet")) if ".interrupted-" not in path.parent.name
    ]
    if not runs:
        raise ResultsError(f"--fit {results}: holds no runs (no requests.parquet in it)")
    return runs


def _passes(run: Path) -> Passes:
    read_run(run)  # refuses what another version wrote
    events = read_events(run)
    try:
        requests = pd.read_parquet(run / "requests.parquet")
        if requests["target"].nunique() > 1:
            raise ResultsError(f"--fit {run}: requests went to several servers; measure and fit one")
        return find_passes(requests, events)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ResultsError(f"--fit {run}: its tables cannot be read: {str(error).splitlines()[0]}") from None
