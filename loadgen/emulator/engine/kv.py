"""The KV cache: a fixed number of blocks, prefixes found again by hash, the least recently used given up first.

Theory of operation. What a server keeps per block is kept here per *segment*: a run of consecutive blocks that one hash
key names, of which the first `cached` are in memory. A chain of segments is a prompt (its shared prefix, or one segment
a block where keys are block hashes); the rest of a sequence, its own end and its output, is private. This is exact, not
an approximation, for two reasons. Users of a segment always use it from its start, so what is pinned is [0, deepest
user). And blocks are freed last one first, so what is free of a segment was freed from its end downwards, and eviction
takes the end first: `cached` stays one number. The least-recently-used list then holds extents (segment, from, to)
in place of blocks, and a sequence costs a few operations however long it is. (One corner is left out: private blocks of
a preempted sequence behind a gap in its chain, which a server would keep as second copies, are forgotten at once.)

A block may be in a sequence's hands (held), or free; a free block may still be cached, and is evicted when taken.
`free` counts both kinds. With caching off nothing but `free` is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

__all__ = ["BlockPool", "Chain", "Lease", "Match"]

Chain = tuple[tuple[Hashable, int], ...]  # (hash key, number of full blocks), from the start of the prompt


@dataclass(slots=True, eq=False)
class _Segment:
    key: Hashable
    cached: int = 0
    pins: dict[int, int] = field(default_factory=dict)  # depth -> users that hold the first `depth` blocks
    pinned: int = 0  # the largest of them
    extents: list[_Extent] = field(default_factory=list)  # free and cached, the highest (oldest) first


@dataclass(slots=True, eq=False)
class _Extent:
    segment: _Segment | None  # None: nothing can be found in it
    low: int
    high: int


@dataclass(slots=True, eq=False)
class Lease:
    """What one sequence holds: a prefix of each of its chain's segments, and private blocks after them."""

    chain: Chain = ()
    parts: list[tuple[_Segment, int]] = field(default_factory=list)
    shared: int = 0  # blocks in `parts`
    held: int = 0  # all blocks
    branched: bool = False  # it computed blocks that were cached already: the rest is private
    own: _Segment | None = None  # after a preemption: the private blocks that may still be in memory
    own_from: int = 0


@dataclass(slots=True)
class Match:
    """What a lookup found: `blocks` from the start, of which `idle` are free now and would be taken out of `free`."""

    blocks: int
    idle: int
    parts: list[tuple[_Segment, int]]
    own: int


@dataclass(slots=True)
class BlockPool:
    """All blocks of one engine."""

    total: int
    caching: bool
    free: int = field(init=False)
    _segments: dict[Hashable, _Segment] = field(init=False, default_factory=dict)
    _lru: OrderedDict[_Extent, None] = field(init=False, default_factory=OrderedDict)
    _unevicted: int = field(init=False, default=0)  # taken, but not out of `_lru` yet

    def __post_init__(self) -> None:
        self.free = self.total
        if self.caching:
            self._lru[_Extent(None, 0, self.total)] = None

    def match(self, lease: Lease, limit: int) -> Match:
        """The longest cached beginning of the lease's chain, `limit` blocks at most."""
        if self.caching:
            self._evict()
        found = idle = own = 0
        parts: list[tuple[_Segment, int]] = []
        for key, blocks in lease.chain if self.caching else ():
            segment = self._segments.get(key)
            depth = min(segment.cached, blocks, limit - found) if segment else 0
            if segment is None or depth <= 0:
                break
            parts.append((segment, depth))
            found += depth
            if depth > segment.pinned:
                idle += depth - segment.pinned
            if depth < blocks:
                break
        if lease.own is not None and lease.own_from == found:
            own = max(0, min(lease.own.cached, limit - found))
        return Match(found + own, idle + own, parts, own)

    def open(self, lease: Lease, match: Match) -> None:
        """Give the lease what `match` found (on a pool unchanged since)."""
        for segment, depth in match.parts:
            self._pin(segment, depth)
        lease.parts, lease.shared = match.parts, match.blocks - match.own
        lease.held, lease.branched = match.blocks, match.own > 0
        if lease.own is not None:
            if match.own:
                self._pin(lease.own, match.own)
            for extent in lease.own.extents:
                extent.segment = None
            lease.own = None

    def grow(self, lease: Lease, held: int, full: int) -> None:
        """Extend the lease to `held` blocks, of which `full` are filled: those of its chain can be found from now on.

        The caller has checked that `held - lease.held` blocks are free.
        """
        self.take(held - lease.held)
        lease.held = held
        if not self.caching or lease.branched or not lease.chain:
            return
        self._evict()
        while lease.shared < full:
            at, depth = len(lease.parts), 0
            if at and lease.parts[-1][1] < lease.chain[at - 1][1]:
                at -= 1
                depth = lease.parts[-1][1]
            if at == len(lease.chain):
                return
            key, blocks = lease.chain[at]
            segment = lease.parts[at][0] if depth else self._segments.setdefault(key, _Segment(key))
            if segment.cached > depth:
                lease.branched = True
                return
            more = min(blocks - depth, full - lease.shared)
            if depth:
                _unpin(segment, depth)
                lease.parts.pop()
            segment.pins[depth + more] = segment.pins.get(depth + more, 0) + 1
            segment.cached = segment.pinned = depth + more
            lease.parts.append((segment, depth + more))
            lease.shared += more

    def take(self, blocks: int) -> None:
        """Take free blocks; what is cached in the least recently used of them is evicted before anybody looks."""
        self.free -= blocks
        self._unevicted += blocks

    def _evict(self) -> None:
        """Evict what was taken since the last time: takes in a row cost one eviction."""
        blocks, self._unevicted = self._unevicted, 0
        while blocks > 0:
            extent = next(iter(self._lru))
            size = extent.high - extent.low
            if size <= blocks:
                del self._lru[extent]
                blocks -= size
                extent.high = extent.low
            else:
                extent.high -= blocks
                blocks = 0
            segment = extent.segment
            if segment is None:
                continue
            if extent.high == extent.low:
                del segment.extents[0]
            segment.cached = min(segment.cached, extent.high)
            if not segment.cached and not segment.pins:
                self._segments.pop(segment.key, None)

    def close(self, lease: Lease, held: int, full: int, *, keep: bool) -> None:
        """Free everything, the last block first. `keep`: the sequence returns and may find its own blocks again."""
        private = held - lease.shared
        self.free += private
        if not self.caching:
            lease.held = 0
            return
        self._evict()
        # a block of the chain that was cached but computed again (its last, for the sampled token) cannot be found
        twice = min(private, sum(blocks for _, blocks in lease.chain) - lease.shared) if lease.branched else 0
        first = lease.shared + twice
        own = _Segment(lease, max(0, full - first)) if keep else None
        if private > twice:
            extent = _Extent(own, 0, private - twice)
            self._lru[extent] = None
            if own is not None:
                own.extents.append(extent)
        if twice:
            self._lru[_Extent(None, 0, twice)] = None
        lease.own, lease.own_from = own, first
        for segment, depth in reversed(lease.parts):
            _unpin(segment, depth)
            pinned = segment.pinned
            if depth > pinned:
                self.free += depth - pinned
                extent = _Extent(segment, pinned, depth)
                self._lru[extent] = None
                segment.extents.append(extent)
        lease.parts, lease.shared, lease.held = [], 0, 0

    def reset(self) -> bool:
        """Forget everything cached; refused (False) while blocks are held."""
        if self.free != self.total:
            return False
        self._unevicted = 0
        for extent in self._lru:
            extent.segment = None
        if self.caching:
            self._segments.clear()
            self._lru = OrderedDict({_Extent(None, 0, self.total): None})
        return True

    def _pin(self, segment: _Segment, depth: int) -> None:
        """Hold the first `depth` blocks, all of them cached; those that were free leave the list."""
        pinned = segment.pinned
        segment.pinned = max(pinned, depth)
        while pinned < depth:
            extent = segment.extents[-1]
            pinned_to = min(extent.high, depth)
            self.free -= pinned_to - pinned
            pinned = extent.low = pinned_to
            if extent.low == extent.high:
                segment.extents.pop()
                del self._lru[extent]
        segment.pins[depth] = segment.pins.get(depth, 0) + 1


def _unpin(segment: _Segment, depth: int) -> None:
    users = segment.pins[depth] - 1
    if users:
        segment.pins[depth] = users
        return
    del segment.pins[depth]
    if depth == segment.pinned:
        segment.pinned = max(segment.pins, default=0)
