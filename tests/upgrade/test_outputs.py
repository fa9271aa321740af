"""Recordings compared: what changed beyond the noise of each server, and what it points to."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.core.errors import InputError
from knee.upgrade.evaluation import Mode
from knee.upgrade.outputs import Comparison, compare, diverge, share_beyond_noise
from knee.upgrade.recording import Probe, Recording, Said


def said(text: str, prompt: int = 5, margins: tuple[float, ...] = ()) -> Said:
    tokens = tuple(f" {word}" for word in text.split())
    return Said(text=text, tokens=tokens, margins=margins, prompt_tokens=prompt, finish_reason="length")


def probe(case: str, *texts: str, mode: Mode = "greedy", prompt: int = 5) -> Probe:
    first, second = texts if len(texts) == 2 else texts * 2
    return Probe(case=case, kind="chat", mode=mode, runs=(said(first, prompt), said(second, prompt)))


def recording(*probes: Probe, digest: str = "d") -> Recording:
    return Recording(version="0.32.0", model="m", digest=digest, probes=probes)


def of(greedy: list[str], default: list[str], prompt: int = 5) -> Recording:
    return recording(
        *(probe(f"g{i}", text, prompt=prompt) for i, text in enumerate(greedy)),
        *(probe(f"d{i}", text, mode="default", prompt=prompt) for i, text in enumerate(default)),
    )


SAME = [f"answer number {i}" for i in range(20)]
OTHER = [f"answer numero {i}" for i in range(20)]


def verdicts(found: Comparison) -> dict[str, str]:
    return {group.name: group.verdict for group in found.groups}


def test_a_against_a_is_unchanged() -> None:
    found = compare(of(SAME, SAME), of(SAME, SAME))
    assert found.verdict == "unchanged"
    assert found.cause == ""
    assert found.divergences == ()
    assert {group.changed for group in found.groups} == {0}


def test_the_arithmetic() -> None:
    found = compare(of(SAME, []), of(OTHER, []))
    assert verdicts(found) == {"prompts": "unchanged", "greedy": "changed"}
    assert "arithmetic" in found.cause
    assert {d.at for d in found.divergences} == {1}
    assert (found.divergences[0].before, found.divergences[0].after) == (" number", " numero")


def test_the_template() -> None:
    found = compare(of(SAME, SAME), of(OTHER, OTHER, prompt=6))
    assert verdicts(found)["prompts"] == "changed"
    assert "template" in found.cause


def test_the_sampling_defaults() -> None:
    found = compare(server("x", SAME), server("x", OTHER))
    unchanged = {"prompts": "unchanged", "greedy": "unchanged", "seeded": "unchanged"}
    assert verdicts(found) == {**unchanged, "default": "changed"}
    assert "sampling defaults" in found.cause


def test_default_answers_alone_cannot_tell_another_seed_from_another_temperature() -> None:
    assert verdicts(compare(of(SAME, SAME), of(SAME, OTHER)))["default"] == "inconclusive"


def sampled(case: str, mode: Mode, text: str, likelihood: float = -1.0) -> Probe:
    one = msgspec.structs.replace(said(text), logprobs=(likelihood,) * len(text.split()))
    return Probe(case=case, kind="chat", mode=mode, runs=(one, one))


def server(seed: str, default: list[str], likelihoods: list[float] | None = None) -> Recording:
    """A server whose seed draws `seed i` at temperature 1, and `default[i]` by its own defaults."""
    cases = range(len(default))
    likely = likelihoods or [-1.0] * len(default)
    return recording(
        *(probe(f"c{i}", f"greedy {i}") for i in cases),
        *(sampled(f"c{i}", "seeded", f"{seed} {i}") for i in cases),
        *(
            sampled(f"c{i}", "default", text, p)
            for i, (text, p) in enumerate(zip(default, likely, strict=True))
        ),
    )


def default_of(before: Recording, after: Recording) -> tuple[str, str]:
    group = next(group for group in compare(before, after).groups if group.name == "default")
    return group.verdict, group.basis


def test_another_generator_with_plain_defaults_is_no_change() -> None:
    old, new = [f"old {i}" for i in range(12)], [f"new {i}" for i in range(12)]
    found = compare(server("old", old), server("new", new))
    assert verdicts(found)["seeded"] == "changed"
    assert found.verdict == "unchanged"
    assert any("same seed does not draw" in note for note in found.notes)
    assert default_of(server("old", old), server("new", new))[1].endswith("temperature 1 in both")


def test_plain_defaults_in_one_of_them_only_is_a_change() -> None:
    old, cool = [f"old {i}" for i in range(12)], [f"cool {i}" for i in range(12)]
    for pair in ((server("old", old), server("new", cool)), (server("new", cool), server("old", old))):
        assert default_of(*pair)[0] == "changed"
        assert "sampling defaults" in compare(*pair).cause


def test_defaults_that_are_plain_in_neither_are_told_by_likelihood() -> None:
    rng = random.Random(3)
    old, new = [f"x {i}" for i in range(12)], [f"y {i}" for i in range(12)]

    def around(mean: float, spread: float) -> list[float]:
        return [mean + rng.uniform(-spread, spread) for _ in range(12)]

    before = server("old", old, around(-1.0, 0.05))
    assert default_of(before, server("new", new, around(-1.0, 0.05)))[0] == "unchanged"
    assert default_of(before, server("new", new, around(-1.5, 0.05)))[0] == "changed"
    assert default_of(before, server("new", new, around(-1.0, 1.5)))[0] == "inconclusive"
    silent = recording(
        *(msgspec.structs.replace(p, runs=(said(f"{p.mode} {p.case}"),) * 2) for p in server("z", new).probes)
    )
    assert default_of(before, silent)[0] == "inconclusive"


def test_modes_that_a_server_refuses_are_left_out() -> None:
    refused = Said(error="400: no")
    probes = [Probe(case=f"c{i}", kind="chat", mode="seeded", runs=(refused, refused)) for i in range(5)]
    before = recording(probe("g", "a"), *probes)
    groups = {group.name: group for group in compare(before, before).groups}
    assert groups["seeded"].n == 0
    found = compare(before, before)
    assert found.verdict == "unchanged"
    assert any("seeded: no answer from either" in note for note in found.notes)
    assert compare(recording(*probes), recording(*probes)).verdict == "inconclusive"


def test_one_prompt_that_is_rendered_differently_is_a_change() -> None:
    before = recording(*(probe(f"c{i}", "x", prompt=5) for i in range(20)))
    after = recording(*(probe(f"c{i}", "x", prompt=5 + (i == 7)) for i in range(20)))
    assert compare(before, after).verdict == "changed"


def test_one_answer_of_twenty_is_not_enough() -> None:
    found = compare(of(SAME, []), of([*SAME[:19], "answer numero 19"], []))
    assert found.verdict == "inconclusive"
    assert len(found.divergences) == 1


def test_how_many_changed_answers_of_24_are_a_change() -> None:
    """Against a server without noise: three. By hand 3/24 - √(0.082² + 0.074²) = 0.015, first above 0."""
    same = [f"a {i}" for i in range(24)]
    verdict = {
        k: compare(of(same, []), of([*["b"] * k, *same[k:]], [])).verdict for k in (0, 1, 2, 3, 12, 24)
    }
    assert verdict == {
        0: "unchanged",
        1: "inconclusive",
        2: "inconclusive",
        3: "changed",
        12: "changed",
        24: "changed",
    }


def test_noise_is_called_a_change_in_few_of_many_runs() -> None:
    rng = random.Random(7)
    wrong = 0
    for _ in range(400):
        chance = rng.random()
        made = [
            recording(
                *(
                    probe(
                        f"c{i}",
                        *(f"a {rng.randrange(99)}" if rng.random() < chance else "a" for _ in range(2)),
                    )
                    for i in range(24)
                )
            )
            for _ in range(2)
        ]
        wrong += compare(*made).verdict == "changed"
    assert wrong / 400 <= 0.025  # what lies below a two-sided 95 % interval


@settings(deadline=None)
@given(st.integers(1, 200), st.data())
def test_the_interval_holds_the_difference(n: int, data: st.DataObject) -> None:
    changed, noisy = data.draw(st.integers(0, n)), data.draw(st.integers(0, 2 * n))
    low, high = share_beyond_noise(changed, n, noisy, 2 * n)
    assert -1 <= low <= changed / n - noisy / (2 * n) <= high <= 1
    if changed == 0:
        assert low <= 0


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_the_first_diverging_token(one: list[str], other: list[str]) -> None:
    found = diverge(probe("c", " ".join(one)), probe("c", " ".join(other)))
    if one == other:
        assert found is None
    else:
        assert found is not None
        assert one[: found.at] == other[: found.at]
        assert one[found.at : found.at + 1] != other[found.at : found.at + 1]
        assert found.of == len(one)


def test_a_near_tie_is_named() -> None:
    runs = (said("a b", margins=(2.0, 0.01)),) * 2
    before = Probe(case="c", kind="chat", mode="greedy", runs=runs)
    found = diverge(before, probe("c", "a c"))
    assert found is not None
    assert found.near_tie
    other = diverge(before, probe("c", "x b"))
    assert other is not None
    assert not other.near_tie


def test_words_where_there_are_no_tokens() -> None:
    bare = [msgspec.structs.replace(said(text), tokens=()) for text in ("one two  three", "one two  four")]
    before, after = (Probe(case="c", kind="chat", mode="greedy", runs=(s, s)) for s in bare)
    found = diverge(before, after)
    assert found is not None
    assert (found.at, found.before, found.after) == (2, "  three", "  four")


def test_different_sets_are_not_compared() -> None:
    with pytest.raises(InputError, match="different evaluation sets"):
        compare(recording(probe("c", "a")), recording(probe("c", "a"), digest="e"))


def test_remarks() -> None:
    noisy = recording(*(probe(f"c{i}", f"a{i}", f"b{i}") for i in range(10)))
    assert any("does not repeat itself" in note for note in compare(noisy, noisy).notes)
    silent = recording(
        Probe(case="c", kind="chat", mode="greedy", runs=(Said(text="a"), Said(text="a"))),
    )
    found = compare(silent, silent)
    assert any("how they render prompts" in note for note in found.notes)
    other = msgspec.structs.replace(silent, model="n")
    assert any("different models" in note for note in compare(silent, other).notes)
