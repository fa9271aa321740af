"""Everything a search has seen, and what it makes of it: the model of the server, and the knee."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from knee.core.slo import Slo
from knee.measure.model.knee import model_knee
from knee.measure.model.profile import profile
from knee.measure.model.replay import Model, fit_model, replay_light, unloaded_ttft_ms
from knee.measure.search.assisted import Assisted, assisted_estimate
from knee.measure.search.estimate import Estimate, plain_estimate
from knee.measure.search.timing import Timing, reach_s
from knee.measure.target import Measured, Offer
from knee.measure.trial import Trial
from knee.measure.watching import Burst, read_burst
from knee.workload.spec import Workload

if TYPE_CHECKING:
    from knee.core.requests import Observed
    from knee.core.snapshot import Snapshot
    from knee.measure.model.longrun import LongRun

WORST_FIT = 0.35
"""Relative residual of the step cost above which there is no model. Steps of a real server on shared cores
scatter by 0.2 around a cost that is right on average."""

ODD_BURST = 0.1
"""Relative residual from which the burst is suspected: a front end that all clients reach at once may slow
the engine, as it never does under open load."""

REACH = 1.5
"""How far beyond the rates it was fitted to a model stays as it is; the point beyond the knee lies nearer."""

COARSE = 0.05
"""Relative error of the model's knee that suffices to place the first point."""

FINE = 0.004


class Evidence:
    """What is known of a server under a workload; grows point by point."""

    def __init__(
        self,
        workload: Workload,
        slo: Slo,
        *,
        flags: Mapping[str, str] | None = None,
        confidence: float = 0.95,
        assisted: bool = True,
    ) -> None:
        self.workload = workload
        self.slo = slo
        self.profile = profile(workload)
        self.confidence = confidence
        self.trials: list[Trial] = []
        self.burst: Burst | None = None
        self.model: Model | None = None
        self.long_run: LongRun | None = None
        self._flags = dict(flags or {})
        self._with_model = assisted
        self._light: tuple[Offer, Observed] | None = None
        self._burst_seen: Observed | None = None
        self._clients = 0
        self._fitted_rate = 0.0
        self._snapshots: list[Snapshot] = []
        self._assisted: Assisted | None = None

    @property
    def timing(self) -> Timing:
        """The pace of the server; only after the burst."""
        assert self.burst is not None
        return Timing(
            profile=self.profile,
            capacity=self.burst.capacity,
            e2e_s=self.burst.e2e_s,
            reach_s=reach_s(self.slo),
        )

    @property
    def first_rate(self) -> float:
        """Where to begin: somewhat below the model's knee, or below the capacity where there is no model."""
        assert self.burst is not None
        if self.long_run is None:
            return 0.8 * self.burst.capacity
        return 0.95 * min(self.long_run.knee, self.burst.capacity)

    def add_light(self, offer: Offer, measured: Measured) -> None:
        """Requests one at a time."""
        self._light = (offer, measured.observed)
        self._snapshots = _telling(measured)

    def add_burst(self, offer: Offer, measured: Measured) -> bool:
        """A closed-loop burst; whether it shows a capacity at all."""
        self._clients = offer.max_concurrency or 0
        self._burst_seen = measured.observed
        self._snapshots += _telling(measured)
        self.burst = read_burst(measured.observed, self.profile.output_tokens)
        if self.burst is not None:
            self._refit(self.burst, COARSE)
        return self.burst is not None

    def add_trial(self, trial: Trial) -> None:
        """An open-loop point. After the first, and one far above the others, the model is fitted anew."""
        self.trials.append(trial)
        if self.burst is not None and trial.offer.rate > REACH * self._fitted_rate:
            self._fitted_rate = trial.offer.rate
            self._refit(self.burst, FINE)
        self._assisted = None
        if self.model is not None and self.long_run is not None:
            self._assisted = assisted_estimate(
                self.model, self.long_run, self.trials, self.slo, self.confidence
            )

    def estimate(self) -> Estimate | None:
        """The knee from the points so far: with the model where it takes noise away, else from them alone."""
        if self.burst is None or not self.trials:
            return None
        if self._assisted is not None and self._assisted.trusted:
            return self._assisted.estimate
        return plain_estimate(self.trials, self.slo, self.burst.capacity, self.confidence)

    def _refit(self, burst: Burst, error: float) -> None:
        if not self._with_model or self._light is None or self._burst_seen is None:
            return
        offer, light = self._light
        open_loop = [light, *(trial.measured.observed for trial in self.trials)]
        model = self._fitted(burst, [*open_loop, self._burst_seen])
        if model is None or (self.trials and model.fit.error > ODD_BURST):
            other = self._fitted(burst, open_loop)
            if model is None or (other is not None and other.fit.error < model.fit.error / 2):
                model = other  # steps of the burst were not like those under open load
        if model is None or model.fit.error > WORST_FIT:
            self.model = self.long_run = None
            return
        unloaded = unloaded_ttft_ms(replay_light(model, offer, light))
        self.model = model.with_extra(unloaded_ttft_ms(light) - unloaded)
        guess = self.long_run.knee if self.long_run else 0.9 * burst.capacity
        self.long_run = model_knee(self.model, self.workload, self.slo, guess, error)

    def _fitted(self, burst: Burst, seen: Sequence["Observed"]) -> Model | None:
        assert self._burst_seen is not None
        return fit_model(
            seen,
            flags=self._flags,
            burst=burst,
            burst_seen=self._burst_seen,
            clients=self._clients,
            snapshots=self._snapshots,
            longest_tokens=self.profile.longest_tokens,
        )


def _telling(measured: Measured) -> "list[Snapshot]":
    """The snapshots of a run that say how the engine was started; the others are only looks at its gauges."""
    return [one for one in measured.snapshots if any(engine.info for engine in one.engines.values())][:1]
