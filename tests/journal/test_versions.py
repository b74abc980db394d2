"""Older formats: lines are converted one major version at a time, and files are never changed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from evaljournal.journal import Event, read
from evaljournal.journal.errors import UnknownFormat
from evaljournal.journal.events import Noted
from evaljournal.journal.readers.scan import UPCASTERS, Members, Scan, major_version, upcast
from tests.journal.samples import content, forge, opened, session, started, write_sync
from tests.runs import events

Upcaster = Callable[[Members], Members]


@pytest.fixture
def third_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make 3 the current major version."""
    monkeypatch.setattr("evaljournal.journal.disk.segments.MAJOR", 3)


@pytest.fixture
def upcasters(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, str], Upcaster]:
    """Return an empty table of upcasters that is used instead of the real one."""
    table: dict[tuple[int, str], Upcaster] = {}
    monkeypatch.setattr("evaljournal.journal.readers.scan.UPCASTERS", table)
    return table


def rename_member(old: str, new: str) -> Upcaster:
    """Return an upcaster that renames a member."""
    return lambda members: {new if name == old else name: value for name, value in members.items()}


def rename_event(type_: str) -> Upcaster:
    """Return an upcaster that changes the type of an event."""
    return lambda members: {**members, "type": type_}


def fail(members: Members) -> Members:
    """Fail the test: this upcaster must not be called."""
    raise AssertionError(members)


def events_of(path: Path) -> list[Event]:
    """Read the events of a run, without the first record."""
    return [record.event for record in read(path)][1:]


def test_first_format_needs_no_upcaster() -> None:
    """There is no format before version 1."""
    assert {} == UPCASTERS


@pytest.mark.usefixtures("third_format")
def test_line_is_converted_through_every_major_version(tmp_path: Path, upcasters: dict[tuple[int, str], Upcaster]) -> None:
    """A line of format 1 is converted to format 2 and then to format 3."""
    forge(tmp_path, [opened(version="1.4"), started(), session(), {"type": "noted", "key": "cost", "value": 1}])
    upcasters |= {(1, "noted"): rename_member("key", "label"), (2, "noted"): rename_member("label", "name")}

    assert [started(), session(), Noted(name="cost", value=1)] == events_of(tmp_path)


@pytest.mark.usefixtures("third_format")
def test_line_of_a_later_version_skips_earlier_upcasters(tmp_path: Path, upcasters: dict[tuple[int, str], Upcaster]) -> None:
    """A line of format 2 is not converted from format 1."""
    forge(tmp_path, [opened(version="2.0"), {"type": "noted", "label": "cost", "value": 1}])
    upcasters |= {(1, "noted"): fail, (2, "noted"): rename_member("label", "name"), (3, "noted"): fail}

    assert [Noted(name="cost", value=1)] == events_of(tmp_path)


@pytest.mark.usefixtures("third_format")
def test_event_type_may_change(tmp_path: Path, upcasters: dict[tuple[int, str], Upcaster]) -> None:
    """The upcaster from format 2 to 3 is looked up by the type that the event has in format 2."""
    forge(tmp_path, [opened(version="1.0"), {"type": "remarked", "key": "cost", "value": 1}])
    upcasters |= {(1, "remarked"): rename_event("noted"), (2, "noted"): rename_member("key", "name"), (2, "remarked"): fail}

    assert [Noted(name="cost", value=1)] == events_of(tmp_path)


def test_line_of_the_current_format_is_not_converted(tmp_path: Path, upcasters: dict[tuple[int, str], Upcaster]) -> None:
    """No upcaster is applied to a line of the current format."""
    write_sync(tmp_path / "run", [started(), session(), Noted(name="cost", value=1)])
    upcasters[1, "noted"] = fail

    assert Noted(name="cost", value=1) == events_of(tmp_path / "run")[2]


@pytest.mark.usefixtures("third_format")
def test_files_are_not_changed(tmp_path: Path, upcasters: dict[tuple[int, str], Upcaster]) -> None:
    """Hashes are checked over the bytes as written, and the bytes stay as they are."""
    forge(tmp_path, [opened(version="1.0"), {"type": "noted", "key": "cost", "value": 1}])
    before = content(tmp_path)
    upcasters[1, "noted"] = rename_member("key", "name")

    assert events_of(tmp_path) == events_of(tmp_path) == [Noted(name="cost", value=1)]
    assert before == content(tmp_path)


@pytest.mark.usefixtures("third_format")
def test_converted_lines_are_checked(tmp_path: Path, upcasters: dict[tuple[int, str], Upcaster]) -> None:
    """The types of a converted line are those of the current format."""
    forge(tmp_path, [opened(version="1.0"), {"type": "noted", "key": "cost", "value": 1}])
    upcasters[1, "noted"] = rename_member("key", "name")
    scan = Scan(tmp_path)

    assert [Noted(name="cost", value=1)] == [record.event for record in scan][1:]
    assert scan.stop is None


def test_segments_of_one_run_may_have_different_versions(
    tmp_path: Path, upcasters: dict[tuple[int, str], Upcaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment names its version, so a run of an older format can be resumed in the current one."""
    write_sync(tmp_path / "run", [started(), session(), Noted(name="old", value=1)])
    monkeypatch.setattr("evaljournal.journal.disk.segments.MAJOR", 2)
    monkeypatch.setattr("evaljournal.journal.disk.segments.VERSION", "2.0")
    write_sync(tmp_path / "run", [session(2), Noted(name="new", value=1)], new=False)
    upcasters[1, "noted"] = lambda members: {**members, "value": members["value"] * 2}

    notes = events(tmp_path / "run", Noted)

    assert [("old", 2), ("new", 1)] == [(note.name, note.value) for note in notes]


@pytest.mark.usefixtures("third_format")
def test_upcasting_does_not_change_its_argument(upcasters: dict[tuple[int, str], Upcaster]) -> None:
    """The members of the old line are not changed."""
    members = {"type": "noted", "key": "cost"}
    upcasters |= {(1, "noted"): rename_member("key", "label"), (2, "noted"): rename_member("label", "name")}

    assert {"type": "noted", "name": "cost"} == upcast(members, 1)
    assert {"type": "noted", "key": "cost"} == members == upcast(members, 3)


@pytest.mark.usefixtures("third_format")
@pytest.mark.parametrize(("version", "major"), [("1.0", 1), ("2.7", 2), ("3", 3), ("3.0", 3)])
def test_older_major_versions_are_read(version: str, major: int) -> None:
    """Every major version up to the current one is accepted."""
    assert major == major_version(opened(version=version), "file")


@pytest.mark.usefixtures("third_format")
def test_newer_major_version_is_rejected() -> None:
    """A newer major version is an error that names the version."""
    with pytest.raises(UnknownFormat, match="reads only version 3; upgrade evaljournal") as raised:
        major_version(opened(version="4.2"), "file")

    assert ("file", "evaljournal", "4.2") == (raised.value.file, raised.value.format, raised.value.version)
