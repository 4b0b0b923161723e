"""A rank's trace against the model of a Megatron-style dense decoder (method, section 9).

The model says: 2L all-reduces a step, each of T·H·e_a bytes. One all-reduce more (of the embedding) and one gather (of
the logits) a step are usual and allowed for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from analysis.tp.cost import collectives_per_step
from analysis.tp.profile import Profile, Step
from analysis.tp.types import TokenTimes

__all__ = ["Comparison", "Expected", "compare", "token_times"]

_EXTRA: Final = 2  # collectives a step besides: of the embedding, of the logits
_ALIKE: Final = 0.95  # share of all-reduces, or of steps, that have to agree
_BUCKETS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # of vLLM's iteration_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """L, H and e_a of the profiled model, and why its config.json rules the model out; a `None` is not compared."""

    layers: int | None = None
    hidden: int | None = None
    element_bytes: int | None = None
    inapplicable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`reasons` to stop applying the model, none if it applies; `facts` that agree with it; `unknown`: not compared."""

    reasons: tuple[str, ...]
    facts: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.reasons:
            return f"Stop applying the model: {'; '.join(self.reasons)}."
        if self.unknown:
            return f"Nothing speaks against the model, but not all was compared: {'; '.join(self.unknown)}."
        return f"The model applies: {'; '.join(self.facts)}."


def compare(profile: Profile, expected: Expected) -> Comparison:
    """What in the trace agrees with the model and what does not."""
    reasons: list[str] = list(expected.inapplicable)
    facts: list[str] = []
    unknown: list[str] = []
    steps = profile.steps
    if not profile.collectives:
        unknown.append("the trace holds no collectives (one rank, or none were recorded)")
        return Comparison(reasons=tuple(reasons), facts=(), unknown=tuple(unknown))
    for said, into in (*_kinds(profile), *_calls(steps, expected), *_payloads(profile, expected)):
        {"stop": reasons, "fact": facts, "unknown": unknown}[into].append(said)
    return Comparison(reasons=tuple(reasons), facts=tuple(facts), unknown=tuple(unknown))


def _kinds(profile: Profile) -> list[tuple[str, str]]:
    """Collectives that the model does not have."""
    said = []
    steps = max(1, len(profile.steps))
    makers = Counter[str]()
    for one in profile.collectives:
        if one.kind == "all_reduce":
            makers[one.by] += one.calls
    for by, why in (("fused", "all-reduces are fused with other work"), ("custom", "all-reduces are custom kernels")):
        if makers[by]:
            said.append((f"{why} ({makers[by]} calls): nccl-tests do not measure them", "stop"))
    kinds = Counter[str]()
    for step in profile.steps:
        kinds.update(dict(step.others))
    if kinds["all_to_all"]:
        said.append((f"{kinds['all_to_all'] / steps:.3g} all-to-alls a step: experts are spread over ranks", "stop"))
    if kinds["reduce_scatter"] and kinds["reduce_scatter"] + kinds["all_gather"] > _EXTRA * steps:
        text = (
            f"{kinds['reduce_scatter'] / steps:.3g} reduce-scatters and {kinds['all_gather'] / steps:.3g} all-gathers"
        )
        said.append((f"{text} a step: sequence parallelism", "stop"))
    elif kinds["all_gather"] > _EXTRA * steps:
        said.append((f"{kinds['all_gather'] / steps:.3g} all-gathers a step", "stop"))
    if kinds["send_recv"]:
        said.append((f"{kinds['send_recv'] / steps:.3g} sends and receives a step: pipeline parallelism", "stop"))
    return said


def _calls(steps: Sequence[Step], expected: Expected) -> list[tuple[str, str]]:
    if not steps:
        return [("steps were not recognised (no annotations execute_… or ProfilerStep#…)", "unknown")]
    calls = median(step.all_reduces for step in steps)
    if expected.layers is None:
        return [("2L calls a step (give --config or --layers)", "unknown")]
    wanted = collectives_per_step(expected.layers)
    text = f"{calls:.4g} all-reduces a step, 2L = {wanted}"
    if not _about(calls, wanted):
        return [(text, "stop")]
    odd = sum(not _about(step.all_reduces, wanted) for step in steps)
    if odd > (1 - _ALIKE) * len(steps):
        return [(f"{text}, but {odd} of {len(steps)} steps have another number", "stop")]
    return [(text, "fact")]


def _about(calls: float, wanted: int) -> bool:
    return _ALIKE * wanted <= calls <= wanted + _EXTRA


def _payloads(profile: Profile, expected: Expected) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    known = [step for step in profile.steps if step.payload_bytes is not None and step.all_reduces]
    if not known:
        return [("payloads are not recorded (CUDA graphs or no shapes: profile with record_shapes, eager)", "unknown")]
    if expected.hidden is None or expected.element_bytes is None:
        return [("payloads of T·H·e_a (give --config, or --hidden and --act-dtype)", "unknown")]
    per_token = expected.hidden * expected.element_bytes
    odd = sum(step.odd_payloads for step in known)
    if odd > (1 - _ALIKE) * sum(step.all_reduces for step in known):
        said.append((f"{odd} all-reduces are not of their step's usual payload", "stop"))
    wrong = [
        step for step in known
        if step.payload_bytes is not None
        and (step.payload_bytes % per_token if step.tokens is None else step.payload_bytes != step.tokens * per_token)
    ]  # fmt: skip
    first = (wrong or known)[0]
    t = "no known T" if first.tokens is None else f"T·H·e_a = {first.tokens}·{expected.hidden}·{expected.element_bytes}"
    wants = "" if first.tokens is None else f" = {first.tokens * per_token}"
    if len(wrong) > (1 - _ALIKE) * len(known):
        said.append((f"payload {first.payload_bytes} B, {t}{wants} B in {len(wrong)} of {len(known)} steps", "stop"))
    elif all(step.tokens is None for step in known):
        said.append((f"payloads are whole multiples of H·e_a = {per_token} B", "fact"))
    else:
        good = next(step for step in known if step not in wrong and step.tokens is not None)
        said.append(
            (f"payload {good.payload_bytes} B = T·H·e_a at T = {good.tokens}", "fact")
        )  # fmt: skip
    return said


def token_times(profile: Profile) -> TokenTimes | None:
    """Mean T and mean projection time of the steps in each bucket of T; `None` where no step has both."""
    buckets: dict[int, list[Step]] = {}
    for step in profile.steps:
        if step.tokens and step.projection_s > 0:
            place = sum(step.tokens > bound for bound in _BUCKETS)
            buckets.setdefault(place, []).append(step)
    if not buckets:
        return None
    return TokenTimes(
        pairs=tuple(
            (sum(step.tokens or 0 for step in own) / len(own), sum(step.projection_s for step in own) / len(own))
            for _, own in sorted(buckets.items())
        )
    )
