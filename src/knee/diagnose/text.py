"""A diagnosis for people: five lines, or the whole chain."""

from knee.diagnose.verdict import Binding, Diagnosis, Evidence, Move

_SECONDS = ("_seconds", "_s")


def verdict_lines(d: Diagnosis) -> list[str]:
    """The verdict in five lines: limit, evidence, move, price and next, watch and findings."""
    where = f" on engine {d.engine}" if d.engine else ""
    told = "; ".join(finding.text for finding in d.findings[:2]) or "none"
    if d.limit is None:
        return [
            f"Cannot tell{where}: {d.why}.",
            f"Possible:  {', '.join(d.candidates) or 'open'}",
            f"To decide: {d.decide}",
            f"Window:    {_window(d)}",
            f"Findings:  {told}",
        ]
    also = f"; also {', '.join(b.limit for b in d.further)}" if d.further else ""
    first = f"{'Limit:' if d.answer == 'bound' else 'Not bound:':<10} {d.limit}{where}"
    return [
        f"{first} ({d.confidence} confidence{also}): {d.why}.",
        f"Evidence:  {'; '.join(evidence_text(e) for e in d.evidence[:3]) or _window(d)}",
        f"Move:      {move_text(d.move) if d.move else 'no flag: ' + _no_flag(d)}",
        f"Then:      {_then(d)}",
        f"Findings:  {told}",
    ]


def explain_lines(d: Diagnosis) -> list[str]:
    """Everything the verdict rests on."""
    lines = [*verdict_lines(d), "", f"Window: {_window(d)}"]
    if d.limit is not None and d.evidence:
        lines += [f"Evidence for {d.limit}:", *(f"  {evidence_line(e)}" for e in d.evidence)]
    for title, move in (("Move", d.move), ("Next move", d.next_move)):
        if move is not None:
            lines += [f"{title}: {move_text(move)}", f"  effect: {move.effect}", f"  price:  {move.price}"]
    for binding in d.further:
        lines += _also(binding)
    if d.findings:
        lines += [
            "Findings:",
            *(f"  [{f.weight}] {f.text}" + (f" ({f.engine})" if f.engine else "") for f in d.findings),
        ]
    if d.watch:
        lines += ["Watch after the move:", *(f"  {name}" for name in d.watch)]
    if d.warnings:
        lines += ["Read with care:", *(f"  {warning}" for warning in d.warnings)]
    return lines


def _also(binding: Binding) -> list[str]:
    lines = [f"Also {binding.limit} ({binding.confidence} confidence): {binding.why}"]
    lines += [f"  {evidence_line(e)}" for e in binding.evidence]
    lines += [f"  move: {move_text(move)}" for move in binding.moves[:1]]
    return lines


def evidence_text(e: Evidence) -> str:
    """One value, short."""
    return f"{e.metric} {_number(e.metric, e.value)}"


def evidence_line(e: Evidence) -> str:
    """One value with what it was held against."""
    held = f" (threshold {_number(e.metric, e.threshold)})" if e.threshold is not None else ""
    return f"{e.metric} = {_number(e.metric, e.value)}{held}: {e.reason}"


def move_text(move: Move) -> str:
    """`--max-num-seqs 4 → 16: why`."""
    flag = "--" + move.flag.replace("_", "-")
    start = f"{move.current} → " if move.current else "→ "
    with_it = "".join(f", together with {move_text(other)}" for other in move.together)
    return f"{flag} {start}{move.to} ({move.arithmetic}): {move.effect}{with_it}"


def _then(d: Diagnosis) -> str:
    parts = [f"price: {d.move.price}"] if d.move else []
    if d.next_move is not None:
        parts.append(f"next: --{d.next_move.flag.replace('_', '-')} → {d.next_move.to}")
    if d.watch:
        parts.append(f"watch {', '.join(d.watch[:3])}")
    return "; ".join(parts) or "measure again at a higher rate"


def _no_flag(d: Diagnosis) -> str:
    return {
        "compute": "the device is the limit; add replicas, a faster device, or fewer tokens per request",
        "shedding": "add capacity, or accept the refusals: they keep latency bounded for the rest",
        "stalled": "look at the server's log; wake it if it sleeps, restart it if it is dead",
        "client": "give the client more workers or another machine, then measure again",
        "none": "raise the rate until something binds",
        "unservable": "find the request that can never run, and abort it",
    }.get(str(d.limit), "the values needed to compute one are missing (see --explain)")


def _window(d: Diagnosis) -> str:
    engines = f", {d.engines} engines" if d.engines > 1 else ""
    return f"{d.seconds:.1f} s, {d.samples} instants{engines}"


def _number(metric: str, value: float | None) -> str:
    if value is None:
        return "?"
    if "usage_perc" in metric or "share of the budget" in metric:
        return f"{value:.1%}"
    if "_seconds" in metric or metric.endswith("- queue - prefill, mean"):
        return f"{value:.3g} s"
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"
