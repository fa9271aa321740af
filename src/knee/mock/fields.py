"""The fields of a request's body, read as leniently as pydantic reads them for vLLM, with its errors."""

import json
from typing import Any

import msgspec

from knee.mock.refusal import bad_request, invalid

Fields = dict[str, Any]


def parse_body(body: bytes) -> Fields:
    """The JSON object in `body`.

    Raises:
        Refused: it is not JSON, or not an object.
    """
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            found = json.loads(body)  # accepts a little more (NaN), and words its errors as vLLM shows them
        except json.JSONDecodeError as error:
            raise invalid("json_invalid", (error.pos,), "JSON decode error", {}, error.msg) from error
        except (UnicodeDecodeError, RecursionError) as error:
            raise bad_request("There was an error parsing the body") from error
    if not isinstance(found, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise invalid("model_attributes_type", (), text, found)
    return found


def bounded(fields: Fields, name: str, default: int, low: int, high: int) -> int:
    """The field `name` as a whole number from `low` to `high`; `default` where it is absent.

    Raises:
        Refused: it is not such a number.
    """
    value = integer(fields, name)
    if value is None:
        return default
    if value < low:
        raise bad_request(f"{name} must be at least {low}, got {value}.")
    if value > high:
        raise bad_request(f"{name} must be at most {high}, got {value}.")
    return value


def integer(fields: Fields, name: str) -> int | None:
    """The field `name` as a whole number, read as leniently as pydantic does; None where it is absent.

    Raises:
        Refused: it is no whole number.
    """
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    stem = "Input should be a valid integer"
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        raise invalid("int_from_float", (name,), f"{stem}, got a number with a fractional part", value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            text = f"{stem}, unable to parse string as an integer"
            raise invalid("int_parsing", (name,), text, value) from None
    raise invalid("int_type", (name,), stem, value)


def boolean(fields: Fields, name: str) -> bool:
    """The field `name` as a truth value, read as leniently as pydantic does; False where it is absent.

    Raises:
        Refused: it is no truth value.
    """
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    words = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    known = words.get(str(value).lower()) if isinstance(value, str | int) else None
    if known is None:
        text = "Input should be a valid boolean, unable to interpret input"
        raise invalid("bool_parsing", (name,), text, value)
    return known


def stop_strings(fields: Fields) -> tuple[str, ...]:
    """The field `stop`: a text or a list of texts.

    Raises:
        Refused: it is neither, or holds an empty text.
    """
    given = fields.get("stop")
    stops = [given] if isinstance(given, str) else (given or [])
    if not isinstance(stops, list) or not all(isinstance(item, str) for item in stops):
        raise invalid("string_type", ("stop", "str"), "Input should be a valid string", given)
    if "" in stops:
        raise bad_request("stop cannot contain an empty string.")
    return tuple(stops)
