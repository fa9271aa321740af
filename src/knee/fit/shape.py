"""The shape of a model: what it keeps in the KV cache, and how many parameters of which kind it has."""

from typing import Literal

import msgspec

KvKind = Literal["full", "sliding", "chunked", "mla", "state"]


_VOCABULARY_STEP = 64


def vocabulary_rows(vocab_size: int) -> int:
    """Rows of the embedding: vLLM pads the vocabulary to a multiple of 64."""
    return -(-vocab_size // _VOCABULARY_STEP) * _VOCABULARY_STEP


class KvLayers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`count` layers that keep the same in the cache.

    `full`, `sliding`, `chunked`: `kv_heads` heads of `key_dim` + `value_dim` elements a token; `window`
    tokens at most for the latter two. `mla`: one latent vector of `key_dim` elements a token. `state`: a
    fixed number of elements a request, `conv_elements` in the model's type and `ssm_elements` of
    `ssm_bytes` bytes each.
    """

    kind: KvKind
    count: int
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int = 0
    conv_elements: int = 0
    ssm_elements: int = 0
    ssm_bytes: int = 4


class Parameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers of parameters over all layers, by how they are stored and split over tensor parallelism.

    `embedding` and `head` are split by vocabulary; `attention`, `mlp` and `experts` by columns or rows;
    `kv_projection` by KV heads (so replicated where there are more GPUs than heads); `replicated` is on every
    GPU. `absorbed` are MLA's up-projections, which vLLM keeps a second time in the model's type.
    `active_experts` is the part of `experts` that one token uses.
    """

    embedding: int
    head: int
    attention: int
    kv_projection: int = 0
    mlp: int = 0
    experts: int = 0
    active_experts: int = 0
    replicated: int = 0
    absorbed: int = 0

    @property
    def total(self) -> int:
        """All parameters of the checkpoint."""
        return (
            self.embedding
            + self.head
            + self.attention
            + self.kv_projection
            + self.mlp
            + self.experts
            + self.replicated
        )

    @property
    def active(self) -> int:
        """Those that take part in the computation of one token; an embedding is looked up, not multiplied."""
        head = self.head or self.embedding
        return self.total - self.embedding - self.head - self.experts + self.active_experts + head


class Quantization(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How weights are stored: bytes a parameter, scales included, of each kind that can be quantized."""

    name: str = ""
    linear_bytes: float
    attention_bytes: float
    expert_bytes: float


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model as its config.json describes it.

    `dtype_bytes` is that of activations and of the KV cache `auto`.
    """

    architecture: str
    layers: int
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    vocab_size: int
    max_position: int
    dtype_bytes: int
    kv: tuple[KvLayers, ...]
    parameters: Parameters
    quantization: Quantization
    experts: int = 0
    notes: tuple[str, ...] = ()
