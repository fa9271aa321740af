from pathlib import Path

from knee.deploy.check import RULES

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_the_page_lists_every_rule_as_it_is() -> None:
    rows = [
        line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count(" | ") == 2
    ]
    assert rows == [f"| `{rule.id}` | {rule.sentence} | {rule.fix} |" for rule in RULES.values()]
