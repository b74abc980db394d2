"""Groups of trials by a metadata key."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Event
from evaljournal.journal.events import TrialEnqueued
from evaljournal.replay import fold, load
from evaljournal.replay.render.summary import group_lines
from evaljournal.replay.results.summary import NO_GROUP, Summary, summarize
from evaljournal.replay.runs.loaded_run import Grouping
from tests.journal.samples import examples, session, started, write_sync
from tests.replay.summaries import chain
from tests.replay.trial_events import answered, enqueued, failed, records

PASS, FAIL = True, False


def summary_by(trials: list[Event], key: str) -> Summary:
    """Return the summary by a metadata key."""
    run_records = records(trials)
    grouping = Grouping(key)
    for record in run_records:
        if isinstance(record.event, TrialEnqueued):
            grouping.add(record.event)
    return summarize(fold(run_records), groups=grouping.groups)


def test_groups_by_metadata() -> None:
    """Each group has its own counts, scores and latencies; trials without the key are a group too."""
    summary = summary_by(
        chain(
            answered("a", {"exact": PASS}, metadata={"difficulty": "easy"}),
            answered("b", {"exact": PASS}, failures=1, metadata={"difficulty": "easy"}),
            answered("c", {"exact": FAIL}, elapsed=9.0, metadata={"difficulty": 3}),
            failed("d", metadata={"difficulty": "easy"}),
            answered("e", {"exact": FAIL}),
            [enqueued("f", metadata=["not", "a", "mapping"])],
        ),
        "difficulty",
    )
    groups = summary.groups

    assert groups is not None
    assert ["(none)", "3", "easy"] == list(groups)
    assert (3, 2, 1, 1) == tuple(
        getattr(groups["easy"].trials, name) for name in ("enqueued", "completed", "failed", "recovered")
    )
    assert (1.0, 2) == (groups["easy"].scores["exact"].mean, groups["easy"].scores["exact"].scored)
    assert 9.0 == groups["3"].latency.p50
    assert (2, 1) == (groups[NO_GROUP].trials.enqueued, groups[NO_GROUP].trials.open)
    assert [
        "by difficulty:",
        "  (none)  1 output of 2 trials · 1 open",
        "    exact  0.0 %  0 of 1 passed (95 % CI 0.0–79.3 %)",
        "  3  1 output of 1 trial",
        "    exact  0.0 %  0 of 1 passed (95 % CI 0.0–79.3 %)",
        "  … and 1 more group",
    ] == list(group_lines(groups, "difficulty", limit=2))
    assert "  easy  2 outputs of 3 trials · 1 error" in list(group_lines(groups, "difficulty"))


def test_metadata_in_a_blob(tmp_path: Path) -> None:
    """Metadata in a blob are read."""
    metadata = {"kind": "large", "pad": "x" * 300_000}
    write_sync(tmp_path / "run", [started(), session(), enqueued("a", metadata=metadata)])

    assert {"a": "large"} == load(tmp_path / "run").grouping("kind").groups


TRIALS = st.lists(
    st.one_of(
        st.tuples(st.just("failed"), st.none()),
        st.tuples(st.just("answered"), st.one_of(st.booleans(), st.floats(0, 1), st.sampled_from(["x", "y"]))),
        st.tuples(st.just("open"), st.none()),
    ),
    max_size=30,
)


@examples(100)
@given(TRIALS, st.integers(1, 3))
def test_groups_add_up(trials: list[tuple[str, Any]], repeats: int) -> None:
    """In any run, every count is the sum over the groups, and enqueued = completed + failed + open."""
    events: list[Event] = []
    for index, (kind, value) in enumerate(trials):
        case, repeat, metadata = f"c{index // repeats}", index % repeats + 1, {"part": index // repeats % 3}
        match kind:
            case "failed":
                events += failed(case, repeat=repeat, metadata=metadata)
            case "answered":
                events += answered(case, {"s": value}, repeat=repeat, failures=index % 2, metadata=metadata)
            case _:
                events.append(enqueued(case, repeat, metadata=metadata))
    total = summary_by(events, "part")
    parts = list((total.groups or {}).values())

    for name in ("enqueued", "with_output", "completed", "failed", "recovered", "open"):
        assert getattr(total.trials, name) == sum(getattr(part.trials, name) for part in parts)
    assert total.trials.enqueued == total.trials.completed + total.trials.failed + total.trials.open
    scores = [part.scores["s"] for part in parts if "s" in part.scores]
    if "s" in total.scores:
        for name in ("scored", "numbers", "cases"):
            assert getattr(total.scores["s"], name) == sum(getattr(score, name) for score in scores)
        assert total.scores["s"].labels.get("x", 0) == sum(score.labels.get("x", 0) for score in scores)
