"""The calibrated simulator: the engine that a sweep fitted to the server, asked about other flags."""

import msgspec

from knee.core.errors import UsageError
from knee.core.slo import Slo
from knee.measure.model.longrun import long_run_knee, long_run_shares
from knee.measure.model.paired import less_extra
from knee.measure.model.replay import Model
from knee.measure.search.steps import Search
from knee.tune.config import Flags
from knee.tune.proposal import Predict
from knee.tune.simulated import DEFAULTS, engine_with
from knee.workload.spec import Workload

REQUESTS = 4000
"""Requests of a predicted knee, the same ones for all flags: alone it errs by some 4%, which mostly cancels
where two are compared."""


def predictor(search: Search, flags: Flags) -> Predict | None:
    """What the model that `search` fitted expects of other flags than the `flags` it was fitted at.

    None where the search fitted none it trusts.
    """
    model = search.evidence.model
    found = search.evidence.estimate()
    if model is None or found is None:
        return None
    fitted = model
    known: dict[tuple[tuple[str, str], ...], float | None] = {}

    def predict(wanted: Flags) -> float | None:
        key = tuple(sorted(wanted.items()))
        if key not in known:
            moved = _moved(fitted, flags, wanted)
            guess = max([found.estimate, *(knee for knee in known.values() if knee)])
            known[key] = rough_knee(moved, search.workload, search.slo, guess) if moved else None
        return known[key]

    return predict


def rough_knee(model: Model, workload: Workload, slo: Slo, guess: float) -> float | None:
    """The model's knee in requests/s, good enough to be held against others; None where it has none."""
    bounds = Slo(tuple(less_extra(objective, model) for objective in slo.objectives))
    try:
        return long_run_knee(long_run_shares(model, workload, bounds, REQUESTS), bounds, guess).knee
    except ValueError:
        return None


def _moved(model: Model, flags: Flags, wanted: Flags) -> Model | None:
    """The model with what differs between `flags` and `wanted`; None where it does not know one of them."""
    changed = {name: value for name, value in wanted.items() if flags.get(name) != value}
    try:
        config = engine_with(model.config, _relative(flags, changed))
    except (UsageError, ValueError):
        return None
    if config is None or "api_server_count" in changed:  # the fitted engine has no front end of its own
        return None
    return msgspec.structs.replace(model, config=config)


def _relative(flags: Flags, changed: Flags) -> Flags:
    """`changed` as `engine_with` takes it: the fitted cache already is that of the flags it was fitted at."""
    relative = dict(changed)
    if (memory := changed.get("gpu_memory_utilization")) is not None:
        usual = DEFAULTS["gpu_memory_utilization"]
        before = float(flags.get("gpu_memory_utilization", usual))
        relative["gpu_memory_utilization"] = str(float(memory) / before * float(usual))
    return relative
