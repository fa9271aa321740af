"""Load over https: with a certificate that is trusted, and one clear line with one that is not."""

from pathlib import Path

import numpy as np
import pytest
from tests.certificate import self_signed
from tests.measure.test_live_load import counts, inside, offer
from tests.scripted_server import scripted, steady

from knee.cli.main import run
from knee.core.requests import OK
from knee.core.units import NS_PER_MS
from knee.measure.client.connection import Connection
from knee.measure.client.live import connect
from knee.measure.client.secret import Secret

SHORT = ["--rate", "60", "--prompt", "40", "--output", "4", "--duration", "500ms", "--warmup", "100ms"]
PAGE = 'vllm:num_requests_running{engine="0",model_name="tiny"} 0\n'


@pytest.mark.parametrize("workers", [1, 2])
def test_load_over_https(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, certificate = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    asked = offer(rate=60)
    with scripted(steady(0.02, 0.004), tls=context) as server:
        server.metrics = lambda: PAGE
        target = connect(Connection(url=f"{server.url}/v1", key=Secret("k-1")), workers=workers)
        assert target.notes == ()  # the metrics were found, over https as well
        got = target.measure(asked)
    assert server.url.startswith("https://")
    assert counts(got.observed, asked)[OK] == inside(got.observed, asked).sum() > 40
    assert got.snapshots
    assert {call.headers["authorization"] for call in server.calls} == {"Bearer k-1"}
    assert {call.headers["host"] for call in server.calls} == {server.url.removeprefix("https://")}
    assert server.connections < 40  # they are kept: a handshake costs more than a request
    ttft = (got.observed.first_ns - got.observed.sent_ns)[inside(got.observed, asked)] / NS_PER_MS
    assert 19 < np.median(ttft) < 100
    assert (got.observed.output_tokens[got.observed.outcome == OK] == 5).all()


def test_the_command_over_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    context, certificate = self_signed(tmp_path)
    with scripted(steady(0.01, 0.002), tls=context) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert run(["bench", server.url, *SHORT]) in (0, 1)  # 1 where a busy machine made the client late
        assert "failed 0 + rejected 0" in capsys.readouterr().out
        monkeypatch.delenv("SSL_CERT_FILE")
        refused(capsys, server.url, "gives no trusted TLS connection: self-signed certificate")
        refused(capsys, server.url.replace("https", "http"), "closed the connection")
    other, trusted = self_signed(tmp_path, "127.0.0.2")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with scripted(steady(0.01, 0.002), tls=other) as server:
        refused(capsys, server.url, "IP address mismatch")


def refused(capsys: pytest.CaptureFixture[str], url: str, why: str) -> None:
    """One clear line with a hint, and the exit code of a server that cannot be used."""
    assert run(["bench", url, *SHORT]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"knee: {url}")
    assert why in err
    assert err.count("\n") == 2
    assert "hint: " in err
