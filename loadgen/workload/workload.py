"""From a scenario to plans: arrivals, lengths, the request format and every seed, fixed before the first run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from analysis.search import RateList, SearchSpec, SeedBook, parse_rates
from analysis.units import parse_share
from loadgen.common import defaults
from loadgen.common.errors import ScenarioError
from loadgen.plan.arrivals import Arrivals, Modulated
from loadgen.plan.lengths import Lengths, LengthTable, parse_law, read_lengths
from loadgen.plan.plan import make_plan
from loadgen.plan.seeds import derive, fresh_roots, parse_seeds
from loadgen.plan.types import NS, PlanRequest, RequestFormat, RunPlan, SideSeeds, Window
from loadgen.scenario.model import Scenario
from loadgen.scenario.reading import read_files
from loadgen.scenario.settings import parse_token_ids
from loadgen.scenario.timeout import timeout_s_of
from loadgen.workload.trace_arrivals import ReadTrace, Recorded, length_table, read_arrivals
from traces.errors import TraceError
from traces.fit import fit_gamma, fit_mmpp2
from traces.trace import Trace

__all__ = ["Workload", "request_format", "search_spec", "seed_book"]

T = TypeVar("T")

_CLOSED_PER_SLOT = 200.0  # requests/s of one slot, each answered in 5 ms
_CLOSED_MAX = 2000.0  # requests/s, above what one client process can send


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Makes the plan of any run of one scenario."""

    arrivals: Arrivals | Modulated  # where nothing is recorded, and while the target is warmed
    lengths: Lengths
    format: RequestFormat
    sides: SideSeeds
    window_s: float
    timeout_s: float
    closed: int | None = None
    cohort: int | None = None  # requests in the window, which then lasts as long as they take
    recorded: Recorded | None = None
    longest_tokens: int = 0  # input and output of the longest recorded request
    trace_sha256: str | None = None  # of what was read of the trace that arrivals come from
    lengths_sha256: str | None = None
    notes: tuple[str, ...] = ()  # what was read, done to it, and what it is worth

    @classmethod
    def of(cls, scenario: Scenario, read: ReadTrace | None = None) -> Workload:
        """Read everything the plans need; `read` is the trace of the arrivals where that was read already.

        Raises `ScenarioError` naming the option, and `TraceError`.
        """
        if read is None and scenario.arrivals_file is not None:
            read = read_arrivals(scenario)
        table, lengths_sha256, notes = _length_rows(scenario)
        if scenario.recorded and table is None:
            assert read is not None
            table = length_table(read.used)
        lengths = _lengths(scenario, table)
        arrivals, fitted = _arrivals(scenario, read)
        recorded, longest, warnings = None, 0, list[str]()
        if scenario.recorded:
            assert read is not None
            spec = search_spec(scenario)
            rates = spec.grid[0], spec.grid[-1]
            if scenario.replicates == "once":
                recorded = Recorded.once(scenario, read, rates[0])
            else:
                recorded = Recorded.in_blocks(
                    scenario,
                    read,
                    rates=rates,
                    explore=spec.exploring,
                    prove=0 if spec.tabulate and spec.require is None else spec.runs,
                )
            warnings = recorded.warnings(scenario.window, rates, candidates=len(spec.grid))
            longest = _longest(read.used) if recorded.own_lengths else 0
        return cls(
            arrivals=arrivals,
            lengths=lengths,
            recorded=recorded,
            longest_tokens=longest,
            trace_sha256=None if read is None else read.sha256,
            lengths_sha256=lengths_sha256,
            notes=(*(read.notes if read else ()), *notes, *fitted, *warnings),
            format=request_format(scenario),
            sides=SideSeeds(arrival=scenario.arrival_seed, workload=scenario.workload_seed),
            window_s=scenario.window,
            timeout_s=timeout_s_of(scenario, lengths.output_max),
            closed=scenario.closed,
            cohort=scenario.cohort,
        )

    def window(self, warmup_s: float) -> Window:
        """A run's windows; the load may stay on for one time-out after the measured one."""
        wanted = Window(
            warmup_ns=round(warmup_s * NS),
            window_ns=round(self.window_s * NS),
            tail_ns=round(self.timeout_s * NS),
        )
        return wanted if self.recorded is None else self.recorded.window(wanted)

    def plan(self, request: PlanRequest) -> RunPlan:
        """The plan of one run.

        A closed loop takes its requests from a plan that no client could use up. Raises `ScenarioError` where rate and
        window make an impossible one.
        """
        if self.closed is not None:
            request = replace(request, rate=min(self.closed * _CLOSED_PER_SLOT, _CLOSED_MAX))
        try:
            if self.recorded is not None:
                return self.recorded.plan(request, lengths=self.lengths, format=self.format, sides=self.sides)
            return make_plan(
                request, arrivals=self.arrivals, lengths=self.lengths, format=self.format, sides=self.sides
            )
        except TraceError:
            raise
        except ValueError as error:
            raise ScenarioError(f"--rate, --window: {error}") from None


def request_format(scenario: Scenario) -> RequestFormat:
    """How planned requests become bytes. Raises `ScenarioError`."""
    return RequestFormat(
        endpoint=scenario.endpoint,
        prompt=scenario.prompt_kind,
        stop=scenario.stop,
        temperature=scenario.temperature,
        token_ids=_asked("token_ids", parse_token_ids, scenario.token_ids),
    )


def search_spec(scenario: Scenario) -> SearchSpec:
    """What is to be searched or tabulated; a required rate alone unless `search` is set. Raises `ScenarioError`."""
    rates = _asked("rate", parse_rates, scenario.rate)
    alone = None if scenario.require is None or scenario.search else RateList(rates=(scenario.require,))
    if alone is not None and "rate" not in scenario.model_fields_set:
        rates = alone
    try:
        spec = SearchSpec(
            rates=rates,
            width=float(parse_share(scenario.width)),
            runs=scenario.runs,
            explore=scenario.explore,
            require=scenario.require,
            all_runs=scenario.all_runs,
        )
        return spec if alone is None else replace(spec, rates=alone)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def seed_book(scenario: Scenario, spec: SearchSpec) -> SeedBook:
    """Every seed the experiment may use: block 0, later blocks, exploring seeds, spares, sentinel.

    In a table, where nothing is proved unless a rate is required, the seeds that the user names are those of its runs.
    Raises `ScenarioError`.
    """
    master = defaults.SEED if scenario.seed is None else scenario.seed
    count = spec.runs
    if scenario.seeds is None:
        named = derive(master, "roots", count)
    else:
        named = _asked("seeds", lambda text: parse_seeds(text, count=count), scenario.seeds)
        master = named[0]
    rates = len(spec.grid)
    proves = not spec.tabulate or spec.require is not None
    later = derive(master, "blocks", (2 * rates - 1) * count, taken=set(named)) if proves else ()
    seeds = (*named, *later)
    blocks = tuple(seeds[c : c + count] for c in range(0, len(seeds), count)) if proves else ()
    roots = derive(master, "explore", count, taken=set(seeds)) if proves else named
    fresh = tuple(fresh_roots(master, k, count) for k in range(rates)) if scenario.seeding == "fresh" else ()
    return SeedBook(
        roots=roots,
        blocks=blocks,
        spares=derive(master, "spares", max(1, count), taken={*roots, *seeds}),
        sentinel=derive(master, "sentinel", 1)[0],
        fresh=fresh,
    )


def _arrivals(scenario: Scenario, read: ReadTrace | None) -> tuple[Arrivals | Modulated, list[str]]:
    """The arrival process, and what a fit found. Raises `TraceError`."""
    kind = scenario.arrivals.partition(":")[0]
    if kind == "fit-gamma":
        assert read is not None
        gamma = fit_gamma(read.used)
        how = "maximum likelihood" if gamma.method == "mle" else "moments, since ties rule out the likelihood"
        note = f"Gamma gaps fitted to {scenario.arrivals_file}: shape {gamma.shape:.4f} by {how}"
        return Arrivals.gamma(shape=gamma.shape), [note]
    if kind == "fit-mmpp":
        assert read is not None
        fit = fit_mmpp2(read.used)
        low, high = fit.low_rate / fit.rate, fit.high_rate / fit.rate
        note = (
            f"Markov-modulated arrivals fitted to {scenario.arrivals_file}: {low:.3g} and {high:.3g} times the mean "
            f"rate, staying for {fit.rate / fit.up:.4g} and {fit.rate / fit.down:.4g} mean gaps; dispersion is off by "
            f"{fit.idc_error:.3g} (root mean square over windows up to {fit.windows_s[-1]:.3g} s); other rates scale "
            "time"
        )
        return Modulated(low=low, high=high, up=fit.up / fit.rate, down=fit.down / fit.rate), [note]
    if kind == "gamma":
        return Arrivals.gamma(shape=scenario.burstiness, cv=scenario.cv), []
    return Arrivals(kind="constant" if kind == "constant" else "poisson"), []


def _length_rows(scenario: Scenario) -> tuple[LengthTable | None, str | None, list[str]]:
    """The rows of a file of lengths, their SHA-256, and what was read. Raises `ScenarioError` and `TraceError`."""
    if scenario.lengths is None:
        return None, None, []
    kind, colon, file = scenario.lengths.partition(":")
    if colon and kind == "trace":
        trace, report = read_files(file, scenario, max_tokens=scenario.max_model_len)
        table, notes = length_table(trace), ["; ".join((f"lengths of trace {file}", *report.lines()))]
    else:
        table, notes = _asked("lengths", read_lengths, scenario.lengths), []
    return table, hashlib.sha256(table.rows.astype("<i8").tobytes()).hexdigest(), notes


def _longest(trace: Trace) -> int:
    return int((trace.input_tokens.astype(np.int64) + trace.output_tokens).max())


def _lengths(scenario: Scenario, table: LengthTable | None) -> Lengths:
    laws = (_asked("input", parse_law, scenario.input), _asked("output", parse_law, scenario.output))
    return _asked(
        "shared_prefix",
        lambda _: Lengths(
            input=laws[0],
            output=laws[1],
            table=table,
            shared_prefix=scenario.shared_prefix,
            prefix_groups=scenario.prefix_groups,
        ),
        "",
    )


def _asked(option: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise ScenarioError(f"--{option.replace('_', '-')}: {error}") from None
