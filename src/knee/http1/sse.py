"""Server-sent events, as they come off the wire in pieces of any size.

After the WHATWG HTML standard, section 9.2.6: lines end in LF, CRLF or CR; a blank line ends an event; lines
that begin with a colon are comments (vLLM's keep-alives); several `data` lines are one text with line
breaks. Only `data` is kept: nothing that vLLM speaks needs `event`, `id` or `retry`.
"""

EVENT_LIMIT = 10 * 1024 * 1024


class SseError(ValueError):
    """The stream cannot be events within the limits."""


class SseParser:
    """Give it bytes, get the data of every event that they complete.

    How the bytes are cut, be it inside a character or between CR and LF, makes no difference. What is kept
    between calls is at most `limit` bytes.
    """

    __slots__ = ("_begun", "_block", "_limit", "_skip_lf")

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        self._block = bytearray()
        self._limit = limit
        self._begun = False
        self._skip_lf = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that ends in `data`, in order.

        Raises:
            SseError: an event grows beyond the limit.
        """
        if not self._block and self._begun and data[-2:] == b"\n\n" and b"\r" not in data:
            return self._whole_blocks(data[:-2])
        data = self._normalised(data)
        searched = max(0, len(self._block) - 1)
        self._block += data
        end = self._block.rfind(b"\n\n", searched)
        if end < 0:
            if len(self._block) > self._limit:
                raise SseError(f"an event of more than {self._limit} bytes")
            return []
        events = self._whole_blocks(bytes(self._block[:end]))
        del self._block[: end + 2]
        return events

    def feed_plain(self, pieces: list[bytes]) -> list[bytes] | None:
        """The data of `pieces` where each is one event of one `data` line; else None, and none is fed.

        So all pieces of nearly all streams are, and seeing it costs a tenth of feeding them one by one.
        """
        if self._block or not pieces:  # with none nothing has begun
            return None
        for piece in pieces:
            length = len(piece)
            if piece[:6] != b"data: " or piece[-2:] != b"\n\n" or piece.find(b"\n") != length - 2:
                return None
            if b"\r" in piece or length - 2 > self._limit:
                return None
        self._begun, self._skip_lf = True, False
        return [piece[6:-2] for piece in pieces]

    def flush(self) -> list[bytes]:
        """The event that the end of the stream left without its blank line, if its last line is whole.

        The standard drops it; some proxies cut the blank line after the last event.
        """
        rest, self._block = bytes(self._block), bytearray()
        return self._whole_blocks(rest) if rest.endswith(b"\n") else []

    @property
    def rest(self) -> bytes:
        """What has come of an event that is not whole yet."""
        return bytes(self._block)

    def _normalised(self, data: bytes) -> bytes:
        """`data` with every line end as LF, and without a byte order mark at the start of the stream."""
        if not self._begun and data:
            self._block += data
            if len(self._block) < 3 and b"\xef\xbb\xbf".startswith(self._block):
                return b""
            self._begun = True
            data = bytes(self._block).removeprefix(b"\xef\xbb\xbf")
            self._block.clear()
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")  # its LF, if it has one, is still on the way
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _whole_blocks(self, text: bytes) -> list[bytes]:
        events = []
        for block in text.split(b"\n\n"):
            if len(block) > self._limit:
                raise SseError(f"an event of more than {self._limit} bytes")
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(block[6:])
                continue
            lines = [_field(line) for line in block.split(b"\n")]
            data = [value for value in lines if value is not None]
            if data:
                events.append(b"\n".join(data))
        return events


def _field(line: bytes) -> bytes | None:
    """The value of a `data` line; None for any other line."""
    if line == b"data":
        return b""
    if not line.startswith(b"data:"):
        return None
    return line[6:] if line[5:6] == b" " else line[5:]
