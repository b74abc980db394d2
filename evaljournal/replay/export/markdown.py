"""Markdown for a pull request or a CI summary: the results, the trials that did not pass, and the hash of the last record.

With a baseline: the differences of the scores, and the trials that broke or were fixed, with both outputs.

Inputs, outputs and errors are untrusted: each is one line of code in its cell, and every character that Markdown or HTML could
interpret is escaped. GitHub accepts at most 65,536 characters in a comment.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from evaljournal.replay.export.source import Source
from evaljournal.replay.render.comparison import answer_lines
from evaljournal.replay.render.ending import ending_text, progress_text
from evaljournal.replay.render.phrases import compared_text, difference_cells, in_time_unit, score_text, sentence, unpaired_text
from evaljournal.replay.render.summary import latency_text, trials_text, usage_text, variant_rows
from evaljournal.replay.results.comparison import Comparison, Side, TrialChange, compare, output_digests
from evaljournal.replay.results.pairing import PairedDifference
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.review.reviewed import agreement, open_review
from evaljournal.replay.review.text import agreement_rows, basis_text, confusion_table, corrected_lines
from evaljournal.replay.runs.loaded_run import TrialValues, read_values
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.trial import outcome_of
from evaljournal.replay.text import as_text, plural, printable, reason_text

MAX_CHARS: Final = 65_000
_VALUE_CHARS: Final = 160
_LINE_CHARS: Final = 1_000
"""Maximum characters of a line before escaping, which makes it up to six times as long."""
_FRAME_CHARS: Final = 300
"""Characters reserved for the title and the header of a table, and the number of omitted rows."""

_PUNCTUATION: Final = frozenset(" %,;()-")
"""Punctuation that has no meaning within a line."""


class _Document:
    """Markdown with at most `MAX_CHARS` characters."""

    def __init__(self, *last_lines: str) -> None:
        self._lines: list[str] = []
        self._last_lines = [text for line in last_lines for text in ("", line)]
        self._remaining_chars = MAX_CHARS - sum(len(line) + 1 for line in self._last_lines)

    def add(self, *lines: str) -> None:
        self._lines += lines
        self._remaining_chars -= sum(len(line) + 1 for line in lines)

    def add_table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], count: int, share: float = 1.0
    ) -> None:
        """Add a table of `count` rows; those that do not fit into a share of the remaining characters are only counted."""
        if not count:
            return

        self.add("", *((f"**{title}:**", "") if title else ()))
        self.add(f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}")

        room, row_count = share * self._remaining_chars - _FRAME_CHARS, 0
        for cells in rows:
            row = f"| {' | '.join(cells)} |"
            room -= len(row) + 1
            if room < 0:
                break
            self.add(row)
            row_count += 1
        if row_count < count:
            self.add("", f"and {count - row_count:,} more")

    def encode(self) -> bytes:
        return "".join(f"{line}\n" for line in (*self._lines, *self._last_lines)).encode()


def markdown(
    source: Source, baseline: Source | None = None, *, variant: str | None = None, baseline_variant: str | None = None
) -> Iterator[bytes]:
    """Write the summary of a run; with a baseline, how its scores differ and which trials broke or were fixed.

    `variant` and `baseline_variant` restrict the comparison to one variant of each run.

    Raises:
        NothingInCommon: No trial is in both runs with the same content.
    """
    if baseline is None:
        document = _Document(_head("run", source))
        _add_summary(document, source.run.state)
        _add_review(document, source, variant)
        _add_trials_not_passed(document, source)
    else:
        side_a = Side(baseline.run.state, output_digests(baseline.run.outputs(load_blobs=False)), baseline_variant)
        side_b = Side(source.run.state, output_digests(source.run.outputs(load_blobs=False)), variant)
        comparison = compare(side_a, side_b)
        document = _Document(_head("run", source, variant), _head("baseline", baseline, baseline_variant))
        baseline_ids = {name: side_a.ids[key] for key, name in side_b.ids.items() if key in side_a.ids}
        _add_summary(document, source.run.state)
        _add_differences(document, comparison)
        _add_review(document, source, variant)
        for kind, changes, share in (("broken", comparison.broken, 0.7), ("fixed", comparison.fixed, 1.0)):
            columns = ("trial", "input", "expected", "baseline", "run")
            rows = _changed_trials(changes, baseline, source, baseline_ids)
            document.add_table(f"{plural(len(changes), 'trial')} {kind}", columns, rows, len(changes), share)
    yield document.encode()


def _head(name: str, source: Source, variant: str | None = None) -> str:
    state, variant_text = source.run.state, "" if variant is None else f", variant {_cell(variant)}"
    return f"{name} {_cell(source.run_id)}{variant_text}, seq {state.seq:,}, head `{state.head}`"


def _add_summary(document: _Document, state: RunState) -> None:
    summary = summarize(state)
    name = state.started.evaluation if state.started is not None else "evaluation"
    title = f"{printable(name, _VALUE_CHARS)} {ending_text(state)}: {progress_text(state)} done"
    document.add(f"### {_line(title)}", "", _line(trials_text(state)))

    variants = [(_cell(name), _line(results)) for name, results in variant_rows(state)]
    document.add_table("", ("variant", "results"), variants, len(variants), 0.25)
    rows = ((_cell(name), _line(score_text(score, trials=state.totals))) for name, score in summary.scores.items())
    document.add_table("", ("score", "result"), rows, len(summary.scores), 0.25)
    if summary.latency.count:
        document.add("", _line(latency_text(summary.latency, plural(summary.latency.count, "output"), "p50", "p95")))
    if summary.usage:
        document.add("", _line(usage_text(summary.usage, summary.unpriced_models)))


def _add_differences(document: _Document, comparison: Comparison) -> None:
    trials = compared_text(comparison, " with the baseline")
    not_done = f"{comparison.not_done:,} not done in both" if comparison.not_done else ""
    exclusions = ", ".join(filter(None, (not_done, unpaired_text(comparison, "the baseline", "the run"))))
    document.add("", _line(f"{trials}; not compared: {exclusions}" if exclusions else trials))
    for line in answer_lines(comparison, "baseline", "run"):
        document.add("", _line(line))

    rows = [
        *((_cell(scorer), difference, "") for scorer, difference in comparison.scores.items()),
        ("trials with all scores", comparison.completion, ""),
        ("latency", *in_time_unit(comparison.latency)),
    ]
    cells = ((name, *map(_line, _difference_cells(difference, unit))) for name, difference, unit in rows)
    document.add_table("", ("", "baseline", "run", "difference"), cells, len(rows), 0.25)


def _add_review(document: _Document, source: Source, variant: str | None) -> None:
    if (reviewed := open_review(source.run)) is None:
        return
    side = Side(source.run.state, variant=variant)
    for name in reviewed.names:
        result = agreement(reviewed, side, name)
        document.add("", _line(f"{name}: {basis_text(result)}"))
        if result.corrected is not None:
            document.add("", _line(next(corrected_lines({name: result.corrected}))))

        if confusion := confusion_table(result):
            header, *rows = [[*map(_line, row)] for row in confusion]
            document.add_table("", header, rows, len(rows), 0.1)
        figures = [(_line(figure), _line(text)) for figure, text in agreement_rows(result)]
        document.add_table("", ("agreement", ""), figures, len(figures), 0.1)

        disagreements = [
            (_cell(item.trial), _cell(item.judge), _cell(item.label), _cell("; ".join(item.notes)))
            for item in result.disagreements
        ]
        title = plural(len(disagreements), "disagreement")
        document.add_table(title, ("trial", "score", "label", "notes"), disagreements, len(disagreements), 0.2)


def _difference_cells(difference: PairedDifference, unit: str) -> list[str]:
    scorer_note = "; the scorer differs" if difference.scorer_changed else ""
    return [*difference_cells(difference, unit)[:2], f"{sentence(difference, unit=unit)}{scorer_note}"]


def _add_trials_not_passed(document: _Document, source: Source) -> None:
    """Add the trials that did not pass: errors first, then false scores."""
    outcomes = {name: outcome_of(trial) for name, trial in source.run.state.trials.items() if trial.stage != "withdrawn"}
    names = [name for kind in ("error", "failure") for name, outcome in outcomes.items() if outcome == kind]
    trials = read_values(source.run.path, source.run.state.trials, names)
    rows = ([*_case_cells(source, trial), _result_cell(source, trial)] for trial in trials)
    title = f"{len(names):,} of {len(outcomes):,} trials did not pass"
    document.add_table(title, ("trial", "input", "expected", "output or error"), rows, len(names))


def _changed_trials(
    changes: Iterable[TrialChange], baseline: Source, source: Source, baseline_ids: Mapping[str, str]
) -> Iterator[Sequence[str]]:
    """Yield the cells of trials that broke or were fixed, with both outputs; `baseline_ids` has their ids in the baseline."""
    names = [change.trial for change in changes]
    trials = read_values(source.run.path, source.run.state.trials, names)
    baseline_trials = read_values(baseline.run.path, baseline.run.state.trials, (baseline_ids[name] for name in names))
    for trial, baseline_trial in zip(trials, baseline_trials, strict=True):
        yield [*_case_cells(source, trial), _result_cell(baseline, baseline_trial), _result_cell(source, trial)]


def _case_cells(source: Source, trial: TrialValues) -> Iterator[str]:
    return map(_cell, (trial.trial, source.load(trial.input), source.load(trial.expected)))


def _result_cell(source: Source, trial: TrialValues) -> str:
    state = source.run.state.trials[trial.trial]
    if state.stage != "failed":
        return _cell(source.load(trial.output))
    return _cell(": ".join(filter(None, (reason_text(state.reason), state.error))))


def _cell(value: Any) -> str:
    text = "" if value is None else printable(as_text(value), _VALUE_CHARS)
    return f"<code>{_escape(text)}</code>" if text else ""


def _line(text: str) -> str:
    return _escape(printable(text, _LINE_CHARS))


def _escape(text: str) -> str:
    """Return Markdown that shows a text unchanged; a numeric character reference never starts a link, mention or markup."""
    return "".join(char if char.isalnum() or char in _PUNCTUATION or not char.isascii() else f"&#{ord(char)};" for char in text)
