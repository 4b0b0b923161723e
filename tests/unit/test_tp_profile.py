from __future__ import annotations

from dataclasses import replace

import pytest
from kineto_traces import AR, CUSTOM, Maker, decoder

from analysis.tp.against import Expected, compare, token_times
from analysis.tp.chrome import EventStream, Malformed
from analysis.tp.kineto import read_kineto
from analysis.tp.names import collective_kernel, gemm_shape, step_tokens
from analysis.tp.profile import Profile, summarise

MODEL = Expected(layers=2, hidden=64, element_bytes=2)


def pieces(text: bytes, size: int = 4096) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def read(made: Maker, *, vocab: int = 0) -> Profile:
    return summarise(read_kineto(pieces(made.text())), vocab=vocab)


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("size", [64, 1000, 1 << 20])
def test_events_are_the_same_however_the_text_is_cut(monkeypatch: pytest.MonkeyPatch, compact: bool, size: int) -> None:
    monkeypatch.setattr("analysis.tp.chrome.BATCH_BYTES", 700)
    made = decoder()
    made.event("kernel", 'odd "},{" name \\', 1, 1, nested=[{"a": 1}, {"b": [{"c": "},{"}, {"d": 2}]}])
    text = made.text(compact=compact)
    stream = EventStream(pieces(text, size))
    assert list(stream) == made.events
    assert stream.header == made.header
    assert stream.read_bytes == len(text)


def test_a_bare_list_numbers_that_are_none_and_bad_utf8_are_read() -> None:
    text = b'[{"ph": "X", "name": "\xff", "dur": nan, "args": {"a": [-inf, 1]}}]'
    assert list(EventStream([text])) == [{"ph": "X", "name": "\ufffd", "dur": None, "args": {"a": [None, 1]}}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "empty"),
        (b"hello", "not JSON"),
        (b'{"a": 1}', "no list traceEvents"),
        (decoder().text()[:-900], "ends inside the trace"),
        (decoder().text()[:200], "ends inside the trace"),
        (b'{"traceEvents": [{"a" 1}, {"b": 2}]}', "not valid JSON near byte 2"),
        (b'{"traceEvents": []}', "is empty"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(text: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=said) as error:
        read_kineto(pieces(text))
    assert "\n" not in str(error.value)


def test_text_in_which_no_event_ends_is_not_read_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.tp.chrome.BATCH_BYTES", 700)
    monkeypatch.setattr("analysis.tp.chrome.LIMIT_BYTES", 5000)
    with pytest.raises(Malformed, match="no event ends within 0 MiB from byte 16 on"):
        read_kineto(pieces(b'{"traceEvents":["' + b"a" * 100_000, 512))


def test_steps_collectives_and_gemms_of_a_decoder() -> None:
    profile = read(decoder())
    assert (profile.steps_by, len(profile.steps), profile.ranks, profile.on_device) == (
        "device annotations execute_…", 3, 4, True,
    )  # fmt: skip
    (step,) = set(profile.steps)
    assert (step.tokens, step.all_reduces, step.payload_bytes, step.odd_payloads) == (16, 5, 2048, 0)
    assert step.collective_s == pytest.approx(50e-6)
    assert step.exposed_s == pytest.approx(50e-6)
    assert step.projection_s == pytest.approx(80e-6)
    (reduces,) = profile.collectives
    assert (reduces.kind, reduces.by, reduces.element, reduces.ranks, reduces.calls) == (
        "all_reduce", "nccl", "bfloat16", 4, 15,
    )  # fmt: skip
    (gemm,) = profile.gemms
    assert (gemm.rows, gemm.columns, gemm.depth, gemm.calls) == (16, 64, 64, 12)
    assert gemm.flops_per_s == pytest.approx(2 * 16 * 64 * 64 / 20e-6)
    found = compare(profile, MODEL)
    assert found.reasons == ()
    assert found.verdict.startswith("The model applies: 5 all-reduces a step, 2L = 4; payload 2048 B = T·H·e_a")


def test_kernels_belong_to_the_step_that_launched_them() -> None:
    assert read(decoder(annotation="user_annotation")).steps[1].all_reduces == 5


def test_without_annotations_long_pauses_part_the_steps() -> None:
    made = decoder()
    made.events = [event for event in made.events if "annotation" not in event["cat"]]
    profile = read(made)
    assert profile.steps_by.startswith("pauses of the device")
    assert [step.all_reduces for step in profile.steps] == [5, 5, 5]


def test_what_compute_on_another_stream_covers_is_not_on_the_critical_path() -> None:
    made = Maker()
    made.event("gpu_user_annotation", "execute_context_1(8)_generation_0(0)", 0, 500)
    made.all_reduce(100, 40, 8 * 64, stream=20)
    made.all_reduce(120, 40, 8 * 64, stream=21)  # 20 µs of it beside the other
    made.kernel("elementwise", 90, 20, stream=7)
    made.kernel("elementwise", 105, 15, stream=8)
    made.kernel("elementwise", 150, 5, stream=7)
    (step,) = read(made).steps
    assert step.collective_s == pytest.approx(80e-6)
    assert step.exposed_s == pytest.approx((60 - 20 - 5) * 1e-6)
    assert step.tokens == 8  # as annotated


def test_payloads_of_kernels_without_keys_come_from_the_operator_around_them() -> None:
    made = Maker()
    made.event("gpu_user_annotation", "execute_context_1(8)_generation_0(0)", 0, 900)
    made.wrapped(100, 10, AR, "vllm::all_reduce", [[8, 64], []])
    made.wrapped(200, 10, CUSTOM, "_C_custom_ar::all_reduce", [[], [8, 64], [8, 64], [], []])
    profile = read(made)
    assert {(one.by, one.payload_bytes, one.ranks) for one in profile.collectives} == {
        ("nccl", 1024, 4), ("custom", 1024, 4),
    }  # fmt: skip


def test_a_cuda_graph_hides_shapes_and_payloads() -> None:
    made = Maker()
    made.event("gpu_user_annotation", "execute_context_0(0)_generation_8(8)", 0, 900)
    for call in range(4):
        made.kernel("nvjet_tst_128x64", 100 + 50 * call, 20)
        made.kernel(AR, 120 + 50 * call, 10)
    profile = read(made)
    assert (profile.unshaped_gemms, profile.gemms) == (4, ())
    assert profile.unshaped_gemm_s == pytest.approx(80e-6)
    found = compare(profile, MODEL)
    assert "payloads are not recorded" in found.verdict
    assert found.facts == ("4 all-reduces a step, 2L = 4",)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda made, at: made.all_reduce(at, 5, 16 * 64, name=CUSTOM), "custom kernels"),
        (lambda made, at: made.kernel("allreduce_fusion_kernel_oneshot_lamport", at, 5), "fused"),
        (lambda made, at: made.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", at, 5), "pipeline"),
        (lambda made, at: made.kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", at, 5), "sequence parallelism"),
        (lambda made, at: made.kernel("void deep_ep::intranode::dispatch<4>", at, 5), "experts"),
        (lambda made, at: made.kernel("ncclDevKernel_AllGather_RING_LL", at, 5), "all-gathers a step"),
        (lambda made, at: made.all_reduce(at, 5, 16 * 64), "8 all-reduces a step, 2L = 4"),
    ],
)
def test_what_the_model_does_not_have_stops_it(spoil, said: str) -> None:  # type: ignore[no-untyped-def]
    made = decoder()
    for step in range(3):
        for extra in range(3):
            spoil(made, 10_500.0 + 1000 * step + 20 * extra)
    found = compare(read(made), MODEL)
    assert said in found.verdict
    assert found.verdict.startswith("Stop applying the model: ")


def test_other_payloads_and_fewer_calls_stop_the_model() -> None:
    profile = read(decoder())
    experts = replace(MODEL, inapplicable=("a mixture of experts",))
    assert compare(profile, experts).verdict == "Stop applying the model: a mixture of experts."
    wide = compare(profile, Expected(layers=2, hidden=128, element_bytes=2))
    assert wide.reasons == ("payload 2048 B, T·H·e_a = 16·128·2 = 4096 B in 3 of 3 steps",)
    assert compare(profile, Expected(layers=3, hidden=64, element_bytes=2)).reasons == ("5 all-reduces a step, 2L = 6",)
    assert "give --config or --layers" in compare(profile, Expected()).verdict


def test_projection_times_by_tokens_without_the_output_matrix() -> None:
    made = Maker(ranks=1)
    for number, tokens in enumerate((4, 6, 100)):
        at = 10_000.0 + 1000 * number
        made.event("gpu_user_annotation", f"execute_context_0(0)_generation_{tokens}({tokens})", at - 5, 900)
        for call in range(4):
            made.gemm(at + 50 * call, 10 + tokens / 10, tokens, 64, 64, "aten::addmm" if call else "aten::mm")
        made.gemm(at + 300, 200, tokens, 32_000, 64)
    times = token_times(read(made, vocab=32_000))
    assert times is not None
    assert times.pairs == (
        (5.0, pytest.approx(4 * 10.5e-6, rel=1e-6)), (100.0, pytest.approx(4 * 20e-6, rel=1e-6)),
    )  # fmt: skip
    assert times.per_token_s == pytest.approx(122e-6 / 105, rel=1e-6)
    assert "no collectives" in compare(read(made), MODEL).verdict


def test_names() -> None:
    kinds = {
        "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)": ("all_reduce", "nccl", "half", 0),
        "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16": ("all_reduce", "nccl", "bf16", 0),
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": ("unknown", "nccl", "", 0),
        CUSTOM: ("all_reduce", "custom", "bfloat16", 4),
        "void vllm::cross_device_reduce_2stage<half, 8>(vllm::RankData*)": ("all_reduce", "custom", "half", 8),
        "two_shot_all_reduce_kernel": ("all_reduce", "custom", "", 0),
    }
    for name, said in kinds.items():
        named = collective_kernel(name)
        assert named is not None, name
        assert (named.kind, named.by, named.element, named.ranks) == said
    assert collective_kernel("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16>") is None
    assert gemm_shape("aten::linear", [(2, 8, 64), (128, 64)]) == (16, 128, 64)
    assert gemm_shape("aten::addmm", [(128,), (16, 64), (64, 128)]) == (16, 128, 64)
    assert gemm_shape("_C::cutlass_scaled_mm", [(16, 128), (16, 64), (64, 128)]) == (16, 128, 64)
    assert gemm_shape("aten::mm", [(16, 64)]) is None
    assert step_tokens("execute_context_1(128)_generation_2(2)") == 130
    assert step_tokens("ProfilerStep#4") is None


def test_events_without_what_they_need_change_nothing() -> None:
    plain, odd = decoder(), decoder()
    odd.header["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 4, "more": []}
    for broken in (
        {"ph": "i", "cat": "kernel", "name": AR, "ts": 1},
        {"ph": "X", "cat": "kernel", "name": AR, "ts": "soon", "dur": 1},
        {"ph": "X", "cat": "kernel", "name": AR, "ts": 1, "dur": "long"},
        {"ph": "X", "cat": 7, "name": AR, "ts": 1, "dur": 1},
        {"ph": "X", "cat": "kernel", "name": None, "ts": 1, "dur": 1},
        {"ph": "X", "cat": "user_annotation", "name": "my own", "ts": 1, "dur": 1, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1, "args": []},
        {"ph": "X", "cat": "python_function", "name": "forward", "ts": 1, "dur": 1, "args": {}},
    ):
        odd.events.insert(0, broken)
    assert read(odd).steps == read(plain).steps
    assert read(odd).collectives == read(plain).collectives


def test_a_device_that_says_nothing_of_its_group_leaves_it_unknown() -> None:
    silent = decoder()
    silent.header |= {"distributedInfo": {"rank": -1, "world_size": "many"}}
    assert read_kineto(pieces(silent.text())).ranks is None
    silent.header |= {"distributedInfo": None, "deviceProperties": None}
    found = read_kineto(pieces(silent.text()))
    assert (found.rank, found.ranks, found.devices) == (None, None, 0)


def test_sizes_that_are_no_numbers_and_unknown_types_are_not_taken() -> None:
    made = decoder()
    for event in made.events:
        if event["name"] == AR:
            event["args"] |= {"In msg nelems": (1 << 64) - 1, "dtype": "Strange", "Group size": None}
    calls = read_kineto(pieces(made.text())).calls
    assert {(call.elements, call.element, call.ranks) for call in calls} == {(-1, "", 0)}
