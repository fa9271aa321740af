"""Every rule over a set of manifests."""

import difflib

import msgspec

from knee.core.errors import UsageError
from knee.deploy import rules_drain, rules_pods, rules_probes, rules_scale, rules_wiring
from knee.deploy.finding import Finding, Rule
from knee.deploy.pods import gather
from knee.deploy.schema import is_known
from knee.deploy.sources import Loaded, Skipped

RULES: dict[str, Rule] = {
    rule.id: rule
    for module in (rules_wiring, rules_probes, rules_drain, rules_pods, rules_scale)
    for rule in module.RULES
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, in the order of files and lines, and what was not looked at.

    `unknown_kinds` were checked against no schema; `skipped` files hold no objects; `unreadable` ones could
    not be understood, so nothing is said about them.
    """

    objects: int
    engines: int
    findings: tuple[Finding, ...]
    unknown_kinds: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    unreadable: tuple[Skipped, ...]


def check(loaded: Loaded, ignore: frozenset[str] = frozenset(), startup_s: float | None = None) -> Report:
    """All findings in `loaded`, without those of the rules in `ignore`.

    Raises:
        UsageError: `ignore` names a rule that does not exist.
    """
    for name in sorted(ignore - RULES.keys()):
        near = difflib.get_close_matches(name, RULES, n=1)
        raise UsageError(
            f"no rule {name!r}", f"did you mean {near[0]}?" if near else "knee deploy rules lists them"
        )
    objects = gather(loaded.manifests, startup_s)
    findings = {
        Finding(
            rule=rule.id,
            file=manifest.file,
            line=manifest.line_of(*path),
            object=f"{manifest.kind}/{manifest.name}",
            seen=seen,
            sentence=rule.sentence,
            fix=rule.fix,
        ): None
        for rule in RULES.values()
        if rule.id not in ignore
        for manifest, path, seen in rule.check(objects)
    }
    return Report(
        objects=len(loaded.manifests),
        engines=len(objects.engines),
        findings=tuple(sorted(findings, key=lambda found: (found.file, found.line, found.rule, found.seen))),
        unknown_kinds=tuple(sorted({m.kind for m in loaded.manifests if not is_known(m)})),
        skipped=loaded.skipped,
        unreadable=loaded.unreadable,
    )
