"""`knee watch`: the live view of one or more servers."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from knee.cli.app import JsonOption
from knee.cli.target_options import KeyOption
from knee.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from knee.core.snapshot import Snapshot
    from knee.diagnose.facts import Facts

MOST_LOOKS = 600


def watch(  # noqa: PLR0917 - the options of a command
    urls: Annotated[list[str], typer.Argument(help="The servers: http://127.0.0.1:8000 …")],
    every: Annotated[str, typer.Option(help="How often to look.")] = "1s",
    over: Annotated[str, typer.Option(help="The stretch that rates and the verdict are about.")] = "30s",
    for_: Annotated[
        str, typer.Option("--for", help="End by itself after this long; else Ctrl-C does.")
    ] = "24h",
    flag: Annotated[
        list[str] | None, typer.Option(help="A flag of the server as NAME=VALUE, e.g. max_num_seqs=256.")
    ] = None,
    api_key_file: KeyOption = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="ASCII only, and no redrawing: a block a look.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show running, waiting, KV, latencies, preemptions and the verdict, live; with --json a line a look."""
    from rich.console import Console

    from knee.cli.diagnose import bearer, parse_flags
    from knee.core.clock import RealClock
    from knee.core.units import NS_PER_S, parse_duration_ns
    from knee.diagnose.facts import Facts
    from knee.metrics.live import sample

    every_ns, over_ns, for_ns = (parse_duration_ns(text) for text in (every, over, for_))
    if every_ns < NS_PER_S // 20 or not every_ns <= over_ns <= MOST_LOOKS * every_ns:
        raise UsageError(
            f"cannot look every {every} over {over}",
            f"look at least every 50ms, over one to {MOST_LOOKS} looks",
        )
    console = Console(highlight=False)
    view = _View(Facts(flags=parse_flags(flag or [])), over_ns, console, plain=plain, as_json=as_json)
    try:
        with view:
            headers = bearer(api_key_file)
            sample(urls, for_ns / NS_PER_S, every_ns / NS_PER_S, RealClock(), headers=headers, seen=view.look)
    except KeyboardInterrupt:
        return 0  # the way to end it
    return 0


class _View:
    """What was seen lately, and where it is shown: a redrawn screen, blocks of text, or JSON lines."""

    def __init__(
        self, facts: "Facts", over_ns: int, console: "Console", *, plain: bool, as_json: bool
    ) -> None:
        from rich.live import Live

        self._facts, self._over_ns, self._console = facts, over_ns, console
        self._plain = plain or not console.is_terminal
        self._as_json = as_json
        self._recent: list[Snapshot] = []
        self._history: dict[str, list[float]] = {}
        redraws = not self._plain and not as_json
        self._live = Live(console=console, auto_refresh=False, screen=True) if redraws else None

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def look(self, snapshots: "Sequence[Snapshot]") -> bool:
        """Take in one instant and show what it makes of the last stretch."""
        from rich.text import Text

        from knee.diagnose.diagnose import diagnose
        from knee.diagnose.screen import note, screen_lines
        from knee.metrics.window import window

        if not snapshots:
            return True  # the view keeps standing while a server does not answer
        self._recent.extend(snapshots)
        since_ns = self._recent[-1].at_ns - self._over_ns
        self._recent = [one for one in self._recent if one.at_ns >= since_ns]
        note(self._history, snapshots, keep=300)
        seen = window(self._recent)
        verdict = diagnose(seen, self._facts)
        if self._as_json:
            print(msgspec.json.encode(verdict).decode(), flush=True)
            return True
        lines = screen_lines(seen, verdict, self._history, width=self._console.width, plain=self._plain)
        if self._live is not None:
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            print("\n".join(lines) + "\n", flush=True)
        return True
