"""A trace as the load of an experiment: which stretch of it each run replays, and how its rate is changed.

Theory of operation. A run has a warm-up, a measured window and a tail in its own time; the trace has its own time,
which time scaling by s makes run s times faster (thinning and superposition leave s at 1). A run is given the place of
its window in the trace. What lies before that place is its warm-up, what lies behind it its tail, as in production.

In a sweep, places are disjoint blocks of the trace (method, section 11; `loadgen.workload.places`). Each is scaled by
its *own* mean rate: with time scaling a window of T seconds at λ is the λ·T requests from its place on, however long
they took, and that time is squeezed into T. So the rate that is printed is the rate that was offered, in every run.
The trace is taken as a circle, so that the first block has a warm-up too; measured windows never overlap. A replay
has one place, the start of what is asked for, and no circle: where there is not enough trace in front of it, its own
beginning is the warm-up, and after the end of the trace nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.units import format_duration
from loadgen.common import defaults
from loadgen.common.errors import ScenarioError
from loadgen.plan.lengths import Lengths, LengthTable
from loadgen.plan.plan import make_plan
from loadgen.plan.seeds import derive, side_root, stream
from loadgen.plan.trace_plan import recorded_plan
from loadgen.plan.types import NS, Int64s, PlanRequest, RequestFormat, RunPlan, Schedule, SideSeeds, Window
from loadgen.scenario.model import Scenario
from loadgen.scenario.reading import read_files
from loadgen.scenario.settings import parse_window_s
from loadgen.workload.places import Place, Places, own_rate, speed_of
from traces.blocks import MIN_CORRELATION_TIMES, WARNING, autocorrelation_time_s
from traces.describe import arrival_shape
from traces.errors import TraceError
from traces.trace import Trace
from traces.transform import RateMethod, change_rate, jitter_within_tick, lap, window

__all__ = ["ReadTrace", "Recorded", "length_table", "read_arrivals"]


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
    trace, report = read_files(scenario.arrivals_file, scenario, max_tokens=scenario.max_model_len)
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
    """See the module's theory of operation. Places are those of `trace`, in its own time."""

    trace: Trace
    method: RateMethod
    places: Places | None = None  # of a sweep
    own_lengths: bool = True
    content_root: int | None = None
    once_ns: int = 0  # where a replay begins
    once_speed: float | None = None  # of a replay: how much faster than recorded
    once_factor: float = 1.0  # and how much higher its rate is

    @classmethod
    def in_blocks(
        cls,
        scenario: Scenario,
        read: ReadTrace,
        *,
        rates: tuple[float, float],
        explore: int,
        prove: int,
    ) -> Recorded:
        """Blocks for `explore` runs a rate and `prove` runs a candidate.

        Raises `ScenarioError` where the trace is too short for them or its blocks cannot have those rates, and
        `TraceError`.
        """
        trace = read.used
        places = Places.of(scenario, trace, rates=rates, explore=explore, prove=prove)
        return cls(
            trace=trace,
            method=scenario.rate_method,
            places=places,
            own_lengths=scenario.lengths is None,
            content_root=content_root(scenario),
        )

    @classmethod
    def once(cls, scenario: Scenario, read: ReadTrace, rate: float) -> Recorded:
        """The whole of what is asked for, once, at `rate`."""
        return cls(
            trace=read.whole,
            method=scenario.rate_method,
            content_root=content_root(scenario),
            once_ns=read.start_ns,
            once_speed=rate / read.rate if scenario.rate_method == "time" else 1.0,
            once_factor=rate / read.rate,
        )

    def warnings(self, window_s: float, rates: tuple[float, float], *, candidates: int) -> list[str]:
        """What a reader of results from this trace has to know: transforms, and what replicates are worth."""
        notes = []
        if self.trace.session is not None and self.trace.hashes is None:
            notes.append(
                "the trace has sessions and no block ids: what turns share was not recorded, nothing is shared"
            )
        if self.places is None:
            return notes
        for rate in sorted(set(rates)):
            if self.method == "time":
                changed = change_rate(self.trace, rate / self.trace.rate, method=self.method)
                notes.append(f"at {rate:g} requests/s the whole trace is {changed}")
            else:  # the whole trace has other bursts than the blocks that are thinned or laid over each other
                first = Window(warmup_ns=0, window_ns=round(window_s * NS), tail_ns=0)
                sent = self._stretch(PlanRequest(rate=rate, root_seed=0, window=first), seed=0)[2]
                notes.append(f"at {rate:g} requests/s a run is like {sent}")
        if self.places.repeats:
            return [*notes, "replicates repeat one window of one sample path: only content differs between them"]
        used = self.places.used()
        recorded = [own_rate(self.trace, place.start_ns, place.end_ns) for place in used]
        notes.append(
            f"each block is scaled by its own mean rate, recorded as {min(recorded):.4g} to {max(recorded):.4g} "
            "requests/s, so that every run offers the rate it is named by"
        )
        if self.method == "superpose":
            notes.append(
                "superposed copies are rotated through warm-up, window and tail of a run, which they share with "
                "neighbouring blocks"
            )
        notes += [WARNING, *filter(None, [self.places.sharing(candidates)])]
        try:
            tau_s = autocorrelation_time_s(self.trace)
        except TraceError as error:
            return [*notes, f"whether blocks are long enough is not known: {error}"]
        covered_s = min(self._covered_s(place, round(window_s * NS), rates[0]) for place in used)
        covered, times = format_duration(covered_s), f"{MIN_CORRELATION_TIMES} autocorrelation times"
        if covered_s < MIN_CORRELATION_TIMES * tau_s:
            return [
                *notes,
                f"warning: blocks cover {covered} of the trace at {rates[0]:g} requests/s, less than {times} of "
                f"{format_duration(tau_s)}: they resemble their neighbours",
            ]
        return [*notes, f"blocks cover at least {covered} of the trace, more than {times} of {format_duration(tau_s)}"]

    def _covered_s(self, place: Place, window_ns: int, rate: float) -> float:
        return (
            speed_of(self.trace, place, window_ns, rate) * window_ns / NS if self.method == "time" else window_ns / NS
        )

    def _missing_ns(self, window: Window) -> int:
        """How much of its warm-up a replay lacks, ns of the run, because the trace begins too shortly before it."""
        assert self.once_speed is not None
        return max(0, window.warmup_ns - int(self.once_ns / self.once_speed))

    def window(self, wanted: Window) -> Window:
        """The run's windows. In a replay that begins too early for its warm-up, that is taken from the measured part.

        Raises `ScenarioError` where nothing would be left to measure.
        """
        if self.once_speed is None:
            return wanted
        missing_ns = self._missing_ns(wanted)
        if missing_ns >= wanted.window_ns:
            raise ScenarioError(
                f"the warm-up of {format_duration(wanted.warmup_ns / NS)} leaves nothing of a replay of "
                f"{format_duration(wanted.window_ns / NS)}: replay more of the trace, "
                "or pass --warmup 0s to measure it from its first request on"
            )
        return replace(wanted, window_ns=wanted.window_ns - missing_ns)

    def plan(
        self,
        request: PlanRequest,
        *,
        lengths: Lengths,
        format: RequestFormat,  # noqa: A002 - the plan's own word for it
        sides: SideSeeds,
    ) -> RunPlan:
        """The plan of one run; `lengths` are drawn where the trace's own are not wanted.

        Raises `TraceError`, and `ScenarioError` where the trace is too short for warm-up and window.
        """
        arrival_root = side_root(request.root_seed, sides.arrival)
        seed = int(stream(arrival_root, "arrivals").integers(2**63))
        trace, at_ns, origin = self._stretch(request, seed=seed)
        if not self.own_lengths:
            arrivals = Schedule(at_ns=at_ns)
            drawn = make_plan(request, arrivals=arrivals, lengths=lengths, format=format, sides=sides)
            return replace(drawn, origin=origin)
        return recorded_plan(
            request, trace, at_ns, format=format, sides=sides, content_root=self.content_root, origin=origin
        )

    def _stretch(self, request: PlanRequest, *, seed: int) -> tuple[Trace, Int64s, str]:
        """The part of the trace that a run sends, its instants in the run's time, and what was done to it."""
        rate, window = request.rate, request.window
        name = ""
        if self.places is None:
            assert self.once_speed is not None
            speed, factor, place_ns = self.once_speed, self.once_factor, self.once_ns
        else:
            place = self.places.place(request.block, request.replicate)
            name, place_ns = f"{place.name}: ", place.start_ns
            speed = factor = speed_of(self.trace, place, window.window_ns, rate)
            if self.method != "time":
                speed, factor = 1.0, rate / own_rate(self.trace, place_ns, place_ns + window.window_ns)
        begin_ns, length_ns = place_ns - round(window.warmup_ns * speed), round(window.horizon_ns * speed)
        if self.places is None:
            begin_ns = max(0, begin_ns + round(self._missing_ns(window) * speed))
            length_ns = min(length_ns, self.trace.span_ns + 1 - begin_ns)
        elif (needed_ns := round(window.end_ns * speed)) > self.trace.span_ns:
            raise ScenarioError(
                f"--window: warm-up and window take {format_duration(needed_ns / NS)} of trace at {rate:g} requests/s, "
                f"and it has {format_duration(self.trace.span_ns / NS)}: shorten --window"
            )
        piece = lap(self.trace, begin_ns, length_ns)
        trace, how, lead_ns = piece.trace, "as recorded", piece.lead_ns
        if self.method == "superpose" and self.places is not None:  # copies are rotated through all of the piece
            factor = rate / (len(trace) / (min(length_ns, self.trace.span_ns) / NS))
        if factor != 1:
            changed = change_rate(trace, factor, method=self.method, seed=seed)
            trace, how, lead_ns = changed.trace, changed.name, round(lead_ns / speed) + changed.lead_ns
        at_ns = lead_ns + trace.at_ns
        whole = int(np.searchsorted(at_ns, window.horizon_ns))
        trace, at_ns = (trace, at_ns) if whole == len(trace) else (trace.take(np.arange(whole)), at_ns[:whole])
        return trace, at_ns, f"{name}{piece.name}, {how}; in the window {_shape(trace, at_ns, window)}"


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
