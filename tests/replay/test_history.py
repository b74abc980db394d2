"""The history of an evaluation: which cases count, how they changed, and the text."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from evaljournal.journal import Event
from evaljournal.journal.events import RunStarted
from evaljournal.replay import LoadedRun, fold
from evaljournal.replay.history.digest import CaseColumns, RunDigest, columns_from_json, digest, run_from_json, to_json
from evaljournal.replay.history.history import Entry, History, case_change, histories
from evaljournal.replay.history.text import basis_text, change_lines, sparkline, table, trend_lines
from evaljournal.replay.state.definition import changes, definition_key, identity
from evaljournal.replay.statistics import wilson
from tests.journal.samples import finished, started
from tests.replay.trial_events import answered, failed, records

Results = Mapping[str, Any]
"""Case → its score, a list of those of its repeats, or None if it failed."""


def trials(results: Results, *, data: str = "", version: str = "v1", usage: Any = None) -> list[Event]:
    """Return the events of trials; `data` distinguishes the content of the cases."""
    events: list[Event] = []
    for case, scores in results.items():
        for repeat, value in enumerate(scores if isinstance(scores, list) else [scores], start=1):
            fingerprint = f"{case}-{data}"
            if value is None:
                enqueued, *others = failed(case)
                events += [attrs.evolve(enqueued, fingerprint=fingerprint), *others]  # type: ignore[misc]  # an event is an attrs class
            else:
                options: Any = {"fingerprint": fingerprint, "version": version, "usage": usage}
                events += answered(case, {"exact": value}, repeat=repeat, **options)
    return events


def entry(
    path: str, results: Results, *, at: str = "", is_finished: bool = True, run: RunStarted | None = None, **options: Any
) -> Entry:
    """Return a run with these results and a task of its own; runs are ordered by their paths, unless `at` is passed."""
    run = run or attrs.evolve(started(), task_fingerprint=path)  # type: ignore[misc]  # an event is an attrs class
    events = [*trials(results, **options), *([finished()] if is_finished else [])]
    loaded = LoadedRun(Path(path), fold(records(events, run)))
    run_digest, columns = digest(loaded)
    return Entry(path, attrs.evolve(run_digest, started_at=at or run_digest.started_at), columns)


def history(*entries: Entry, **options: Any) -> History:
    """Return the only history of some runs."""
    (history_of_runs,) = histories(entries, **options)
    return history_of_runs


def shares(results: Sequence[bool]) -> dict[str, bool]:
    return {f"case-{index}": value for index, value in enumerate(results)}


def test_the_mean_has_its_interval() -> None:
    """A line has the mean over the common cases, with Wilson's interval for passes."""
    (point,) = history(entry("a", shares([True] * 9 + [False]))).points

    assert point.score is not None
    assert (0.9, 10, 10) == (point.score.mean, point.common, point.score.cases)
    assert wilson(0.9, 10) == (point.score.low, point.score.high)
    assert 0.25 == point.p95


def test_cases_count_where_their_content_is_equal() -> None:
    """A case with other content than in the newest run is excluded from the means of all runs, and its run is marked."""
    changed = entry("a", {"peru": True}, data="old")
    older = Entry(
        "a",
        attrs.evolve(entry("a", {"peru": True, "chad": False, "oslo": True}).run, started_at="1"),
        [
            CaseColumns(
                cases=["peru", "chad", "oslo"],
                fingerprints=["peru-", "chad-", "oslo-old"],
                outcomes="pfp",
                values={"exact": [True, False, True]},
            )
        ],
    )
    newer = entry("b", {"peru": True, "chad": True, "oslo": False})
    shown = history(older, newer)

    assert ("b", 3) == (shown.reference, shown.cases)
    assert "compared on 2 of the 3 cases of b" == basis_text(shown)
    assert [(2, 3, True, 0.5), (2, 3, False, 1.0)] == [
        (point.common, point.cases, point.has_other_data, point.score.mean if point.score else None) for point in shown.points
    ]
    assert ["chad"] == [case.case for case in shown.fixed]
    assert [] == [*shown.broken, *shown.flaky]
    assert [0, 3] == [point.common for point in history(changed, newer).points]
    assert [None] == [point.score for point in history(changed, newer).points if point.path == "a"]


def test_half_of_the_cases_stay_in_common() -> None:
    """All means are over the same cases; a run that would leave less than half of them is not part of the trend."""
    names = ["peru", "chad", "oslo", "rome"]
    runs = [entry("a", dict.fromkeys(["oslo", "rome"], True)), entry("b", dict.fromkeys(["peru", "chad"], False))]
    shown = history(*runs, entry("c", dict(zip(names, [True, True, False, True], strict=True))))

    assert (4, 2) == (shown.cases, shown.common)
    assert [(True, 1.0), (False, 0.0), (False, 1.0)] == [
        (point.is_partial, point.score.mean if point.score else None) for point in shown.points
    ]


def test_repeats_of_common_cases_are_averaged() -> None:
    """The mean over a part of the cases is clustered by case, as that over all of them."""
    results = {"peru": [True, False], "chad": [True, True], "oslo": [False, False]}
    complete = history(entry("a", results)).points[0].score
    part = history(entry("a", {**results, "rome": [True, True]}), entry("b", results)).points[0].score

    assert complete is not None
    assert complete == part


def test_a_run_of_few_cases_is_not_the_reference() -> None:
    """`--limit 1` after a complete run does not reduce the history to one case."""
    shown = history(entry("a", shares([True] * 4)), entry("b", shares([False])))

    assert ("a", 4, [4, 1]) == (shown.reference, shown.cases, [point.common for point in shown.points])
    assert "1 of the 4 cases" == table(shown)[-1][-2]
    assert [False, True] == [point.is_partial for point in shown.points]
    assert [] == list(trend_lines(shown))


def test_an_unfinished_run_is_not_the_reference() -> None:
    """An unfinished run is listed with its results; without a finished run, the newest one is the reference."""
    first, second = entry("a", shares([True, True])), entry("b", shares([False, True]), is_finished=False)

    assert "a" == history(first, second).reference
    assert ["a", "b"] == [point.path for point in history(first, second).points]
    assert "b" == history(second).reference


def test_damaged_and_unreadable_runs_are_listed() -> None:
    """Damaged and unreadable runs are listed without results, and affect no other run."""
    complete = entry("b", shares([True, True]))
    damaged = Entry("a", attrs.evolve(complete.run, status="damaged", outcome="damaged"), complete.columns)
    lost = Entry("c", RunDigest(status="unreadable", outcome="permission denied", evaluation="capitals"), [])
    shown = history(damaged, complete, lost)

    assert {"a": 0, "b": 2, "c": 0} == {point.path: point.common for point in shown.points}
    assert ["b"] == shown.runs
    assert {"damaged", "", "unreadable: permission denied"} == {row[-2] for row in table(shown)[1:]}


def test_another_version_of_the_scorer_is_marked() -> None:
    """Scores of two versions are not comparable."""
    shown = history(entry("a", shares([True]), version="v0"), entry("b", shares([True])))

    assert [True, False] == [point.scorer_changed for point in shown.points]
    assert "other version of exact" == table(shown)[1][-2]


def test_only_the_newest_runs_are_shown() -> None:
    """`last` counts runs of each evaluation, in the order of their starts."""
    entries = [entry(path, shares([True]), at=at) for path, at in (("z", "1"), ("a", "2"), ("m", "3"))]

    assert ["a", "m"] == [point.path for point in history(*entries, last=2).points]


def test_each_evaluation_has_its_history() -> None:
    """Runs of several evaluations are never joined."""
    rivers = attrs.evolve(started(), evaluation="rivers")  # type: ignore[misc]  # an event is an attrs class
    shown = histories([entry("a", shares([True]), run=rivers), entry("b", shares([True]))])

    assert [("capitals", ["b"]), ("rivers", ["a"])] == [
        (history_of_runs.evaluation, history_of_runs.runs) for history_of_runs in shown
    ]


@pytest.mark.parametrize(
    ("outcomes", "definitions", "kind", "since"),
    [
        ("", "", "unchanged", None),
        ("---", "abc", "unchanged", None),
        ("pppp", "abcd", "unchanged", None),
        ("ffff", "abcd", "unchanged", None),
        ("ppff", "abcd", "broken", 2),
        ("p--f", "abcd", "broken", 3),
        ("ffpp", "abcd", "fixed", 2),
        ("pfp", "abc", "fixed", 2),
        ("pfpf", "abcd", "broken", 3),
        ("pmp", "abc", "flaky", None),
        ("ppep", "abcd", "unchanged", None),
        ("pppee", "abcde", "broken", 3),
        ("eeepp", "abcde", "unchanged", None),
        ("fep", "abc", "fixed", 2),
        ("pfpe", "abcd", "broken", 3),
        ("ffe", "abc", "unchanged", None),
        ("eee", "abc", "unchanged", None),
        ("pf", "aa", "flaky", None),
        ("pf", "--", "broken", 1),  # Unknown definitions.
        ("pfp", "aba", "fixed", 2),  # Reverted.
        ("pffp", "abba", "fixed", 3),
        ("pfpp", "aabb", "flaky", None),
        ("ppe", "aaa", "broken", 2),  # An error is no other result.
        ("pef", "aab", "broken", 2),
        ("p-p", "aaa", "unchanged", None),
    ],
)
def test_changes_of_a_case(outcomes: str, definitions: str, kind: str, since: int | None) -> None:
    """Different results under the same definition are flaky, under different ones a break or a fix; errors count at the end."""
    assert (kind, since) == case_change(outcomes, [None if key == "-" else key.encode() for key in definitions])


def test_every_short_sequence_of_outcomes() -> None:
    """A broken case has no later pass, a fixed one only passes and errors; the result before was the opposite."""
    for length in range(7):
        for letters in itertools.product("pfe-", repeat=length):
            outcomes = "".join(letters)
            kind, since = case_change(outcomes, [None] * length)
            assert (since is not None) == (kind in {"broken", "fixed"}), outcomes
            if since is not None:
                before = outcomes[:since].replace("-", "").replace("e", "")
                assert ("f" if kind == "fixed" else "p") == before[-1], outcomes
                assert set(outcomes[since:]) <= set("pe-" if kind == "fixed" else "fe-"), outcomes
                assert outcomes[since] in ("p" if kind == "fixed" else "fe"), outcomes


CHAT: dict[str, Any] = {"task": {"model": "gpt-5", "prompt": "Answer: {q}"}, "scorers": {}, "code": {"files": {"a.py": "1"}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        (
            {"task_fingerprint": "t2", "definition": {**CHAT, "task": {"model": "gpt-5-mini", "prompt": "Answer: {q}"}}},
            ["model gpt-5 → gpt-5-mini"],
        ),
        ({"task_fingerprint": "t2", "definition": {**CHAT, "task": {"model": "gpt-5", "prompt": "Answer " * 20}}}, ["prompt"]),
        (
            {"task_fingerprint": "t2", "definition": {**CHAT, "task": {**CHAT["task"], "seed": 1, "prompt": None}}},
            ["prompt Answer: {q} → none", "seed none → 1"],
        ),
        ({"task_fingerprint": "t2", "definition": None}, ["task"]),
        ({"task_fingerprint": "t2"}, ["task"]),
        (
            {"dataset_fingerprint": "d2", "scorers": {"exact": "v2", "near": "v1"}},
            ["cases", "scorer exact", "scorer near (new)"],
        ),
        ({"definition": {**CHAT, "code": {"files": {"a.py": "2"}}}}, ["file a.py"]),
        ({"definition": {**CHAT, "variants": {"mini": {"fingerprint": "1"}}}}, ["variant mini (new)"]),
        ({"environment": {"git": "f" * 40}}, ["revision eeeeeee → fffffff"]),
        ({"environment": {}}, ["revision eeeeeee → none"]),
        ({"evaluation": "other"}, ["name"]),
    ],
)
def test_what_changed(fields: dict[str, Any], expected: list[str]) -> None:
    """Two recorded definitions differ in model, prompt and other parameters, cases, files, scorers, variants or revision."""
    before = attrs.evolve(started(), definition=CHAT, environment={"git": "e" * 40})  # type: ignore[misc]  # an event is an attrs class
    after = attrs.evolve(before, **fields)  # type: ignore[misc]  # an event is an attrs class

    assert expected == list(changes(identity(before), identity(after)))
    assert [] == list(changes({}, identity(after)))
    is_same = definition_key(identity(before), "") == definition_key(identity(after), "")
    assert is_same == ({*expected} <= {"name", "variant mini (new)"})


def test_cases_that_changed() -> None:
    """Each kind is listed with the outcomes of all runs, and the run since which it is so."""
    runs: tuple[Results, ...] = (
        {"peru": True, "chad": False, "oslo": True, "rome": True},
        {"peru": False, "chad": True, "oslo": False, "rome": True},
    )
    last = {"peru": None, "chad": True, "oslo": True, "rome": [True, False]}
    shown = history(
        *(
            entry(path, results, run=attrs.evolve(started(), task_fingerprint=version))  # type: ignore[misc]  # an event is an attrs class
            for path, results, version in zip("abc", (*runs, last), ("v1", "v2", "v2"), strict=True)
        )
    )

    assert [("peru", "pfe", "b")] == [(case.case, case.outcomes, case.since) for case in shown.broken]
    assert [("chad", "fpp", "b")] == [(case.case, case.outcomes, case.since) for case in shown.fixed]
    assert [("oslo", "pfp"), ("rome", "ppm")] == [(case.case, case.outcomes) for case in shown.flaky]
    assert [(), ("task",), ()] == [point.changed for point in shown.points]
    assert [(None, [], []), ("a", ["peru", "oslo"], ["chad"]), ("b", ["rome"], ["oslo"])] == [
        (point.previous, list(point.broken), list(point.fixed)) for point in shown.points
    ]
    assert ["CHANGED", "", "task", ""] == [row[-1] for row in table(shown)]
    assert ["broken: 1 case", "  ✓✗E  peru  since b"] == list(change_lines(shown))[:2]


def test_sparkline() -> None:
    """The smallest value has the lowest bar, the largest the highest; a missing one is a dot."""
    assert "▁█·▅" == sparkline([0.0, 1.0, None, 0.5])
    assert "▄▄" == sparkline([0.5, 0.5])
    assert "··" == sparkline([None, None])


def test_trend_of_a_score() -> None:
    """The sparkline has the smallest and the largest mean next to it; one run has no trend."""
    shown = history(entry("a", shares([True, False])), entry("b", shares([True, True])))

    assert ["exact  ▁█  50.0 % to 100.0 %"] == list(trend_lines(shown))
    assert [] == list(trend_lines(history(entry("a", shares([True])))))


def test_cost_and_git_revision() -> None:
    """The cost includes that of judges; the git revision is that of the environment."""
    run = attrs.evolve(started(), environment={"git": "8ac6b06" + 33 * "0"})  # type: ignore[misc]  # an event is an attrs class
    usage = {"cost": 0.25, "judge.cost": 0.5, "unpriced_calls": 2}
    (point,) = history(entry("a", shares([True]), run=run, usage=usage)).points

    assert (0.75, 2, "8ac6b06") == (point.cost, point.unpriced_calls, point.git[:7])


def test_a_line_for_each_variant() -> None:
    """Variants are joined by name; each has its score, cost, trend and cases."""

    def with_variants(path: str, results: Mapping[str, Results]) -> Entry:
        events = [
            event
            for variant, values in results.items()
            for case, value in values.items()
            for event in answered(case, {"exact": value}, variant=variant, usage={"cost": 0.5 if variant == "mini" else 2.0})
        ]
        run = attrs.evolve(started(), task_fingerprint=path)  # type: ignore[misc]  # an event is an attrs class
        return Entry(path, *digest(LoadedRun(Path(path), fold(records([*events, finished()], run)))))

    first = with_variants("a", {"mini": {"peru": True, "chad": True}})
    second = with_variants("b", {"mini": {"peru": True, "chad": False}, "large": {"peru": True, "chad": True}})
    shown = history(first, second)

    assert [("a", "mini", 1.0, 1.0), ("b", "mini", 0.5, 1.0), ("b", "large", 1.0, 4.0)] == [
        (point.path, point.variant, point.score.mean if point.score else None, point.cost) for point in shown.points
    ]
    assert 5.0 == second.run.cost
    assert [("chad", "mini", "pf", "b")] == [(case.case, case.variant, case.outcomes, case.since) for case in shown.broken]
    assert [(None, []), ("a", ["chad"]), (None, [])] == [(point.previous, list(point.broken)) for point in shown.points]
    assert ["VARIANT", "mini", "mini", "large"] == [row[1] for row in table(shown)]
    assert ["exact@mini  █▁  50.0 % to 100.0 %"] == list(trend_lines(shown))


def test_unsafe_names_are_escaped() -> None:
    """Names of runs, evaluations, cases and scorers cannot control a terminal or break a line."""
    unsafe = "\x1b[2J\n\u202eevil"
    run = attrs.evolve(started(), evaluation=unsafe, environment={"git": unsafe})  # type: ignore[misc]  # an event is an attrs class
    shown = history(entry("a", {unsafe: True}, run=run), entry(f"b{unsafe}", {unsafe: False}, run=run))
    lines = [cell for row in table(shown) for cell in row] + [*trend_lines(shown), *change_lines(shown)]

    assert all(line.isprintable() for line in lines), lines


def test_a_deeply_nested_definition_has_a_digest() -> None:
    """Of the code in a definition, only digests of files are kept: a foreign run may be nested deeper than JSON is written."""
    code: Any = {"files": {"a.py": "1"}}
    for _ in range(300):
        code = {"files": {"a.py": "1", "b.py": code}, "other": code}
    run_digest = entry("1", {"a": True}, run=attrs.evolve(started(), definition={"code": code})).run  # type: ignore[misc]  # an event is an attrs class

    assert {"includes_opened": False, "files": {"a.py": "1"}} == run_from_json(to_json(run_digest, [])[0]).identity["code"]
    assert definition_key(run_digest.identity, "") is not None


def test_a_digest_survives_json() -> None:
    """Reading the JSON of a digest gives the same digest."""
    _, run, columns = entry("a", {"peru": [True, False], "chad": None, "oslo": True})
    run_json, cases_json = to_json(run, columns)

    assert (run, columns) == (run_from_json(run_json), columns_from_json(cases_json))
