"""A program that is started as `vllm serve` is, and behaves as it is told to."""

import socket
import sys
from pathlib import Path

SCRIPT = '''#!{python}
"""`vllm serve MODEL --host H --port P …`, with a simulated engine behind it."""
import os, signal, subprocess, sys, time

arguments = sys.argv[1:]
assert arguments[0] == "serve", arguments
model, flags = arguments[1], arguments[2:]
named = dict(zip(flags[::2], flags[1::2]))
seqs = int(named.get("--max-num-seqs", "8"))
if {too_many} and seqs > {too_many}:
    print("INFO 11-29 12:00:00 [api_server.py:1] vLLM API server version 0.32.0", flush=True)
    print("(EngineCore pid=7) ERROR 11-29 12:00:01 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. "
          "Tried to allocate 2.00 GiB.", flush=True)
    print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
    sys.exit(1)
if {stubborn}:
    child = subprocess.Popen([sys.executable, "-c", "import signal, time\\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\ntime.sleep(300)"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if {never}:
    print("INFO 11-29 12:00:00 [api_server.py:1] vLLM API server version 0.32.0", flush=True)
    print("INFO 11-29 12:00:01 [weights.py:1] Loading weights took for ever", flush=True)
    time.sleep(300)
fault = ["--fault", "{fault}"] if "{fault}" and seqs > {dies_above} else []
sys.argv = ["knee", "mock", "--model", model, *{mock}, *flags, *fault]
from knee.cli.main import main
main()
'''


def write_vllm(
    folder: Path,
    *,
    too_many: int = 0,
    never: bool = False,
    stubborn: bool = False,
    fault: str = "",
    dies_above: int = 0,
    mock: tuple[str, ...] = (),
) -> Path:
    """The program; `too_many` sequences end a start by lack of memory, `dies_above` so many under load."""
    path = folder / "vllm"
    path.write_text(
        SCRIPT.format(
            python=sys.executable,
            too_many=too_many,
            never=never,
            stubborn=stubborn,
            fault=fault,
            dies_above=dies_above,
            mock=list(mock),
        )
    )
    path.chmod(0o755)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
