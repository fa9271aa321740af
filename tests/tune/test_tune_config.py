"""knee.toml: what it may say, and the one line for each mistake."""

from pathlib import Path
from typing import Any

import pytest

from knee.core.errors import InputError, UsageError
from knee.tune.config import Bounds, LocalServer, SimulatedServer, flag_arguments, public
from knee.tune.read_config import config_from, read_config

GOOD: dict[str, Any] = {
    "slo": "ttft p95 < 1s",
    "server": {"kind": "simulated"},
    "flags": {"max-num-seqs": 8, "max_num_batched_tokens": 512, "enable_prefix_caching": False},
    "moves": {"max_num_seqs": {"low": 4, "high": 512}, "kv_cache_dtype": {"values": ["auto", "fp8"]}},
}


def changed(**parts: Any) -> dict[str, Any]:
    return {**GOOD, **parts}


def test_a_file_becomes_a_session(tmp_path: Path) -> None:
    path = tmp_path / "knee.toml"
    path.write_text(
        'slo = "ttft p95 < 1s"\n[server]\nmodel = "m"\nversion = "0.32.0"\n[workload]\nprompt = 100\n'
        '[flags]\nmax-num-seqs = 4\n[moves.max_num_seqs]\nlow = 1\nhigh = 64\n[budget]\nserver_time = "2h"\n'
    )
    config = read_config(path)
    assert config.server == LocalServer(model="m", version="0.32.0")
    assert config.flags == {"max_num_seqs": "4"}
    assert config.moves == {"max_num_seqs": Bounds(low=1, high=64)}
    assert config.spend.server_s == 7200
    assert config.workload.prompt_tokens.mean == 100


def test_flags_are_spelled_as_vllm_spells_them() -> None:
    config = config_from(GOOD)
    assert flag_arguments(config.flags) == [
        "--no-enable-prefix-caching",
        *("--max-num-batched-tokens", "512"),
        *("--max-num-seqs", "8"),
    ]
    assert isinstance(config.server, SimulatedServer)


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (changed(flags={"max_num_sequences": 4}), "vLLM has no flag --max-num-sequences (did you mean --max"),
        (
            changed(server={"kind": "simulated", "version": "0.30.0"}, flags={"num_scheduler_steps": 8}),
            "vLLM 0.30.0 no longer has --num-scheduler-steps, removed in 0.10.1",
        ),
        (
            changed(
                server={"kind": "simulated", "version": "0.12.0"},
                moves={"max_num_queued_reqs": {"low": 1, "high": 9}},
            ),
            "vLLM 0.12.0 does not have --max-num-queued-reqs yet; it came with 0.29.0",
        ),
        (
            changed(flags={"max_num_seqs": 64, "max_num_batched_tokens": 32}),
            "max_num_batched_tokens 32 is below max_num_seqs 64",
        ),
        (
            changed(
                flags={},
                moves={
                    "max_num_seqs": {"low": 64, "high": 128},
                    "max_num_batched_tokens": {"low": 16, "high": 32},
                },
            ),
            "max_num_batched_tokens is at most 32 and max_num_seqs at least 64",
        ),
        (changed(moves={}), "no flag may move"),
        (changed(moves={"max_num_seqs": {"low": 9, "high": 4}}), "moves.max_num_seqs goes from 9 to 4"),
        (changed(moves={"max_num_seqs": {"low": 9}}), "moves.max_num_seqs needs low and high, or values"),
        (changed(moves={"kv_cache_dtype": {"values": ["auto"]}}), "moves.kv_cache_dtype has one value"),
        (
            changed(moves={"max_num_seqs": {"low": 16, "high": 64}}),
            "max_num_seqs starts at 8, outside of its own bounds",
        ),
        (changed(moves={"max_num_seqs": {"lo": 4}}), "Object contains unknown field `lo`"),
        (changed(flags={"port": 1}), "--port is not for [flags] or [moves]"),
        (changed(flags={"max_num_seqs": [1]}), "flags.max_num_seqs is list"),
        (changed(budget={"server_time": "soon"}), "not a duration: 'soon'"),
        (changed(budget={"precision": "fine"}), "budget.precision is 'fine'"),
        (changed(budget={"trials": 0}), "budget.trials is 0"),
        (changed(slo="ttft < fast"), "not a duration"),
        (changed(server={"kind": "docker"}), "server.kind is 'docker'"),
        (changed(server={"kind": "vllm"}), "Object missing required field `model`"),
        (changed(server={"kind": "simulated", "model": "m"}), "server.model is not known for kind"),
        (changed(server={"kind": "command", "start": "x", "url": "y"}), "server.start has no {flags}"),
        (changed(server={"model": "m", "arguments": ["--api-key=x"]}), "a key in server.arguments"),
        (changed(server={"model": "m", "ready_within": "0s"}), "server.ready_within is 0s"),
        (changed(workload={"prompt": "many"}), "not a length in tokens: 'many'"),
        (changed(surplus=1), "Object contains unknown field `surplus`"),
    ],
)
def test_each_mistake_is_one_line(raw: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as found:
        config_from(raw)
    assert line in str(found.value)
    assert "\n" not in str(found.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_config(tmp_path / "absent.toml")
    path = tmp_path / "knee.toml"
    path.write_text("slo = \n")
    with pytest.raises(InputError, match="is not TOML"):
        read_config(path)


def test_what_is_written_down_holds_no_values_of_the_environment() -> None:
    config = config_from(changed(server={"model": "m", "environment": {"HF_TOKEN": "hf_secret"}}))
    assert "hf_secret" not in repr(public(config))
