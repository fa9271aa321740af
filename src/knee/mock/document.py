"""A whole answer as one JSON document: fields, order and spelling are those recorded from vLLM 0.32.0."""

from typing import TYPE_CHECKING, Any

from knee.core.requests import NEVER
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.engine.request import Request

if TYPE_CHECKING:
    from knee.mock.reply import Choice, Reply

Document = dict[str, Any]


def whole_answer(reply: "Reply") -> Document:
    """The JSON document of a reply that is complete."""
    chat = reply.ask.chat
    made = sum(choice.made for choice in reply.choices)
    details = None
    if reply.style.per_request_metrics:
        cached = sum(max(0, choice.request.cached_tokens) for choice in reply.choices)
        details = {"cached_tokens": cached, "created_cache_tokens": None, "multimodal_tokens": None}
    tail = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} if chat else {}
    return {
        "id": reply.ident,
        "object": "chat.completion" if chat else "text_completion",
        "created": reply.created,
        "model": reply.style.model,
        "choices": [_chat_choice(c) if chat else _text_choice(c) for c in reply.choices],
        "service_tier": None,
        "system_fingerprint": reply.style.fingerprint,
        "usage": {
            "prompt_tokens": reply.prompt_tokens,
            "total_tokens": reply.prompt_tokens + made,
            "completion_tokens": made,
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        },
        **tail,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": _timings(reply.choices[0].request) if reply.style.per_request_metrics else None,
    }


def _text_choice(choice: "Choice") -> Document:
    return {
        "index": choice.index,
        "text": choice.take_text(),
        "logprobs": None,
        "finish_reason": choice.answer.finish_reason,
        "stop_reason": choice.answer.stop_reason,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def _chat_choice(choice: "Choice") -> Document:
    message = {"role": "assistant", "content": choice.take_text(), "refusal": None, "annotations": None,
               "audio": None, "function_call": None, "reasoning": None}  # fmt: skip
    return {
        "index": choice.index,
        "message": message,
        "logprobs": None,
        "finish_reason": choice.answer.finish_reason,
        "stop_reason": choice.answer.stop_reason,
        "token_ids": None,
        "routed_experts": None,
    }


def _timings(request: Request) -> dict[str, float | None]:
    """`metrics` of an answer (--enable-per-request-metrics), from the engine's own instants."""
    generated_ns = request.last_ns - request.first_ns
    gaps = request.output_tokens - 1
    total_ns = request.last_ns - request.scheduled_ns
    queued_ns = request.scheduled_ns - request.queued_ns if request.scheduled_ns != NEVER else 0
    return {
        "time_to_first_token_ms": (request.first_ns - request.arrival_ns) / NS_PER_MS,
        "generation_time_ms": generated_ns / NS_PER_MS,
        "queue_time_ms": queued_ns / NS_PER_MS,
        "mean_itl_ms": generated_ns / gaps / NS_PER_MS if gaps > 0 else None,
        "tokens_per_second": request.output_tokens / (total_ns / NS_PER_S) if total_ns > 0 else None,
        "speculative_decoding": None,
    }
