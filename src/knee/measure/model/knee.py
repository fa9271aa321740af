"""The long-run knee of a fitted engine, to the precision that a search or a prediction needs."""

from knee.core.slo import Slo
from knee.engine.plain import is_plain
from knee.measure.model.longrun import LongRun, Shares, long_run_knee, long_run_shares, sharpen
from knee.measure.model.paired import less_extra
from knee.measure.model.replay import Model
from knee.workload.spec import Workload

FIRST_REQUESTS = 12_000
MOST, MOST_PLAIN = 96_000, 480_000
"""Requests of the last long run; the plain engine is that much faster."""


def model_shares(model: Model, workload: Workload, slo: Slo, requests: int) -> Shares:
    """The long-run shares of violations of `slo` that clients of the model see at a rate."""
    adjusted = Slo(tuple(less_extra(objective, model) for objective in slo.objectives))
    return long_run_shares(model, workload, adjusted, requests)


def model_knee(model: Model, workload: Workload, slo: Slo, guess: float, error: float) -> LongRun | None:
    """The model's own long-run knee, to about a relative `error`; None where it has none."""
    try:
        found = long_run_knee(model_shares(model, workload, slo, FIRST_REQUESTS), slo, guess)
    except ValueError:
        return None
    roomy = model.config.kv_tokens >= model.config.max_num_seqs * model.config.max_model_len
    return sharpen(
        found,
        lambda requests: model_shares(model, workload, slo, requests),
        slo,
        first=FIRST_REQUESTS,
        most=MOST_PLAIN if roomy and is_plain(model.config) else MOST,
        error=error,
    )
