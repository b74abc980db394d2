"""`evals.json` of a skill, as agentskills.io describes it: `skill_name`, and `evals` with prompts, files and assertions.

Each eval is a case: its assertions become the column `assert` of the scorer `assertions`, one judged score each, and its files
the column `files`, which are added to the workspace. They are relative to the skill, or to the directory of `evals.json`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from evaljournal.runner.data.tables import Row
from evaljournal.runner.errors import UsageError

_ASSERTIONS: Final = ("assertions", "expectations")


def is_skill(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("evals"), list)


def skill_rows(value: Mapping[str, Any], path: Path) -> Iterator[Row]:
    for number, fields in enumerate(value["evals"], 1):
        place = f"eval {number} of {len(value['evals'])}"
        if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str):
            raise UsageError(f"{place}: expected an object with a text 'prompt'", path=path)

        row = {name: field for name, field in fields.items() if name not in _ASSERTIONS}
        row["id"] = str(fields.get("id", number))
        if "skill_name" in value:
            row["skill_name"] = value["skill_name"]

        assertions = [text for name in _ASSERTIONS for text in _list(fields, name, place, path)]
        if assertions:
            row["assert"] = [
                _assertion(item, f"{place}, assertion {count}", count, path) for count, item in enumerate(assertions, 1)
            ]
        if "files" in fields:
            row["files"] = [_file(name, place, path) for name in _list(fields, "files", place, path)]
        yield row


def _list(fields: Mapping[str, Any], name: str, place: str, path: Path) -> list[Any]:
    value = fields.get(name)
    if value is not None and not isinstance(value, list):
        raise UsageError(f"{place}: {name!r} must be a list", path=path)
    return value or []


def _assertion(item: Any, place: str, number: int, path: Path) -> dict[str, Any]:
    """Return an assertion, a text or an object with one, as the scorer `assertions` takes it."""
    text = item.get("text") if isinstance(item, dict) else item
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{place}: expected a text", path=path)
    return {"type": "llm-rubric", "value": text, "metric": f"assertion-{number}"}


def _file(name: Any, place: str, path: Path) -> str:
    """Return the path of a file relative to `evals.json`."""
    if not isinstance(name, str):
        raise UsageError(f"{place}: a file must be a path", path=path)
    parts = PurePosixPath(name).parts
    is_below_skill = len(parts) > 1 and parts[0] == path.absolute().parent.name
    return str(PurePosixPath(*parts[1:])) if is_below_skill and not (path.parent / name).exists() else name
