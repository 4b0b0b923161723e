"""The single-server queue behind the emulator: closed form, exact, and the same for equal prompts."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.emulator.fcfs import FcfsModel, ServiceMix, token_ns
from loadgen.emulator.model import Emission, Job
from loadgen.emulator.profiles import FcfsProfile, load_profile
from loadgen.emulator.service import TAIL_IDS, hash_uniform, prompt_tail, prompt_uniform

MIX = ServiceMix(times_ns=(20_000_000, 180_000_000), shares=(0.8, 0.2))


def job(key: int, tokens: int = 1) -> Job:
    return Job(key=key, prompt=np.arange(key, key + 8), output_tokens=tokens)


def service_ns(key: int) -> int:
    return MIX.time_ns(prompt_uniform(range(key, key + 8), 0))


@given(
    gaps=st.lists(st.integers(0, 300_000_000), min_size=1, max_size=30),
    tokens=st.integers(1, 50),
    looks=st.lists(st.integers(1, 10**9), max_size=20),
)
def test_every_finish_is_lindleys_whenever_one_looks(gaps: list[int], tokens: int, looks: list[int]) -> None:
    model = FcfsModel(MIX, 0)
    arrivals = list(accumulate(gaps))
    told: list[Emission] = []
    moments = sorted([(at, "arrive") for at in arrivals] + [(at, "look") for at in looks], key=lambda moment: moment[0])
    key = 0
    for at, what in moments:
        if what == "look":
            told += model.advance(at)
        else:
            model.submit(job(key, tokens), at)
            key += 1
    while (next_ns := model.next_ns()) is not None:
        told += model.advance(next_ns)
    free = 0
    expected: dict[int, int] = {}
    for key, at in enumerate(arrivals):
        free = expected[key] = max(free, at) + service_ns(key)
    assert {emission.key: emission.at_ns for emission in told if emission.finished} == expected
    assert sum(emission.tokens for emission in told) == tokens * len(arrivals)
    gauges = model.gauges()
    assert (gauges.running, gauges.waiting) == (0, 0)


def test_tokens_are_spread_evenly_and_the_last_is_at_the_finish() -> None:
    model = FcfsModel(MIX, 0)
    model.submit(job(3, tokens=4), 1_000)
    seen = []
    while (next_ns := model.next_ns()) is not None:
        seen += [(next_ns, emission.tokens) for emission in model.advance(next_ns)]
    quarter = service_ns(3) // 4
    assert seen == [(1_000 + quarter * j, 1) for j in (1, 2, 3, 4)]


def test_a_stream_faster_than_the_wake_ups_is_merged_but_its_ends_are_exact() -> None:
    model = FcfsModel(ServiceMix(times_ns=(2_000_000,), shares=(1.0,)), 0)
    model.submit(job(1, tokens=200), 0)
    wakes = []
    while (next_ns := model.next_ns()) is not None:
        wakes.append((next_ns, sum(emission.tokens for emission in model.advance(next_ns))))
    assert wakes[0] == (token_ns(0, 2_000_000, 1, 200), 1)
    assert wakes[-1][0] == 2_000_000
    assert len(wakes) <= 6
    assert sum(tokens for _, tokens in wakes) == 200


def test_a_client_that_leaves_frees_nothing() -> None:
    model = FcfsModel(MIX, 0)
    for key in range(3):
        model.submit(job(key), 0)
    model.cancel(1, 0)
    assert (model.gauges().running, model.gauges().waiting) == (1, 2)
    assert not model.reset_prefix_cache()


def test_services_have_the_shares_of_the_mixture_and_follow_the_prompt() -> None:
    tails = np.random.default_rng(1).integers(1000, 4000, size=(4000, TAIL_IDS))
    uniforms = hash_uniform(tails, 0)
    services = MIX.quantile_ns(uniforms)
    assert abs(int((services == 180_000_000).sum()) - 800) < 4 * np.sqrt(4000 * 0.2 * 0.8)
    assert services.tolist() == [MIX.time_ns(uniform) for uniform in uniforms.tolist()]
    other = MIX.quantile_ns(hash_uniform(tails, 1))
    assert 0.28 < np.mean(services != other) < 0.36  # 2 · 0.8 · 0.2 = 0.32


@given(tail=st.lists(st.integers(0, 2**62), min_size=4, max_size=4), seed=st.integers(0, 2**63 - 1))
def test_one_prompts_uniform_is_the_columns_to_the_last_bit(tail: list[int], seed: int) -> None:
    column = hash_uniform(np.array([prompt_tail(tail)], dtype=np.int64), seed)
    assert prompt_uniform(tail, seed) == prompt_uniform(np.array(tail), seed) == column[0]


def test_the_fast_profile_is_the_queue_compressed_ten_times() -> None:
    slow, fast = load_profile("fcfs"), load_profile("fcfs-fast")
    assert isinstance(slow, FcfsProfile)
    assert isinstance(fast, FcfsProfile)
    assert slow.mix().times_ns == tuple(10 * time for time in fast.mix().times_ns) == (20_000_000, 180_000_000)
    assert slow.service.seed == fast.service.seed
