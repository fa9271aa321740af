"""Rooflines: how fast a step can be at best, from bandwidth and arithmetic. A first guess of the step cost.

Decode is bound by reading weights and cache once a step, prefill by two operations a weight and token (Pope
et al., Efficiently Scaling Transformer Inference, 2022). Real steps are slower; calibrate before relying on
one.
"""

import msgspec

from knee.catalog.accelerators import Accelerator
from knee.fit.kv import KvPlan, Parallel
from knee.fit.shape import ModelShape
from knee.fit.weights import active_bytes


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """Lower bounds on one engine, in milliseconds.

    `step_ms` reads the weights once for one sequence; `context_token_ms` is added for each token of context
    of each running sequence, `prefill_token_ms` for each prefill token where arithmetic binds.
    `decode_step_ms` is a step with `sequences` sequences of `context` tokens. `basis` says which peaks were
    used.
    """

    step_ms: float
    context_token_ms: float
    prefill_token_ms: float
    sequences: int
    context: int
    decode_step_ms: float
    basis: str


def roofline(
    shape: ModelShape, device: Accelerator, parallel: Parallel, kv: KvPlan, *, sequences: int, context: int
) -> Roofline:
    """Lower bounds for `sequences` running sequences of `context` tokens each."""
    bandwidth = device.bandwidth_gb_s * 1e9
    in_fp8 = "fp8" in shape.quantization.name and device.fp8_tflops is not None
    peak = (device.fp8_tflops if in_fp8 and device.fp8_tflops else device.bf16_tflops) * 1e12
    step = active_bytes(shape, parallel, 1) / bandwidth * 1e3
    per_token = kv.bytes_per_token / bandwidth * 1e3
    prefill = 2 * shape.parameters.active / parallel.tp / peak * 1e3
    weights = active_bytes(shape, parallel, max(1, sequences)) / bandwidth * 1e3
    return Roofline(
        step_ms=step * parallel.pp,
        context_token_ms=per_token * parallel.pp,
        prefill_token_ms=prefill,
        sequences=sequences,
        context=context,
        decode_step_ms=(weights + sequences * context * per_token) * parallel.pp,
        basis=f"{device.bandwidth_gb_s:g} GB/s, {peak / 1e12:g} TFLOP/s {'FP8' if in_fp8 else 'BF16'} dense",
    )
