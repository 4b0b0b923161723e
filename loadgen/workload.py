"""From a scenario to plans: arrivals, lengths, the request format and every seed, fixed before the first run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from analysis.search import RateList, SearchSpec, SeedBook, parse_rates
from analysis.units import parse_share
from loadgen import defaults
from loadgen.errors import ScenarioError
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.lengths import Lengths, parse_law, read_lengths
from loadgen.plan.plan import make_plan
from loadgen.plan.seeds import derive, fresh_roots, parse_seeds
from loadgen.plan.types import NS, RequestFormat, RunPlan, Window
from loadgen.scenario import Scenario

__all__ = ["Workload", "request_format", "search_spec", "seed_book"]

T = TypeVar("T")

_CLOSED_PER_SLOT = 200.0  # requests/s of one slot, each answered in 5 ms
_CLOSED_MAX = 2000.0  # requests/s, above what one client process can send


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Makes the plan of any run of one scenario."""

    arrivals: Arrivals
    lengths: Lengths
    format: RequestFormat
    arrival_seed: int | None
    workload_seed: int | None
    window_s: float
    timeout_s: float
    closed: int | None = None
    cohort: int | None = None  # requests in the window, which then lasts as long as they take

    @classmethod
    def of(cls, scenario: Scenario) -> Workload:
        """Read everything the plans need. Raises `ScenarioError` naming the option."""
        lengths = _lengths(scenario)
        if scenario.arrivals == "gamma":
            arrivals = Arrivals.gamma(shape=scenario.burstiness, cv=scenario.cv)
        else:
            arrivals = Arrivals(kind=scenario.arrivals)
        return cls(
            arrivals=arrivals,
            lengths=lengths,
            format=request_format(scenario),
            arrival_seed=scenario.arrival_seed,
            workload_seed=scenario.workload_seed,
            window_s=scenario.window,
            timeout_s=scenario.timeout_s(lengths.output_max),
            closed=scenario.closed,
            cohort=scenario.cohort,
        )

    def window(self, warmup_s: float, factor: float = 1) -> Window:
        """A run's windows; the load may stay on for one time-out after the measured one."""
        return Window(
            warmup_ns=round(warmup_s * NS),
            window_ns=round(self.window_s * factor * NS),
            tail_ns=round(self.timeout_s * NS),
        )

    def plan(
        self,
        rate: float,
        root_seed: int,
        window: Window,
        *,
        content_key: tuple[float, int] | None = None,
        cohort: int | None = None,
    ) -> RunPlan:
        """The plan of one run; with `cohort`, its window lasts until so many requests are in it.

        A closed loop takes its requests from a plan that no client could use up. Raises `ScenarioError` where rate and
        window make an impossible one.
        """
        if self.closed is not None:
            rate = min(self.closed * _CLOSED_PER_SLOT, _CLOSED_MAX)
        try:
            return make_plan(
                arrivals=self.arrivals,
                lengths=self.lengths,
                format=self.format,
                window=window,
                rate=rate,
                root_seed=root_seed,
                arrival_seed=self.arrival_seed,
                workload_seed=self.workload_seed,
                content_key=content_key,
                cohort=cohort,
            )
        except ValueError as error:
            raise ScenarioError(f"--rate, --window: {error}") from None


def request_format(scenario: Scenario) -> RequestFormat:
    """How planned requests become bytes. Raises `ScenarioError`."""
    return RequestFormat(
        endpoint=scenario.endpoint,
        prompt=scenario.prompt_kind,
        stop=scenario.stop,
        temperature=scenario.temperature,
        token_ids=_asked("token_ids", _token_ids, scenario.token_ids),
    )


def search_spec(scenario: Scenario) -> SearchSpec:
    """What is to be searched or tabulated. Raises `ScenarioError`."""
    rates = _asked("rate", parse_rates, scenario.rate)
    confirm = 0 if isinstance(rates, RateList) and scenario.confirm is None else scenario.confirmations
    return _asked(
        "confirm",
        lambda _: SearchSpec(
            rates=rates, width=float(parse_share(scenario.width)), runs=scenario.runs, confirm=confirm
        ),
        "",
    )


def seed_book(scenario: Scenario, spec: SearchSpec) -> SeedBook:
    """Every seed the experiment may use: replicates, confirmation blocks, spares, sentinel. Raises `ScenarioError`."""
    master = defaults.SEED if scenario.seed is None else scenario.seed
    if scenario.seeds is None:
        roots = derive(master, "roots", spec.runs)
    else:
        roots = _asked("seeds", lambda text: parse_seeds(text, count=spec.runs), scenario.seeds)
        master = roots[0]
    rates = len(spec.grid)
    confirm = derive(master, "confirm", rates * spec.confirm, taken=set(roots))
    fresh = tuple(fresh_roots(master, k, spec.runs) for k in range(rates)) if scenario.seeding == "fresh" else ()
    return SeedBook(
        roots=roots,
        blocks=tuple(confirm[c * spec.confirm : (c + 1) * spec.confirm] for c in range(rates)) if spec.confirm else (),
        spares=derive(master, "spares", max(1, spec.runs), taken={*roots, *confirm}),
        sentinel=derive(master, "sentinel", 1)[0],
        fresh=fresh,
    )


def _lengths(scenario: Scenario) -> Lengths:
    table = None if scenario.lengths is None else _asked("lengths", read_lengths, scenario.lengths)
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


def _token_ids(text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    if not dots or not low.strip().isdecimal() or not high.strip().isdecimal() or int(low) >= int(high):
        raise ValueError(f"{text!r} is not a range of vocabulary ids; write it as 1000..4000")
    return int(low), int(high)


def _asked(option: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise ScenarioError(f"--{option.replace('_', '-')}: {error}") from None
