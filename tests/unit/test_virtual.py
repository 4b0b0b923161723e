"""Virtual time: the rules of a run laid over a simulated server, and queues whose laws are known exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.indicator import joint
from analysis.queueing import mm1_capacity, pollaczek_khinchine_wait_s
from analysis.records import derive
from analysis.schema import EVENT_COLUMNS, REQUEST_COLUMNS
from analysis.slo import Slo
from loadgen.common.errors import UsageError
from loadgen.emulator.fcfs import FcfsModel
from loadgen.emulator.model import Job
from loadgen.emulator.profiles import Profile, load_profile
from loadgen.emulator.service import TAIL_IDS, hash_uniform, natural_tokens, prompt_uniform
from loadgen.emulator.virtual import simulate_run
from loadgen.plan.prompts import Prompts
from loadgen.plan.types import RequestFormat, RunPlan, Schedule, Window
from loadgen.send.api import Drain, RunOutput, SendOptions
from loadgen.send.pacing import FixedConcurrency

MS = 1_000_000
S = 1_000_000_000
FOREVER = 3600.0


def make(at_ms: Any, *, window: tuple[int, int, int], tokens: tuple[int, int] = (16, 1), **more: Any) -> RunPlan:
    """A plan by hand; window in ms: warm-up, window, tail."""
    at_ns = np.asarray(np.asarray(at_ms) * MS, dtype=np.int64)
    n = len(at_ns)
    columns = {
        "input_tokens": np.full(n, tokens[0]),
        "output_tokens": np.full(n, tokens[1]),
        "prefix_tokens": np.zeros(n, dtype=np.int64),
        "prefix_group": np.full(n, -1),
    }
    given: dict[str, Any] = {
        "schedule": Schedule(at_ns=at_ns),
        **columns,
        "content_seed": 7,
        "window": Window(
            **{f"{name}_ns": ms * MS for name, ms in zip(("warmup", "window", "tail"), window, strict=True)}
        ),
        "format": RequestFormat(),
        "rate": 1.0,
        "root_seed": 1,
        "workload_sha256": "",
    }
    return RunPlan(**{**given, **more})


def poisson(rate: float, seconds: float, seed: int, *, warmup_s: float = 0.0, tail_s: float = 60.0) -> RunPlan:
    rng = np.random.default_rng(seed)
    horizon = warmup_s + seconds + tail_s
    at_s = np.cumsum(rng.exponential(1 / rate, int(rate * horizon * 1.5) + 50))
    window = (round(warmup_s * 1e3), round(seconds * 1e3), round(tail_s * 1e3))
    return make(at_s[at_s < horizon] * 1e3, window=window, content_seed=seed, rate=rate)


def run(plan: RunPlan, profile: str | Profile = "md1", **options: Any) -> RunOutput:
    chosen = load_profile(profile) if isinstance(profile, str) else profile
    return simulate_run(plan, chosen, SendOptions(**{"timeout_s": FOREVER, **options}))


def test_the_table_holds_what_an_ideal_client_sees() -> None:
    output = run(make([0, 10, 300], window=(0, 400, 1000), tokens=(16, 2)))  # 50 ms each, two tokens
    table = output.requests
    assert list(table.columns) == list(REQUEST_COLUMNS)
    assert (table["first_token_ns"] // MS).tolist() == [25, 75, 325]
    assert (table["last_token_ns"] // MS).tolist() == [50, 100, 350]
    for stamp in ("released_ns", "sent_ns", "headers_ns"):
        assert table[stamp].tolist() == table["scheduled_ns"].tolist()
    assert set(table["outcome"]) == {"ok"}
    assert set(table["finish_reason"]) == {"length"}
    assert list(output.events.columns) == list(EVENT_COLUMNS)
    assert (output.events["at_ns"] // MS).tolist() == [25, 50, 75, 100, 325, 350]
    assert output.events["index"].tolist() == [0, 0, 1, 1, 2, 2]
    facts = output.facts
    assert facts.simulated
    assert (facts.due, facts.sent, facts.cohort_due) == (3, 3, 3)
    assert facts.stop_ns == 400 * MS + 1
    assert facts.peak_in_flight == 2
    assert facts.live_area_s == pytest.approx(0.05 + 0.09 + 0.05)


def test_the_load_stays_on_until_the_cohort_is_decided_and_then_all_is_cut() -> None:
    # ten at once in the window (the last ends at 500 ms), then one each 100 ms that keeps the server busy
    plan = make([0] * 10 + [150, 250, 350, 450, 550, 650], window=(0, 100, 10_000), tokens=(16, 2))
    table = run(plan).requests
    # the last of the ten ends at 500 ms: what was scheduled later was never sent
    assert table["scheduled_ns"].max() == 450 * MS
    assert table["outcome"].tolist() == ["ok"] * 10 + ["aborted"] * 4
    assert set(table["ended_ns"][10:]) == {500 * MS + 1}
    assert (table["first_token_ns"][10:] == -1).all()


def test_a_certain_miss_ends_the_wait_and_is_censored_under_its_bound() -> None:
    plan = make([0] * 10 + [150], window=(0, 100, 10_000))
    output = run(plan, slo=Slo(ttft_s=0.22))
    table = output.requests
    assert output.facts.stop_ns == 220 * MS + 2
    assert table["outcome"].tolist() == ["ok"] * 4 + ["censored"] * 6 + ["aborted"]
    assert table["certain_miss"].tolist() == [""] * 4 + ["ttft"] * 6 + [""]
    assert not output.facts.stopped_early


def test_an_early_fail_stops_at_the_miss_too_many_but_not_before_its_time() -> None:
    plan = make([0] * 10 + list(range(100, 3000, 100)), window=(0, 3000, 10_000))
    slo = Slo(e2e_s=0.12)
    for after_ms, stop_ms in ((0, 120), (900, 900)):
        output = run(plan, slo=slo, early_fail_misses=2, early_fail_after_ns=after_ms * MS)
        assert output.facts.stopped_early
        assert output.facts.stop_ns == pytest.approx(stop_ms * MS, abs=2)
        assert output.facts.cohort_due == len(plan)
    assert not run(plan, slo=slo, early_fail_misses=100).facts.stopped_early


def test_a_timeout_ends_the_request_but_not_the_server_s_work() -> None:
    table = run(make([0, 0, 0, 400], window=(0, 500, 1000), tokens=(16, 2)), timeout_s=0.09).requests
    assert table["outcome"].tolist() == ["ok", "timeout", "timeout", "ok"]
    assert (table["ended_ns"] // MS).tolist() == [50, 90, 90, 450]
    assert table["token_events"].tolist() == [2, 1, 0, 2]  # one came at 75 ms
    assert table["http_status"].tolist() == [200] * 4


def test_a_concurrency_cap_moves_the_wait_to_the_client() -> None:
    plan = make([0, 0, 0, 0], window=(0, 10, 1000))
    table = derive(run(plan, max_concurrency=2).requests)
    assert (table["sent_ns"] // MS).tolist() == [0, 0, 50, 100]
    assert table["admitted_ns"].tolist() == table["sent_ns"].tolist()
    assert (table["last_token_ns"] // MS).tolist() == [50, 100, 150, 200]
    assert table["send_lag_s"].max() == 0  # the gateway's wait is no lateness of the client
    free = run(plan).requests
    assert table["last_token_ns"].tolist() == free["last_token_ns"].tolist()


def test_the_same_cap_in_front_of_a_batching_server() -> None:
    plan = make([0] * 6, window=(0, 10, 100_000), tokens=(64, 8))
    output = run(plan, "llama8b-80gb", max_concurrency=2)
    table = output.requests
    assert output.facts.peak_in_flight == 2
    assert output.facts.concurrency_cap == 2
    ended = sorted(table["ended_ns"])
    assert sorted(table["sent_ns"])[2:] == ended[:4]


def test_virtual_time_meets_the_services_of_the_http_face() -> None:
    plan = make(np.arange(50) * 3.0, window=(0, 1000, 100_000), tokens=(40, 3))
    profile = load_profile("mm1")
    model, prompts = profile.build(), Prompts(plan)
    assert isinstance(model, FcfsModel)
    for index, at_ns in enumerate(plan.schedule.at_ns.tolist()):
        prompt = prompts.ids(index).astype(np.int64)
        model.submit(Job(key=index, prompt=prompt, output_tokens=3), at_ns)
    finished = {told.key: told.at_ns for told in model.advance(3600 * S) if told.finished}
    table = run(plan, profile).requests
    assert table["last_token_ns"].tolist() == [finished[index] for index in range(50)]


def test_natural_stops_are_those_of_the_prompt() -> None:
    plan = make(np.arange(2000), window=(0, 3000, 1000), tokens=(16, 100), format=RequestFormat(stop="natural"))
    profile = load_profile("fcfs-fast")
    table = run(plan, profile).requests
    ok = table[table["outcome"] == "ok"]
    assert set(ok["finish_reason"]) == {"length", "stop"}
    assert (ok["output_tokens"][ok["finish_reason"] == "length"] == 100).all()
    tails = Prompts(plan).tail_ids(TAIL_IDS)
    uniforms = hash_uniform(tails, 0x73746F70)
    assert uniforms[5] == prompt_uniform(Prompts(plan).ids(5).astype(np.int64), 0x73746F70)
    drawn = natural_tokens(uniforms, profile.server.eos_mean_tokens)
    assert drawn.mean() == pytest.approx(64, abs=4 * 64 / math.sqrt(2000))
    assert ok["output_tokens"].tolist() == np.minimum(drawn, 100)[ok["index"]].tolist()


def test_an_output_cut_at_the_context_is_short() -> None:
    plan = make([0, 100], window=(0, 200, 100_000), tokens=(32_760, 20))
    assert run(plan).requests["outcome"].tolist() == ["short_output"] * 2
    with pytest.raises(UsageError, match=r"a prompt of 32768 tokens .* server\.max_model_len"):
        run(make([0], window=(0, 10, 10), tokens=(32_768, 1)))


def test_runs_meet_noise_of_their_own_and_a_run_repeated_the_same() -> None:
    """Passes of two runs are as uneven as each other, and no more alike than those of two servers."""
    profile = load_profile("llama8b-80gb?step.jitter=0.2&step.seed=3")
    quiet = load_profile("llama8b-80gb")
    plans = [
        make([0.0], window=(0, 1000, 60_000), tokens=(16, 400)),
        make([0.5], window=(0, 1000, 60_000), tokens=(16, 400)),
    ]

    def factors(plan: RunPlan, of: Profile) -> np.ndarray[Any, np.dtype[np.float64]]:
        noisy, even = (np.diff(simulate_run(plan, one, SendOptions()).events["at_ns"]) for one in (of, quiet))
        return noisy / even

    first, second = (factors(plan, profile) for plan in plans)
    assert (factors(plans[0], profile) == first).all()
    assert first.std() == pytest.approx(0.2, rel=0.2)
    # 399 independent factors correlate by more than 0.2 once in 15,000 times
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2


def test_what_has_no_virtual_time_is_refused() -> None:
    with pytest.raises(UsageError, match="closed loop"):
        run(make([0], window=(0, 10, 10)), pacing=FixedConcurrency(4))
    with pytest.raises(UsageError, match="cap in front of replicas"):
        run(make([0], window=(0, 10, 10)), "llama70b-replicas", max_concurrency=2)


def test_a_full_queue_is_refused_with_503() -> None:
    profile: Any = load_profile("llama8b-80gb")
    scheduler = profile.scheduler.model_copy(update={"max_num_seqs": 2, "max_num_queued_reqs": 1})
    table = run(
        make([0, 50, 60, 70, 71], window=(0, 80, 100_000), tokens=(64, 50)),
        profile.model_copy(update={"scheduler": scheduler}),
    ).requests
    assert table["outcome"].tolist() == ["ok", "ok", "ok", "rejected", "rejected"]
    assert table["http_status"].tolist() == [200, 200, 200, 503, 503]
    assert (table["ended_ns"] == table["sent_ns"])[3:].all()


def test_replicas_take_requests_in_turn() -> None:
    plan = make([0] * 8, window=(0, 10, 1_000_000), tokens=(256, 32))
    four = run(plan, "llama70b-replicas").requests
    one = run(make([0, 0], window=(0, 10, 1_000_000), tokens=(256, 32)), "llama70b-tp1").requests
    assert (
        four["last_token_ns"].tolist() == one["last_token_ns"].tolist()[:1] * 4 + one["last_token_ns"].tolist()[1:] * 4
    )


def test_a_shared_prefix_is_found_again() -> None:
    n = 5
    shared = {"prefix_tokens": np.full(n, 512), "prefix_group": np.array([0, 0, 1, 0, 1])}
    table = run(
        make(np.arange(n) * 5000, window=(0, 30_000, 10_000), tokens=(600, 4), **shared), "llama8b-80gb"
    ).requests
    assert table["cached_tokens"].tolist() == [0, 512, 0, 512, 512]
    ttft_s = derive(table)["ttft_s"]
    assert ttft_s[1] < ttft_s[0] / 3


def within(values: list[float], expected: float, errors: float = 4.0) -> bool:
    """Whether the mean of independent replicates is within so many standard errors."""
    found = np.array(values)
    return bool(abs(found.mean() - expected) <= errors * found.std(ddof=1) / math.sqrt(len(found)))


@pytest.mark.parametrize("share", [0.8, 0.95])
def test_the_capacity_of_mm1_is_the_exact_one(share: float) -> None:
    bound_s, service_rate = 0.4, 20.0
    slo = Slo(e2e_s=bound_s)
    exact = mm1_capacity(service_rate=service_rate, bound_s=bound_s, share=share)
    for rate, expected in ((exact, share), (8.0, 1 - math.exp(-(service_rate - 8.0) * bound_s))):
        attained = []
        for seed in range(24):
            output = run(poisson(rate, 200, seed, warmup_s=30), "mm1", slo=Slo())
            table = derive(output.requests)
            cohort = table["scheduled_ns"].between(30 * S, 230 * S, inclusive="left").to_numpy()
            attained.append(float(joint(table, slo)[cohort].mean()))
        assert within(attained, expected)


def weibull_second_moment(mean_s: float, shape: float) -> float:
    return mean_s**2 * math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2


@pytest.mark.parametrize(
    ("profile", "second_moment_s2"),
    [
        ("mm1", 2 * 0.05**2),
        ("md1", 0.05**2),
        ("mg1", weibull_second_moment(0.05, 0.7)),
        ("fcfs", 0.8 * 0.02**2 + 0.2 * 0.18**2),
    ],
)
def test_mean_waits_are_pollaczek_and_khinchine_s(profile: str, second_moment_s2: float) -> None:
    rate, mean_s = 10.0, 0.052 if profile == "fcfs" else 0.05
    waits = []
    for seed in range(24):
        output = run(poisson(rate, 200, seed, warmup_s=60), profile)
        table = derive(output.requests)
        cohort = table["scheduled_ns"].between(60 * S, 260 * S, inclusive="left")
        waits.append(float(table["e2e_s"][cohort].mean()) - mean_s)
    exact = pollaczek_khinchine_wait_s(rate=rate, mean_s=mean_s, second_moment_s2=second_moment_s2)
    assert within(waits, exact)


def md1_wait_cdf(t_s: float, rate: float, service_s: float) -> float:
    """P(wait ≤ t) of M/D/1 (Erlang): (1 − ρ) Σ_{k ≤ t/D} (λ(kD − t))^k e^{−λ(kD − t)}/k!."""
    terms = (rate * (k * service_s - t_s) for k in range(int(t_s / service_s) + 1))
    return (1 - rate * service_s) * sum(x**k * math.exp(-x) / math.factorial(k) for k, x in enumerate(terms))


def test_waits_of_md1_follow_erlang_s_law() -> None:
    rate, service_s, points_s = 12.0, 0.05, (0.0, 0.03, 0.08, 0.2)
    shares: dict[float, list[float]] = {point: [] for point in points_s}
    for seed in range(24):
        table = derive(run(poisson(rate, 200, seed, warmup_s=60), "md1").requests)
        cohort = table["scheduled_ns"].between(60 * S, 260 * S, inclusive="left")
        wait_s = table["e2e_s"][cohort] - service_s
        for point in points_s:
            shares[point].append(float((wait_s <= point + 1e-9).mean()))
    for point in points_s:
        assert within(shares[point], md1_wait_cdf(point, rate, service_s)), point


def test_both_loops_make_one_table() -> None:
    plan = poisson(6.0, 60, 3, warmup_s=10)
    plan = replace(plan, input_tokens=plan.input_tokens * 40, output_tokens=plan.output_tokens * 60)
    profile: Any = load_profile("llama8b-80gb")
    quick = run(plan, profile, slo=Slo(ttft_s=0.8, tpot_s=0.05))
    # a queue limit that is never reached takes the general engine
    limited = profile.scheduler.model_copy(update={"max_num_queued_reqs": 10**9})
    general = run(plan, profile.model_copy(update={"scheduler": limited}), slo=Slo(ttft_s=0.8, tpot_s=0.05))
    assert quick.requests.equals(general.requests)
    assert quick.events.equals(general.events)
    assert quick.facts == general.facts


@pytest.mark.parametrize("name", ["llama8b-80gb", "llama70b-replicas"])
def test_the_model_behind_http_gives_virtual_time_s_tokens(name: str) -> None:
    n = 40
    shared = {"prefix_tokens": np.full(n, 32), "prefix_group": np.arange(n) % 3}
    plan = make(np.arange(n) * 37, window=(0, 2000, 100_000), tokens=(80, 12), **shared)
    profile = load_profile(name)
    model, prompts = profile.build(), Prompts(plan)
    told: dict[int, list[int]] = {index: [] for index in range(n)}

    def take(now_ns: int) -> None:
        for emission in model.advance(now_ns):
            told[emission.key].append(emission.at_ns)
            assert emission.tokens == 1

    for index, at_ns in enumerate(plan.schedule.at_ns.tolist()):
        take(at_ns)
        model.submit(Job(key=index, prompt=prompts.ids(index).astype(np.int64), output_tokens=12), at_ns)
    while (next_ns := model.next_ns()) is not None:
        take(next_ns)
    output = run(plan, profile)
    assert told == {index: rows["at_ns"].tolist() for index, rows in output.events.groupby("index")}
    gauges = model.gauges()
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (0, 0, 0.0)
    assert gauges.prefix_hit_tokens == output.requests["cached_tokens"].sum() > 0


@pytest.mark.parametrize(
    ("drain", "answered"),
    [
        (None, 4), (Drain(unanswered=6, misses=9), 4), (Drain(unanswered=2, misses=9), 8),
        (Drain(unanswered=0, misses=9), 10), (Drain(unanswered=0, misses=5), 4),
    ],
)  # fmt: skip
def test_certain_misses_are_waited_for_while_they_may_hide_errors(drain: Drain | None, answered: int) -> None:
    output = run(make([0] * 10 + [150], window=(0, 100, 10_000)), slo=Slo(ttft_s=0.22), drain=drain)
    table = output.requests
    assert table["outcome"].tolist()[:10] == ["ok"] * answered + ["censored"] * (10 - answered)
    if answered > 4:
        assert output.facts.stop_ns == table["ended_ns"][answered - 1] + 1
