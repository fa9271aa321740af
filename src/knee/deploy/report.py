"""What was found, in words."""

from knee.deploy.check import Report


def report_text(report: Report) -> str:
    """One finding: where and what is seen, why it matters, what to write instead."""
    lines = []
    for found in report.findings:
        lines += [
            f"{found.file}:{found.line}: {found.rule}: {found.object}: {found.seen}",
            f"  {found.sentence}",
            f"  fix: {found.fix}",
        ]
    counts = f"{report.objects} object{'s' * (report.objects != 1)}, {report.engines} serving vLLM"
    unknown = f"; no schema for {', '.join(report.unknown_kinds)}" if report.unknown_kinds else ""
    found_text = (
        f"{len(report.findings)} finding{'s' * (len(report.findings) != 1)}"
        if report.findings
        else "nothing found"
    )
    return "\n".join([*lines, f"{counts}: {found_text}{unknown}"])
