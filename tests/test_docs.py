"""The documentation is true: its code blocks run, its links work, its generated pages are up to date.

The words after ``` describe the block. `python NAME`, `jsonl NAME`, …: a file that later blocks of the page use. `python`: a
program. `sh`: commands, one per line; `# exit code N` after a command is its exit code (default: 0). `text output`: what the
last command has printed; hashes, times and blanks may differ. Without a language it is output that is not checked. `no-run`
marks a block that cannot run here. `COMMAND &` starts a server, `export NAME=VALUE` sets a variable. Other calls to OpenAI,
Anthropic and localhost go to `tests.server`, those of docs/batches.md to `tests.batch_servers`. The commands in
docs/providers.md are run by `tests.runner_cli.test_providers`.
"""

import ast
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.batch_servers import batch_server_process
from tests.processes import ROOT, Process, run_forked
from tests.programs import OPTIONAL_PACKAGES, STAND_INS, import_optional, needs_stand_ins
from tests.server import Server

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = runpy.run_path(str(ROOT / "docs" / "reference.py"))["PAGES"]
UNUSED_PLUGINS = ("langsmith_plugin", "hypothesispytest", "anyio", "xdist", "timeout")
"""Plug-ins of pytest that no page needs; the first two are slow to import."""
_BLOCK = re.compile(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT_CODE = re.compile(r"\s+# exit code (\d+)$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the language, file name and text of each code block of a page."""
    for match in _BLOCK.finditer(page.read_text()):
        yield match[1], match[2], match[3]


def commands(text: str) -> Iterator[tuple[list[str], int]]:
    """Yield the commands of an `sh` block with their expected exit codes."""
    for line in text.replace("\\\n", " ").splitlines():
        match = _EXIT_CODE.search(line)
        yield shlex.split(_EXIT_CODE.sub("", line)), int(match[1]) if match else 0


def comparable(output: str) -> list[str]:
    """Return the lines of some output, without what differs between runs: hashes, times and the width of columns."""
    masked = re.sub(r"\b[0-9a-f]{32}\b", "HASH", re.sub(r"\b[\d.,]+ (ms|s|min)\b", "TIME", output))
    masked = re.sub(r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b", "DATE", masked)
    return [" ".join(line.split()) for line in masked.strip().splitlines()]


def import_packages(page: Path) -> None:
    """Import the optional packages that the programs of a page import; without one, the test is skipped."""
    for package in sorted(OPTIONAL_PACKAGES):
        if re.search(rf"^ *(?:from|import) {package}\b", page.read_text(), re.MULTILINE):
            import_optional(package)


class Reader:
    """Follows a page in its own directory: writes the files, and runs the programs and commands."""

    def __init__(self, directory: Path, environment: dict[str, str], urls: dict[str, str], servers: ExitStack) -> None:
        self._directory, self._environment, self._urls, self._servers = directory, environment, urls, servers
        self._printed = ""
        """What the last command has printed."""

    def follow(self, language: str, name: str, block: str) -> None:
        """Do what a block of the page shows."""
        if name == "output":
            assert comparable(self._printed) == comparable(block), self._printed
        elif name:
            (self._directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self._directory / name).write_text(self._with_urls(block))
        elif language == "python":
            self._run(["python", "-c", self._with_urls(block)], 0)
        elif language == "sh":
            for command, code in commands(block):
                self._command([self._with_urls(word) for word in command], code)
        else:
            assert language in {"", "diff", "mermaid"}, f"a block of {language} needs a file name"

    def _with_urls(self, text: str) -> str:
        for url, replacement in self._urls.items():
            text = text.replace(url, replacement)
        return text

    def _command(self, command: list[str], code: int) -> None:
        if command[0] == "export":
            self._environment |= dict(variable.split("=", 1) for variable in command[1:])
        elif command[-1] == "&":  # A server that prints its URL; port 0 is any free one.
            process = Process([*command[:-1], "0"], cwd=self._directory, env=self._environment, stdout=subprocess.PIPE)
            self._servers.enter_context(process)
            self._servers.callback(process.kill)
            assert process.stdout is not None
            self._urls["http://localhost:8000"] = process.stdout.readline().strip()
        else:
            assert command[0] in {"evaljournal", "python"}, f"cannot run {command[0]!r}; mark the block `no-run`"
            self._printed = self._run(command, code)

    def _run(self, command: list[str], code: int) -> str:
        exit_code, printed, err = run_forked(command, self._directory, self._environment)
        assert code == exit_code, f"{shlex.join(command)}\n{printed}{err}"
        return printed


@pytest.mark.slow
@pytest.mark.timeout(1200)  # many processes
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=needs_stand_ins if page.stem == "workers" else ())
        for page in PAGES
        if page.stem != "providers"
    ],
)
def test_code_blocks_run(page: Path, tmp_path: Path, server: Server) -> None:
    """Every program of the page runs, and every command ends with the exit code that the page states."""
    import_packages(page)
    root = f"{server.root}/{page.stem}/{'tools' if page.stem == 'agent-frameworks' else 'ok'}"
    judge = f"{server.root}/{page.stem}-judge/reply:verdict:%20right"
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(STAND_INS), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OPENAI_API_KEY": "test",
        "OPENAI_BASE_URL": f"{root}/v1",
        "ANTHROPIC_API_KEY": "test",
        "ANTHROPIC_BASE_URL": root,
        "PYTEST_ADDOPTS": " ".join(f"-p no:{plugin}" for plugin in UNUSED_PLUGINS),
    }
    shutil.copytree(ROOT / "examples", tmp_path / "examples")  # As in a clone.
    with ExitStack() as servers:
        if page.stem == "batches":
            environment["OPENAI_BASE_URL"] = f"{servers.enter_context(batch_server_process()).url}/docs/-/v1"
        reader = Reader(tmp_path, environment, {"http://localhost:8000": root, "http://localhost:9000": judge}, servers)
        for language, name, block in blocks(page):
            if name != "no-run":
                reader.follow(language, name, block)


def test_the_readme_is_short() -> None:
    """The README has at most 150 lines."""
    assert len(README.read_text().splitlines()) <= 150


def test_few_blocks_are_not_run() -> None:
    """At most one block in ten is marked `no-run`."""
    names = [name for page in PAGES for language, name, _ in blocks(page) if language]

    assert names.count("no-run") <= len(names) / 10


@pytest.mark.parametrize("page", [*PAGES, ROOT / ".github" / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links_work(page: Path) -> None:
    """Every relative link of a page points to a file, and its fragment to a heading there."""
    for link in _LINK.findall(page.read_text()):
        target, _, fragment = link.partition("#")
        if "://" in link:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        assert not fragment or fragment in anchors(path), link


def anchors(page: Path) -> set[str]:
    """Return the fragments that GitHub derives from the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_pictures() -> None:
    """Every picture is shown on a page, has less than 150 kB, and an SVG loads nothing from another host."""
    pictures = {path.name: path for path in (ROOT / "docs" / "pictures").iterdir()}
    shown = {Path(link).name for page in PAGES for link in _LINK.findall(page.read_text()) if "pictures/" in link}

    assert pictures.keys() == shown
    assert [] == [name for name, path in pictures.items() if path.stat().st_size >= 150_000]
    for path in pictures.values():
        if path.suffix == ".svg":
            assert {"http://www.w3.org/2000/svg"} == set(re.findall(r"https?://[^\s\"')]+", path.read_text()))


def test_the_index_links_to_every_page() -> None:
    """Every page can be reached from docs/index.md."""
    links = set(_LINK.findall((ROOT / "docs" / "index.md").read_text()))

    assert {page.name for page in PAGES} - {"README.md", "index.md"} <= links


def source_texts() -> str:
    """Return all strings of the product, one per line; `…` stands for a value."""
    texts: set[str] = set()
    for file in (ROOT / "evaljournal").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.add("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
    return "\n".join(texts)


def test_messages_are_quoted_as_printed() -> None:
    """Every message in the first column of the troubleshooting page occurs in the sources."""
    rows = re.findall(r"^\| (.*?) \| ", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    messages = [code for row in rows for code in re.findall(r"`([^`]+)`", row) if code.count(" ") >= 2]
    texts = source_texts()

    assert 60 < len(messages)
    assert [] == [message for message in messages if message not in texts]


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_up_to_date(name: str) -> None:
    """`python docs/reference.py` would change nothing."""
    assert GENERATED[name]() == (ROOT / "docs" / name).read_text()
