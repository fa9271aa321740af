"""Values of a model's configuration, with an error that names what is missing."""

from typing import Any

from knee.core.errors import InputError

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class Reader:
    """A configuration to take values from; `name` is the file, for errors."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        self._config = config
        self._name = name

    def value(self, key: str) -> Any:
        """What stands under `key`; None where nothing does."""
        return self._config.get(key)

    def text(self, key: str, default: str) -> str:
        """The text under `key`, without `torch.`."""
        found = self._config.get(key)
        return found.removeprefix("torch.") if isinstance(found, str) else default

    def whole(self, key: str, default: int | None = None) -> int:
        """The whole number under `key`.

        Raises:
            InputError: there is none and no default, or it is something else.
        """
        found = self._config.get(key)
        if found is None and default is not None:
            return default
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise InputError(
                f"{self._name}: {key} is {found!r}, not a whole number",
                "give the complete config.json of the model",
            )
        return found

    def first(self, *keys: str) -> int:
        """The whole number under the first of `keys` that is there.

        Raises:
            InputError: none is.
        """
        return self.whole(next((key for key in keys if self._config.get(key) is not None), keys[0]))

    def numbers(self, key: str) -> list[int]:
        """The whole numbers listed under `key`.

        Raises:
            InputError: there is no such list.
        """
        found = self._config.get(key)
        if not isinstance(found, list) or not all(isinstance(item, int) for item in found):
            raise InputError(f"{self._name}: {key} is {found!r}, not a list of whole numbers")
        return found

    def flag(self, key: str, *, default: bool) -> bool:
        """The boolean under `key`."""
        found = self._config.get(key)
        return found if isinstance(found, bool) else default

    def experts(self) -> int:
        """The number of routed experts; 0 for a dense model."""
        return next((self.whole(key) for key in _EXPERTS if isinstance(self._config.get(key), int)), 0)

    def head_dim(self) -> int:
        """Elements of one attention head."""
        heads = self.whole("num_attention_heads")
        found = self.whole("head_dim", 0)
        return found or self.whole("hidden_size") // max(1, heads)

    def attention_head_dim(self) -> int:
        """Elements of one attention head where `head_dim` may be that of something else."""
        return self.whole("attention_head_dim", 0) or self.head_dim()

    def layer_types(self) -> list[str]:
        """The kind of each layer where the configuration lists them; [] where it does not."""
        found = self._config.get("layer_types")
        return [str(kind) for kind in found] if isinstance(found, list) else []

    def tied(self, *, default: bool) -> bool:
        """Whether the output shares the embedding's weights."""
        return self.flag("tie_word_embeddings", default=default)
