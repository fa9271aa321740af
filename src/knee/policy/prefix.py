"""Which replica has lately seen how much of a prompt, as far as a router can know from request bodies.

Each vLLM replica caches KV blocks by prefix. The router sees bytes, not tokens, so it chains a checksum over
fixed blocks of the body from its first prompt field on: equal leading blocks are equal leading text. The
index is a bounded LRU; what it forgets costs a cache hit, never a wrong answer.
"""

import re
from collections import OrderedDict
from zlib import crc32

BLOCK_BYTES = 512
MOST_BLOCKS = 64
MOST_REPLICAS = 4

_PROMPT = re.compile(rb'"(?:messages|prompt|input)"\s*:')


def prefix_keys(body: bytes) -> tuple[int, ...]:
    """One key for each whole block of the prompt's beginning; none for a short prompt.

    What stands before the prompt field (the model's name, sampling parameters) does not count. Keys are
    32-bit checksums: two prompts that collide share a preference, nothing more.
    """
    found = _PROMPT.search(body)
    if found is None:
        return ()
    start = found.end()
    key, keys = 0, []
    for at in range(start, min(len(body), start + BLOCK_BYTES * MOST_BLOCKS) - BLOCK_BYTES + 1, BLOCK_BYTES):
        key = crc32(body[at : at + BLOCK_BYTES], key)
        keys.append(key)
    return tuple(keys)


class PrefixIndex:
    """key → the replicas that were last given a prompt with that beginning, newest last."""

    def __init__(self, most_keys: int = 65_536) -> None:
        self._most_keys = most_keys
        self._seen: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def matched(self, keys: tuple[int, ...]) -> dict[str, int]:
        """For each replica that has seen any, how many leading blocks of `keys` it has seen."""
        blocks: dict[str, int] = {}
        for depth, key in enumerate(keys):
            holders = [name for name in self._seen.get(key, ()) if blocks.get(name, 0) == depth]
            if not holders:
                break
            for name in holders:
                blocks[name] = depth + 1
        return blocks

    def record(self, keys: tuple[int, ...], replica: str) -> None:
        """`replica` is given a prompt with `keys`."""
        for key in keys:
            others = tuple(name for name in self._seen.get(key, ()) if name != replica)
            self._seen[key] = (*others[-(MOST_REPLICAS - 1) :], replica)
            self._seen.move_to_end(key)
        while len(self._seen) > self._most_keys:
            self._seen.popitem(last=False)
