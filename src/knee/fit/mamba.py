"""Models whose layers keep a state instead of a cache: Mamba, Mamba 2, and their hybrids with attention.

Shapes of states: vllm/model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator. The few groups
that tensor parallelism adds where it does not divide `n_groups` are left out: below a percent of a state.
"""

from knee.core.errors import InputError
from knee.fit.reader import Reader
from knee.fit.shape import KvLayers, Parameters, vocabulary_rows

Made = tuple[tuple[KvLayers, ...], Parameters]


def bamba(reader: Reader) -> Made:
    """Bamba: Mamba 2 or attention, and a gated feed-forward block, in every layer."""
    layers = reader.whole("num_hidden_layers")
    attention = len(reader.numbers("attn_layer_indices"))
    mlp = layers * 3 * reader.whole("hidden_size") * reader.whole("intermediate_size")
    return _hybrid(reader, layers - attention, attention, mlp=mlp)


def granite_hybrid(reader: Reader) -> Made:
    """Granite 4 hybrids: Mamba 2 or attention, with routed experts and a shared block, in every layer."""
    kinds, hidden = reader.layer_types(), reader.whole("hidden_size")
    if set(kinds) - {"mamba", "attention"} or not kinds:
        raise InputError(f"layer_types are {sorted(set(kinds))}", "known kinds here: mamba, attention")
    experts = reader.whole("num_local_experts", 0)
    each = 3 * hidden * reader.whole("intermediate_size") if experts else 0
    shared = 3 * hidden * reader.whole("shared_intermediate_size", 0)
    return _hybrid(
        reader,
        kinds.count("mamba"),
        kinds.count("attention"),
        mlp=len(kinds) * shared,
        experts=len(kinds) * experts * each,
        active=len(kinds) * reader.whole("num_experts_per_tok", 0) * each,
    )


def nemotron(reader: Reader) -> Made:
    """Nemotron H: each layer is Mamba 2 (M), attention (*) or a feed-forward block without gate (-)."""
    pattern = reader.text("hybrid_override_pattern", "")
    if not pattern or set(pattern) - set("M*-"):
        raise InputError(f"hybrid_override_pattern is {pattern!r}", "known letters here: M, * and -")
    mlp = pattern.count("-") * 2 * reader.whole("hidden_size") * reader.whole("intermediate_size")
    return _hybrid(reader, pattern.count("M"), pattern.count("*"), mlp=mlp)


def mamba2(reader: Reader) -> Made:
    """Mamba 2 alone."""
    return _hybrid(reader, reader.whole("num_hidden_layers"), 0, mlp=0)


def _hybrid(
    reader: Reader, states: int, attention: int, *, mlp: int, experts: int = 0, active: int = 0
) -> Made:
    hidden = reader.whole("hidden_size")
    heads = reader.first("mamba_n_heads", "mamba_num_heads", "num_heads")
    head, size = (
        reader.first("mamba_d_head", "mamba_head_dim", "head_dim"),
        reader.first("mamba_d_state", "ssm_state_size", "state_size"),
    )
    groups, kernel = reader.first("mamba_n_groups", "n_groups"), reader.first("mamba_d_conv", "conv_kernel")
    inner = heads * head
    mixed = inner + 2 * groups * size
    mixer = hidden * (inner + mixed + heads) + mixed * kernel + inner * hidden
    float32 = reader.text("mamba_ssm_cache_dtype", reader.text("mamba_ssm_dtype", "")) == "float32"
    kv = [
        KvLayers(
            kind="state",
            count=states,
            conv_elements=mixed * (kernel - 1),
            ssm_elements=inner * size,
            ssm_bytes=4 if float32 else 2,
        )
    ]
    query = key_value = width = 0
    if attention:
        query, width = reader.whole("num_attention_heads"), reader.attention_head_dim()
        key_value = reader.whole("num_key_value_heads", query)
        kv.insert(
            0, KvLayers(kind="full", count=attention, kv_heads=key_value, key_dim=width, value_dim=width)
        )
    rows = vocabulary_rows(reader.whole("vocab_size"))
    parameters = Parameters(
        embedding=rows * hidden,
        head=0 if reader.tied(default=False) else rows * hidden,
        attention=states * mixer + attention * 2 * hidden * query * width,
        kv_projection=attention * 2 * hidden * key_value * width,
        mlp=mlp,
        experts=experts,
        active_experts=active,
        replicated=(states + attention) * 2 * hidden,
    )
    return tuple(kv), parameters
