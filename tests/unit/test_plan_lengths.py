from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadgen.common.errors import UsageError
from loadgen.plan.lengths import DrawnLengths, Lengths, parse_law, read_lengths
from loadgen.plan.seeds import stream


def draw(lengths: Lengths, count: int = 20_000, seed: int = 1) -> DrawnLengths:
    return lengths.draw(stream(seed, "lengths"), count)


def sample(text: str, count: int = 20_000) -> np.ndarray:
    return draw(Lengths(input=parse_law(text)), count).input_tokens


def test_a_number_is_a_fixed_length() -> None:
    assert set(sample("1024")) == {1024}


def test_uniform_has_both_its_ends_and_equal_chances() -> None:
    values, counts = np.unique(sample("uniform:3..7", 50_000), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7]
    assert np.all(np.abs(counts - 10_000) < 4 * np.sqrt(50_000 * 0.2 * 0.8))


def test_normal_has_its_mean_and_spread() -> None:
    values = sample("normal:500,50")
    assert abs(values.mean() - 500) < 4 * 50 / np.sqrt(values.size)
    assert abs(values.std() - 50) < 4 * 50 / np.sqrt(2 * values.size)


def test_lognormal_has_its_median_and_sigma() -> None:
    logs = np.log(sample("lognormal:800,0.5"))
    assert abs(np.median(logs) - np.log(800)) < 4 * 1.2533 * 0.5 / np.sqrt(logs.size)
    assert abs(logs.std() - 0.5) < 4 * 0.5 / np.sqrt(2 * logs.size)


@pytest.mark.parametrize("text", ["normal:100,80,50..120", "lognormal:100,1,50..120"])
def test_a_cut_law_heaps_nothing_up_at_its_ends(text: str) -> None:
    values, counts = np.unique(sample(text, 70_000), return_counts=True)
    assert (values[0], values[-1]) == (50, 120)
    for end, inner in ((counts[0], counts[1:4].mean()), (counts[-1], counts[-4:-1].mean())):
        assert abs(end - inner) < 5 * np.sqrt(inner)


def test_a_spread_of_zero_is_a_fixed_length() -> None:
    assert set(sample("normal:77,0")) == {77}
    assert set(sample("lognormal:77,0,1..100")) == {77}


@pytest.mark.parametrize(
    "text",
    ["", "0", "-5", "1.5", "ten", "uniform:5..2", "uniform:0..4", "uniform:5", "normal:5", "normal:-3,1",
     "normal:5,1,9..2", "normal:10,1,500..600", "lognormal:0,1", "lognormal:5,0,9..12", "zipf:1,2",
     "99999999999", "file:x.csv"],
)  # fmt: skip
def test_a_law_that_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_law(text)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_request_i_has_its_lengths_whatever_comes_after_it_and_whatever_the_other_side_does() -> None:
    lengths = Lengths(input=parse_law("lognormal:300,1"), output=parse_law("uniform:1..500"))
    few, many = draw(lengths, 100), draw(lengths, 1000)
    assert np.array_equal(few.input_tokens, many.input_tokens[:100])
    assert np.array_equal(few.output_tokens, many.output_tokens[:100])
    other = draw(Lengths(input=parse_law("lognormal:300,1"), output=parse_law("normal:90,10")), 100)
    assert np.array_equal(few.input_tokens, other.input_tokens)


def test_shared_prefixes_are_part_of_the_input_and_come_in_groups() -> None:
    drawn = draw(Lengths(input=parse_law("uniform:50..200"), shared_prefix=100, prefix_groups=4))
    assert np.array_equal(drawn.prefix_tokens, np.minimum(100, drawn.input_tokens - 1))
    values, counts = np.unique(drawn.prefix_group, return_counts=True)
    assert values.tolist() == [0, 1, 2, 3]
    assert np.all(np.abs(counts - 5000) < 4 * np.sqrt(20_000 * 0.25 * 0.75))
    plain = draw(Lengths(input=parse_law("uniform:50..200")))
    assert set(plain.prefix_group) == {-1}
    assert set(plain.prefix_tokens) == {0}
    assert np.array_equal(plain.input_tokens, drawn.input_tokens)


def test_a_prefix_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing of their own"):
        Lengths(input=parse_law("100"), shared_prefix=100)
    with pytest.raises(ValueError, match="0 or more"):
        Lengths(shared_prefix=-1)
    with pytest.raises(ValueError, match="1 or more groups"):
        Lengths(prefix_groups=0)


def write(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", "10,20\n30,40\n", [[10, 20, 0], [30, 40, 0]]),
        ("a.csv", "\ufeffinput,output,cached_prefix\r\n10,20,5\r\n\r\n30,40,0", [[10, 20, 5], [30, 40, 0]]),
        ("a.csv", "output_tokens, input_tokens\n20,10\n", [[10, 20, 0]]),
        ("a.csv", '"10"," 20 ",3\n', [[10, 20, 3]]),
        ("a.jsonl", '[10,20]\n\n{"output":40,"input":30,"cached_prefix":7}\r\n', [[10, 20, 0], [30, 40, 7]]),
    ],
)
def test_files_of_lengths_are_read(tmp_path: Path, name: str, content: str, rows: list[list[int]]) -> None:
    assert read_lengths(write(tmp_path, name, content)).rows.tolist() == rows


def test_rows_are_drawn_whole(tmp_path: Path) -> None:
    table = read_lengths(write(tmp_path, "a.csv", "10,1000,4\n1000,10,0\n5,5,5\n"))
    drawn = draw(Lengths(table=table), 9000)
    rows = np.column_stack((drawn.input_tokens, drawn.output_tokens, drawn.prefix_tokens, drawn.prefix_group))
    values, counts = np.unique(rows, axis=0, return_counts=True)
    # the last row's prefix is its whole input: one token stays its own
    assert values.tolist() == [[5, 5, 4, 0], [10, 1000, 4, 0], [1000, 10, 0, -1]]
    assert np.all(np.abs(counts - 3000) < 4 * np.sqrt(9000 * 2 / 9))
    assert Lengths(table=table).output_max == 1000
    with pytest.raises(ValueError, match="prefixes of its own"):
        Lengths(table=table, shared_prefix=2)


@pytest.mark.parametrize(
    ("name", "content", "where", "what"),
    [
        ("a.csv", "", "", "no rows"),
        ("a.csv", "\n\n", "", "no rows"),
        ("a.csv", "input,output\n", "", "no rows"),
        ("a.csv", b"\xff\xfe1\x00,\x002\x00", "", "not UTF-8"),
        ("a.csv", "10,20\n10\n", ":2", "1 values where the first row has 2"),
        ("a.csv", "10,20\n10,20,30\n", ":2", "3 values"),
        ("a.csv", "10\n", ":1", "a row is input,output"),
        ("a.csv", "1,2,3,4\n", ":1", "a row is input,output"),
        ("a.csv", "input,outputs\n1,2\n", ":1", "unknown column 'outputs'"),
        ("a.csv", "input,prefix\n1,2\n", ":1", "no output column"),
        ("a.csv", "input,output,input_tokens\n1,2,3\n", ":1", "given twice"),
        ("a.csv", "10,20\n10,x\n", ":2", "output 'x' is not a whole number"),
        ("a.csv", "10,20\n10,\n", ":2", "output '' is not a whole number"),
        ("a.csv", "10,20\n1.5,3\n", ":2", "input '1.5'"),
        ("a.csv", "10,20\n-1,3\n", ":2", "input '-1'"),
        ("a.csv", "10,20\nnan,3\n", ":2", "input 'nan'"),
        ("a.csv", "10,20\n0,3\n", ":2", "at least 1 token"),
        ("a.csv", "10,20\n3,0\n", ":2", "at least 1 token"),
        ("a.csv", "10,20,0\n10,20,11\n", ":2", "longer than the input"),
        ("a.csv", "10,20\n99999999,20\n", ":2", "more than 10,000,000"),
        ("a.csv", "10,20\n1" + "0" * 300 + ",20\n", ":2", "is not a whole number"),
        ("a.csv", '10,20\n"10,20\n', "", "unexpected end"),
        ("a.csv", "10,20\n1\x1b[31m,20\n", ":2", "'1\\x1b[31m'"),
        ("a.csv", "10,20\n1\x00,20\n", ":2", ""),
        ("a.jsonl", "[1,2]\n{\n", ":2", "not JSON"),
        ("a.jsonl", "[1,2]\n7\n", ":2", "neither a list nor an object"),
        ("a.jsonl", "[1,2]\nnull\n", ":2", "neither a list nor an object"),
        ("a.jsonl", "[1,2]\n[1]\n", ":2", "a row is input,output"),
        ("a.jsonl", "[1,2]\n[1,true]\n", ":2", "output True"),
        ("a.jsonl", "[1,2]\n[1,2.0]\n", ":2", "output 2.0"),
        ("a.jsonl", "[1,2]\n[1,[2]]\n", ":2", "output [2]"),
        ("a.jsonl", '[1,2]\n{"input":1}\n', ":2", "no output column"),
        ("a.jsonl", '[1,2]\n{"input":1,"output":2,"id":3}\n', ":2", "unknown column 'id'"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_its_line(
    tmp_path: Path, name: str, content: str | bytes, where: str, what: str
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(UsageError) as caught:
        read_lengths(path)
    text = str(caught.value)
    assert text.startswith(f"{path}{where}: " if where else str(path))
    assert what in text
    assert text.isprintable()
    assert len(text) < len(str(path)) + 160


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(UsageError, match="give a CSV or JSONL file"):
            read_lengths(path)


def test_a_long_draw_is_made_in_parts_and_is_the_same() -> None:
    lengths = Lengths(input=parse_law("uniform:1..9"), output=parse_law("lognormal:150,1"), prefix_groups=3)
    whole = lengths.draw(np.random.default_rng(5), 150_000)
    uniforms = np.random.default_rng(5).random((150_000, 4))
    assert np.array_equal(whole.input_tokens, lengths.input.at(uniforms[:, 0]))
    assert np.array_equal(whole.output_tokens, lengths.output.at(uniforms[:, 1]))
