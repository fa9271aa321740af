"""The KV cache: blocks free and held, and what freed blocks still remember."""

from knee.engine.config import EngineConfig
from knee.engine.prefix_cache import PrefixCache
from knee.engine.request import Request


class KvCache:
    """Blocks held and free. A request holds ceil(tokens with KV / block size) of them between two steps."""

    def __init__(self, config: EngineConfig) -> None:
        self.block_size = config.block_size
        self.total = config.num_gpu_blocks - 1  # one is vLLM's null block
        self.free = self.total
        self.watermark = int(config.watermark * config.num_gpu_blocks)
        self.reserve_full = config.scheduler_reserve_full_isl
        self.cache = PrefixCache(self.total, self.block_size) if config.enable_prefix_caching else None

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1; blocks that only remember text count as free."""
        return 1 - self.free / self.total

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def take(self, blocks: int) -> None:
        """Take free blocks, of which there must be enough."""
        self.free -= blocks
        if self.cache is not None:
            self.cache.take(blocks)

    def grow(self, request: Request, before: int, after: int) -> bool:
        """Take what a running request needs to go from `before` to `after` tokens, if there is enough."""
        size = self.block_size
        needed = -(-after // size) + (-before // size)
        if needed > self.free:
            return False
        if needed:
            self.take(needed)
        if request.lease is not None and self.cache is not None:
            self.cache.extend(request.lease, before // size, after // size)
        return True

    def admit(self, request: Request, budget: int, alone: bool) -> int:
        """Take the blocks for the first tokens of a waiting request; how many are to be computed now, or 0.

        Up to `budget` tokens are, after those whose KV is still there (`request.computed`). The whole prompt
        must fit, though only this step's part is taken (`scheduler_reserve_full_isl`, 0.19 and later), and
        `watermark` blocks stay free unless it is `alone` (kv_cache_manager.allocate_slots, 0.24 and later).
        """
        size = self.block_size
        cached = idle = 0
        if (
            self.cache is not None
        ):  # one token is always left to compute (kv_cache_manager.get_computed_blocks)
            cached, idle = self.cache.hit(request.shared, request.own, (request.target - 1) // size)
        tokens = min(budget, request.target - cached * size)
        after = cached * size + tokens
        needed = -(-after // size) - cached
        reserved = -(-request.target // size) - cached if self.reserve_full else needed
        if reserved + idle + (0 if alone else self.watermark) > self.free:
            return 0
        request.computed = cached * size
        if self.cache is not None:
            self.free -= idle
            request.lease = self.cache.acquire(request.shared, request.own, cached)
            request.own = None
        self.take(needed)
        if request.lease is not None and self.cache is not None:
            self.cache.extend(request.lease, cached, after // size)
        return tokens

    def release(self, request: Request, tokens: int, again: bool = False) -> None:
        """Give back what a request with `tokens` tokens of KV holds; `again`: it will come back."""
        size = self.block_size
        blocks = -(-tokens // size)
        if self.cache is None or request.lease is None:
            self.free += blocks
            return
        freed, request.own = self.cache.release(request.lease, blocks, tokens // size, again)
        request.lease = None
        self.free += freed
