import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from knee.core.point import Judged, Knee, Point, Summary
from knee.core.slo import parse_slo
from knee.report.page import Page, render_page

SLO = parse_slo("ttft p95 < 1s, itl p99 < 60ms")
NASTY = "</script><script>alert(1)</script>"


def point(rate: float, ttft: float | None, itl: float | None) -> Point:
    empty = Summary(n=0)
    judged = tuple(
        Judged(
            objective=objective,
            value=value,
            low=value and value * 0.9,
            high=value and value * 1.2,
            holds=value is not None and value < objective.bound,
            n=900,
        )
        for objective, value in zip(SLO.objectives, (ttft, itl), strict=True)
    )
    return Point(
        rate=rate,
        attained_rate=rate,
        served_rate=min(rate, 20.0),
        seed=5,
        window_start_ns=0,
        window_end_ns=60_000_000_000,
        spent_ns=90_000_000_000,
        offered=1000,
        ok=1000 if ttft else 800,
        failed=0,
        rejected=0,
        censored=0 if ttft else 200,
        ttft_ms=Summary(n=1000, p50=50.0, p95=ttft, p99=ttft),
        itl_ms=Summary(n=200_000, p50=10.0, p99=itl),
        tpot_ms=empty,
        e2e_ms=empty,
        send_lag_ms=empty,
        output_tokens_per_s=4000.0,
        prompt_tokens_mean=1000.0,
        output_tokens_mean=200.0,
        judged=judged,
        notes=(NASTY,),
    )


PAGE = Page(
    title=f"a run {NASTY}",
    sweeps=(
        (
            "max_num_seqs 64",
            (point(10, 60, 30), point(14, 140, 35), point(16, 3150, 40), point(18, None, 41)),
        ),
        ("max_num_seqs 128", (point(10, 60, 30), point(18, 140, 50), point(20, 3150, None))),
    ),
    slo=SLO,
    knee=Knee(
        slo=SLO, holds=18.9, breaks=19.6, estimate=19.3, confidence=0.95, reason="ttft p95 breaks first"
    ),
    verdict_lines=("sequence_cap: 64 running = max_num_seqs, KV usage 0.2",),
    settings=(("workload", "1,000 in, 200 out"),),
    seed="5",
)


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.names.append(tag)


def test_what_comes_from_outside_is_escaped() -> None:
    elements = Elements()
    elements.feed(render_page(PAGE))
    assert elements.names.count("script") == 3
    assert "alert(1)</script>" not in render_page(PAGE)


def test_it_needs_no_network() -> None:
    text = render_page(PAGE)
    assert not re.search(r"(src|href)\s*=|@import|url\(", text.split("<script>")[0])


def test_a_run_without_an_slo_has_a_page_too() -> None:
    bare = msgspec.structs.replace(PAGE, slo=None, knee=None)
    assert "no knee was searched for" in render_page(bare)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_page(PAGE))
    shown = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert shown.count("<canvas") == 2
    assert shown.count('class="u-title"') == 2
