"""What is published: the check of a tag, absolute links, the navigation of the site, and the skill for coding agents."""

import re
import runpy
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT
from tests.runner_cli.commands import evaljournal
from tests.test_docs import blocks, commands

RELEASE = runpy.run_path(str(ROOT / ".github" / "prepare_release.py"))
SITE = runpy.run_path(str(ROOT / "docs" / "site.py"))
PROJECT = (ROOT / "pyproject.toml").read_text()
URL = "https://git.example/owner/evaljournal"
WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text()
SKILL = ROOT / "skills" / "evaljournal" / "SKILL.md"


@pytest.mark.parametrize(
    ("tag", "changelog", "problem"),
    [
        ("v{}", "## {} (2027-01-31)\n", []),
        ("v9.9.9", "## {} (2027-01-31)\n", ["the tag v9.9.9 is not that of the version {} in pyproject.toml"]),
        ("{}", "## {} (2027-01-31)\n", ["the tag {} is not that of the version {} in pyproject.toml"]),
        ("v{}", "## {} (unreleased)\n\n## 0.0.1 (2026-01-01)\n", ["the entry {} of CHANGELOG.md has no date"]),
        ("v{}", "## 9.9.9 (2027-01-31)\n", ["the newest entry of CHANGELOG.md is 9.9.9, not {}"]),
    ],
)
def test_only_the_tag_of_the_version_is_released(tag: str, changelog: str, problem: list[str]) -> None:
    """Tag, version and the dated entry of the changelog must agree; otherwise nothing is built."""
    version = tomllib.loads(PROJECT)["project"]["version"]

    assert [text.replace("{}", version) for text in problem] == RELEASE["problems"](
        tag.replace("{}", version), PROJECT, changelog.replace("{}", version)
    )


def test_a_package_index_can_show_the_readme() -> None:
    """All links and pictures are absolute and lead to files of the tag; the addresses are in the metadata."""
    readme = RELEASE["with_absolute_links"]((ROOT / "README.md").read_text(), URL, "v1.0.0")
    project = tomllib.loads(RELEASE["with_urls"](PROJECT, URL, "v1.0.0"))["project"]
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    paths = [re.sub(rf"^{URL}/(blob|raw)/v1.0.0/|#.*", "", link) for link in links if link.startswith(URL)]

    assert len(paths) > 30
    assert [] == [link for link in links if not link.startswith(("https://", "#"))]
    assert [] == [path for path in paths if not (ROOT / path).exists()]
    assert f"![A report: scores, variants and trials]({URL}/raw/v1.0.0/docs/pictures/report.png)" in readme
    assert (URL, {"Source", "Documentation", "Issues", "Changelog"}) == (project["urls"]["Source"], project["urls"].keys())


def test_a_release_needs_no_secret() -> None:
    """The job that publishes has an identity and nothing else; only it has one, and it runs no code of the repository."""
    build, publish = WORKFLOW.split("\n  publish:\n")

    assert "secrets." not in WORKFLOW
    assert ("id-token: write" in publish, "id-token" in build) == (True, False)
    assert ("attestations: true" in publish, "run:" in publish, "checkout" in publish) == (True, False, False)
    assert 'prepare_release.py "$GITHUB_REF_NAME"' in build


def test_each_page_is_in_the_navigation_once() -> None:
    """The site has every page, under the question of docs/index.md; a link out of docs/ leads to the repository."""
    pages = [page for section in SITE["navigation"]() for items in section.values() for page in _pages(items)]
    text = SITE["on_page_markdown"]("[a](../README.md#set-up) [b](cli.md)\n```sh no-run\nx\n```\n```python a.py\n```\n")

    assert sorted(path.name for path in (ROOT / "docs").glob("*.md")) == sorted(pages)
    assert f'[a]({SITE["REPOSITORY"]}/README.md#set-up) [b](cli.md)\n```sh\nx\n```\n```python title="a.py"\n```\n' == text
    assert [] == [page for page in pages if page != "index.md" and not SITE["_summary"](page)]


def _pages(items: Any) -> list[str]:
    return [items] if isinstance(items, str) else [page for item in items for page in item.values()]


def test_the_commands_of_the_skill_run(tmp_path: Path) -> None:
    """Each file is written and each command run, in order, in one directory; those that are not run are parsed."""
    count = 0
    for language, name, block in blocks(SKILL):
        if name not in {"", "no-run"}:
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(block)
        elif language == "sh":
            for words, code in commands(block):
                assert "evaljournal" == words[0]
                result = evaljournal(*words[1:], *(["--help"] if name else []))
                assert code == result.exit_code, f"{shlex.join(words)}\n{result.output}"
                count += not name

    assert count >= 10
    assert SKILL.read_text().startswith("---\nname: evaljournal\ndescription: ")
