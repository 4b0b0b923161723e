from __future__ import annotations

import pytest
from metric_pages import CAPTURES, URL, observation, together

from analysis.server_metrics.readings import observe
from analysis.server_metrics.types import METRICS, Observation, ServerView
from analysis.tp.chain import token_shares

S = 1_000_000_000


def view(what: Observation, start_s: float = 0, end_s: float = 100) -> ServerView:
    return observe(what, start_ns=round(start_s * S), end_ns=round(end_s * S))


def vllm(**values: float) -> str:
    return "".join(f'vllm:{name}{{engine="0",model_name="m"}} {value}\n' for name, value in values.items())


def test_counters_and_histograms_are_told_as_their_increase() -> None:
    seen = view(
        observation(
            (0, vllm(num_preemptions_total=7, time_to_first_token_seconds_sum=10, time_to_first_token_seconds_count=4)),
            (9, vllm(num_preemptions_total=9, time_to_first_token_seconds_sum=13, time_to_first_token_seconds_count=6)),
        )
    )
    assert seen.metrics["preemptions"] == {"n": 2}
    assert seen.metrics["ttft_s"] == {"n": 2, "mean": 1.5}
    assert (seen.restarts, seen.span_s) == ((), 9)


def test_the_tokens_of_steps_are_told_by_buckets() -> None:
    name = "vllm:iteration_tokens_total"

    def page(*counts: int) -> str:
        rows = [
            f'{name}_bucket{{engine="0",le="{le}"}} {n}' for le, n in zip(("1.0", "8.0", "+Inf"), counts, strict=True)
        ]
        return "\n".join(
            (*rows, f'{name}_count{{engine="0"}} {counts[2]}', f'{name}_sum{{engine="0"}} {counts[2] * 4}\n')
        )

    seen = view(observation((0, page(1, 2, 2)), (9, page(4, 11, 12))))
    assert seen.metrics["iteration_tokens"] == {
        "n": 10, "mean": 4, "p50": 8, "p90": 8, "le_1": 3, "le_8": 9,
    }  # fmt: skip
    assert list(token_shares(seen.metrics["iteration_tokens"])) == ["1: 30%", "2–8: 60%", "more: 10%"]


def test_a_histogram_nothing_was_put_into_has_no_mean() -> None:
    page = vllm(e2e_request_latency_seconds_sum=10, e2e_request_latency_seconds_count=4)
    assert view(observation((0, page), (1, page))).metrics["e2e_s"] == {"n": 0}


def test_gauges_are_of_the_window_alone() -> None:
    pages = [(t, vllm(num_requests_waiting=value)) for t, value in ((0, 50), (10, 2), (11, 4), (20, 90))]
    seen = view(observation(*pages), 10, 20)
    assert seen.metrics["waiting"] == {"mean": 3, "max": 4}
    assert list(seen.waiting) == [50, 2, 4, 90]  # all of it is kept for the drift test


def test_engines_of_one_page_add_up_and_the_fullest_cache_counts() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="{e}",model_name="m"}} {n}\n'
        f'vllm:kv_cache_usage_perc{{engine="{e}",model_name="m"}} {kv}\n'
        f'vllm:prefix_cache_hits_total{{engine="{e}",model_name="m"}} {{}}\n'
        for e, n, kv in ((0, 3, 0.2), (1, 5, 0.9))
    )
    seen = view(observation((1, page.replace("{}", "10")), (2, page.replace("{}", "15"))))
    assert seen.metrics["running"] == {"mean": 8, "max": 8}
    assert seen.metrics["kv_usage"] == {"mean": 0.9, "max": 0.9}
    assert seen.metrics["prefix_hits"] == {"n": 10}


def test_replicas_add_up_though_they_are_read_at_different_moments() -> None:
    first = observation(*((t, vllm(num_requests_waiting=2, num_preemptions_total=t)) for t in range(10)))
    second = observation(
        *((t + 0.4, vllm(num_requests_waiting=t, num_preemptions_total=5)) for t in range(10)),
        source="http://b:8000", targets=("http://b:8000",),
    )  # fmt: skip
    seen = view(together(first, second))
    assert seen.metrics["waiting"]["max"] == 2 + 9
    assert seen.metrics["preemptions"] == {"n": 9}


def test_a_replica_that_falls_silent_is_not_taken_for_idle_or_steady() -> None:
    first = observation(*((t, vllm(num_requests_waiting=2)) for t in range(20)))
    second = observation(
        *((t, vllm(num_requests_waiting=7)) for t in range(4)), source="http://b:8000", targets=("http://b:8000",)
    )
    seen = view(together(first, second))
    assert set(seen.waiting) == {9.0}
    assert len(seen.waiting) < 20


def test_a_counter_that_falls_is_a_restart_and_counts_from_zero_after_it() -> None:
    counts = (100, 130, 4, 10)
    seen = view(observation(*((t, vllm(num_preemptions_total=count)) for t, count in enumerate(counts))))
    assert seen.metrics["preemptions"] == {"n": 30 + 4 + 6}
    (said,) = seen.restarts
    assert said.startswith(URL)
    assert "restarted" in said


def test_a_new_process_is_a_restart_though_no_counter_fell() -> None:
    pages = ((0, "process_start_time_seconds 1.7e9\n"), (5, "process_start_time_seconds 1700000004\n"))
    assert "4 s after" in view(observation(*pages)).restarts[0]


def test_a_label_that_appears_amid_the_run_began_at_zero() -> None:
    late = vllm(num_requests_waiting=0) + 'vllm:request_success_total{finished_reason="abort"} 3\n'
    seen = view(observation((0, vllm(num_requests_waiting=0)), (1, late)))
    assert seen.metrics["finished"] == {"n": 3} == seen.metrics["aborted"]


def test_older_names_and_other_servers_through_the_table() -> None:
    gaps = [vllm(gpu_cache_usage_perc=0.5, time_per_output_token_seconds_sum=n / 50,
                 time_per_output_token_seconds_count=n) for n in (0, 50)]  # fmt: skip
    old = view(observation(*enumerate(gaps)))
    assert old.metrics["kv_usage"]["max"] == 0.5
    assert old.metrics["itl_s"] == {"n": 50, "mean": 0.02}
    ranks = "".join(
        f'sglang:num_queue_reqs{{model_name="m",tp_rank="{r}"}} 6\nsglang:cached_tokens_total{{tp_rank="{r}"}} {{}}\n'
        for r in (0, 1)
    )
    sglang = view(observation((0, ranks.replace("{}", "10")), (1, ranks.replace("{}", "30"))))
    assert sglang.metrics["waiting"] == {"mean": 6, "max": 6}  # told by each rank, waiting once
    assert sglang.metrics["prefix_hits"] == {"n": 20}
    tgi = view(observation((0, "tgi_queue_size 4\ntgi_batch_current_size 8\n")))
    assert (tgi.value("waiting", "max"), tgi.value("running", "max")) == (4, 8)
    triton = 'nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 3\n'
    assert view(observation((0, triton))).value("waiting", "max") == 3


def test_a_further_source_speaks_for_the_server_only_where_its_own_page_does_not() -> None:
    own = observation((0, vllm(num_requests_waiting=1)))
    other = observation((0, vllm(num_requests_waiting=1, num_requests_running=5) + "DCGM_FI_PROF_DRAM_ACTIVE 0.7\n"),
                        source="router", targets=())  # fmt: skip
    seen = view(together(own, other))
    assert seen.value("waiting", "max") == 1  # not 2
    assert seen.value("running", "max") == 5
    assert seen.value("dram_active", "mean") == 0.7


def test_what_is_absent_is_named_with_its_reason() -> None:
    what = observation((0, "DCGM_FI_DEV_GPU_UTIL 40\n"), source="gpu", reports=(URL,))
    seen = view(what)
    assert seen.not_measured[0] == f"{URL}: answers 401 (a key is wanted)"
    assert "server queue" in seen.not_measured[1]
    assert "GPU memory bandwidth" in seen.not_measured[1]
    assert seen.value("gpu_busy", "mean") == 0.4


def test_nothing_observed_is_a_view_too() -> None:
    seen = view(Observation.nothing("the observer ended", (URL,)))
    assert seen.metrics == {}
    assert seen.not_measured[0] == f"{URL}: the observer ended"


def test_speculative_decoding_tells_its_acceptance() -> None:
    pages = (vllm(spec_decode_num_draft_tokens_total=n, spec_decode_num_accepted_tokens_total=a) for n, a in
             ((0, 0), (200, 150)))  # fmt: skip
    assert view(observation(*enumerate(pages))).value("accept_rate", "mean") == 0.75


@pytest.mark.skipif(not CAPTURES.exists(), reason="no captured pages")
def test_a_real_page_is_read_in_full() -> None:
    page = (CAPTURES / "metrics_after_overload_full.txt").read_text()
    fresh = "\n".join(line if line.startswith("#") else f"{line.rpartition(' ')[0]} 0.0" for line in page.splitlines())
    seen = view(observation((0, fresh), (90, page)))
    assert seen.metrics["e2e_s"]["n"] == 240 == seen.metrics["finished"]["n"]
    assert seen.metrics["e2e_s"]["mean"] == pytest.approx(3279.9513096809387 / 240)
    assert seen.metrics["prefix_hits"]["n"] == 384
    assert seen.metrics["iteration_tokens"]["mean"] == pytest.approx(91785 / 16121)
    told = {name for name, metric in METRICS.items() if metric.server and metric.names[0].startswith("vllm:")}
    assert told - set(seen.metrics) == {"drafts", "draft_tokens", "accepted_tokens"}  # no speculative decoding there
