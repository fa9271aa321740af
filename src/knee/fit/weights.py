"""Bytes of a model's weights on the GPU that holds most of them."""

from knee.fit.kv import Parallel, heads_on_rank
from knee.fit.shape import ModelShape


def weight_bytes(shape: ModelShape, parallel: Parallel) -> float:
    """Bytes on one GPU: the share of the layers that its pipeline stage has, split over tensor parallelism.

    The first or last stage binds: it has the embedding, or the output projection, besides its layers.
    """
    parameters, stored, plain = shape.parameters, shape.quantization, shape.dtype_bytes
    tp, stages = parallel.tp, parallel.pp
    copies = heads_on_rank(shape.kv_heads, tp) * tp / shape.kv_heads if shape.kv_heads else 1
    share = -(-shape.layers // stages) / shape.layers
    layered = (
        parameters.attention * stored.attention_bytes
        + parameters.kv_projection * copies * stored.attention_bytes
        + parameters.mlp * stored.linear_bytes
        + parameters.experts * stored.expert_bytes
        + parameters.absorbed * plain
    ) / tp + parameters.replicated * plain
    vocabulary = (
        parameters.embedding + parameters.head
        if stages == 1
        else max(parameters.embedding, parameters.head or parameters.embedding)
    )
    return layered * share + vocabulary * plain / tp


def active_bytes(shape: ModelShape, parallel: Parallel, tokens: int) -> float:
    """Bytes of weights that one GPU of the slowest stage reads in a step with `tokens` tokens.

    Of routed experts a token uses its own few; with more tokens more of them are read, on average
    experts x (1 - (1 - chosen / experts) ^ tokens), all tokens choosing alike and independently.
    """
    parameters = shape.parameters
    whole = weight_bytes(shape, parallel) - parameters.embedding * shape.dtype_bytes / parallel.tp * (
        1 if parameters.head and parallel.pp == 1 else 0
    )
    if not parameters.experts:
        return whole
    share = parameters.active_experts / parameters.experts
    unread = parameters.experts * (1 - share) ** tokens * shape.quantization.expert_bytes
    return whole - unread / parallel.tp / parallel.pp
