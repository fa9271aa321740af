"""The KV cache: a number of blocks, who holds how many, and what freed blocks still remember."""

from knee.engine.config import EngineConfig
from knee.engine.request import Request


class KvCache:
    """Blocks held and free. A request holds ceil(tokens with KV / block size) of them between two steps."""

    def __init__(self, config: EngineConfig) -> None:
        self.block_size = config.block_size
        self.total = config.num_gpu_blocks - 1  # one is vLLM's null block
        self.free = self.total
        self.watermark = int(config.watermark * config.num_gpu_blocks)
        self.reserve_full = config.scheduler_reserve_full_isl

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1; blocks that only remember text count as free."""
        return 1 - self.free / self.total

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def grow(self, before: int, after: int) -> bool:
        """Take the blocks that a request needs to go from `before` to `after` tokens, if there are enough."""
        size = self.block_size
        needed = -(-after // size) + (-before // size)
        if needed > self.free:
            return False
        self.free -= needed
        return True

    def admit(self, request: Request, tokens: int, alone: bool) -> bool:
        """Take the blocks for a request's first `tokens` tokens, if they fit.

        The whole prompt must fit, though only this step's part is taken (`scheduler_reserve_full_isl`), and
        `watermark` blocks must stay free unless it is `alone` (kv_cache_manager.allocate_slots, 0.24 on).
        """
        size = self.block_size
        spare = self.free - (0 if alone else self.watermark)
        if self.reserve_full and -(-request.target // size) > spare:
            return False
        needed = -(-tokens // size)
        if needed > spare:
            return False
        self.free -= needed
        return True

    def cached(self, request: Request) -> int:  # noqa: ARG002 - without a prefix cache nothing is known
        """Tokens at the head of a waiting request whose KV is still there."""
        return 0

    def release(self, request: Request, tokens: int, again: bool = False) -> None:  # noqa: ARG002 - the same
        """Give back what a request with `tokens` tokens of KV holds; `again`: it will come back."""
        self.free += -(-tokens // self.block_size)
