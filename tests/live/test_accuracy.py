"""A real server, calibrated on light load only, and its knee predicted from that."""

import json
import statistics
from pathlib import Path

import pytest
from tests.live.conftest import running

from knee.cli.main import run

pytestmark = pytest.mark.live

SLO = "ttft p95 < 500ms"
LOAD = ["--prompt", "128", "--output", "32", "--realtime"]
SHARES = (0.2, 0.35, 0.5, 0.6)
"""Of the knee that was measured, the rates that the calibration sees."""

WITHIN = 0.10


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    code = run([*arguments, "--json"])
    said = capsys.readouterr()
    assert code in (0, 5), said.err[-3000:]
    found: dict[str, object] = json.loads(said.out)
    return found


@pytest.mark.parametrize("flags", [("--max-num-seqs", "4"), ()], ids=["capped", "default"])
def test_light_load_predicts_the_knee(
    flags: tuple[str, ...],
    vllm_home: Path,
    unused_tcp_port: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "server.log"
    with running(vllm_home, log, unused_tcp_port, ("--no-enable-prefix-caching", *flags)) as server:
        common = [server.url, "--slo", SLO, *LOAD, "--server-log", str(log)]
        search = ["--precision", "5%", "--server-time", "240s", "--out", str(tmp_path / "search")]
        knee = told(["sweep", *common, *search], capsys)["sweep"]["knee"]  # type: ignore[index]
        rates = ",".join(f"{share * knee['estimate']:.3g}" for share in SHARES)
        timed = ["--rates", rates, "--duration", "25s", "--warmup", "5s", "--drain", "20s"]
        told(["sweep", *common, *timed, "--out", str(tmp_path / "light")], capsys)
    fitted = told(["calibrate", str(tmp_path / "light"), "--out", str(tmp_path / "like.json")], capsys)
    predicted = told(["simulate", "--like", str(tmp_path / "like.json"), "--slo", SLO], capsys)["prediction"]
    with capsys.disabled():
        print(json.dumps({"knee": knee, "predicted": predicted, "fitted": fitted}))
    off = predicted["knee"] / knee["estimate"] - 1  # type: ignore[index]
    assert abs(off) <= WITHIN, f"predicted {predicted}, measured {knee}"
    for latency, extra in (("itl", 0.0), ("ttft", fitted["extra_ttft_ms"])):
        ratios = [
            (point[f"{latency}_fitted_ms"] + extra) / point[f"{latency}_ms"]
            for point in fitted["replayed"]  # type: ignore[attr-defined]
        ]
        assert abs(statistics.median(ratios) - 1) <= WITHIN, f"{latency}: {ratios}"
