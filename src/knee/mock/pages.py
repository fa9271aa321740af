"""The small JSON documents of a simulated server."""

from typing import Any

from knee.mock.ask import chat_prompt, check_model
from knee.mock.config import MockConfig
from knee.mock.fields import parse_body
from knee.mock.refusal import bad_request
from knee.mock.tokens import pieces, text_of, token_ids

Document = dict[str, Any]


def models_page(config: MockConfig, created_s: int, ident: str) -> Document:
    """`/v1/models`: the one model that is served."""
    permission = {
        "id": f"modelperm-{ident}", "object": "model_permission", "created": created_s,
        "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
        "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False,
        "organization": "*", "group": None, "is_blocking": False,
    }  # fmt: skip
    card = {
        "id": config.model, "object": "model", "created": created_s, "owned_by": "vllm",
        "root": config.model, "parent": None, "max_model_len": config.engine.max_model_len,
        "permission": [permission],
    }  # fmt: skip
    return {"object": "list", "data": [card]}


def tokenized(body: bytes, config: MockConfig) -> Document:
    """`/tokenize`: the tokens of a text, or of messages as the chat template puts them.

    Raises:
        Refused: there is neither.
    """
    fields = parse_body(body)
    check_model(fields, config)
    text = chat_prompt(fields).text if "messages" in fields else fields.get("prompt")
    if not isinstance(text, str):
        raise bad_request("prompt must be a text", "prompt")
    ids = token_ids(text)
    strings = pieces(text) if fields.get("return_token_strs") else None
    limit = config.engine.max_model_len
    return {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": strings}


def detokenized(body: bytes, config: MockConfig) -> Document:
    """`/detokenize`: the text of token ids.

    Raises:
        Refused: they are no list of numbers.
    """
    fields = parse_body(body)
    check_model(fields, config)
    ids = fields.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(item, int) for item in ids):
        raise bad_request("tokens must be a list of token ids", "tokens")
    return {"prompt": text_of(ids)}
