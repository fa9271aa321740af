"""KV arithmetic as vLLM does it: pages, groups of layers, blocks a request, and what fits.

Source: vllm/v1/kv_cache_interface.py and vllm/v1/core/kv_cache_utils.py (kv_cache_planning.py from 0.33),
read through the worked values of public logs, which the tests repeat.
"""

import math

import msgspec

from knee.core.errors import UsageError
from knee.fit.shape import KvLayers, ModelShape

KV_DTYPE_BYTES: dict[str, float] = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
_ALIGN = 16
_NEARLY_EQUAL = 1.5
"""1.25 in older versions; it matters only where one kind has 1.25 to 1.5 times the layers of the other."""


class Parallel(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is spread over GPUs: tensor, pipeline and data parallel sizes."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tp * self.pp * self.dp


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of one kind that share a block table; `layers` includes `padding` ones that hold nothing."""

    kind: str
    layers: int
    padding: int
    window: int = 0


class KvPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How one GPU lays out its cache.

    `page_bytes` is one layer's share of a block, `block_bytes` a block of all layers of a group,
    `block_size` in tokens (raised where a model's state is larger than a page). `bytes_per_token` counts
    the layers that grow with the context, `state_bytes` what a request needs besides.
    """

    block_size: int
    page_bytes: int
    block_bytes: int
    groups: tuple[Group, ...]
    bytes_per_token: float
    state_bytes: float
    padding_layers: int
    in_flight_tokens: int


def kv_dtype_bytes(name: str, model_bytes: int) -> float:
    """Bytes of one cached element; `auto` is the model's own type.

    Raises:
        UsageError: the type is not known here.
    """
    if name == "auto":
        return model_bytes
    if name not in KV_DTYPE_BYTES:
        raise UsageError(f"not a KV cache type: {name!r}", f"known: auto, {', '.join(KV_DTYPE_BYTES)}")
    return KV_DTYPE_BYTES[name]


def heads_on_rank(kv_heads: int, tp: int) -> int:
    """KV heads a GPU holds: at least one, so heads are replicated where there are more GPUs than heads."""
    return max(1, kv_heads // tp)


def token_bytes(layers: KvLayers, tp: int, element_bytes: float) -> float:
    """Bytes that one layer of the kind keeps for one token on one GPU; 0 for a state."""
    if layers.kind == "state":
        return 0.0
    if layers.kind == "mla":  # one latent vector, on every GPU, whatever the number of heads
        return layers.key_dim * element_bytes
    return heads_on_rank(layers.kv_heads, tp) * (layers.key_dim + layers.value_dim) * element_bytes


def state_bytes(layers: KvLayers, tp: int, model_bytes: int) -> float:
    """Bytes that one layer of state keeps for one request on one GPU."""
    return layers.conv_elements / tp * model_bytes + layers.ssm_elements / tp * layers.ssm_bytes


def plan_kv(
    shape: ModelShape,
    parallel: Parallel,
    *,
    kv_dtype: str = "auto",
    block_size: int = 16,
    in_flight_tokens: int = 0,
    hybrid: bool = True,
) -> KvPlan:
    """The layout of the cache on the GPU with the most layers.

    `in_flight_tokens` is what sliding-window layers keep beyond their window: max_num_batched_tokens, times
    two with asynchronous scheduling from 0.28. With `hybrid` off sliding-window layers pay for the full
    context.
    """
    element = kv_dtype_bytes(kv_dtype, shape.dtype_bytes)
    kinds = [_local(item, parallel.pp) for item in shape.kv]
    if not hybrid:
        kinds = [
            msgspec.structs.replace(item, kind="full", window=0)
            if item.kind in ("sliding", "chunked")
            else item
            for item in kinds
        ]
        kinds = _merge(kinds)
    growing = [item for item in kinds if item.kind != "state"]
    states = [item for item in kinds if item.kind == "state"]
    per_token = max((token_bytes(item, parallel.tp, element) for item in growing), default=0.0)
    state_page = max((state_bytes(item, parallel.tp, shape.dtype_bytes) for item in states), default=0.0)
    if per_token and state_page > per_token * block_size:
        block_size = math.ceil(state_page / per_token / _ALIGN) * _ALIGN
    page = math.ceil(max(per_token * block_size, state_page))
    size = _group_size([item.count for item in kinds])
    groups = tuple(group for item in kinds for group in _split(item, size))
    return KvPlan(
        block_size=block_size,
        page_bytes=page,
        block_bytes=page * size,
        groups=groups,
        bytes_per_token=sum(token_bytes(item, parallel.tp, element) * item.count for item in growing),
        state_bytes=sum(state_bytes(item, parallel.tp, shape.dtype_bytes) * item.count for item in states),
        padding_layers=sum(group.padding for group in groups),
        in_flight_tokens=in_flight_tokens,
    )


def _local(item: KvLayers, pp: int) -> KvLayers:
    return msgspec.structs.replace(item, count=math.ceil(item.count / pp))


def _merge(kinds: list[KvLayers]) -> list[KvLayers]:
    merged: dict[KvLayers, int] = {}
    for item in kinds:
        key = msgspec.structs.replace(item, count=0)
        merged[key] = merged.get(key, 0) + item.count
    return [msgspec.structs.replace(key, count=count) for key, count in merged.items()]


def _group_size(counts: list[int]) -> int:
    """Layers in a group: the smallest kind's number, or the largest where they are nearly equal."""
    if max(counts) < min(counts) * _NEARLY_EQUAL:
        return max(counts)
    return min(counts)


def _split(item: KvLayers, size: int) -> list[Group]:
    number = math.ceil(item.count / size)
    padding = number * size - item.count
    return [
        Group(kind=item.kind, layers=size, padding=padding if index == 0 else 0, window=item.window)
        for index in range(number)
    ]


def blocks_per_request(plan: KvPlan, tokens: int) -> int:
    """Blocks that one request of `tokens` tokens holds, over all groups.

    A sliding-window group holds window - 1 + in-flight tokens at most, and one block more because a window
    need not begin at the edge of a block. A state group holds one block.
    """
    return sum(_group_blocks(plan, group, tokens) for group in plan.groups)


def _group_blocks(plan: KvPlan, group: Group, tokens: int) -> int:
    if group.kind == "state":
        return 1
    if group.kind in ("sliding", "chunked"):
        kept = group.window - 1 if group.kind == "sliding" else group.window
        reach = min(kept + plan.in_flight_tokens, tokens)
        return math.ceil(reach / plan.block_size) + (1 if group.kind == "sliding" else 0)
    return math.ceil(tokens / plan.block_size)


def blocks_in(plan: KvPlan, kv_bytes: float) -> int:
    """Blocks that `kv_bytes` bytes on each GPU make."""
    return max(0, int(kv_bytes // plan.block_bytes))


def concurrency(plan: KvPlan, blocks: int, tokens: int) -> float:
    """Requests of `tokens` tokens that fit at once, as vLLM prints it (one block is the null block's)."""
    return blocks / blocks_per_request(plan, tokens)


def kv_tokens(plan: KvPlan, blocks: int, max_model_len: int) -> int:
    """Tokens as vLLM prints them from 0.21.0: concurrency x max_model_len."""
    return int(concurrency(plan, blocks, max_model_len) * max_model_len)


def kv_tokens_before_0_21(plan: KvPlan, blocks: int) -> int:
    """Tokens as vLLM printed them before: blocks // groups x block size."""
    return blocks // len(plan.groups) * plan.block_size


def largest_context(plan: KvPlan, blocks: int, limit: int) -> int:
    """The largest context of one request in `blocks` blocks, at most `limit`; 0 where none fits.

    One block is reserved (the null block).
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_per_request(plan, middle) <= blocks - 1:
            low = middle
        else:
            high = middle - 1
    return low
