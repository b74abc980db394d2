"""The comparison of two runs: common trials are paired, and differences have confidence intervals."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Blob, Event, Record
from evaljournal.journal.events import AttemptSucceeded, RunFinished, TrialWithdrawn
from evaljournal.replay import fold
from evaljournal.replay.render.comparison import lines
from evaljournal.replay.render.phrases import sentence
from evaljournal.replay.results.comparison import Comparison, NothingInCommon, Side, compare, output_digests
from evaljournal.replay.results.pairing import PairedDifference
from tests.journal.samples import examples, started
from tests.replay.trial_events import answered, enqueued, failed, records

PASS, FAIL = True, False


def digests_of(run_records: Iterable[Record]) -> dict[str, bytes]:
    """Return a digest of each trial's last output."""
    return output_digests(
        (event.trial, event.output) for _, _, _, event, *_ in run_records if isinstance(event, AttemptSucceeded)
    )


def side(*trials: list[Event]) -> Side:
    """Return a run with these trials."""
    run_records = records(itertools.chain.from_iterable(trials))
    return Side(fold(run_records), digests_of(run_records))


def scored(scorer: str, values: Iterable[Any], **options: Any) -> Side:
    """Return a run with one case per value; None is a failed trial."""
    return side(
        *(
            failed(f"c{index}") if value is None else answered(f"c{index}", {scorer: value}, **options)
            for index, value in enumerate(values)
        )
    )


def kinds(comparison: Comparison) -> dict[str, list[str]]:
    """Return the trials of each kind of change."""
    return {
        kind: [change.trial for change in changes]
        for kind, changes in (
            ("fixed", comparison.fixed),
            ("broken", comparison.broken),
            ("changed", comparison.changed),
            ("slower", comparison.slower),
        )
    }


def test_kinds_of_changes() -> None:
    """Each trial is fixed, broken, changed or unchanged, and may also be slower."""
    a = side(
        answered("same", {"exact": PASS, "near": 0.5}),
        answered("fixed", {"exact": FAIL, "near": 0.5}),
        answered("broken", {"exact": PASS}),
        answered("both-ways", {"exact": FAIL, "polite": PASS}),
        answered("number", {"near": 0.5}),
        answered("label", {"tone": "kind"}),
        answered("output", {"exact": PASS}, output={"a": 1, "b": 2}),
        answered("order", {"exact": PASS}, output={"a": 1, "b": 2}),
        answered("slower", {"exact": PASS}, elapsed=0.3),
        answered("a-little", {"exact": PASS}, elapsed=0.01),
    )
    b = side(
        answered("same", {"exact": PASS, "near": 0.5}),
        answered("fixed", {"exact": PASS, "near": 0.5}),
        answered("broken", {"exact": FAIL}),
        answered("both-ways", {"exact": PASS, "polite": FAIL}),
        answered("number", {"near": 0.75}),
        answered("label", {"tone": "rude"}),
        answered("output", {"exact": PASS}, output={"a": 1, "b": 3}),
        answered("order", {"exact": PASS}, output={"b": 2, "a": 1}),
        answered("slower", {"exact": PASS}, elapsed=0.6),
        answered("a-little", {"exact": PASS}, elapsed=0.1),
    )
    comparison = compare(a, b)

    assert {
        "fixed": ["fixed"],
        "broken": ["broken", "both-ways"],
        "changed": ["number", "label", "output"],
        "slower": ["slower"],
    } == kinds(comparison)
    assert (10, 10, 0, 4) == (comparison.common, comparison.compared, comparison.not_done, comparison.unchanged)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0004, "+0.5 ms (95 % CI 0.5 to 0.5"), (0.1, "+0.125 s (95 % CI 0.125 to 0.125")]
)
def test_unit_of_the_latency(seconds: float, text: str) -> None:
    """Differences of short times are in milliseconds, as the times themselves are."""
    a, b = (
        side(*(answered(name, {"exact": PASS}, elapsed=elapsed) for name in "abcdef")) for elapsed in (seconds, 2.25 * seconds)
    )
    latency = next(line for line in lines(compare(a, b), limit=None) if line.startswith("latency"))

    assert text in latency


def test_failed_in_one_run() -> None:
    """A trial that failed only in A is fixed, unless a scorer fails it in B; one that failed only in B is broken."""
    a = side(
        failed("right"), failed("wrong"), failed("unjudged"), failed("zero"), answered("gone"), failed("still", message="x")
    )
    b = side(
        answered("right", {"exact": PASS}),
        answered("wrong", {"exact": FAIL}),
        answered("unjudged"),
        answered("zero", {"near": 0.0}),
        failed("gone"),
        failed("still", message="y"),
    )
    comparison = compare(a, b)

    assert {"fixed": ["right", "unjudged", "zero"], "broken": ["gone"], "changed": ["wrong", "still"], "slower": []} == kinds(
        comparison
    )
    text = "\n".join(lines(comparison, limit=None))
    assert "  wrong: error → output, exact no score → fail" in text
    assert "  gone: output → error" in text
    assert "  still: a different error" in text


def test_memory_addresses_in_errors() -> None:
    """Memory addresses in errors are ignored; the rest of the message is compared."""
    messages = ("<object at 0x7f3a2c> is not JSON", "<object at 0x7F99> is not JSON", "code 0x80070005", "code 0x80070006")
    before, now, code, other = (side(failed("a", message=message)) for message in messages)

    assert (1, 0) == (compare(before, now).unchanged, len(compare(before, now).changed))
    assert (0, 1) == (compare(code, other).unchanged, len(compare(code, other).changed))


def test_zeros_and_ones() -> None:
    """1.0 and 0.0 have the same interval as true and false."""
    floats = compare(scored("judge", [0.0] * 9), scored("judge", [1.0] * 4 + [0.0] * 5)).scores["judge"]
    verdicts = compare(scored("judge", [False] * 9), scored("judge", [True] * 4 + [False] * 5)).scores["judge"]

    assert ("number", "pass") == (floats.kind, verdicts.kind)
    assert (floats.low, floats.high) == (verdicts.low, verdicts.high)


def test_different_content() -> None:
    """A trial that is in both runs but with different content is listed, and not compared."""
    a = side(answered("x", {"exact": PASS}), answered("y", {"exact": PASS}, fingerprint="old"), answered("z", {"exact": PASS}))
    b = side(answered("x", {"exact": PASS}), answered("y", {"exact": FAIL}, fingerprint="new"), answered("w", {"exact": FAIL}))
    comparison = compare(a, b)

    assert (["z"], ["w"], ["y"], 1) == (comparison.only_a, comparison.only_b, comparison.different_content, comparison.common)
    assert 1 == comparison.scores["exact"].n
    output = list(lines(comparison, limit=10))
    assert "1 common trial, 1 only in A, 1 only in B, 1 with different content" == output[0]
    assert ["different content (not compared) (1):", "  y"] == output[-2:]


def test_withdrawn_trials() -> None:
    """A withdrawn trial is not part of its run."""
    a = side(answered("x"), answered("y"), [TrialWithdrawn(trial="y", reason="removed")])

    assert (["y"], 1) == ((comparison := compare(a, side(answered("x"), answered("y")))).only_b, comparison.common)


def test_open_trials_are_not_compared() -> None:
    """A trial that is not done in both runs is counted, and not compared."""
    comparison = compare(side(answered("x"), [enqueued("y")]), side(answered("x"), answered("y")))

    assert (2, 1, 1) == (comparison.common, comparison.compared, comparison.not_done)
    assert "1 of 2 common trials are not done in both runs and are not compared" in list(lines(comparison, limit=None))


TWO_THIRDS = [index % 3 != 2 for index in range(143)]
THIRD = [index % 3 == 0 for index in range(143)]
MOST = [index > 20 for index in range(143)]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([*THIRD, None, PASS], [*TWO_THIRDS, PASS, None], "better: +33.6 points (95 % CI 25.2 to 41.0, n = 143, p < 0.0001)"),
        (TWO_THIRDS, THIRD, "worse: -33.6 points (95 % CI -41.0 to -25.2, n = 143, p < 0.0001)"),
        (
            MOST,
            [index > 18 for index in range(143)],
            "no difference found: +1.4 points (95 % CI -1.3 to 4.1, n = 143, p = 0.5)",
        ),
        (MOST, MOST, "no difference found: +0.0 points (95 % CI -1.9 to 1.9, n = 143, p = 1)"),
        (
            [0.1, 0.4, 0.35, 0.8, 0.55, 0.5],
            [0.3, 0.5, 0.65, 0.9, 0.85, 0.7],
            "better: +0.2 (95 % CI 0.106 to 0.294, n = 6, p = 0.031)",
        ),
        ([0.5], [0.9], "no difference found: +0.4 (no interval, n = 1, p = 1)"),
        ([0.5, 0.7], [0.5, 0.7], "no difference found (n = 2)"),
        ([0.5, None], [None, 0.7], "no case has a value in both"),
        (["x", "y", "z", "x"], ["x", "x", "z", None], "1 of 3 labels changed"),
        (["x", 0.5], [0.5, "x"], "no case has a value in both"),
        (
            [float("nan"), 0.5, 0.5],
            [0.5, float("inf"), 0.75],
            "no difference found: +0.25 (no interval, n = 1, p = 1)",
        ),
    ],
)
def test_the_difference_of_a_score(a: list[Any], b: list[Any], expected: str) -> None:
    """A difference has its size, interval, n and p-value. Errors are excluded."""
    assert expected == sentence(compare(scored("s", a), scored("s", b)).scores["s"])


def test_repeats() -> None:
    """Cases are paired by the mean over their repeats, which may differ in number."""
    a = side(*(answered(f"c{case}", {"exact": case % 2 == 0}) for case in range(20)))
    b = side(
        *(
            answered(f"c{case}", {"exact": case % 2 == 0 or repeat == 1}, repeat=repeat)
            for case in range(20)
            for repeat in range(1, 5)
        )
    )
    comparison = compare(a, b)
    exact = comparison.scores["exact"]

    assert (20, 20, 60) == (exact.n, comparison.common, len(comparison.only_b))
    assert (0.5, 0.625, 10) == (exact.mean_a, exact.mean_b, exact.higher)


def test_two_variants_of_a_run() -> None:
    """Trials of two variants are paired by case, repeat and content; a change has its id in B."""
    run_records = records(
        itertools.chain.from_iterable(
            [
                *(answered("x", {"exact": PASS}, variant="mini", repeat=repeat) for repeat in (1, 2)),
                *(
                    answered("x", {"exact": repeat == 1}, variant="large", repeat=repeat, output="Cusco")
                    for repeat in (1, 2, 3)
                ),
                answered("y", {"exact": PASS}, variant="mini", fingerprint="old"),
                answered("y", {"exact": FAIL}, variant="large", fingerprint="new"),
                answered("z", {"exact": PASS}, variant="other"),
            ]
        )
    )
    state, digests = fold(run_records), digests_of(run_records)
    comparison = compare(*(Side(state, digests, variant) for variant in ("mini", "large")))

    assert {"fixed": [], "broken": ["x@large#2"], "changed": ["x@large"], "slower": []} == kinds(comparison)
    assert ([], ["x@large#3"], ["y@large"]) == (comparison.only_a, comparison.only_b, comparison.different_content)
    assert (3, 4, 2, 1) == (comparison.trials_a, comparison.trials_b, comparison.common, comparison.scores["exact"].n)


def test_runs_with_variants() -> None:
    """Runs are compared within equal variants; the variants of a case are one case, each with the same weight."""

    def run(passes: dict[str, list[Any]]) -> Side:
        trials = ((variant, index, value) for variant, values in passes.items() for index, value in enumerate(values))
        return side(
            *(
                failed(f"c{index}", variant=variant)
                if value is None
                else answered(f"c{index}", {"exact": value}, variant=variant)
                for variant, index, value in trials
            )
        )

    a = run({"mini": [FAIL, PASS, PASS], "large": [PASS, PASS, PASS], "old": [PASS, PASS, PASS]})
    b = run({"mini": [PASS, PASS, FAIL], "large": [PASS, PASS, None], "new": [FAIL, FAIL, FAIL]})
    comparison = compare(a, b)
    exact = comparison.scores["exact"]

    assert (6, 3, 3) == (comparison.common, len(comparison.only_a), len(comparison.only_b))
    assert pytest.approx((3, 2.5 / 3, 2 / 3)) == (exact.n, exact.mean_a, exact.mean_b)
    assert (1, 1) == (exact.higher, exact.lower)


def test_a_run_with_variants_and_one_without() -> None:
    """A run with variants and one without have nothing in common, and the error shows how to name a variant."""
    variants = side(answered("x", variant="mini"))

    with pytest.raises(NothingInCommon, match=r"A has variants: pass one of them as RUN@VARIANT"):
        compare(variants, side(answered("x")))
    assert 1 == compare(Side(variants.state, variant="mini"), side(answered("x"))).common


@pytest.mark.parametrize(
    ("variant_a", "variant_b", "changes"),
    [(None, None, ["variant mini"]), ("mini", "mini", ["variant mini"]), ("large", "large", []), ("mini", "large", [])],
)
def test_changed_variant(variant_a: str | None, variant_b: str | None, changes: list[str]) -> None:
    """A variant that both runs have by the same name is part of the definition."""

    def run(fingerprint: str, variant: str | None) -> Side:
        variants = {
            "mini": {"fingerprint": fingerprint},
            "large": {"fingerprint": "f"},
            "forged": 1,
            "other": {"fingerprint": 2},
        }
        start = attrs.evolve(started(), definition={"variants": variants})  # type: ignore[misc]  # an event is an attrs class
        events = [*answered("x", variant="mini"), *answered("x", variant="large")]
        return Side(fold(records(events, start)), variant=variant)

    comparison = compare(run("old", variant_a), run("new", variant_b))

    assert changes == comparison.definition_changes
    assert (["changed from A to B: variant mini"] if changes else []) == [
        line for line in lines(comparison, limit=None) if line.startswith("changed")
    ]


def test_changed_scorer() -> None:
    """A scorer that changed between the runs is marked."""
    comparison = compare(scored("exact", [PASS, PASS]), scored("exact", [PASS, FAIL], version="v2"))

    assert comparison.scores["exact"].scorer_changed
    assert any(line.endswith("; the scorer differs between A and B") for line in lines(comparison, limit=None))


def test_scores_of_one_run() -> None:
    """A scorer without a score in one run, for example because all its trials have an error, has not changed."""
    comparison = compare(side(answered("a", {"exact": True})), side(answered("a", {"exact": ValueError()})))

    assert (0, False) == (comparison.scores["exact"].n, comparison.scores["exact"].scorer_changed)


def test_scorer_of_one_run() -> None:
    """An added scorer changes no trial; it is listed."""
    comparison = compare(side(answered("x", {"exact": PASS})), side(answered("x", {"exact": PASS, "tone": "kind"})))

    assert (1, [], ["tone"]) == (comparison.unchanged, comparison.scorers_only_a, comparison.scorers_only_b)
    assert "scorers only in B: tone" in list(lines(comparison, limit=None))


def test_outputs_in_blobs() -> None:
    """Large outputs are compared by hash, without reading them."""

    def blob(sha256: str) -> Any:
        return Blob(sha256=sha256 * 64, bytes=300_000, path=Path("elsewhere"))

    a = side(answered("x", output=blob("a")), answered("y", output=blob("a")))
    b = side(answered("x", output=blob("a")), answered("y", output=blob("b")))

    assert ["y"] == kinds(compare(a, b))["changed"]


def test_control_characters() -> None:
    """Control characters in names, scorers, labels and groups are escaped."""
    unsafe = "\x1b]0;owned\x07\r\n\u202e"
    a = side(answered(unsafe, {unsafe: f"{unsafe}1"}), answered("x", {unsafe: f"{unsafe}1"}), answered(f"{unsafe}a"))
    b = side(answered(unsafe, {unsafe: f"{unsafe}2"}), answered("x", {unsafe: f"{unsafe}1"}), answered(f"{unsafe}b"))
    output = list(lines(compare(a, b, groups={unsafe: unsafe}), limit=None))

    assert all(char.isprintable() for line in output for char in line)


@examples(60)
@given(st.lists(st.tuples(*[st.sampled_from([PASS, FAIL, None, "open", "absent"])] * 2), min_size=1, max_size=15))
def test_counts_and_symmetry(ends: list[tuple[Any, Any]]) -> None:
    """Each trial is counted exactly once; with the runs swapped, the difference changes its sign."""

    def run(side_number: int) -> Side:
        trials: list[list[Event]] = []
        for index, end in enumerate(ends_of_trial[side_number] for ends_of_trial in ends):
            match end:
                case "absent":
                    pass
                case "open":
                    trials.append([enqueued(f"c{index}")])
                case None:
                    trials.append(failed(f"c{index}"))
                case _:
                    trials.append(answered(f"c{index}", {"exact": end}))
        return side(*trials, answered("always", {"exact": PASS}), [RunFinished(completed=0, failed=0, withdrawn=0, head="")])

    forward, backward = compare(run(0), run(1)), compare(run(1), run(0))

    assert forward.trials_a == forward.common + len(forward.only_a) + len(forward.different_content)
    assert forward.compared == forward.unchanged + sum(map(len, (forward.fixed, forward.broken, forward.changed)))
    assert forward.common == forward.compared + forward.not_done
    flipped: PairedDifference = backward.scores["exact"]
    assert (forward.scores["exact"].higher, forward.scores["exact"].n) == (flipped.lower, flipped.n)
    assert pytest.approx(-(forward.scores["exact"].difference or 0.0)) == flipped.difference
    assert pytest.approx(-(forward.scores["exact"].low or 0.0)) == flipped.high
