"""Build the documentation as a site: hooks of mkdocs. `mkdocs build --strict` fails on a broken link.

The navigation is that of docs/index.md: its tables have a question for each page, so there is no second list to maintain. Links
to files beside docs/ lead to the repository. `llms.txt` lists the pages for models, with the first sentence of each.
"""  # noqa: INP001  # a script, not a package

import os
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_SERVER, _NAME = (
    os.environ.get("GITHUB_SERVER_URL", "https://github.com"),
    os.environ.get("GITHUB_REPOSITORY", "OWNER/evaljournal"),
)
REPOSITORY = f"{_SERVER}/{_NAME}/blob/main"
_ROW = re.compile(r"^\| (?:… )?(.+?) \| (.+) \|$", re.MULTILINE)
_HEADING = re.compile(r"^\| (\w[^|]*) \| \|$", re.MULTILINE)
_PAGE = re.compile(r"\]\(([\w-]+\.md)[)#]")
_OUTSIDE = re.compile(r"\]\(\.\./([^)\s]+)\)")
_BLOCK = re.compile(r"^```(\w+) ([^\n{]+)$", re.MULTILINE)


def navigation() -> list[dict[str, Any]]:
    """Return the sections of the index with their questions; each page is in the first section that links to it."""
    text = (HERE / "index.md").read_text(encoding="utf-8")
    sections: list[dict[str, Any]] = [{"Documentation": "index.md"}]
    pages = {"index.md"}
    for part in re.split(r"\n\n", text):
        if heading := _HEADING.search(part):
            items = list[dict[str, str]]()
            for question, answer in _ROW.findall(part[heading.end() :]):
                new_pages = [page for page in dict.fromkeys(_PAGE.findall(answer)) if page not in pages]
                guides = [page for page in new_pages if not page.startswith("tutorial")]
                items += [{_label(question) if page in guides[:1] else _title(page): page} for page in new_pages]
                pages.update(new_pages)
            sections.append({heading[1].capitalize(): items})
    others = sorted(path.name for path in HERE.glob("*.md") if path.name not in pages)
    return [*sections, {"Reference": [{_title(page): page} for page in others]}]


def _label(question: str) -> str:
    """Return a question as the label of its first guide; tutorials and other guides have their titles."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", question)
    return text[:1].upper() + text[1:]


def _title(page: str) -> str:
    return (HERE / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _summary(page: str) -> str:
    """Return the first sentence of a page."""
    paragraphs = (HERE / page).read_text(encoding="utf-8").split("\n\n")
    text = next((item for item in paragraphs[1:] if item[:1].isalnum()), "")
    return re.split(r"(?<=[.:])\s", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split())))[0]


def on_config(config: Any) -> Any:
    """Set the navigation."""
    config["nav"] = navigation()
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to files beside docs/ to the repository; the name of a file is the title of its code block."""

    def titled(match: re.Match[str]) -> str:
        is_file = match[2] not in {"no-run", "output"}  # What the tests do with a block.
        return f'```{match[1]} title="{match[2]}"' if is_file else f"```{match[1]}"

    return _BLOCK.sub(titled, _OUTSIDE.sub(rf"]({REPOSITORY}/\1)", markdown))


def on_post_build(config: Any) -> None:
    """Write llms.txt."""
    lines = ["# evaljournal", "", f"> {config['site_description']}.", ""]
    for section in navigation()[1:]:
        for heading, items in section.items():
            pages = [page for item in items for page in item.values()]
            texts = [f"- [{_title(page)}]({page.removesuffix('.md')}.html): {_summary(page)}" for page in pages]
            lines += [f"## {heading}", "", *texts, ""]
    Path(config["site_dir"], "llms.txt").write_text("\n".join(lines), encoding="utf-8")
