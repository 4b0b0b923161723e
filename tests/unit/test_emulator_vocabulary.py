"""The emulator's tokenizer loses nothing, in either direction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgen.emulator.vocabulary import decode, encode, piece
from loadgen.plan.prompts import WORDS

words = st.sampled_from(["able", " about", " Bababa", " Zuzuzu", "\n", "\u00e9", " ", "Babe", "\ufffd", "<|user|>"])


@given(st.lists(st.one_of(words, st.text(st.characters(exclude_categories=["Cs"]), max_size=5))).map("".join))
def test_every_text_comes_back(text: str) -> None:
    ids = encode(text, 32000)
    assert decode(ids.tolist()) == text
    assert (ids < 32000).all()


@given(st.lists(st.integers(512, 999_999)))
def test_words_come_back_as_the_ids_they_were_made_of(ids: list[int]) -> None:
    assert encode(decode(ids), 1_000_000).tolist() == ids


def test_common_words_are_a_token_each_and_a_small_vocabulary_spells_the_rest() -> None:
    assert len(encode(" ".join(WORDS), 32000)) == len(WORDS)
    assert len({piece(token_id) for token_id in range(20_000)}) == 20_000
    made_up = piece(30_000).decode()
    assert encode(made_up, 2048).tolist() == list(made_up.encode())
    assert decode(encode("\ud800", 2048).tolist()) == "\ufffd" * 3  # half a character, as hostile JSON can hold it
