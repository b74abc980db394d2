"""The comparison of any number of runs and variants: rows, paired differences, Holm's correction, Pareto front."""

import itertools
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Event
from evaljournal.journal.events import TrialScored
from evaljournal.replay.render.comparison import table_lines as lines
from evaljournal.replay.results.comparison import Side
from evaljournal.replay.results.table import ComparisonTable, Row, compare_all
from evaljournal.replay.state.run import fold
from evaljournal.replay.statistics import holm, mcnemar
from tests.journal.samples import examples
from tests.replay.trial_events import answered, enqueued, failed, records

N = 40


def side(*trials: list[Event], variant: str | None = None) -> Side:
    """Return a run with these trials, or one variant of it."""
    return Side(fold(records(itertools.chain.from_iterable(trials))), variant=variant)


def scored(passes: int, *, first: int = 0, cost: float = 0.01, n: int = N, **more: Any) -> Side:
    """Return a run of `n` cases of which `passes` pass from number `first` on."""
    usage = {"input_tokens": 100, "output_tokens": 20, "cost": cost}
    return side(*(answered(f"c{index}", {"exact": first <= index < first + passes}, usage=usage, **more) for index in range(n)))


def rows(table: ComparisonTable) -> Mapping[str, Row]:
    """Return the rows by name."""
    return {row.name: row for row in table.rows}


def test_rows() -> None:
    """A row has the scores, failures, quantiles of the latency, tokens and cost of its own trials."""
    events: list[list[Event]] = [
        *(
            answered(f"c{index}", {"exact": index < 3}, variant="mini", elapsed=index + 1.0, usage={"cost": 0.5})
            for index in range(4)
        ),
        failed("c4", variant="mini", usage={"cost": 1.0}),
        *(
            answered(f"c{index}", {"exact": True}, variant="large", usage={"input_tokens": 7, "output_tokens": 3})
            for index in range(5)
        ),
        [enqueued("c5", variant="large")],
    ]
    state = side(*events).state
    table = compare_all({name: Side(state, variant=name) for name in ("mini", "large")}, "mini")
    mini, large = table.rows

    assert ("mini", "exact") == (table.baseline, table.score)
    figures = attrgetter("trials", "completed", "failed", "open", "tokens", "cost", "cost_per_trial", "cost_per_pass")
    assert (5, 4, 1, 0, None, 3.0, 0.6, 1.0) == figures(mini)
    assert (6, 5, 0, 1, 50, None, None, None) == figures(large)
    assert (2.0, 4.0, 0.75) == (mini.latency.p50, mini.latency.p95, mini.scores["exact"].mean)
    assert mini.overlap is None
    assert large.overlap is not None
    assert (5, ["c5@large"]) == (large.overlap.common, large.overlap.only_row)
    assert (4, 1) == (large.differences["exact"].n, large.differences["exact"].missing)


def test_a_run_without_variants_is_paired_with_a_variant() -> None:
    """Trials are paired by case, repeat and content, whatever their ids are."""
    run = side(*(answered(f"c{index}", {"exact": False}, repeat=repeat) for index in range(8) for repeat in (1, 2)))
    variants = side(
        *(answered(f"c{index}", {"exact": True}, variant="mini", repeat=repeat) for index in range(7) for repeat in (1, 2, 3)),
        answered("c7", {"exact": True}, variant="mini", fingerprint="changed"),
        variant="mini",
    )
    table = compare_all({"run": run, "mini": variants}, "run")
    overlap, exact = table.rows[1].overlap, table.rows[1].differences["exact"]

    assert overlap is not None
    assert (14, ["c7#2"], ["c7@mini"]) == (overlap.common, list(overlap.only_baseline), list(overlap.different_content))
    assert [f"c{index}@mini#3" for index in range(7)] == list(overlap.only_row)
    assert (7, 1.0) == (exact.n, exact.difference)


def test_holm() -> None:
    """p-values are McNemar's, corrected over all rows and scores of the table; labels are not tested."""

    def run(passes: tuple[int, int]) -> Side:
        exact, polite = passes
        return side(
            *(answered(f"c{index}", {"exact": index < exact, "polite": index < polite, "tone": "kind"}) for index in range(N))
        )

    passes = {"a": (20, 20), "b": (27, 21), "c": (30, 12), "d": (20, 26)}
    table = compare_all({name: run(counts) for name, counts in passes.items()}, "a")
    differences = [
        difference for row in table.rows for difference in row.differences.values() if difference.p_adjusted is not None
    ]
    p_values = [difference.p or 0.0 for difference in differences]

    assert 6 == table.comparisons
    assert [mcnemar(fixed, broken) for fixed, broken in ((7, 0), (1, 0), (10, 0), (0, 8), (0, 0), (6, 0))] == p_values
    assert holm(p_values) == [difference.p_adjusted for difference in differences]
    assert [p < 0.05 for p in holm(p_values)] == [difference.verdict != "no_difference_found" for difference in differences]
    assert [None] * 3 == [row.differences["tone"].p_adjusted for row in table.rows[1:]]


def test_unknown_costs() -> None:
    """A row without a cost, or with calls that have no price, is not on the front, and excludes none from it."""
    sides = {
        "cheap": scored(20, cost=0.01),
        "free": side(*(answered(f"c{index}", {"exact": True}) for index in range(N))),
        "unpriced": scored(35, cost=0.001),
    }
    sides["unpriced"].state.usage["unpriced_calls"] = 3
    table = compare_all(sides, "cheap")

    assert ["cheap"] == [row.name for row in table.rows if row.is_pareto_optimal]
    assert 3 == rows(table)["unpriced"].unpriced_calls


@examples(20)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=2, max_size=6))
def test_every_other_row_is_dominated_by_the_front(results: list[tuple[int, int]]) -> None:
    """No row of the front is dominated, and each other row is, by one of the front; the order of rows does not matter."""
    sides = {f"r{index}": scored(passes, cost=cost / 100, n=4) for index, (passes, cost) in enumerate(results)}
    table = compare_all(sides, "r0")
    front = {row.name for row in table.rows if row.is_pareto_optimal}
    amounts = {f"r{index}": (passes, -cost) for index, (passes, cost) in enumerate(results)}

    def is_dominated(name: str, others: Iterable[str]) -> bool:
        own = amounts[name]
        return any(amounts[other] != own and all(a >= b for a, b in zip(amounts[other], own, strict=True)) for other in others)

    assert not any(is_dominated(name, amounts) for name in front)
    assert all(is_dominated(name, front) for name in amounts if name not in front)
    assert rows(table) == rows(compare_all(dict(reversed(sides.items())), "r0"))


def test_the_score_of_the_front() -> None:
    """The score of the Pareto front is the first with passes, otherwise the first with numbers, otherwise none."""

    def score(**scores: Any) -> str | None:
        return compare_all({name: side(answered("c", scores)) for name in "ab"}, "a").score

    assert "exact" == score(near=0.5, exact=True, other=False)
    assert "near" == score(tone="kind", near=0.5)
    assert score(tone="kind") is None
    assert score() is None


def test_text() -> None:
    """A table has a line per row, each difference with the evidence, and what was not compared."""
    output = list(lines(compare_all({"a": scored(20), "b": scored(34), "c": scored(21, n=N + 2)}, "a")))

    assert output[0].split() == ["exact", "OUTPUTS", "ERRORS", "P50", "P95", "TOKENS", "COST", "PER", "PASS"]
    assert "* b  85.0 % (70.9–92.9)       40       0  0.25 s  0.25 s   4,800  $0.400   $0.0118" in output
    assert "  b  better: +35.0 points (95 % CI 17.6 to 49.0, n = 40, p = 0.00024)" in output
    assert "  c  no difference found: +2.5 points (95 % CI -5.7 to 10.4, n = 40, p = 1)" in output
    assert "p-values are Holm-corrected across 2 comparisons" in output
    assert "c: 40 trials in common with a; not compared: 2 only here (c40, c41)" in output


def test_long_names() -> None:
    """A long name is truncated at its start, because runs and variants differ at the end."""
    path = f"runs/{'evaluation-' * 9}/0001"
    output = list(lines(compare_all({f"{path}@{name}": scored(20, n=30) for name in ("mini", "large")}, f"{path}@mini")))

    assert [True, True] == ["/0001@mini " in output[1], "/0001@large " in output[2]]
    assert 120 >= max(map(len, output[:3]))


def test_mixed_versions_are_marked() -> None:
    """Scores of two versions in a row, and a version other than the baseline's, are noted."""
    events = [event for index in range(4) for event in answered(f"c{index}", {"exact": True})]
    scores = [index for index, event in enumerate(events) if isinstance(event, TrialScored)]
    events[scores[0]] = attrs.evolve(events[scores[0]], version="v0")  # type: ignore[misc]  # an event is an attrs class
    output = list(lines(compare_all({"a": scored(4, n=4), "b": side(events)}, "a")))

    assert "b: not the same version of the scorer as in a: exact" in output
    assert "b: 4 scores of exact from 2 versions of the scorer, 1 from an older one" in output


def test_many_scores() -> None:
    """Columns that do not fit into 120 characters are in a further table."""
    scores = {f"score-{index}": True for index in range(9)}
    output = list(lines(compare_all({name: side(answered("c", scores)) for name in ("a", "b")}, "a")))

    assert 120 >= max(map(len, output))
    assert 2 == sum(line.startswith("  b  ") and "%" in line and "CI" not in line for line in output)


def test_control_characters() -> None:
    """Names of rows, scorers, labels and trials cannot control a terminal."""
    unsafe = "\x1b]0;owned\x07\r\n\u202e"
    a = side(answered(unsafe, {unsafe: unsafe, "exact": True}), answered(f"{unsafe}a"))
    b = side(answered(unsafe, {unsafe: unsafe, "exact": False}), answered(f"{unsafe}b"))
    output = list(lines(compare_all({unsafe: a, f"{unsafe}b": b}, unsafe)))

    assert all(char.isprintable() for line in output for char in line)
