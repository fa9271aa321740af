"""The style of this project, checked: what a reader relies on without looking."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE_LINES, FUNCTION_LINES = 300, 60
CLOCK_CALLS = {
    ("time", name)
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")
} | {("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
HOSTS = re.compile(
    r"py[p]i\.org|python[h]osted|registry\.np[m]js|deb\.debian[.]org|/[w]ork/|/[r]oot/|/[f]arm/"
)


def tracked(*patterns: str) -> list[Path]:
    """Tracked files, and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def sources(*folders: str) -> list[Path]:
    return tracked(*(f"{folder}/*.py" for folder in folders))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(sources("src")) > 10
    assert sources("tests")


def test_files_hold_one_noun() -> None:
    long = {
        name_of(p): n for p in sources("src", "bench") if (n := len(p.read_text().splitlines())) > FILE_LINES
    }
    assert not long, f"files of more than {FILE_LINES} lines: {long}"


def test_functions_fit_a_screen() -> None:
    """The body counts: the options of a command are a list, and as long as they are."""
    long = [
        f"{name_of(path)}:{node.lineno} {node.name} ({lines} lines)"
        for path in sources("src", "bench")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.body[0].lineno + 1) > FUNCTION_LINES
    ]
    assert not long, f"functions of more than {FUNCTION_LINES} lines: {long}"


def test_only_the_clock_reads_time() -> None:
    found = []
    for path in sources("src"):
        if path.match("core/clock.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names):
                found.append(f"{name_of(path)}:{node.lineno} import time")
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                found.append(f"{name_of(path)}:{node.lineno} from time import")
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and (node.value.id, node.attr) in CLOCK_CALLS
            ):
                found.append(f"{name_of(path)}:{node.lineno} {node.value.id}.{node.attr}")
    assert not found, found


def test_only_http1_opens_sockets() -> None:
    opened = re.compile(
        r"\bimport socket\b|from socket import|open_connection\b|start_server|create_connection|create_server"
    )
    found = [
        f"{name_of(path)}:{number}"
        for path in sources("src")
        if "knee/http1/" not in str(path)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if opened.search(line)
    ]
    assert not found, found


def test_no_cancel_is_swallowed() -> None:
    """asyncio.wait_for does so before Python 3.12 where what it waits for ends at the same time."""
    found = [name_of(path) for path in sources("src") if "asyncio.wait_for(" in path.read_text()]
    assert not found, f"asyncio.timeout() instead of asyncio.wait_for(): {found}"


def test_nothing_is_left_undone() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    found = [
        f"{name_of(path)}:{number}"
        for path in tracked("*.py", "*.md", "Makefile", "*.toml")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert not found, found


def test_no_addresses_of_registries_and_no_paths_of_machines() -> None:
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:80]}"
        for path in tracked("*")
        if path.suffix not in {".png", ".gz", ".ico"}
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if HOSTS.search(line)
    ]
    assert not found, found


def test_no_compiled_module_hides_its_source() -> None:
    assert not [*(ROOT / "src").rglob("*.so"), *(ROOT / "src").rglob("*.pyd")], "make clean removes them"


def test_constraints_are_names_and_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    odd = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)]
    assert not odd, odd


def test_changelog_has_a_section_for_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert heads, "CHANGELOG.md has no section"
    odd = [
        head
        for head in heads
        if not re.fullmatch(r"\d+\.\d+\.\d+ \((?:unreleased|\d{4}-\d{2}-\d{2})\)", head)
    ]
    assert not odd, f"a section is headed VERSION (DATE or unreleased): {odd}"
    from knee import __version__

    assert heads[0].startswith(f"{__version__} (")


@pytest.mark.parametrize("page", tracked("*.md"), ids=name_of)
def test_links_in_docs_resolve(page: Path) -> None:
    targets = re.findall(
        r"(?<!!)\[[^\]]+\]\(([^)#\s]+)(#[^)\s]*)?\)|!\[[^\]]*\]\(([^)\s]+)\)", page.read_text()
    )
    missing = [
        target
        for groups in targets
        if (target := groups[0] or groups[2])
        and not target.startswith(("http://", "https://", "mailto:"))
        and not (page.parent / target).exists()
    ]
    assert not missing, f"{name_of(page)} links to {missing}"


def test_every_doc_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    lost = [name_of(page) for page in tracked("docs/*.md") if name_of(page) not in readme]
    assert not lost, f"README.md does not link {lost}"


def test_every_exit_code_is_documented() -> None:
    from knee.core import errors

    text = (ROOT / "docs" / "exit-codes.md").read_text()
    codes = {errors.EXIT_OK, errors.EXIT_NEGATIVE, errors.EXIT_INTERRUPTED, errors.KneeError.exit_code} | {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.KneeError)
    }
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert listed == codes
