"""The simulated model's tokenizer: simple, fixed, and reversible without a vocabulary.

A token is a run of one to six ASCII letters or digits, with the space before it if there is one; any other
character is a token of its own. Its id is its UTF-8 text read as a big-endian number (at most seven bytes),
so that text → ids → text is exact for any text and needs no table.
"""

import re
from collections.abc import Sequence
from itertools import accumulate

from knee.engine.request import Segments

_PIECE = re.compile(r" ?[A-Za-z0-9]{1,6}|[\s\S]")


def pieces(text: str) -> list[str]:
    """The tokens of `text` as text."""
    return _PIECE.findall(text)


def token_ids(text: str) -> list[int]:
    """The tokens of `text` as ids."""
    return [int.from_bytes(piece.encode("utf-8", "surrogatepass"), "big") for piece in pieces(text)]


def text_of(ids: Sequence[int]) -> str:
    """The text of `ids`; an id that is no token's is U+FFFD."""
    return "".join(_piece_of(number) for number in ids)


def _piece_of(number: int) -> str:
    size = max(1, (number.bit_length() + 7) // 8)
    if number < 0 or size > 7:
        return "\ufffd"
    return number.to_bytes(size, "big").decode("utf-8", "replace")


def shared_segments(tokens: Sequence[object], block_size: int, salt: str = "") -> Segments:
    """Whole blocks of `tokens` as the engine's segments: equal openings give equal segments.

    Each block is named by itself and all before it, as vLLM hashes blocks (v1/core/kv_cache_utils.py); `salt`
    is the request's `cache_salt`.
    """
    blocks = [tuple(tokens[at : at + block_size]) for at in range(0, len(tokens), block_size)]
    if blocks and len(blocks[-1]) < block_size:
        blocks.pop()
    names = accumulate(blocks, lambda before, block: hash((before, block)), initial=hash(salt))
    return tuple((name, block_size) for name in list(names)[1:])
