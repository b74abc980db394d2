"""The published format: the page matches the code, an independent reader can read it, golden journals stay readable."""

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import attrs
import orjson
import pytest

from evaljournal.journal import Event, read, verify
from evaljournal.journal.disk import segments
from evaljournal.journal.events import AttemptReturnedLate, Extension, JournalRecovered, JournalSalvaged, TrialWithdrawn
from evaljournal.journal.fact import fields_of, non_default_fields
from evaljournal.journal.format.codec import EVENT_TYPES, event_type, is_payload
from evaljournal.journal.format.lifecycle import END_STAGES, STAGES, TRIAL_RULES
from evaljournal.runner.testing import events_of
from tests.journal import independent_reader as independent
from tests.journal.samples import content, write_sync

GOLDEN = Path(__file__).parents[1] / "golden" / "v2"
"""A run in two sessions, three segments, with a blob."""
ALL_GOLDEN = sorted(GOLDEN.parent.glob("v2*"))
"""One for each group of events, named after the version that it was written with."""
SECOND_SESSIONS = {"v2": 27, "v2.1-batches": 9, "v2.1-review": 3}
"""Golden journal of two sessions → the first event of the second."""
OPTIONS: dict[str, dict[str, Any]] = {"v2": {"roll_at": 4000}, "v2.1-review": {"seal": False}}
"""Golden journal → how it was written, if not by default."""
HEAD = "ec5e445527e29fcfb5df1a0d03577211"
"""Hash of the last record of the golden journal."""

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "tests" / "golden" / "format-2.json"
"""The events and fields of version 2.0; never changed."""
PAGES = [ROOT / "docs" / "format.md"]


def diagram() -> str:
    """Return the stages of a trial as a Mermaid state diagram."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for event, row in TRIAL_RULES.items():
        for before, after in row.items():
            if event not in (AttemptReturnedLate, TrialWithdrawn):  # Legal nearly everywhere: too many arrows.
                arrows.setdefault((before, after), []).append(event.__name__)
    lines = [
        f"    {'[*]' if before == 'absent' else before} --> {after}: {' or '.join(names)}"
        for (before, after), names in arrows.items()
    ]
    ends = [f"    {stage} --> [*]" for stage in STAGES if stage in END_STAGES]
    note = "    note right of withdrawn: TrialWithdrawn, from every stage except running"
    return "\n".join(["stateDiagram-v2", *lines, note, *ends])


def events_table() -> str:
    """Return the table of all events."""
    rows = ["| type | field | value | meaning |", "|---|---|---|---|"]
    for name, kind in EVENT_TYPES.items():
        first, *_ = (kind.__doc__ or "").strip().splitlines()
        rows.append(f"| **`{name}`** | | | {first} |")
        meanings = _meanings(kind)
        rows += [f"| | {_name(field)} | {_value(field)} | {meanings.get(field.name, '')} |" for field in fields_of(kind)]
    return "\n".join(rows)


def _meanings(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings = {}
    for field, text in itertools.pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            meanings[field.target.id] = " ".join(str(text.value.value).split())
    return meanings


def _name(field: "attrs.Attribute[Any]") -> str:
    default = "" if field.default is attrs.NOTHING else f" [{orjson.dumps(field.default).decode()}]"
    return f"`{field.name}`{default}"


def _value(field: "attrs.Attribute[Any]") -> str:
    if is_payload(field):
        return "any †"
    kind: Any = field.type
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is Mapping:
        return "object of text"
    if get_origin(kind) is list:
        return "list of text"
    names = {str: "text", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return " or ".join(names[part] for part in get_args(kind) or (kind,))


def generated(page: str) -> str:
    """Return the page with its generated parts replaced."""
    for mark, text in (("events", events_table()), ("diagram", f"```mermaid\n{diagram()}\n```")):
        pattern = rf"(<!-- {mark}: [^\n]*-->\n).*?(<!-- /{mark} -->)"
        escaped = text.replace("\\", r"\\")
        page = re.sub(pattern, rf"\1{escaped}\n\2", page, flags=re.DOTALL)
    return page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_pages_list_every_event_and_draw_the_lifecycle(path: Path) -> None:
    """`docs/format.md` has the events, fields, defaults and the diagram that the code has."""
    page = path.read_text()

    assert generated(page) == page
    assert "stateDiagram" in page


@pytest.mark.parametrize("golden", ALL_GOLDEN, ids=lambda path: path.name)
def test_golden_journals_are_read_and_written(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field is read as the independent reader has it; the same events, in one or two sessions, give the same bytes.

    The format is frozen: put new fields into a new golden journal.
    """
    for record, line in zip(read(golden), independent.read(golden), strict=True):
        event = record.event
        fields = event.data if isinstance(event, Extension) else non_default_fields(event)
        values = {name: getattr(record, name) for name in ("seq", "at", "t", "d", "h")}
        assert {**values, "type": event_type(event), **fields} == line
    monkeypatch.setattr(segments, "VERSION", independent.read(golden)[0]["version"])
    events = events_of(golden)
    second = SECOND_SESSIONS.get(golden.name, len(events))
    for number, part in enumerate(filter(None, (events[:second], events[second:]))):
        write_sync(tmp_path / "run", part, new=number == 0, **OPTIONS.get(golden.name, {}))

    assert content(golden) == {name: data for name, data in content(tmp_path / "run").items() if name != "LOCK"}
    assert verify(golden).ok


def test_the_golden_journal_is_unchanged() -> None:
    """The golden journal of version 2 has the same head as ever."""
    assert HEAD == verify(GOLDEN, expect_head=HEAD).head


def test_golden_journals_contain_every_event_type() -> None:
    """The golden journals contain every event except those of recovery and salvage."""
    kinds = {type(record.event) for path in ALL_GOLDEN for record in read(path)}

    assert {JournalRecovered, JournalSalvaged} == set(get_args(Event)) - kinds


def format_description() -> dict[str, dict[str, list[str]]]:
    """Return event type → field → its kind of value and its default."""
    return {
        name: {field.name: [_value(field), _name(field)] for field in fields_of(kind)}
        for name, kind in EVENT_TYPES.items()
        if not name.startswith("x-")
    }


def test_version_2_is_frozen() -> None:
    """Fields with a default, events that change no stage, and reasons may be added. Any other change needs version 3."""
    frozen: dict[str, dict[str, list[str]]] = orjson.loads(FROZEN.read_bytes())
    current = format_description()
    assert current["run_stopped"]["reason"][0].startswith(frozen["run_stopped"]["reason"][0])
    current["run_stopped"]["reason"] = frozen["run_stopped"]["reason"]

    assert frozen == {name: {field: current[name].get(field) for field in fields} for name, fields in frozen.items()}
    assert frozen.keys() <= current.keys()
    assert all("[" in default for name in frozen for field, (_, default) in current[name].items() if field not in frozen[name])


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page.read_text()))
