"""Older formats: lines are brought up to date one major version at a time, and never on disk."""

from pathlib import Path
from typing import Any

import pytest

from journal import Event, read
from journal.errors import UnknownFormat
from journal.events import Noted
from journal.scan import Scan
from journal.versions import UPCASTERS, Members, Upcasters, major_of, upcast
from tests.journal.samples import content, forge, opened, session, started, written


@pytest.fixture
def third_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the present format be the third."""
    monkeypatch.setattr("journal.versions.MAJOR", 3)
    monkeypatch.setattr("journal.segments.MAJOR", 3)


def renamed(before: str, after: str) -> Any:
    """Make an upcaster that gives a member another name."""

    def change(members: Members) -> Members:
        return {after if name == before else name: value for name, value in members.items()}

    return change


def named(kind: str) -> Any:
    """Make an upcaster that gives an event another name."""

    def change(members: Members) -> Members:
        return {**members, "type": kind}

    return change


def events_of(path: Path, upcasters: Upcasters) -> list[Event]:
    """Read a run with a table of upcasters, without its header."""
    return [record.event for record in read(path, upcasters=upcasters)][1:]


def test_first_format_needs_no_upcaster() -> None:
    """Version 1 is the first, so there is nothing to bring up to it."""
    assert {} == UPCASTERS


@pytest.mark.usefixtures("third_format")
def test_line_goes_through_every_major_version(tmp_path: Path) -> None:
    """A line of format 1 becomes one of format 2, and that becomes one of format 3."""
    forge(tmp_path, [opened(version="1.4"), started(), session(), {"type": "noted", "key": "cost", "value": 1}])
    upcasters = {(1, "noted"): renamed("key", "label"), (2, "noted"): renamed("label", "name")}

    assert [started(), session(), Noted(name="cost", value=1)] == events_of(tmp_path, upcasters)


@pytest.mark.usefixtures("third_format")
def test_line_of_a_later_version_skips_the_earlier_steps(tmp_path: Path) -> None:
    """A line of format 2 is not taken for one of format 1."""
    forge(tmp_path, [opened(version="2.0"), {"type": "noted", "label": "cost", "value": 1}])

    def never(members: Members) -> Members:
        raise AssertionError(members)

    assert [Noted(name="cost", value=1)] == events_of(
        tmp_path, {(1, "noted"): never, (2, "noted"): renamed("label", "name"), (3, "noted"): never}
    )


@pytest.mark.usefixtures("third_format")
def test_event_may_change_its_name(tmp_path: Path) -> None:
    """An event that is called otherwise in format 2 is brought to format 3 under its new name."""
    forge(tmp_path, [opened(version="1.0"), {"type": "remarked", "key": "cost", "value": 1}])
    upcasters = {(1, "remarked"): named("noted"), (2, "noted"): renamed("key", "name"), (2, "remarked"): named("lost")}

    assert [Noted(name="cost", value=1)] == events_of(tmp_path, upcasters)


def test_line_of_the_present_format_is_left_alone(tmp_path: Path) -> None:
    """What is up to date goes through no upcaster, whatever the table says."""
    written(tmp_path / "run", [started(), session(), Noted(name="cost", value=1)])

    assert Noted(name="cost", value=1) == events_of(tmp_path / "run", {(1, "noted"): named("lost")})[2]


@pytest.mark.usefixtures("third_format")
def test_disk_is_not_touched(tmp_path: Path) -> None:
    """Hashes are checked over the bytes as they were written, and the bytes stay as they are."""
    forge(tmp_path, [opened(version="1.0"), {"type": "noted", "key": "cost", "value": 1}])
    before = content(tmp_path)
    upcasters = {(1, "noted"): renamed("key", "name")}

    assert events_of(tmp_path, upcasters) == events_of(tmp_path, upcasters) == [Noted(name="cost", value=1)]
    assert before == content(tmp_path)


@pytest.mark.usefixtures("third_format")
@pytest.mark.parametrize("checking", [False, True])
def test_upcast_lines_are_checked_like_others(tmp_path: Path, *, checking: bool) -> None:
    """Whoever checks types checks those of the present format."""
    forge(tmp_path, [opened(version="1.0"), {"type": "noted", "key": "cost", "value": 1}])
    scan = Scan(tmp_path, checking=checking, upcasters={(1, "noted"): renamed("key", "name")})

    assert [Noted(name="cost", value=1)] == [record.event for record in scan][1:]
    assert scan.stop is None


def test_files_of_one_run_may_differ_in_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file names its own version, and its lines are read by that: a run of an older format goes on in the present one."""
    written(tmp_path / "run", [started(), session(), Noted(name="old", value=1)])
    monkeypatch.setattr("journal.versions.MAJOR", 2)
    monkeypatch.setattr("journal.segments.MAJOR", 2)
    monkeypatch.setattr("journal.segments.VERSION", "2.0")
    written(tmp_path / "run", [session(2), Noted(name="new", value=1)], new=False)

    def doubled(members: Members) -> Members:
        return {**members, "value": members["value"] * 2}

    notes = [event for event in events_of(tmp_path / "run", {(1, "noted"): doubled}) if isinstance(event, Noted)]

    assert [("old", 2), ("new", 1)] == [(note.name, note.value) for note in notes]


def test_upcasting_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bringing a line up to date leaves the old members as they were."""
    monkeypatch.setattr("journal.versions.MAJOR", 3)
    members = {"type": "noted", "key": "cost"}
    upcasters = {(1, "noted"): renamed("key", "label"), (2, "noted"): renamed("label", "name")}

    assert {"type": "noted", "name": "cost"} == upcast(members, 1, upcasters)
    assert {"type": "noted", "key": "cost"} == members
    assert members == upcast(members, 3, upcasters)


@pytest.mark.usefixtures("third_format")
@pytest.mark.parametrize(("version", "major"), [("1.0", 1), ("2.7", 2), ("3", 3), ("3.0", 3)])
def test_older_major_versions_are_read(version: str, major: int) -> None:
    """Every major version up to the present one is read."""
    assert major == major_of(opened(version=version), "here")


@pytest.mark.usefixtures("third_format")
def test_newer_major_version_is_refused() -> None:
    """A version that is not written yet is refused, and the refusal says what is needed."""
    with pytest.raises(
        UnknownFormat,
        match=r"here is in format '?4.2'?, and this evaljournal reads format 3; .* that reads format '?4'? is needed",
    ):
        major_of(opened(version="4.2"), "here")
