"""The child of `mock_process`: configuration in on standard input, one line out when the port is open."""

import sys

import msgspec

from knee.core.errors import KneeError
from knee.mock.process import Opened, Start
from knee.mock.serving import serve_until_stopped


def main() -> int:
    """Serve until SIGTERM, or until standard input closes; the exit code."""
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=Start)
    try:
        return serve_until_stopped(
            start.config,
            start.host,
            start.port,
            log=sys.stderr,
            opened=lambda url: _say(Opened(url=url)),
            until_eof=sys.stdin.fileno(),
        )
    except KneeError as error:
        _say(Opened(error=str(error)))
        return error.exit_code


def _say(opened: Opened) -> None:
    sys.stdout.write(msgspec.json.encode(opened).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
