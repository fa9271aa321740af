"""Compare two recordings: what changed beyond the noise that each server shows against itself."""

import math
import re
from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from knee.core.errors import InputError
from knee.stats.distributions import normal_quantile, wilson
from knee.upgrade.evaluation import Mode
from knee.upgrade.recording import Probe, Recording, Said
from knee.upgrade.sampling import CONFIDENCE, SAME_NATS, is_plain, likelihood_shift

Verdict = Literal["unchanged", "changed", "inconclusive"]
Pairs = list[tuple[Probe, Probe]]

MODES: tuple[Mode, ...] = get_args(Mode)

NEAR_TIE_NATS = 0.1
"""Two tokens this close in log probability may change places with the order of additions in a kernel."""

_WORD = re.compile(r"\s*\S+|\s+$")


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where two answers part: the first differing token, counted from 0.

    `margin` as in `Said.margins`; None where the server told none, or the prompts differ already.
    """

    case: str
    mode: str
    at: int
    of: int
    before: str
    after: str
    margin: float | None = None

    @property
    def near_tie(self) -> bool:
        """Whether the baseline itself almost chose another token here."""
        return self.margin is not None and self.margin < NEAR_TIE_NATS


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of comparison over `n` probes.

    `changed` of them differ between the recordings; `noisy` of the 2 n A/A pairs differ within one. `low` and
    `high` bound the share changed beyond noise. `basis` says what the verdict stands on where that is not it.
    """

    name: str
    n: int
    changed: int
    noisy: int
    low: float
    high: float
    verdict: Verdict
    basis: str = ""

    @property
    def share(self) -> float:
        """The share changed."""
        return self.changed / self.n if self.n else 0.0


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two recordings side by side; `cause` names what the pattern of changes points to."""

    before: str
    after: str
    groups: tuple[Group, ...]
    divergences: tuple[Divergence, ...]
    verdict: Verdict
    cause: str
    notes: tuple[str, ...]


def compare(before: Recording, after: Recording) -> Comparison:
    """What changed from `before` to `after`.

    Raises:
        InputError: the recordings are of different evaluation sets.
    """
    if before.digest != after.digest:
        raise InputError("the recordings are of different evaluation sets", "record both with the same --set")
    later = {(probe.case, probe.mode): probe for probe in after.probes}
    pairs = [(one, later[one.case, one.mode]) for one in before.probes if (one.case, one.mode) in later]
    groups = {"prompts": _group("prompts", pairs, _prompt)}
    for mode in MODES:
        own = [pair for pair in pairs if pair[0].mode == mode]
        if own:
            groups[mode] = _group(mode, own, _text)
    if _needs_likelihood(groups):
        default = [pair for pair in pairs if pair[0].mode == "default"]
        groups["default"] = _by_likelihood(groups["default"], before, after, default)
    verdicts = {name: group.verdict for name, group in groups.items() if group.n}
    return Comparison(
        before=f"{before.model} on vLLM {before.version or '?'}",
        after=f"{after.model} on vLLM {after.version or '?'}",
        groups=tuple(groups.values()),
        divergences=tuple(found for pair in pairs if (found := diverge(*pair)) is not None),
        verdict=_overall([verdict for name, verdict in verdicts.items() if name != "seeded"]),
        cause=_cause(verdicts),
        notes=tuple(dict.fromkeys((*before.notes, *after.notes, *_remarks(before, after, groups)))),
    )


def _overall(verdicts: list[Verdict]) -> Verdict:
    """Changed as soon as one is; a seed that draws other tokens is not among them."""
    if not verdicts or ("inconclusive" in verdicts and "changed" not in verdicts):
        return "inconclusive"
    return "changed" if "changed" in verdicts else "unchanged"


def _needs_likelihood(groups: dict[str, Group]) -> bool:
    """Whether default answers differ, and the seed may be all that is behind it."""
    if "default" not in groups or groups["default"].verdict == "unchanged":
        return False
    seeded = groups.get("seeded")
    same_seed = seeded is not None and seeded.n > 0 and seeded.verdict == "unchanged"
    return not same_seed and groups["prompts"].verdict != "changed"


def _by_likelihood(group: Group, before: Recording, after: Recording, pairs: Pairs) -> Group:
    """The verdict on default sampling where the same seed draws other tokens in the two versions."""
    plain = is_plain(before), is_plain(after)
    verdict: Verdict = "inconclusive"
    if plain == (True, True):
        verdict, basis = "unchanged", "default sampling equals temperature 1 in both"
    elif set(plain) == {True, False}:
        verdict, basis = "changed", "default sampling equals temperature 1 in one of them only"
    else:
        shift = likelihood_shift(pairs)
        basis = "the servers do not tell how likely their tokens are"
        if shift is not None:
            told = f"{shift.shift:+.2f} nats ({shift.low:+.2f} to {shift.high:+.2f})"
            basis = f"the log probability of sampled tokens moved by {told}"
            if shift.low > -SAME_NATS and shift.high < SAME_NATS:
                verdict = "unchanged"
            elif shift.low > 0 or shift.high < 0:
                verdict = "changed"
    return msgspec.structs.replace(group, verdict=verdict, basis=f"the seed draws other tokens; {basis}")


def _prompt(said: Said) -> object:
    return said.prompt_ids or said.prompt_tokens


def _text(said: Said) -> object:
    return (said.text, said.finish_reason, said.error)


def _group(name: str, pairs: Pairs, key: Callable[[Said], object]) -> Group:
    told = [pair for pair in pairs if not all(probe.runs[0].error for probe in pair)]
    known = [pair for pair in told if all(key(said) is not None for probe in pair for said in probe.runs)]
    changed = sum(key(one.runs[0]) != key(other.runs[0]) for one, other in known)
    noisy = sum(len({repr(key(said)) for said in probe.runs}) > 1 for pair in known for probe in pair)
    low, high = share_beyond_noise(changed, len(known), noisy, 2 * len(known))
    verdict: Verdict = "inconclusive"
    if not known or changed == 0:
        verdict = "unchanged" if known else "inconclusive"
    elif low > 0 or (name == "prompts" and not noisy):
        verdict = "changed"  # a prompt is rendered without chance: one difference is a change
    elif changed / len(known) <= noisy / (2 * len(known)):
        verdict = "unchanged"
    return Group(name=name, n=len(known), changed=changed, noisy=noisy, low=low, high=high, verdict=verdict)


def share_beyond_noise(changed: int, n: int, noisy: int, trials: int) -> tuple[float, float]:
    """Bounds of the share changed minus the share of noise, each a count of its trials.

    Newcombe's interval for the difference of two shares from their Wilson intervals (1998, method 10). It
    treats the two as independent; both come from the same cases, which makes it wider than it need be.
    """
    if n == 0 or trials == 0:
        return -1.0, 1.0
    critical = normal_quantile((1 + CONFIDENCE) / 2)
    seen, noise = changed / n, noisy / trials
    low, high = wilson(seen, n, critical)
    noise_low, noise_high = wilson(noise, trials, critical)
    return (
        max(-1.0, seen - noise - math.hypot(seen - low, noise_high - noise)),
        min(1.0, seen - noise + math.hypot(high - seen, noise - noise_low)),
    )


def diverge(before: Probe, after: Probe) -> Divergence | None:
    """Where the first runs of a probe part; None where they say the same."""
    one, other = before.runs[0], after.runs[0]
    if _text(one) == _text(other):
        return None
    by_token = bool(one.tokens and other.tokens)
    same_prompt = _prompt(one) == _prompt(other)
    old = one.tokens if by_token else _words(one)
    new = other.tokens if by_token else _words(other)
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return Divergence(
        case=before.case,
        mode=before.mode,
        at=at,
        of=len(old),
        before=old[at] if at < len(old) else f"(end: {one.finish_reason or one.error})",
        after=new[at] if at < len(new) else f"(end: {other.finish_reason or other.error})",
        margin=one.margins[at] if by_token and same_prompt and at < len(one.margins) else None,
    )


def _words(said: Said) -> tuple[str, ...]:
    return tuple(_WORD.findall(said.text))


def _cause(verdicts: dict[str, Verdict]) -> str:
    if verdicts.get("prompts") == "changed":
        return "the chat template or the tokenizer: the same messages are rendered to other tokens"
    if verdicts.get("greedy") == "changed":
        return "the model's arithmetic (weights, quantization, kernels): the same tokens go on differently"
    if verdicts.get("default") == "changed":
        return "the sampling defaults: only answers without a temperature of their own moved"
    return ""


def _remarks(before: Recording, after: Recording, groups: dict[str, Group]) -> list[str]:
    remarks = []
    if before.model != after.model:
        remarks.append(f"different models: {before.model} and {after.model}")
    remarks += [
        f"{group.name}: {group.noisy} of {2 * group.n} A/A pairs differ; a server does not repeat itself"
        for group in groups.values()
        if group.n and group.noisy > group.n / 2
    ]
    if not groups["prompts"].n:
        remarks.append("the servers do not tell how they render prompts")
    remarks += [
        f"{name}: no answer from either server" for name in MODES if name in groups and not groups[name].n
    ]
    seeded, greedy = groups.get("seeded"), groups.get("greedy")
    if seeded is not None and seeded.changed and greedy is not None and greedy.verdict == "unchanged":
        remarks.append("the same seed does not draw the same tokens in both versions")
    return remarks
