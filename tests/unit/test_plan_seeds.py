from __future__ import annotations

import hashlib

import numpy as np
import pytest

from loadgen.plan.seeds import derive, fresh_roots, parse_seeds, salt, stream


def test_a_stream_is_the_seed_sequence_of_root_and_name() -> None:
    word = int.from_bytes(hashlib.sha256(b"lengths").digest()[:8], "big")
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, word]))).random(8)
    assert np.array_equal(stream(7, "lengths").random(8), expected)
    assert not np.array_equal(stream(7, "arrivals").random(8), expected)
    assert not np.array_equal(stream(7, "lengths", extra="x").random(8), expected)


def test_an_unknown_stream_or_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="no stream"):
        stream(1, "prompts")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        stream(-1, "arrivals")
    with pytest.raises(ValueError, match="negative"):
        derive(-1, "roots", 1)


def test_asking_for_more_seeds_keeps_the_first() -> None:
    assert derive(3, "roots", 12)[:5] == derive(3, "roots", 5)
    assert len(set(derive(3, "roots", 2000))) == 2000
    assert derive(3, "roots", 0) == ()


def test_kinds_and_masters_are_apart() -> None:
    everything = [
        seed
        for master in range(20)
        for kind in ("roots", "confirm/0", "confirm/1", "spares", "sentinel")
        for seed in derive(master, kind, 12)
    ]
    everything += [seed for rate in range(20) for seed in fresh_roots(1, rate, 12)]
    assert len(set(everything)) == len(everything)


def test_a_seed_already_taken_is_passed_over() -> None:
    first, second, third = derive(3, "spares", 3)
    assert derive(3, "spares", 2, taken=(first,)) == (second, third)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("101..104", (101, 102, 103, 104)),
        ("1,5,9", (1, 5, 9)),
        ("7", (7,)),
        (" 3 , 5 .. 6 ", (3, 5, 6)),
        ("9..9", (9,)),
    ],
)
def test_seed_lists_are_read(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text, count=len(seeds)) == seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a list of seeds"),
        ("1,,2", "not a list of seeds"),
        ("a", "not a list of seeds"),
        ("-1", "not a list of seeds"),
        ("1.5", "not a list of seeds"),
        ("١", "not a list of seeds"),
        ("112..101", "run backwards; write 101..112"),
        ("1,2,1", "seed 1 is named twice"),
        ("1..5,3", "seed 3 is named twice"),
        ("0..99999999999", "more than 10000"),
        ("99999999999999999999", "too large"),
    ],
)
def test_other_seed_lists_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_seeds(text)
    assert "\n" not in str(caught.value)


def test_as_many_seeds_as_runs() -> None:
    with pytest.raises(ValueError, match="12 seeds for 5 runs"):
        parse_seeds("101..112", count=5)


def test_salt_is_of_all_five() -> None:
    base = salt("exp", "tp1", 6, 3, 0)
    others = {
        salt("exq", "tp1", 6, 3, 0), salt("exp", "tp2", 6, 3, 0), salt("exp", "tp1", 6.5, 3, 0),
        salt("exp", "tp1", 6, 4, 0), salt("exp", "tp1", 6, 3, 1), salt("ex", "ptp1", 6, 3, 0),
    }  # fmt: skip
    assert len(others | {base}) == 7
    assert base == salt("exp", "tp1", 6.0, 3, 0)
    assert base == hashlib.sha256(b'["exp","tp1",6.0,3,0]').hexdigest()[:16]
