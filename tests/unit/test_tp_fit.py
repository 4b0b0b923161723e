"""Known step-time constants come back from runs of a simulated server, within the error that the fit states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from result_files import document, request

from analysis.tp.fit import Fit, Server, fit_passes
from analysis.tp.passes import NotIdentified, find_passes, joined
from loadgen.common.documents import to_json
from loadgen.common.errors import ResultsError, UsageError
from loadgen.emulator.engine.profile import BatchingProfile
from loadgen.emulator.fitting import fit_profile, write_profile
from loadgen.emulator.profiles import load_profile
from loadgen.emulator.virtual import simulate_run
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.lengths import DrawnLengths
from loadgen.plan.plan import make_plan
from loadgen.plan.types import PlanRequest, RequestFormat, Window
from loadgen.results.events import write_events
from loadgen.send.api import SendOptions, sampled

S = 1_000_000_000


@dataclass(frozen=True)
class Uniform:
    tokens_in: tuple[int, int] = (200, 2000)
    tokens_out: tuple[int, int] = (20, 250)
    prefix: int = 0

    def draw(self, rng: np.random.Generator, n: int) -> DrawnLengths:
        return DrawnLengths(
            input_tokens=rng.integers(*self.tokens_in, n),
            output_tokens=rng.integers(*self.tokens_out, n),
            prefix_tokens=np.full(n, self.prefix),
            prefix_group=np.full(n, 0 if self.prefix else -1),
        )


def measured(
    profile: BatchingProfile, rate: float, lengths: Uniform = Uniform(), window_s: int = 60
) -> tuple[pd.DataFrame, pd.DataFrame]:
    window = Window(warmup_ns=S, window_ns=window_s * S, tail_ns=30 * S)
    plan = make_plan(
        PlanRequest(rate=rate, root_seed=101, window=window),
        arrivals=Arrivals(),
        lengths=lengths,
        format=RequestFormat(),
    )  # type: ignore[arg-type]
    run = simulate_run(plan, profile, SendOptions())
    return run.requests, run.events


def batching(name: str, *settings: str) -> BatchingProfile:
    profile = load_profile(name, settings)
    assert isinstance(profile, BatchingProfile)
    return profile


def server(profile: BatchingProfile) -> Server:
    return Server(
        shape=profile.shape(), ranks=profile.parallel.tensor_parallel_size, weight_bits=profile.model.weight_bits,
        kv_element_bytes=profile.model.kv_cache_bytes, fabric=profile.cost().fabric,
    )  # fmt: skip


def fitted(profile: BatchingProfile, rate: float, lengths: Uniform = Uniform()) -> Fit:
    return fit_passes(find_passes(*measured(profile, rate, lengths)), server(profile))


@pytest.mark.parametrize(
    ("name", "settings", "rate"),
    [
        ("llama8b-80gb", (), 1),
        ("llama8b-80gb", (), 6),
        ("llama8b-80gb", ("step.overhead_ms=0",), 6),
        ("llama8b-80gb", ("step.overhead_ms=7.5", "card.effective_gb_per_s=900", "card.effective_tflops=400"), 4),
        ("llama70b-tp4", (), 3),
    ],
)
def test_constants_come_back(name: str, settings: tuple[str, ...], rate: float) -> None:
    profile = batching(name, *settings)
    fit = fitted(profile, rate)
    assert fit.overhead_s.value == pytest.approx(profile.step.overhead_ms / 1e3, abs=2e-6)
    assert fit.bytes_per_s.value == pytest.approx(profile.card.effective_gb_per_s * 1e9, rel=1e-3)
    assert fit.flops_per_s.value == pytest.approx(profile.card.effective_tflops * 1e12, rel=1e-3)
    assert fit.largest < 1e-4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_under_noise_and_stalls_they_come_back_within_three_standard_errors(seed: int) -> None:
    noise = ("step.jitter=0.05", "step.stall_share=0.002", "step.stall_ms=100", f"step.seed={seed}")
    fit = fitted(batching("llama8b-80gb", *noise), 6)
    for estimate, true in ((fit.overhead_s, 2e-3), (fit.bytes_per_s, 1630e9), (fit.flops_per_s, 187e12)):
        assert abs(estimate.value - true) < 3 * estimate.error
        assert estimate.error < 0.15 * true
    assert 2 <= fit.stalls <= 15
    assert fit.rms == pytest.approx(0.05, rel=0.1)


def test_passes_carry_exactly_what_the_engine_computed() -> None:
    """Of one stream after another prompt joined: pass by pass against the arithmetic."""
    profile = batching("llama8b-80gb")
    requests, events = measured(profile, 3)
    passes = find_passes(requests, events)
    cost = profile.cost()
    base = np.array([cost.base_ps(int(tokens)) for tokens in passes.tokens])
    took_ps = base + cost.context_ps * passes.context + cost.product_ps * passes.products
    assert len(passes.tokens) > 3000
    assert np.abs(passes.duration_s * 1e12 - took_ps).max() <= 1000  # instants are whole ns


def test_a_cached_prefix_is_not_counted_as_computed() -> None:
    fit = fitted(batching("llama8b-80gb"), 4, Uniform(tokens_in=(900, 2000), prefix=800))
    assert fit.flops_per_s.value == pytest.approx(187e12, rel=1e-3)


def test_what_a_run_does_not_show_is_refused_in_one_line() -> None:
    profile = batching("llama8b-80gb")
    requests, events = measured(profile, 3, window_s=20)
    passes = find_passes(requests, events)
    decode = passes.prompts == 0
    alike = {name: getattr(passes, name)[decode] for name in ("duration_s", "tokens", "context", "products", "prompts")}
    with pytest.raises(NotIdentified, match="no usable pass computes a prompt"):
        fit_passes(replace(passes, **alike), server(profile))
    with pytest.raises(NotIdentified, match=r"usable, 200 are needed; in .* somebody waited: measure below capacity"):
        fit_passes(find_passes(*measured(profile, 25, window_s=20)), server(profile))
    with pytest.raises(NotIdentified, match="passes are shorter than the model allows"):
        fit_passes(passes, server(batching("llama8b-80gb", "model.weight_bits=32")))
    with pytest.raises(NotIdentified, match="events are not tokens in 100 %"):
        find_passes(requests.assign(token_events=1), events)
    with pytest.raises(NotIdentified, match="no token events"):
        find_passes(requests, events.iloc[:0])
    with pytest.raises(NotIdentified, match=r"only .* of .* token events were kept \(--events sample\): measure again"):
        find_passes(requests, events[sampled(events["index"].to_numpy())])
    with pytest.raises(NotIdentified, match="several at once"):
        find_passes(requests, events.assign(at_ns=1))
    assert joined([passes, passes]).seen == 2 * passes.seen


def test_a_profile_is_fitted_from_a_results_directory_and_can_be_used(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "main" / "rate=4.000"
    run.mkdir(parents=True)
    requests, events = measured(batching("llama8b-80gb", "step.overhead_ms=3.5"), 4)
    requests.to_parquet(run / "requests.parquet")
    with (run / "events.parquet").open("wb") as stream:
        write_events(events, requests, stream)
    (run / "run.json").write_bytes(to_json(document(request("rate=4.000"))))
    out = tmp_path / "mine.toml"
    written = fit_profile("llama8b-80gb", (), tmp_path)
    write_profile(out, written)
    mine = batching(str(out))
    assert mine.step.overhead_ms == pytest.approx(3.5, abs=0.002)
    assert mine.card.effective_tflops == pytest.approx(187, rel=1e-3)
    assert (mine.model, mine.scheduler) == (batching("llama8b-80gb").model, batching("llama8b-80gb").scheduler)
    with pytest.raises(UsageError, match="File exists; choose another name"):
        write_profile(out, written)
    with pytest.raises(UsageError, match="profile fcfs is of kind fcfs"):
        fit_profile("fcfs", (), tmp_path)
    with pytest.raises(UsageError, match="several replicas"):
        fit_profile("llama70b-replicas", (), tmp_path)
    with pytest.raises(ResultsError, match="holds no runs"):
        fit_profile("llama8b-80gb", (), tmp_path / "none")
    (run / "run.json").write_text('{"verdict": {}}')
    with pytest.raises(ResultsError, match="written by another version of loadgen"):
        fit_profile("llama8b-80gb", (), tmp_path)
    (run / "run.json").write_bytes(to_json(document(request("rate=4.000"))))
    (run / "events.parquet").write_bytes(b"no table")
    with pytest.raises(ResultsError, match=r"events\.parquet: cannot be read") as caught:
        fit_profile("llama8b-80gb", (), tmp_path)
    assert "\n" not in str(caught.value)
    (run / "events.parquet").unlink()
    with pytest.raises(ResultsError, match=r"kept no token events .* measure again with --events all"):
        fit_profile("llama8b-80gb", (), tmp_path)
