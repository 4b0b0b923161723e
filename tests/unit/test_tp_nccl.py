"""all_reduce_perf's outputs of several versions, interpolation and the fit of α_p and B_p."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from nccl_outputs import ERROR, HALF_ROWS, ITERATIONS, LAYOUTS, ROOT, WRONG

from analysis.tp.allreduce import Microbenchmark, NotFitted, fit_fabric, joined
from analysis.tp.cost import Fabric
from analysis.tp.nccl import BadNccl, read_nccl

BARE = "".join(ROOT.splitlines(keepends=True)[9:])  # the table without settings and ranks
ALONE = BARE.replace("39.32", " 0.00").replace("40.33", " 0.00").replace("8.19", "0.00").replace("8.55", "0.00")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_times(layout: str) -> None:
    run = read_nccl(LAYOUTS[layout].splitlines())
    assert (run.ranks, run.wrong, run.warnings) == (4, 0, ())
    measured = run.measured()
    assert [size for size, _ in measured.times] == [4096, 65536, 1048576]
    assert [took for _, took in measured.times] == pytest.approx([10e-6, 12e-6, 40e-6])
    in_place = [took for _, took in run.measured(in_place=True).times]
    assert in_place == pytest.approx([10e-6, 12e-6, 40e-6] if layout == "half_rows" else [9.5e-6, 11.5e-6, 39e-6])


def test_columns_of_single_iterations_are_those_of_their_side() -> None:
    first = read_nccl(ITERATIONS.splitlines()).rows[0]
    assert first.out_of_place is not None
    assert first.in_place is not None
    assert (first.out_of_place.p99_s, first.in_place.p99_s) == (pytest.approx(14e-6), pytest.approx(11.9e-6))
    assert (first.out_of_place.spread, first.in_place.spread) == (pytest.approx(0.085), pytest.approx(0.051))
    assert (first.element, first.out_of_place.wrong) == ("bfloat16", 0)


def test_a_blank_half_is_the_one_out_of_place() -> None:
    rows = read_nccl(HALF_ROWS.splitlines()).rows
    assert all(row.out_of_place is None and row.in_place is not None for row in rows)
    run = read_nccl(HALF_ROWS.splitlines())
    assert run.measured().warnings == ("3 rows have no out-of-place time: the in-place one counts",)
    assert run.measured(in_place=True).warnings == ()


def test_units_are_those_of_the_header() -> None:
    in_ms = ROOT.replace("(us)", "(ms)")
    assert read_nccl(in_ms.splitlines()).measured().times[0] == (4096, pytest.approx(10e-3))
    with pytest.raises(BadNccl, match=r"line 11: units .*: expected \(us\) and \(GB/s\)"):
        read_nccl(ROOT.replace("(us)", "(cycles)").splitlines())


def test_wrong_results_and_warnings_are_flagged_and_such_times_are_refused() -> None:
    run = read_nccl(WRONG.splitlines())
    assert run.wrong == 50
    assert [(row.line, row.wrong) for row in run.rows] == [(6, 0), (8, 50)]
    said = "\n".join(run.warnings)
    assert "line 2: Reducing maxBytes to 65536 due to memory limitation" in said
    assert "line 3: NCCL WARN socketProgress: Connection closed by remote peer" in said
    assert "line 10: Avg bus bandwidth" in said
    assert "1 row could not be read, the first in line 7" in said
    assert "\x1b" not in said
    with pytest.raises(BadNccl, match="line 8: 50 wrong results: repair the links first"):
        run.measured()


def test_a_layout_without_counts_is_wrong_by_its_closing_line() -> None:
    run = read_nccl(ERROR.replace("values : 0 OK", "values : 3 FAILED").splitlines())
    with pytest.raises(BadNccl, match="3 wrong results"):
        run.measured()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows of sizes and times in it"),
        ("\x00\x01 {", "no rows of sizes and times in it"),
        (ROOT.partition("        4096")[0], "a header, but no rows"),
        (ROOT + ROOT.replace("nGpus 4", "nGpus 2").replace("#  Rank  2", "#").replace("#  Rank  3", "#"),
         "runs of 2 and 4 ranks: pass each number of ranks as its own file"),
        (ROOT.replace("Rank  1", "Rank  0"), "line 5: rank 0 is listed twice, so each process measured alone: build"),
        (ROOT.replace("Rank  3 Group  0", "Rank  3 Group  1"), "line 10: groups of 1 and 3 ranks"),
        (ROOT.replace("nGpus 4", "nGpus 8"), "busbw/algbw is 1.50, not 2(p−1)/p = 1.75 of p = 8: no all-reduce"),
        (ROOT.partition("  65536")[0] + "\nbox: Test NCCL failure common.cu:1204 'unhandled cuda error'",
         "line 15: box: Test NCCL failure common.cu:1204 'unhandled cuda error': the test failed"),
        (ITERATIONS.replace("starting: all_reduce_perf", "starting: all_gather_perf"),
         "line 2: output of all_gather_perf: run all_reduce_perf"),
        (ROOT.replace(" time ", " cputime "), "CPU times of the launch (-C)"),
        (ROOT.replace("  sum", " none"), "its rows reduce nothing"),
        ("# nThread 1 nGpus 1 x\n" + ALONE, "it was measured on 1 rank"),
        ("# nThread 1 nGpus 8 x\n" + BARE, "busbw/algbw is 1.50, not 2(p−1)/p = 1.75 of p = 8: no all-reduce"),
        ('{"version": 2, "start_time": "2026-01-05"}', "JSON (of nccl-tests -J, perhaps): pass the text"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(BadNccl) as raised:
        read_nccl(text.splitlines())
    assert said in str(raised.value)
    assert str(raised.value).isprintable()


def test_ranks_follow_from_the_bandwidths_without_a_header() -> None:
    bare = [line for line in ROOT.splitlines() if "nThread" not in line and "Rank" not in line]
    assert read_nccl(bare).ranks == 4
    cut = read_nccl(bare[:-3])
    assert "ended early" in cut.warnings[0]
    unclear = read_nccl([line for line in bare if "26.21" not in line and "5.46" not in line])
    assert unclear.ranks is None


def test_ranks_that_mpi_started_follow_from_the_bandwidths_where_they_are_not_listed() -> None:
    for per_process in (1, 2, 4):
        assert read_nccl(f"# nThread 1 nGpus {per_process} x\n{BARE}".splitlines()).ranks == 4
    unclear = (
        BARE.replace("26.21", " 4.00").replace("26.89", " 4.00").replace(" 5.46", " 4.00").replace(" 5.70", " 4.00")
    )
    assert read_nccl(f"# nThread 1 nGpus 2 x\n{unclear}".splitlines()).ranks == 2


@pytest.mark.parametrize(
    ("number", "cell"),
    [*(("   12.00", cell) for cell in ("inf", "nan", "-1", "1e400", "1e-9", "1e13")),
     *(("   8.19      0", f"8.19 {cell}") for cell in ("inf", "nan", "-1", "1e400")),
     ("       65536  ", str(10**30))],
)  # fmt: skip
def test_what_no_collective_takes_is_no_row(number: str, cell: str) -> None:
    assert number in ROOT
    run = read_nccl(ROOT.replace(number, f" {cell} ").splitlines())
    assert [row.size_bytes for row in run.rows] == [4096, 1048576]
    assert run.warnings == ("1 row could not be read, the first in line 14",)


def test_a_file_of_many_rows_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.tp.nccl.MOST_ROWS", 2)
    with pytest.raises(BadNccl, match="line 15: more than 2 rows: pass the output of one run"):
        read_nccl(ROOT.splitlines())


def test_a_side_without_a_time_was_not_measured() -> None:
    run = read_nccl(ROOT.replace("   12.00", "    0.00").splitlines())
    assert [row.out_of_place is None for row in run.rows] == [False, True, False]
    assert run.measured().times[1] == (65536, pytest.approx(11.5e-6))


def test_lines_of_a_library_that_look_like_a_failure_are_none() -> None:
    said = "box:1:2 [0] NCCL INFO NET/Plugin: not compiled with CUDA failure handling"
    assert read_nccl([*ROOT.splitlines(), said]).warnings == ()


def test_repeatability_and_tuning_columns_are_passed_over() -> None:
    lines = []
    for line in ROOT.splitlines():
        cells = line.split()
        if "algbw" in cells:
            line = line.replace("#wrong", "#wrong #bitdiff") + " impl algo proto"
        elif cells and cells[0].isdecimal() and len(cells) == 13:
            line = " ".join([*cells[:9], "7", *cells[9:], "7", "ring", "N/A", "LL128"])
        lines.append(line)
    failed = "# Bitwise mismatches  : 14 FAILED"
    run = read_nccl([*lines, failed, "# Blocking Enabled: wait and barrier after each inner iteration (-m) "])
    assert [took for _, took in run.measured(in_place=True).times] == pytest.approx([9.5e-6, 11.5e-6, 39e-6])
    assert run.warnings[0].endswith("Bitwise mismatches  : 14 FAILED")
    assert "Blocking Enabled: wait and barrier" in run.warnings[1]
    prefixed = [f"[prterun-box-17@1,0]<stdout>: {line}" for line in lines]
    assert read_nccl(prefixed).measured().times == run.measured().times


def test_of_several_element_types_the_one_of_servers_counts() -> None:
    head, _, foot = ROOT.partition("# Out of bounds")
    row = " 4096 2048 bfloat16 sum -1 7.00 0.59 0.88 0 9.50 0.43 0.65 0"
    run = read_nccl([*head.splitlines(), row, *("# Out of bounds" + foot).splitlines()])
    assert run.measured().times == ((4096, pytest.approx(7e-6)),)
    assert run.warnings == ("several element types or operations: bfloat16 sum is used",)


def test_times_are_interpolated_in_between_and_nowhere_else() -> None:
    bench = Microbenchmark(ranks=4, times=((4096, 10e-6), (65536, 12e-6), (1048576, 40e-6)))
    assert bench.all_reduce_s((4096 + 65536) / 2) == pytest.approx(11e-6)
    assert bench.all_reduce_s(1048576) == 40e-6
    assert bench.all_reduce_s(4095) is None
    assert bench.all_reduce_s(1048577) is None


def test_interpolation_of_the_models_own_times_is_exact() -> None:
    fabric = Fabric(alpha_s=8e-6, bus_bytes_per_s=150e9)
    sizes = [1 << power for power in range(12, 26)]
    bench = Microbenchmark(ranks=4, times=tuple((size, fabric.all_reduce_s(size, 4)) for size in sizes))
    for size in (5000, 81920, 524288 * 1.41, 30_000_000):
        assert bench.all_reduce_s(size) == pytest.approx(fabric.all_reduce_s(size, 4), rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_fit_finds_the_constants_that_made_the_times(ranks: int) -> None:
    fabric = Fabric(alpha_s=8e-6, bus_bytes_per_s=150e9)
    sizes = [1 << power for power in range(3, 31)]
    noise = 1 + 0.02 * np.random.default_rng(5).standard_normal(len(sizes))
    exact = Microbenchmark(ranks=ranks, times=tuple((s, fabric.all_reduce_s(s, ranks)) for s in sizes))
    found = fit_fabric(exact)
    assert found.fabric.alpha_s == pytest.approx(8e-6, rel=1e-9)
    assert found.fabric.bus_bytes_per_s == pytest.approx(150e9, rel=1e-9)
    assert found.largest < 1e-9
    noisy = fit_fabric(
        Microbenchmark(
            ranks=ranks, times=tuple((s, t * float(f)) for (s, t), f in zip(exact.times, noise, strict=True))
        )
    )
    # 28 sizes of 2 % each, of which about half tell each constant
    assert noisy.fabric.alpha_s == pytest.approx(8e-6, rel=0.02)
    assert noisy.fabric.bus_bytes_per_s == pytest.approx(150e9, rel=0.03)
    assert 0.01 < noisy.rms < 0.03
    assert noisy.largest >= noisy.rms


def test_the_residuals_show_where_one_line_does_not_do() -> None:
    bench = Microbenchmark(ranks=4, times=((1024, 10e-6), (2048, 10e-6), (4096, 25e-6), (8192, 26e-6)))
    found = fit_fabric(bench)
    assert found.largest > 0.2
    assert found.largest_at_bytes in (1024, 2048, 4096)


@pytest.mark.parametrize(
    ("ranks", "times", "said"),
    [
        (None, ((1, 1.0), (2, 2.0), (3, 3.0)), "the number of ranks is not known"),
        (4, ((1, 1.0), (2, 2.0)), "2 sizes, 3 are needed"),
        (4, ((1024, 3e-6), (2048, 2e-6), (4096, 1e-6)), "larger payloads take no longer"),
    ],
)
def test_times_that_give_no_constants_are_refused(
    ranks: int | None, times: tuple[tuple[int, float], ...], said: str
) -> None:
    with pytest.raises(NotFitted, match=said):
        fit_fabric(Microbenchmark(ranks=ranks, times=times))


def test_a_start_up_time_is_never_below_zero() -> None:
    bench = Microbenchmark(ranks=2, times=((1000, 1e-6), (2000, 3e-6), (4000, 7e-6)))
    assert fit_fabric(bench).fabric.alpha_s == 0.0


def test_files_of_the_same_ranks_are_joined_by_the_median_of_a_size() -> None:
    parts = [Microbenchmark(ranks=2, times=((8, took), (16 + took, 1.0))) for took in (1, 2, 9)]
    assert joined(parts).times[0] == (8, 2)
    assert len(joined(parts).times) == 4
    doubtful = [replace(part, warnings=(text,)) for part, text in zip(parts, "aba", strict=True)]
    assert joined(doubtful).warnings == ("a", "b")
