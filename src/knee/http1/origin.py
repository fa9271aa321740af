"""Where a server is: scheme, host, port and base path of a URL."""

from urllib.parse import urlsplit

import msgspec

from knee.core.errors import UsageError

_HINT = "write it like http://127.0.0.1:8000"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """One server and the path below which it answers (`base` has no slash at its end; mostly it is empty)."""

    host: str
    port: int
    secure: bool = False
    base: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.base}"

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def parse_origin(url: str) -> Origin:
    """The origin of `url`; a URL without a scheme is taken as http.

    Raises:
        UsageError: the text is not an http or https URL, or holds a user, a query or a fragment.
    """
    origin, target = split_url(url)
    if "?" in target:
        raise UsageError(f"a URL with a query: {url!r}", _HINT)
    return msgspec.structs.replace(origin, base=target.rstrip("/"))


def split_url(url: str) -> tuple[Origin, str]:
    """The origin of `url`, without a base, and its request target: path (at least "/") and query.

    Raises:
        UsageError: the text is not an http or https URL, or holds a user or a fragment.
    """
    text = url.strip()
    if not text or any(c.isspace() or ord(c) < 0x20 for c in text) or not text.isascii():
        raise UsageError(f"not a URL: {url!r}", _HINT)
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise UsageError(f"not a URL: {url!r}", _HINT) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"not an http or https URL: {url!r}", _HINT)
    if parts.username is not None or parts.password is not None:
        raise UsageError("a URL with a user name or password", "give a key with --api-key-file instead")
    if parts.fragment:
        raise UsageError(f"a URL with a fragment: {url!r}", _HINT)
    secure = parts.scheme == "https"
    if port == 0:
        raise UsageError(f"port 0 in {url!r}", _HINT)
    origin = Origin(host=parts.hostname, port=port or (443 if secure else 80), secure=secure)
    return origin, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
