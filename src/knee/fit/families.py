"""Families of models: from a configuration to cache layers and parameter counts."""

from collections.abc import Callable
from functools import partial

from knee.core.errors import InputError
from knee.fit.mamba import bamba, granite_hybrid, mamba2, nemotron
from knee.fit.reader import Reader
from knee.fit.shape import KvKind, KvLayers, Parameters, vocabulary_rows

Made = tuple[tuple[KvLayers, ...], Parameters]


def dense(
    reader: Reader,
    *,
    gated: bool = True,
    tied: bool = False,
    window_pattern: int = 0,
    sliding_everywhere: bool = True,
    kv_heads: int | None = None,
) -> Made:
    """Decoders with attention and one feed-forward block a layer, or with routed experts instead.

    `window_pattern` n: every n-th layer has full attention, the others a sliding window. With
    `sliding_everywhere` a `sliding_window` holds for all layers where nothing else is said.
    """
    layers, hidden = reader.whole("num_hidden_layers"), reader.whole("hidden_size")
    heads = reader.whole("num_attention_heads")
    key_value = reader.whole("num_key_value_heads", heads) if kv_heads is None else kv_heads
    size = reader.head_dim()
    experts, active, mlp, routers = _feed_forward(reader, gated=gated)
    kinds = _kinds(reader, window_pattern, everywhere=sliding_everywhere)
    attends = layers - sum(count for kind, count in kinds.items() if kind == "linear_attention")
    kv = tuple(
        KvLayers(
            kind=kind,
            count=count,
            kv_heads=key_value,
            key_dim=size,
            value_dim=size,
            window=_window(reader, kind),
        )
        for name, count in kinds.items()
        for kind in (_KIND[name],)
        if name != "linear_attention" and count
    )
    vocabulary = vocabulary_rows(reader.whole("vocab_size"))
    parameters = Parameters(
        embedding=vocabulary * hidden,
        head=0 if reader.tied(default=tied) else vocabulary * hidden,
        attention=attends * 2 * hidden * heads * size,
        kv_projection=attends * 2 * hidden * key_value * size,
        mlp=mlp,
        experts=experts,
        active_experts=active,
        replicated=routers + (2 * layers + 1) * hidden,
    )
    return kv, parameters


_KIND: dict[str, KvKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
}


def _kinds(reader: Reader, pattern: int, *, everywhere: bool) -> dict[str, int]:
    """How many layers of each kind."""
    layers = reader.whole("num_hidden_layers")
    listed = reader.layer_types()
    if listed:
        unknown = sorted(set(listed) - set(_KIND))
        if unknown or len(listed) != layers:
            raise InputError(
                f"layer_types: {len(listed)} entries for {layers} layers, unknown kinds {unknown}",
                f"known kinds: {', '.join(_KIND)}",
            )
        return {kind: listed.count(kind) for kind in dict.fromkeys(listed)}
    window = reader.whole("sliding_window", 0) if reader.flag("use_sliding_window", default=True) else 0
    pattern = reader.whole("sliding_window_pattern", pattern)
    if window and pattern:
        return {"sliding_attention": layers - layers // pattern, "full_attention": layers // pattern}
    if window and everywhere:
        return {"sliding_attention": layers}
    return {"full_attention": layers}


def _window(reader: Reader, kind: KvKind) -> int:
    if kind == "sliding":
        return reader.whole("sliding_window")
    return reader.whole("attention_chunk_size") if kind == "chunked" else 0


def _feed_forward(reader: Reader, *, gated: bool) -> tuple[int, int, int, int]:
    """Parameters of all layers: routed experts, the active ones of them, dense feed-forward, routers."""
    layers, hidden = reader.whole("num_hidden_layers"), reader.whole("hidden_size")
    matrices = 3 if gated else 2
    number = reader.experts()
    if not number:
        return 0, 0, layers * matrices * hidden * reader.whole("intermediate_size", 4 * hidden), 0
    width = reader.whole("moe_intermediate_size", reader.whole("intermediate_size", 0))
    dense_layers = reader.whole("first_k_dense_replace", 0)
    sparse = layers - dense_layers
    step = reader.whole("decoder_sparse_step", 1) or 1
    if step > 1:
        sparse, dense_layers = sparse // step, dense_layers + sparse - sparse // step
    chosen = reader.whole("num_experts_per_tok", 1)
    shared = reader.whole("shared_expert_intermediate_size", 0) or width * reader.whole("n_shared_experts", 0)
    dense_width = reader.whole("intermediate_size", 0)
    each = matrices * hidden * width
    return (
        sparse * number * each,
        sparse * chosen * each,
        sparse * matrices * hidden * shared + dense_layers * matrices * hidden * dense_width,
        sparse * hidden * number,
    )


def latent(reader: Reader) -> Made:
    """Multi-head latent attention (DeepSeek V2, V3, Kimi K2): one latent vector a token, on every GPU."""
    layers, hidden = reader.whole("num_hidden_layers"), reader.whole("hidden_size")
    heads, rank = reader.whole("num_attention_heads"), reader.whole("kv_lora_rank")
    nope, rope = reader.whole("qk_nope_head_dim"), reader.whole("qk_rope_head_dim")
    value = reader.whole("v_head_dim")
    query_rank = reader.whole("q_lora_rank", 0)
    query = query_rank * heads * (nope + rope) if query_rank else hidden * heads * (nope + rope)
    up = rank * heads * (nope + value)
    experts, active, mlp, routers = _feed_forward(reader, gated=True)
    vocabulary = vocabulary_rows(reader.whole("vocab_size"))
    down = hidden * (query_rank + rank + rope)
    parameters = Parameters(
        embedding=vocabulary * hidden,
        head=0 if reader.tied(default=False) else vocabulary * hidden,
        attention=layers * (query + up + heads * value * hidden),
        mlp=mlp,
        experts=experts,
        active_experts=active,
        replicated=routers + layers * down + (2 * layers + 1) * hidden,
        absorbed=layers * up,
    )
    return (KvLayers(kind="mla", count=layers, key_dim=rank + rope),), parameters


def gated_delta(reader: Reader) -> Made:
    """Hybrids of full attention and gated delta nets (Qwen3-Next, Qwen3.5): a state instead of a cache."""
    hidden, layers = reader.whole("hidden_size"), reader.whole("num_hidden_layers")
    interval = reader.whole("full_attention_interval", 4)
    linear = reader.layer_types().count("linear_attention") or layers - layers // interval
    full = layers - linear
    keys, values = reader.whole("linear_num_key_heads"), reader.whole("linear_num_value_heads")
    key_dim, value_dim = reader.whole("linear_key_head_dim"), reader.whole("linear_value_head_dim")
    mixed = 2 * keys * key_dim + values * value_dim
    heads, size = reader.whole("num_attention_heads"), reader.head_dim()
    key_value = reader.whole("num_key_value_heads", heads)
    experts, active, mlp, routers = _feed_forward(reader, gated=True)
    vocabulary = vocabulary_rows(reader.whole("vocab_size"))
    float32 = reader.text("mamba_ssm_dtype", "") == "float32"
    attention = full * hidden * size * heads * 3  # query, its gate, output
    delta = linear * hidden * (mixed + 2 * values * value_dim + 2 * values)
    kv = (
        KvLayers(kind="full", count=full, kv_heads=key_value, key_dim=size, value_dim=size),
        KvLayers(
            kind="state",
            count=linear,
            conv_elements=mixed * (reader.whole("linear_conv_kernel_dim", 4) - 1),
            ssm_elements=values * value_dim * key_dim,
            ssm_bytes=4 if float32 else 2,
        ),
    )
    parameters = Parameters(
        embedding=vocabulary * hidden,
        head=0 if reader.tied(default=False) else vocabulary * hidden,
        attention=attention + delta,
        kv_projection=full * 2 * hidden * key_value * size,
        mlp=mlp,
        experts=experts,
        active_experts=active,
        replicated=routers + (2 * layers + 1) * hidden,
    )
    return kv, parameters


def falcon(reader: Reader) -> Made:
    """Falcon: one KV head (7B), or a few with the new decoder; no gate in the feed-forward block."""
    new = reader.flag("new_decoder_architecture", default=False)
    heads = reader.whole("num_attention_heads")
    key_value = (
        reader.whole("num_kv_heads", heads) if new or not reader.flag("multi_query", default=True) else 1
    )
    return dense(reader, gated=False, tied=True, kv_heads=key_value)


Family = Callable[[Reader], Made]

_full_only = partial(dense, sliding_everywhere=False)

FAMILIES: dict[str, Family] = {
    "ApertusForCausalLM": partial(dense, gated=False),
    "BambaForCausalLM": bamba,
    "Cohere2ForCausalLM": partial(dense, tied=True, window_pattern=4),
    "CohereForCausalLM": partial(dense, tied=True),
    "DeepseekV2ForCausalLM": latent,
    "DeepseekV3ForCausalLM": latent,
    "Exaone4ForCausalLM": _full_only,
    "FalconForCausalLM": falcon,
    "Gemma2ForCausalLM": partial(dense, tied=True, window_pattern=2),
    "Gemma3ForCausalLM": partial(dense, tied=True, window_pattern=6),
    "Gemma3ForConditionalGeneration": partial(dense, tied=True, window_pattern=6),
    "GemmaForCausalLM": partial(dense, tied=True),
    "Glm4ForCausalLM": dense,
    "Glm4MoeForCausalLM": dense,
    "GptOssForCausalLM": partial(dense, window_pattern=2),
    "GraniteForCausalLM": partial(dense, tied=True),
    "GraniteMoeHybridForCausalLM": granite_hybrid,
    "InternLM3ForCausalLM": dense,
    "LlamaForCausalLM": dense,
    "Mamba2ForCausalLM": mamba2,
    "MistralForCausalLM": dense,
    "MixtralForCausalLM": dense,
    "NemotronHForCausalLM": nemotron,
    "Olmo2ForCausalLM": dense,
    "OlmoeForCausalLM": dense,
    "Phi3ForCausalLM": dense,
    "Qwen2ForCausalLM": _full_only,
    "Qwen2MoeForCausalLM": _full_only,
    "Qwen3ForCausalLM": _full_only,
    "Qwen3MoeForCausalLM": _full_only,
    "Qwen3NextForCausalLM": gated_delta,
    "Qwen3_5ForCausalLM": gated_delta,
    "Qwen3_5ForConditionalGeneration": gated_delta,
    "Qwen3_5MoeForCausalLM": gated_delta,
    "Qwen3_5MoeForConditionalGeneration": gated_delta,
    "SeedOssForCausalLM": dense,
    "SmolLM3ForCausalLM": partial(dense, tied=True, sliding_everywhere=False),
    "Starcoder2ForCausalLM": partial(dense, gated=False, tied=True),
}
"""The architectures whose arithmetic is known, by the name in config.json."""
