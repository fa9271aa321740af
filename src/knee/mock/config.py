"""What a simulated server is: an engine, and how it shows itself over HTTP."""

import msgspec

from knee.catalog.version import parse_version
from knee.core.errors import UsageError
from knee.engine.config import REFERENCE, EngineConfig, FrontEnd, StepCost
from knee.mock.faults import Fault

OLDEST = "0.8.0"
"""Before it vLLM had another engine (V0) with other metrics and log lines."""


class MockConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated vLLM server.

    `engine.version` is the vLLM version whose metrics, log wording and limits it shows. `speed` divides every
    cost of the engine: 10 is a server ten times as fast. `startup_ns` is how long the port stays closed while
    the start-up log is written. The model ends an answer by itself after `eos_after` tokens (0 is never)
    unless the request says `ignore_eos`. `hang_ns` bounds the hang of a server whose drain ran out of time;
    vLLM itself hangs until it is killed. The other names are vLLM's flags.
    """

    engine: EngineConfig = msgspec.structs.replace(REFERENCE, version="0.32.0")
    model: str = "mock"
    speed: float = 1.0
    seed: int = 0
    eos_after: int = 512
    startup_ns: int = 0
    hang_ns: int = 60_000_000_000
    shutdown_timeout: int = 0
    stream_interval: int = 1
    enforce_eager: bool = False
    enable_server_load_tracking: bool = False
    enable_request_id_headers: bool = False
    enable_per_request_metrics: bool = False
    dev_mode: bool = False
    access_log: bool = False
    faults: tuple[Fault, ...] = ()

    @property
    def version(self) -> str:
        """The vLLM version that is simulated."""
        return self.engine.version

    def checked(self) -> "MockConfig":
        """This configuration, if a server can be made of it.

        Raises:
            UsageError: a value is out of range, or the version is older than `OLDEST`.
        """
        self.engine.checked()
        if not parse_version(self.version).reaches(OLDEST):
            raise UsageError(f"vLLM {self.version} cannot be simulated", f"versions begin with {OLDEST}")
        if not 0 < self.speed <= 1000:
            raise UsageError(
                f"a speed of {self.speed:g}", "1 is as the step cost says, 10 is ten times as fast"
            )
        if not self.model:
            raise UsageError("a model without a name")
        for name in ("eos_after", "startup_ns", "hang_ns", "shutdown_timeout"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.stream_interval < 1:
            raise UsageError(
                f"a stream_interval of {self.stream_interval}", "it is a number of tokens, 1 or more"
            )
        return self


def sped_up(engine: EngineConfig, speed: float) -> EngineConfig:
    """`engine` with every cost divided by `speed`."""

    def scaled(costs: StepCost | FrontEnd) -> dict[str, int]:
        return {
            name: round(getattr(costs, name) / speed)
            for name in (field.name for field in msgspec.structs.fields(costs))
            if name.endswith("_ns")
        }

    return msgspec.structs.replace(
        engine,
        step_cost=msgspec.structs.replace(engine.step_cost, **scaled(engine.step_cost)),
        front_end=msgspec.structs.replace(engine.front_end, **scaled(engine.front_end)),
    )
