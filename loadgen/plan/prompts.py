"""Prompts: token ids or words that are a pure function of the content seed, the request and the position.

There is no generator to advance. Token j of request i is a hash of (content seed, i, j) by SplitMix64 (Steele, Lea and
Flood, 2014): the request's key is a hash of seed and index, and its tokens are the outputs 1, 2, ... of SplitMix64
started at that key. So any worker makes any request, in any order, and gets the same bytes. A shared prefix is keyed by
its group in place of the request, so a shorter prefix of a group is the beginning of a longer one.

A recorded prompt is made of blocks, each keyed by its id and the content seed; the position counts from the block's
start. So equal ids give equal tokens wherever they stand, a partial block is the beginning of a
longer one of the same id, and under another content seed no block is like any of these.

Prompts differ from their first own token on. Two requests agree in a whole block of 16 ids of a range of 3,000 with
odds of 3000^-16, which no run ever sees.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from loadgen.plan.types import ExactText, Int64s, RunPlan
from traces.trace import BlockHashes

__all__ = ["CONTENT_VERSION", "WORDS", "Prompts"]

CONTENT_VERSION: Final = 1  # raised whenever the same plan would give other bytes; part of the workload hash

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_OWN, _SHARED, _BLOCK = 0x6F776E, 0x736861726564, 0x626C6F636B  # keep the keys of requests, groups and blocks apart

Uint64s = npt.NDArray[np.uint64]

# 256 short common words, one token each (with the space before) in the usual BPE vocabularies. So the number of tokens
# of a text is about its number of words; only the server's own tokenizer can say it exactly.
WORDS: Final[tuple[str, ...]] = tuple(
    """
    able about above across act add age ago air all allow also am among an and animal answer any appear are area arm
    art as ask at away baby back bad ball bank base be bear beat bed been before begin behind believe best better big
    bird bit black blood blue board boat body book born both box boy break bring brother brown build burn bus business
    but buy by call came can car card care carry case catch cause center change check child city class clean clear
    close coast cold color come common cook cool copy corn corner cost could count country course cover cross cry
    current cut dance dark day dead deal deep did die differ direct do doctor dog door down draw dream dress drink
    drive dry during each ear early earth east eat edge eight else end engine enough even ever every eye face fact
    fair fall family far farm fast father fear feel feet few field fight fill final find fine finger fire first fish
    five flat floor flow fly follow food foot for force form four free fresh friend from front full fun game garden
    gas gave get girl give glass go gold good got gray great green ground group grow gun had hair half hand happy hard
    hat have head hear heart heat heavy held help her here high hill him his hit hold hole home hope horse hot hour
    house how huge human hundred ice idea if inch into iron island it job join joy jump just keep
    """.split()  # noqa: SIM905 - 256 quoted words would be unreadable
)


def _mix(state: Uint64s) -> Uint64s:
    """SplitMix64's finaliser, in place."""
    state ^= state >> np.uint64(30)
    state *= _MIX_1
    state ^= state >> np.uint64(27)
    state *= _MIX_2
    state ^= state >> np.uint64(31)
    return state


def _keys(content_seed: int, indices: Int64s, domain: int) -> Uint64s:
    """One 64-bit key for each request or group."""
    base = _mix(np.array([(content_seed ^ domain) & _MASK], dtype=np.uint64) + np.uint64(_GAMMA))
    return _mix(_mix(indices.astype(np.uint64) * np.uint64(_GAMMA) + base))


def _scaled(state: Uint64s, low: int, width: int) -> Uint64s:
    """Ids in [low, low + width) from the high halves: bias below width/2^32."""
    state >>= np.uint64(32)
    state *= np.uint64(width)
    state >>= np.uint64(32)
    state += np.uint64(low)
    return state


class Prompts:
    """The prompts of one plan: one key a request, and no state that depends on the order in which it is asked."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._own = _keys(plan.content_seed, np.arange(len(plan)), _OWN)
        self._shared = _keys(plan.content_seed, plan.prefix_group, _SHARED)
        self._blocks = plan.blocks
        longest = int(plan.input_tokens.max(initial=0))
        if plan.blocks is not None:
            longest = max(longest, plan.blocks.block_tokens)
            self._block_keys = _keys(plan.content_seed, plan.blocks.ids, _BLOCK)
        self._counters = np.arange(1, longest + 1, dtype=np.uint64) * np.uint64(_GAMMA)  # (j + 1)·γ for every request

    def ids(self, index: int) -> Uint64s:
        """Token ids of request `index`, shape (input tokens,): the shared prefix, then its own."""
        low, high = self._plan.format.token_ids
        return self._row(index, low, high - low)

    def words(self, index: int) -> tuple[str, str]:
        """Shared prefix and own text of request `index`.

        As many tokens as planned where the format knows exact texts, else as many words: about one token a word. A
        recorded prompt is one text: what it shares with others differs from request to request.
        """
        shared = int(self._plan.prefix_tokens[index]) if self._blocks is None else 0
        if self._plan.format.text is not None:
            return self._exact(self._plan.format.text, index, shared)
        words = [WORDS[i] for i in self._row(index, 0, len(WORDS)).tolist()]
        return " ".join(words[:shared]), " ".join(words[shared:])

    def _exact(self, text: ExactText, index: int, shared: int) -> tuple[str, str]:
        """A prompt below its overhead is the opener alone, and as much longer than planned."""
        words = [text.words[i] for i in self._row(index, 0, len(text.words)).tolist()]
        of_shared, of_own = words[:shared], words[shared:]
        if not shared or self._plan.format.endpoint == "completions":
            begun = of_shared[: max(shared - text.overhead_tokens, 0)]
            rest = max(len(words) - text.overhead_tokens - len(begun), 0)
            return "", text.opener + "".join(begun) + "".join(of_own[:rest])
        room = max(len(words) - text.shared_overhead_tokens, 0)
        begun = of_shared[: min(max(shared - text.shared_overhead_tokens + text.overhead_tokens, 0), room)]
        return text.opener + "".join(begun), text.opener + "".join(of_own[: room - len(begun)])

    def tail_ids(self, count: int) -> Int64s:
        """The last `count` token ids of every request at once, shape (n, count), zeros before a shorter prompt.

        What `ids` ends with, without making the prompts: a simulated server draws its service from these.
        """
        plan = self._plan
        low, high = plan.format.token_ids
        position = plan.input_tokens[:, None] - count + np.arange(count)
        shared, first = self._shared_part()
        own = position >= shared[:, None]
        counter = np.where(own, position - shared[:, None], position) + 1
        if self._blocks is None:
            keys = np.where(own, self._own[:, None], self._shared[:, None])
        else:
            number, within = np.divmod(np.maximum(position, 0), self._blocks.block_tokens)
            counter = np.where(own, counter, within + 1)
            place = np.minimum(first[:, None] + number, max(self._block_keys.size - 1, 0))
            keys = np.where(own, self._own[:, None], self._block_keys[place] if self._block_keys.size else 0)
        ids = _scaled(_mix(counter.astype(np.uint64) * np.uint64(_GAMMA) + keys), low, high - low).astype(np.int64)
        ids[position < 0] = 0
        return ids

    def _shared_part(self) -> tuple[Int64s, Int64s]:
        """How many tokens of each prompt are not its own, and the place of its first block key, both of shape (n,)."""
        if self._blocks is None:
            return self._plan.prefix_tokens, self._plan.prefix_group
        covered = np.minimum(self._blocks.counts * self._blocks.block_tokens, self._plan.input_tokens)
        return covered, self._blocks.starts[:-1]

    def _row(self, index: int, low: int, width: int) -> Uint64s:
        if self._blocks is not None:
            return self._recorded_row(self._blocks, index, low, width)
        shared = int(self._plan.prefix_tokens[index])
        count = int(self._plan.input_tokens[index]) - shared
        own = _scaled(_mix(self._counters[:count] + self._own[index : index + 1]), low, width)
        if shared == 0:
            return own
        prefix = _scaled(_mix(self._counters[:shared] + self._shared[index : index + 1]), low, width)
        return np.concatenate((prefix, own))

    def _recorded_row(self, blocks: BlockHashes, index: int, low: int, width: int) -> Uint64s:
        total, size = int(self._plan.input_tokens[index]), blocks.block_tokens
        keys = self._block_keys[blocks.starts[index] : blocks.starts[index + 1]]
        state = (self._counters[:size] + keys[:, None]).ravel()[:total]
        own = self._counters[: total - state.size] + self._own[index : index + 1]
        return _scaled(_mix(np.concatenate((state, own))), low, width)
