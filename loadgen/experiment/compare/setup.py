"""A comparison before anything is sent: every variant as an experiment of its own, and the seeds of its pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson

from analysis.compare.order import run_order
from analysis.compare.phase import PairedPlan, Point
from analysis.compare.types import OWN, TUNED
from analysis.search import Outcome, RateList, RateRange, parse_rates
from loadgen.common import defaults
from loadgen.common.errors import ScenarioError
from loadgen.experiment.prepare import Setup, prepare
from loadgen.plan.seeds import derive
from loadgen.scenario.comparison import ComparisonSettings, VariantSettings
from loadgen.scenario.model import Scenario
from loadgen.scenario.validate import validated
from loadgen.workload.workload import search_spec, seed_book

__all__ = ["OWN", "TUNED", "ComparisonSetup", "VariantSetup", "prepare_comparison"]

_ANSWERS: Final = ("FOUND", "ABOVE_RANGE", "BELOW_RANGE")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSetup:
    """A variant: what the user said of it, and the experiment that its search is."""

    settings: VariantSettings
    setup: Setup

    @property
    def name(self) -> str:
        """As the user calls it."""
        return self.settings.name

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.settings.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSetup:
    """A comparison with everything that was read and derived from it."""

    scenario: Scenario  # what all variants share; its rate is per GPU where the settings say so
    settings: ComparisonSettings
    variants: tuple[VariantSetup, ...]
    seeds: tuple[int, ...]  # of the paired phase
    spares: tuple[int, ...]

    def __iter__(self) -> Iterator[VariantSetup]:
        return iter(self.variants)

    def __getitem__(self, name: str) -> VariantSetup:
        return next(one for one in self.variants if one.name == name)

    @property
    def together(self) -> bool:
        """Whether all variants are up at the same time, so that the order of their runs can be interleaved."""
        return self.settings.together or all(one.settings.launch is None for one in self.variants)

    @property
    def searches(self) -> bool:
        """Whether there is a first phase; a list of rates is only paired."""
        return not self.variants[0].setup.spec.tabulate

    @property
    def sha256(self) -> str:
        """Hash of everything that can change a result."""
        own = self.settings.model_dump(mode="json", exclude={"price_per_gpu_hour", "too_large_for_one_gpu"})
        hashed = orjson.dumps([self.scenario.sha256, own], option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(hashed).hexdigest()

    def families(self) -> Mapping[str, tuple[str, ...]]:
        """Each compared variant with its alternatives, itself first."""
        bases = [one.name for one in self.variants if one.settings.alternative_of is None]
        return {
            base: (base, *(one.name for one in self.variants if one.settings.alternative_of == base)) for base in bases
        }

    def plan(self, outcomes: Mapping[str, Outcome], *, without: Collection[str] = ()) -> PairedPlan:
        """The paired phase after these searches, `without` the variants whose target is gone.

        Its rates follow from λ* of each search, by a rule that is the same whatever the runs showed: each at its own
        λ*; at each λ* all variants whose own is not larger, so that every two meet at the larger one of theirs; all at
        the smallest; and the rates that were listed. A variant that failed at the lowest rate runs there. One whose
        search could not tell has no λ*, and runs at listed rates alone.
        """
        present = [one.name for one in self.variants if one.name not in without]
        points = (
            self._points(present, outcomes) if self.searches else self._same(dict.fromkeys(self._listed(), present))
        )
        # grids of other numbers of GPUs give one rate with other last digits, and a run is called by six of them
        known: dict[str, float] = {}
        points = tuple(
            Point(
                label=point.label,
                rates={name: known.setdefault(f"{rate:.6g}", rate) for name, rate in point.rates.items()},
            )
            for point in points
        )
        names = tuple(name for name in present if any(name in point.rates for point in points))
        return PairedPlan(
            variants=names,
            points=points,
            seeds=self.seeds,
            spares=self.spares,
            order=run_order(names) if self.together and names else None,
        )

    def _points(self, present: Sequence[str], outcomes: Mapping[str, Outcome]) -> tuple[Point, ...]:
        answered = {name: outcomes[name] for name in present if outcomes[name].name in _ANSWERS}
        own = {name: outcome.capacity or self[name].setup.spec.grid[0] for name, outcome in answered.items()}
        families = [[name for name in names if name in own] for names in self.families().values()]
        bases = [base for base in self.families() if base in own]
        found = [Point(label=OWN, rates={base: own[base] for base in bases})]
        if any(len(names) > 1 for names in families):
            # the largest λ* per GPU; of equals, the one that was declared first
            best = [max(names, key=lambda name: own[name] / self[name].gpus) for names in families if names]
            found.append(Point(label=TUNED, rates={name: own[name] for name in best}))
        at: dict[str, tuple[float, list[str]]] = {}  # by label: a rate, and who meets there
        listed = [name for name in self.families() if name in present]
        for rate, names in [
            *sorted(shared for point in found for shared in self._shared(point.rates)),
            *((rate, listed) for rate in self._listed()),
        ]:
            at.setdefault(self._label(rate), (rate, []))[1].extend(names)
        return tuple(point for point in (*found, *self._same(dict(at.values()))) if len(point.rates) > 1)

    def _shared(self, rates: Mapping[str, float]) -> Iterator[tuple[float, list[str]]]:
        """The rates at which variants with these λ* meet, where they differ, and which variants."""
        shares = {name: rate / self._divisor(name) for name, rate in rates.items()}
        meeting = {self._label(share): share for share in shares.values()}
        least = self._label(min(shares.values(), default=0.0))
        for label, share in meeting.items() if len(meeting) > 1 else ():
            smaller = [name for name, own in shares.items() if own < share or self._label(own) == label]
            yield share, list(shares) if label == least else smaller

    def _listed(self) -> tuple[float, ...]:
        text = self.settings.paired_rate if self.searches else self.scenario.rate
        rates = None if text is None else parse_rates(text)
        return rates.rates if isinstance(rates, RateList) else ()

    def _divisor(self, name: str) -> int:
        return self[name].gpus if self.settings.per_gpu else 1

    def _label(self, rate: float) -> str:
        return f"{rate:.6g}" + ("/s per GPU" if self.settings.per_gpu else "/s")

    def _same(self, meeting: Mapping[float, Sequence[str]]) -> tuple[Point, ...]:
        return tuple(
            Point(label=self._label(rate), rates={name: rate * self._divisor(name) for name in names})
            for rate, names in meeting.items()
        )


def prepare_comparison(scenario: Scenario, settings: ComparisonSettings) -> ComparisonSetup:
    """Read and check all that a comparison names. Raises `ScenarioError`, and `TraceError` for a file of lengths."""
    if scenario.closed is not None or scenario.require is not None:
        raise ScenarioError("closed and require have no meaning in a comparison: drop them")
    counts = {one.gpus for one in settings.variant}
    if len(counts) > 1 and not settings.per_gpu:
        said = ", ".join(f"{one.name} {one.gpus}" for one in settings.variant)
        raise ScenarioError(
            f"the variants take different numbers of GPUs ({said}), so the same rate loads them differently: pass "
            "--per-gpu and give --rate per GPU"
        )
    shared = prepare(scenario)
    if shared.spec.tabulate and settings.paired_rate is not None:
        raise ScenarioError("--paired-rate: --rate lists the rates of the paired phase already; give --rate as A..B")
    variants = tuple(_variant(shared, one, settings) for one in settings.variant)
    runs, book = shared.spec.runs, shared.seeds
    taken = {*book.roots, *book.spares, book.sentinel, *(seed for block in book.blocks for seed in block)}
    master = book.blocks[0][0] if scenario.seeds is not None and book.blocks else scenario.seed
    drawn = derive(defaults.SEED if master is None else master, "paired", 2 * runs, taken=taken)
    return ComparisonSetup(
        scenario=shared.scenario,
        settings=settings,
        variants=variants,
        seeds=drawn[:runs],
        spares=drawn[runs:],
    )


def _variant(shared: Setup, own: VariantSettings, settings: ComparisonSettings) -> VariantSetup:
    scenario = shared.scenario
    target = own.target or (f"launch:{own.name}",)
    asked: dict[str, str | tuple[str, ...]] = {"target": target}
    asked |= {"endpoint": scenario.endpoint} if "endpoint" in scenario.model_fields_set else {}
    asked |= {} if own.routing is None else {"routing": own.routing}
    where = validated(Scenario, asked, f"variant {own.name}", option=False)  # the URL's path may name the API
    mine = scenario.model_copy(
        update={
            "target": target,
            "endpoint": where.endpoint,
            "routing": where.routing,
            "model": own.model or scenario.model,
            "ready_timeout": scenario.ready_timeout if own.ready_timeout is None else own.ready_timeout,
            "rate": _times(scenario.rate, own.gpus) if settings.per_gpu and own.gpus > 1 else scenario.rate,
        }
    )
    spec = search_spec(mine)
    return VariantSetup(settings=own, setup=replace(shared, scenario=mine, spec=spec, seeds=seed_book(mine, spec)))


def _times(text: str, gpus: int) -> str:
    rates = parse_rates(text)
    if isinstance(rates, RateRange):
        return f"{rates.lo * gpus!r}..{rates.hi * gpus!r}"
    return ",".join(repr(rate * gpus) for rate in rates.rates)
