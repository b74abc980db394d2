"""Prepare the files of a release: `python .github/prepare_release.py v0.1.0 https://github.com/OWNER/evaljournal`.

It checks that the tag, the version in pyproject.toml and the newest entry of the changelog are the same, and that the entry has
a date. Then it writes what only the repository knows: `[project.urls]`, and absolute links and pictures in README.md, because a
package index shows the README without the files beside it. The changes are for the build and are not committed.
"""  # noqa: INP001  # a script

import re
import sys
import tomllib
from pathlib import Path

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def problems(tag: str, project: str, changelog: str) -> list[str]:
    """Return why a tag cannot be released."""
    version = tomllib.loads(project)["project"]["version"]
    entries = re.findall(r"^## (\S+) \(?([^)\n]*)\)?$", changelog, re.MULTILINE)
    newest, date = entries[0] if entries else ("", "")
    found = [] if tag == f"v{version}" else [f"the tag {tag} is not that of the version {version} in pyproject.toml"]
    found += [] if newest == version else [f"the newest entry of CHANGELOG.md is {newest or 'missing'}, not {version}"]
    return found + ([] if re.fullmatch(r"\d{4}-\d\d-\d\d", date) else [f"the entry {newest} of CHANGELOG.md has no date"])


def with_urls(project: str, url: str, tag: str) -> str:
    """Return pyproject.toml with the addresses of the project."""
    names = {"Source": url, "Documentation": f"{url}/blob/{tag}/docs/index.md", "Issues": f"{url}/issues"}
    names["Changelog"] = f"{url}/blob/{tag}/CHANGELOG.md"
    table = "".join(f'{name} = "{address}"\n' for name, address in names.items())
    return project.replace("[project.scripts]\n", f"[project.urls]\n{table}\n[project.scripts]\n", 1)


def with_absolute_links(readme: str, url: str, tag: str) -> str:
    """Return the README with links to the files of a tag, and pictures that a browser can load."""

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}[{match[2]}]({url}/{kind}/{tag}/{match[3]})"

    return _LINK.sub(absolute, readme)


def main(tag: str, url: str) -> None:
    """Check the tag and write the files; exit with a message if it cannot be released."""
    project, readme = Path("pyproject.toml"), Path("README.md")
    if found := problems(tag, project.read_text(encoding="utf-8"), Path("CHANGELOG.md").read_text(encoding="utf-8")):
        sys.exit("; ".join(found))
    project.write_text(with_urls(project.read_text(encoding="utf-8"), url, tag), encoding="utf-8")
    readme.write_text(with_absolute_links(readme.read_text(encoding="utf-8"), url, tag), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
