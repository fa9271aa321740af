"""A model's `config.json` as a shape. Architectures are looked up by name; an unknown one is refused.

Parameter counts follow the checkpoints' own layout (Hugging Face transformers' modelling files), which vLLM
loads; the tests compare them with the weights that vLLM printed in public logs.
"""

from pathlib import Path
from typing import Any

import msgspec

from knee.core.errors import InputError
from knee.fit.families import FAMILIES
from knee.fit.quantized import from_config
from knee.fit.reader import Reader
from knee.fit.shape import ModelShape, Quantization

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2}
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")


def read_model(path: Path, quantization: Quantization | None = None) -> ModelShape:
    """The shape of the model whose `config.json` (or the folder with it) is at `path`. Nothing is downloaded.

    `quantization` overrides what the configuration says.

    Raises:
        InputError: the file is missing, not JSON, not a model's configuration, or of an architecture or
            quantization that is not known here.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}",
            "give a config.json, or the folder with it; nothing is fetched",
        ) from error
    except msgspec.DecodeError as error:
        raise InputError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(
            f"{file} is not a model's configuration: no object", "give the config.json of the model"
        )
    return shape_of(config, str(file), quantization)


def shape_of(
    config: dict[str, Any], name: str = "config.json", quantization: Quantization | None = None
) -> ModelShape:
    """The shape that a configuration describes.

    Raises:
        InputError: as `read_model`.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise InputError(f"{name} names no architecture", "a model's config.json has a list `architectures`")
    architecture = str(architectures[0])
    if architecture not in FAMILIES:
        raise InputError(
            f"{name}: architecture {architecture!r} is not known here, so no number is given",
            f"known: {', '.join(sorted(FAMILIES))}",
        )
    nested = next((config[key] for key in _NESTED if isinstance(config.get(key), dict)), None)
    reader = Reader({**config, **nested} if nested else config, name)
    dtype_bytes = _DTYPE_BYTES.get(reader.text("dtype", "") or reader.text("torch_dtype", "bfloat16"), 2)
    kv, parameters = FAMILIES[architecture](reader)
    notes = []
    if "vision_config" in config or "audio_config" in config:
        notes.append("only the language model is counted: encoders for images or audio need memory besides")
    stored = quantization or from_config(
        config.get("quantization_config") or reader.value("quantization_config"), dtype_bytes
    )
    return ModelShape(
        architecture=architecture,
        layers=reader.whole("num_hidden_layers"),
        hidden_size=reader.whole("hidden_size"),
        intermediate_size=reader.whole("moe_intermediate_size", reader.whole("intermediate_size", 0)),
        attention_heads=reader.whole("num_attention_heads", 1),
        kv_heads=max((item.kv_heads for item in kv), default=0),
        vocab_size=reader.whole("vocab_size"),
        max_position=reader.whole("max_position_embeddings", 0),
        dtype_bytes=dtype_bytes,
        kv=kv,
        parameters=parameters,
        quantization=stored,
        experts=reader.experts(),
        notes=tuple(notes),
    )
