"""A trace as the load of an experiment: which stretch of it each run replays, and how its rate is changed.

Theory of operation. A run has a warm-up, a measured window and a tail in its own time; the trace has its own time,
which time scaling by s makes run s times faster (thinning and superposition leave s at 1). A run is given the place of
its window in the trace. What lies before that place is its warm-up, what lies behind it its tail, as in production.

In a sweep, places are the starts of disjoint blocks of the trace (method, section 11): R of them, and two adjoining
ones for each confirmation, whose window is twice as long. The same replicate has the same place at every rate. The
trace is taken as a circle, so that the first block has a warm-up too; measured windows never overlap. A replay has one
place, the start of what is asked for, and no circle: where there is not enough trace in front of it, its own beginning
is the warm-up, and after the end of the trace nothing is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from analysis.units import format_duration
from loadgen import defaults
from loadgen.errors import ScenarioError
from loadgen.plan.lengths import Lengths, LengthTable
from loadgen.plan.plan import make_plan
from loadgen.plan.recorded import recorded_plan
from loadgen.plan.seeds import derive, side_root, stream
from loadgen.plan.types import NS, Int64s, RunPlan, Schedule, Window
from loadgen.scenario import Scenario
from loadgen.settings import parse_window_s
from loadgen.tracefile import Reading
from traces.blocks import MIN_CORRELATION_TIMES, WARNING, autocorrelation_time_s, split_blocks
from traces.describe import arrival_shape
from traces.errors import TraceError
from traces.trace import Trace
from traces.transform import RateMethod, change_rate, jitter_within_tick, lap, window

__all__ = ["ReadTrace", "Recorded", "length_table", "read_arrivals", "reading_of"]

CONFIRM_BLOCKS: Final = defaults.CONFIRM_WINDOW_FACTOR


def reading_of(scenario: Scenario) -> Reading:
    """How the scenario's traces are read."""
    return Reading(
        format=scenario.format,
        map=scenario.map,
        unit=scenario.unit,
        block_tokens=scenario.block_tokens,
        on_invalid=scenario.on_invalid,
        max_model_len=scenario.max_model_len,
    )


def length_table(trace: Trace) -> LengthTable:
    """The (input, output) pairs of a trace, to be drawn jointly."""
    rows = np.stack([trace.input_tokens, trace.output_tokens, np.zeros(len(trace), dtype=np.int32)], axis=1)
    return LengthTable(rows=rows.astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrace:
    """The trace of a scenario's arrivals: whole, and the window of it that is used."""

    whole: Trace
    used: Trace
    start_ns: int  # of the window in the whole trace
    end_ns: int
    sha256: str  # of what was read, before anything was done to it
    notes: tuple[str, ...]
    rate: float  # of the window, whose silence counts


def read_arrivals(scenario: Scenario) -> ReadTrace:
    """Read, jitter and cut the trace that arrivals come from. Raises `TraceError` and `ScenarioError`."""
    assert scenario.arrivals_file is not None
    trace, report = reading_of(scenario).read(scenario.arrivals_file)
    sha256 = trace.sha256
    notes = ["; ".join((f"trace {scenario.arrivals_file}", *report.lines()))]
    if scenario.jitter_within_tick:
        master = defaults.SEED if scenario.seed is None else scenario.seed
        jittered = jitter_within_tick(trace, seed=derive(master, "jitter", 1)[0])
        trace = jittered.trace
        notes.append(str(jittered))
    start_s, end_s = (0.0, np.inf) if scenario.trace_window is None else parse_window_s(scenario.trace_window)
    used, rate = trace, trace.rate
    if scenario.trace_window is not None:
        cut = window(trace, start_s, end_s)
        used, rate = cut.trace, cut.arrivals.rate
        notes.append(str(cut))
    end_ns = trace.span_ns + 1 if end_s == np.inf else min(round(end_s * NS), trace.span_ns + 1)
    if len(used) < 2 or used.span_ns == 0:
        raise TraceError(
            "too few arrivals for a rate",
            path=scenario.arrivals_file,
            rows=f"{len(used)} rows",
            remedy="use more of it",
        )
    return ReadTrace(
        whole=trace,
        used=used,
        start_ns=round(start_s * NS),
        end_ns=end_ns,
        sha256=sha256,
        notes=tuple(notes),
        rate=rate,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """See the module's theory of operation. Places and rates are those of `trace`, in its own time."""

    trace: Trace
    rate: float  # what the trace's rate counts as: a run at this rate replays it unchanged
    method: RateMethod
    places_ns: tuple[int, ...]  # of the replicates
    confirm_ns: tuple[int, ...] = ()
    own_lengths: bool = True
    content_root: int | None = None
    once_speed: float | None = None  # of a replay: how much faster than recorded
    word: str = "blocks"

    @classmethod
    def in_blocks(
        cls, scenario: Scenario, read: ReadTrace, *, rates: tuple[float, float], runs: int, confirm: int
    ) -> Recorded:
        """Places for `runs` replicates and `confirm` confirmations at rates up to rates[1].

        Raises `ScenarioError` where the trace is too short for them, and `TraceError`.
        """
        trace = read.used
        fastest = rates[1] / trace.rate if scenario.rate_method == "time" else 1.0
        needed_s = scenario.window * fastest
        places: tuple[int, ...] = (0,) * runs
        confirms: tuple[int, ...] = (0,) * confirm
        if scenario.replicates == "blocks" and runs + confirm > 1:
            count = runs + confirm * CONFIRM_BLOCKS
            available_s = trace.span_ns / NS / count
            if needed_s > available_s:
                longest_s = available_s / fastest
                shorter = format_duration(math.floor(longest_s) if longest_s > 1 else longest_s)
                raise ScenarioError(
                    f"--window: {runs} blocks and {confirm} confirmations of twice that need {count} × "
                    f"{format_duration(needed_s)} of trace at {rates[1]:g} requests/s, and it has "
                    f"{format_duration(trace.span_ns / NS)}: shorten --window to {shorter}, lower --runs or --confirm, "
                    "or pass --replicates repeats"
                )
            starts = tuple(block.start_ns for block in split_blocks(trace, count=count).blocks)
            places, confirms = starts[:runs], starts[runs::CONFIRM_BLOCKS]
        elif max(needed_s, needed_s * CONFIRM_BLOCKS * (confirm > 0)) > trace.span_ns / NS:
            raise ScenarioError(
                f"--window: a run covers {format_duration(needed_s)} of the trace at {rates[1]:g} requests/s (a "
                f"confirmation twice that), and it has {format_duration(trace.span_ns / NS)}: shorten --window"
            )
        _refuse_thin(scenario, trace, places, rates[0])
        return cls(
            trace=trace,
            rate=trace.rate,
            method=scenario.rate_method,
            places_ns=places,
            confirm_ns=confirms,
            own_lengths=scenario.lengths is None,
            content_root=content_root(scenario),
            word=scenario.replicates,
        )

    @classmethod
    def once(cls, scenario: Scenario, read: ReadTrace, rate: float) -> Recorded:
        """The whole of what is asked for, once, at `rate`."""
        return cls(
            trace=read.whole,
            rate=read.rate,
            method=scenario.rate_method,
            places_ns=(read.start_ns,),
            content_root=content_root(scenario),
            once_speed=rate / read.rate if scenario.rate_method == "time" else 1.0,
            word="once",
        )

    def warnings(self, window_s: float, rates: tuple[float, float]) -> list[str]:
        """What a reader of results from this trace has to know: transforms, and what replicates are worth."""
        notes = []
        if self.trace.session is not None and self.trace.hashes is None:
            notes.append(
                "the trace has sessions and no block ids: what turns share was not recorded, nothing is shared"
            )
        if self.word == "once":
            return notes
        for rate in sorted(set(rates)):
            changed = change_rate(self.trace, rate / self.rate, method=self.method, seed=0)
            notes.append(f"at {rate:g} requests/s the whole trace is {changed}")
        if self.word == "repeats":
            return [*notes, "replicates repeat one window of one sample path: only content differs between them"]
        covered_s = window_s * (rates[0] / self.rate if self.method == "time" else 1.0)
        notes.append(WARNING)
        try:
            tau_s = autocorrelation_time_s(self.trace)
        except TraceError as error:
            return [*notes, f"whether blocks are long enough is not known: {error}"]
        covered, times = format_duration(covered_s), f"{MIN_CORRELATION_TIMES} autocorrelation times"
        if covered_s < MIN_CORRELATION_TIMES * tau_s:
            return [
                *notes,
                f"warning: blocks cover {covered} of the trace at {rates[0]:g} requests/s, less than {times} of "
                f"{format_duration(tau_s)}: they resemble their neighbours",
            ]
        return [*notes, f"blocks cover at least {covered} of the trace, more than {times} of {format_duration(tau_s)}"]

    def window(self, wanted: Window) -> Window:
        """The run's windows. In a replay that begins too early for its warm-up, that is taken from the measured part.

        Raises `ScenarioError` where nothing would be left to measure.
        """
        if self.once_speed is None:
            return wanted
        missing_ns = max(0, wanted.warmup_ns - int(self.places_ns[0] / self.once_speed))
        if missing_ns >= wanted.window_ns:
            raise ScenarioError(
                f"the warm-up of {format_duration(wanted.warmup_ns / NS)} leaves nothing of a replay of "
                f"{format_duration(wanted.window_ns / NS)}: replay more of the trace, "
                "or pass --warmup 0s to measure it from its first request on"
            )
        return replace(wanted, window_ns=wanted.window_ns - missing_ns)

    def plan(
        self,
        *,
        rate: float,
        root_seed: int,
        window: Window,
        lengths: Lengths,
        replicate: int,
        confirm: bool,
        **more: Any,
    ) -> RunPlan:
        """The plan of one run; `more` are arguments of `make_plan` and `recorded_plan` alike. Raises `TraceError`."""
        place_ns = (self.confirm_ns if confirm else self.places_ns)[replicate]
        factor = rate / self.rate
        speed = factor if self.method == "time" else 1.0
        arrival_root = side_root(root_seed, more.get("arrival_seed"))
        seed = int(stream(arrival_root, "arrivals").integers(2**63))
        begin_ns, length_ns = place_ns - round(window.warmup_ns * speed), round(window.horizon_ns * speed)
        if self.once_speed is not None:
            missing_ns = max(0, window.warmup_ns - int(place_ns / self.once_speed))
            begin_ns = max(0, begin_ns + round(missing_ns * speed))
            length_ns = min(length_ns, self.trace.span_ns + 1 - begin_ns)
        piece = lap(self.trace, begin_ns, length_ns)
        trace, name, lead_ns = piece.trace, "as recorded", piece.lead_ns
        if factor != 1:
            changed = change_rate(trace, factor, method=self.method, seed=seed)
            trace, name, lead_ns = changed.trace, changed.name, round(lead_ns / speed) + changed.lead_ns
        at_ns = lead_ns + trace.at_ns
        whole = int(np.searchsorted(at_ns, window.horizon_ns))
        trace, at_ns = (trace, at_ns) if whole == len(trace) else (trace.take(np.arange(whole)), at_ns[:whole])
        origin = f"{piece.name}, {name}; in the window {_shape(trace, at_ns, window)}"
        common = {"window": window, "rate": rate, "root_seed": root_seed, **more}
        if not self.own_lengths:
            return replace(make_plan(arrivals=Schedule(at_ns=at_ns), lengths=lengths, **common), origin=origin)
        return recorded_plan(trace, at_ns, content_root=self.content_root, origin=origin, **common)


def _refuse_thin(scenario: Scenario, trace: Trace, places: tuple[int, ...], rate: float) -> None:
    """Time scaling leaves no doubt how many requests a window has: too few at the lowest rate can pass nothing."""
    if scenario.rate_method != "time":
        return
    covered_ns = round(scenario.window * rate / trace.rate * NS)
    counts = [int(np.diff(np.searchsorted(trace.at_ns, [place, place + covered_ns]))[0]) for place in places]
    least = min(counts)
    if least < scenario.min_requests:
        raise ScenarioError(
            f"--window: at {rate:g} requests/s {scenario.replicate_word} {counts.index(least) + 1} holds {least} "
            f"requests, and fewer than --min-requests {scenario.min_requests} cannot pass: lengthen --window, raise "
            "the lowest --rate, or lower --min-requests"
        )


def content_root(scenario: Scenario) -> int | None:
    """The root of all content where runs are to share it; None: each replicate's own."""
    if not scenario.share_content:
        return None
    return defaults.SEED if scenario.workload_seed is None else scenario.workload_seed


def _shape(trace: Trace, at_ns: Int64s, window: Window) -> str:
    rows = np.arange(*np.searchsorted(at_ns, [window.warmup_ns, window.end_ns]))
    if rows.size < 2:
        return f"{rows.size} requests"
    lead_ns = int(at_ns[rows[0]]) - window.warmup_ns
    shape = arrival_shape(trace.take(rows), lead_ns=lead_ns, window_ns=window.window_ns)
    return f"{rows.size} requests, {shape}"
