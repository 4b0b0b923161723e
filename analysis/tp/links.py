"""The six links of the chain: what each compares, and from which ratio on it explains a poor server.

Thresholds are rules of thumb, printed beside the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from analysis.replicas import IMBALANCE
from analysis.tp.against import Expected, compare
from analysis.tp.cost import collectives_per_step
from analysis.tp.types import Facts, Link
from analysis.units import format_duration

__all__ = ["gemms", "in_app", "load", "microbenchmark", "path", "shapes", "token_shares"]

IN_APP_LIMIT: Final = 1.5  # all-reduce in the server / of the microbenchmark
NARROW_LIMIT: Final = 1.25  # projections on p ranks / (projections on one / p)
QUEUE_SHARE: Final = 0.5  # of TTFT
_THROUGH_HOST: Final = {"PHB": "a PCIe host bridge", "NODE": "host bridges of a node", "SYS": "the link of the sockets"}


def shapes(facts: Facts) -> Link:
    """1: whether p divides the model, and the trace shows what the model says."""
    wrong, said, p, shape = list(facts.inapplicable), [], facts.ranks, facts.shape
    if shape is not None:
        if p > shape.kv_heads:
            wrong.append(f"{p} ranks and {shape.kv_heads} KV heads: each is kept {p / shape.kv_heads:.3g} times")
        sizes = {"heads": shape.heads, "KV heads": shape.kv_heads, "MLP width": shape.mlp}
        wrong += [
            f"{p} ranks do not divide {name} = {size}" for name, size in sizes.items()
            if size % p and not (name == "KV heads" and p > size)
        ]  # fmt: skip
        said.append(f"heads {shape.heads}, KV heads {shape.kv_heads}, MLP width {shape.mlp} by {p} ranks")
    if facts.profile is not None:
        seen = facts.profile.ranks
        if seen is not None and seen != p:
            wrong.append(f"the profile's group has {seen} ranks, not {p}")
        if facts.profile.collectives:
            expected = Expected(
                layers=shape.layers if shape else None, hidden=shape.hidden if shape else None,
                element_bytes=shape.activation_bytes if shape else None,
            )  # fmt: skip
            found = compare(facts.profile, expected)
            wrong += list(found.reasons)
            said += list(found.facts)
    if facts.log is not None and facts.log.ranks and p not in facts.log.ranks:
        wrong.append(f"NCCL's communicators have {', '.join(map(str, facts.log.ranks))} ranks, not {p}")
    missing = " and ".join(
        option for option, known in (("--config FILE", shape), ("--profile FILE", facts.profile)) if known is None
    )
    return _link("shapes", wrong, said, f"give {missing}" if missing else "")


def path(facts: Facts) -> Link:
    """2: what connects the GPUs, and what NCCL made of it."""
    wrong: list[str] = []
    said: list[str] = []
    if facts.topology is not None:
        if facts.topology.gpus < facts.ranks:
            wrong.append(f"the machine has {facts.topology.gpus} GPUs for {facts.ranks} ranks")
        links = facts.topology.among(facts.ranks)
        for kind in sorted(set(links.values())):
            pairs = [pair for pair, link in links.items() if link == kind]
            text = f"GPU{pairs[0][0]}–GPU{pairs[0][1]} {kind}" if len(pairs) == 1 else f"{len(pairs)} pairs {kind}"
            if kind in _THROUGH_HOST:
                wrong.append(f"{text}: through {_THROUGH_HOST[kind]}")
            else:
                said.append(text)
        if len({link.startswith("NV") for link in links.values()}) > 1:
            wrong.append("only some pairs have NVLink: a ring is as fast as its slowest link")
        if facts.topology.gpus > facts.ranks:
            said.append(f"of GPUs 0 to {facts.ranks - 1}")
    if facts.log is not None:
        counts: dict[str, int] = {}
        for transport, count in facts.log.transports.items():
            kind = "/".join(transport.split("/")[:2])
            counts[kind] = counts.get(kind, 0) + count
        for kind, count in sorted(counts.items()):
            text = f"{count} channels via {kind}"
            if kind.startswith("SHM"):
                wrong.append(f"{text}: through the host's memory, P2P is off (NCCL_P2P_DISABLE, IOMMU, ACS, container)")
            elif kind.startswith("NET"):
                wrong.append(f"{text}: over the network")
            else:
                said.append(text)
        if not counts:
            said.append("NCCL's log names no channels")
        said += ["NVLS"] if facts.log.nvls else []
        said += [f"{facts.log.warnings} NCCL warnings, first: {facts.log.warning}"] if facts.log.warnings else []
    missing = " and ".join(
        option for option, known in (("--topo FILE", facts.topology), ("--nccl-log FILE", facts.log)) if known is None
    )
    return _link("path", wrong, said, f"give {missing}" if missing else "")


def _payload_bytes(facts: Facts) -> tuple[int, int | None] | None:
    """(S, T) of the profile's usual step, else of the load's mean T."""
    if facts.profile is not None:
        steps = [step for step in facts.profile.steps if step.payload_bytes]
        if steps:
            middle = sorted(steps, key=lambda step: step.payload_bytes or 0)[len(steps) // 2]
            return middle.payload_bytes or 0, middle.tokens
    tokens = None if facts.load is None else facts.load.server.get("iteration_tokens", {}).get("mean")
    if tokens is not None and facts.shape is not None:
        return facts.shape.payload_bytes(round(tokens)), round(tokens)
    return None


def microbenchmark(facts: Facts) -> Link:
    """3: 2L all-reduces, as nccl-tests measured them, against what the split saves."""
    name = "microbenchmark"
    payload = _payload_bytes(facts)
    if facts.nccl is None or payload is None or facts.shape is None:
        lacks = [
            option for option, known in
            (("--nccl FILE", facts.nccl), ("--config FILE", facts.shape), ("--profile FILE or --results DIR", payload))
            if known is None
        ]  # fmt: skip
        return Link(name=name, state="not checked", text=f"give {' and '.join(lacks)}")
    size, tokens = payload
    if not _same_ranks(facts):
        return Link(
            name=name,
            state="not checked",
            text=f"--nccl measured {facts.nccl.ranks} ranks and the server has {facts.ranks}: "
            f"run all_reduce_perf on {facts.ranks}",
        )
    took = facts.nccl.all_reduce_s(size)
    if took is None:
        low, high = facts.nccl.times[0][0], facts.nccl.times[-1][0]
        return Link(
            name=name, state="not checked", text=f"S = {size} B is outside of what it measured, {low} to {high} B"
        )
    spent = collectives_per_step(facts.shape.layers) * took
    said = [f"nccl-tests: {_took(took)} at S = {size} B, 2L of them {_took(spent)} a step"]
    said += [f"warning: {text}" for text in facts.nccl.warnings]
    wrong: list[str] = []
    if facts.alone is not None and tokens is not None:
        saved = (1 - 1 / facts.ranks) * facts.alone.per_token_s * tokens
        text = f"saved by {facts.ranks} ranks at T = {tokens}: {_took(saved)} of projections"
        (wrong if spent >= saved else said).append(text)
    return _link(
        name, wrong, said, "" if facts.alone is not None else "give --a-from FILE to compare it with what is saved"
    )


def _same_ranks(facts: Facts) -> bool:
    """Whether nccl-tests ran on as many ranks as the server has; also where its output does not say."""
    return facts.nccl is None or facts.nccl.ranks in (None, facts.ranks)


def in_app(facts: Facts) -> Link:
    """4: the server's all-reduces against those of nccl-tests."""
    name = "all-reduce in the server"
    reduces = [one for one in (facts.profile.collectives if facts.profile else ()) if one.kind == "all_reduce"]
    if not reduces:
        return Link(name=name, state="not checked", text="give --profile FILE of a rank, with collectives in it")
    usual = max(reduces, key=lambda one: one.calls)
    share = usual.exposed_s / usual.total_s if usual.total_s else 0.0
    said = [f"median {_took(usual.median_s)} of {usual.calls} calls, {share:.0%} on the critical path"]
    reference = None
    if facts.nccl is not None and _same_ranks(facts) and usual.payload_bytes is not None:
        reference = facts.nccl.all_reduce_s(usual.payload_bytes)
    if reference is None:
        return _link(name, (), said, "give --nccl FILE that covers its payload")
    ratio = usual.median_s / reference
    text = f"{ratio:.2f} times nccl-tests' {_took(reference)} (limit {IN_APP_LIMIT:g})"
    if ratio > IN_APP_LIMIT:
        return _link(name, [text, "ranks arrive late, or something competes for the links"], said, "")
    return _link(name, (), [*said, text], "")


def gemms(facts: Facts) -> Link:
    """5: a rank's projections against t_proj,1/p."""
    name = "GEMMs"
    profile = facts.profile
    if profile is None or not profile.gemms:
        return Link(
            name=name, state="not checked", text="give --profile FILE with shapes of GEMMs (record_shapes, eager)"
        )
    narrow = min(profile.gemms, key=lambda one: min(one.columns, one.depth))
    most = profile.gemms[0]
    said = [
        f"narrowest (K × N) {narrow.depth}×{narrow.columns}",
        f"most time in {most.rows}×{most.depth}×{most.columns} at {most.flops_per_s / 1e12:.3g} TFLOP/s",
    ]
    steps = [step for step in profile.steps if step.tokens and step.projection_s > 0]
    if facts.alone is None or not steps:
        return _link(name, (), said, "give --a-from FILE (tp profile --json of a TP=1 trace)")
    took = sum(step.projection_s for step in steps)
    ideal = facts.alone.per_token_s * sum(step.tokens or 0 for step in steps) / facts.ranks
    text = f"projections take {took / ideal:.2f} times t_proj,1/p (limit {NARROW_LIMIT:g})"
    if took > NARROW_LIMIT * ideal:
        return _link(name, [text, "each rank's GEMMs are too narrow"], said, "")
    return _link(name, (), [*said, text], "")


def load(facts: Facts) -> Link:
    """6: tokens of a step, queue and replicas."""
    if facts.load is None:
        return Link(name="load", state="not checked", text="give --results DIR of a sweep or run of this server")
    wrong: list[str] = []
    said = [f"at {facts.load.rate:.4g}/s"] if facts.load.rate else []
    server = facts.load.server
    tokens = server.get("iteration_tokens", {})
    if "mean" in tokens:
        said.append(f"mean T = {tokens['mean']:.3g}")
        said += [f"steps by T: {', '.join(shares)}"] if (shares := list(token_shares(tokens))) else []
    else:
        said.append("T not measured (vllm:iteration_tokens_total)")
    queued, ttft = server.get("queue_s", {}).get("mean"), server.get("ttft_s", {}).get("mean", facts.load.ttft_s)
    if queued is not None and ttft:
        text = f"{format_duration(queued)} queued of {format_duration(ttft)} TTFT (limit {QUEUE_SHARE:.0%})"
        (wrong if queued > QUEUE_SHARE * ttft else said).append(text)
    if len(facts.load.by_replica) > 1:
        counts = facts.load.by_replica
        mean = sum(counts) / len(counts)
        off = max(abs(count - mean) for count in counts) / mean if mean else 0.0
        text = f"requests by replica {', '.join(map(str, counts))}: {off:.0%} off the mean (limit {IMBALANCE:.0%})"
        (wrong if off > IMBALANCE else said).append(text)
    return _link("load", wrong, said, "")


def token_shares(tokens: Mapping[str, float]) -> Iterator[str]:
    """Shares of steps by their tokens, from the counts `le_…` of a run's metric `iteration_tokens`."""
    total = tokens.get("n", 0.0)
    bounds = sorted(
        (float(name.removeprefix("le_")), count) for name, count in tokens.items() if name.startswith("le_")
    )
    below, floor = 0.0, 0
    for bound, count in bounds:
        if total > 0 and count > below:
            low = floor + 1
            yield (
                f"{bound:.0f}: {(count - below) / total:.0%}"
                if low == bound
                else (f"{low}–{bound:.0f}: {(count - below) / total:.0%}")
            )
        below, floor = max(below, count), int(bound)
    if total > below and bounds:
        yield f"more: {(total - below) / total:.0%}"


def _link(name: str, wrong: Sequence[str], said: Sequence[str], missing: str) -> Link:
    """`explains` with what is wrong first; `not checked` where nothing was said."""
    if wrong:
        return Link(name=name, state="explains", text=", ".join((*wrong, *said)))
    if not said:
        return Link(name=name, state="not checked", text=missing)
    in_full = (f"not checked in full: {missing}",) if missing else ()
    return Link(name=name, state="holds", text=", ".join((*said, *in_full)))


def _took(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else format_duration(seconds)
