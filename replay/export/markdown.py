"""Markdown for a pull request or a CI summary: the results, the trials that did not pass, and the hash of the last record.

Inputs, outputs and errors are untrusted: each is one line of code in its cell, with every character that Markdown or HTML could
interpret escaped. GitHub shows at most 65,536 characters.
"""

from collections.abc import Iterator
from typing import Any, Final

from replay.ending import ending_in_words, progress_in_words
from replay.export.source import Source
from replay.export.trial_index import TrialIndex
from replay.summary import summarize
from replay.summary_text import latency_in_words, score_in_words, trials_in_words, usage_in_words
from replay.text import as_text, plural, printable
from replay.trial import TrialDetails
from replay.trial_state import outcome_of

MAX_CHARS: Final = 65_000
_VALUE_CHARS: Final = 160
"""Characters shown of a value."""
_RESERVED: Final = 500
"""Characters kept for the lines after the table."""

_PLAIN: Final = frozenset(" %,;()-")
"""Punctuation that has no meaning within a line."""


def markdown(source: Source) -> Iterator[bytes]:
    """Write the summary of a run."""
    index = TrialIndex.of(source)
    state, summary = index.state, summarize(index.state)
    name = state.started.evaluation if state.started is not None else "evaluation"
    title = f"{printable(name, _VALUE_CHARS)} {ending_in_words(state)}: {progress_in_words(state)} done"
    lines = [f"### {_escaped(title)}", "", _escaped(trials_in_words(state))]
    if summary.scores:
        lines += ["", "| score | result |", "|---|---|"]
        words = {name: score_in_words(score, failed=state.failed) for name, score in summary.scores.items()}
        lines += [f"| {_cell(name)} | {_escaped(result)} |" for name, result in words.items()]
    if summary.latency.count:
        lines += ["", _escaped(latency_in_words(summary.latency, plural(summary.latency.count, "output"), "p50", "p95"))]
    if summary.usage:
        lines += ["", _escaped(usage_in_words(summary.usage, summary.unpriced_models))]
    head = ["", f"run `{source.run_id}`, seq {state.seq:,}, head `{state.head}`"]
    kept = MAX_CHARS - _RESERVED - sum(len(line) + 1 for line in (*lines, *head))
    lines += [*_table(index, kept), *head]
    yield ("\n".join(lines) + "\n").encode()


def _table(index: TrialIndex, max_chars: int) -> Iterator[str]:
    """Yield a table of the trials that did not pass, as many as fit: errors first, then false scores."""
    outcomes = {name: outcome_of(trial) for name, trial in index.state.trials.items() if trial.stage != "withdrawn"}
    names = [name for kind in ("error", "failure") for name, outcome in outcomes.items() if outcome == kind]
    rows: list[str] = []
    for name in names:
        trial = index.trial(name)
        row = f"| {' | '.join(map(_cell, (name, trial.input, trial.expected, _result(trial))))} |"
        max_chars -= len(row) + 1
        if max_chars < 0:
            break
        rows.append(row)
    if names:
        yield from ("", f"**{len(names):,} of {len(outcomes):,} trials did not pass:**", "")
        yield from ("| trial | input | expected | output or error |", "|---|---|---|---|", *rows)
    if len(rows) < len(names):
        yield from ("", f"and {len(names) - len(rows):,} more")


def _result(trial: TrialDetails) -> Any:
    return trial.failure if trial.stage == "failed" else trial.output


def _cell(value: Any) -> str:
    text = "" if value is None else printable(as_text(value), _VALUE_CHARS)
    return f"<code>{_escaped(text)}</code>" if text else ""


def _escaped(text: str) -> str:
    """Return a text as Markdown that shows it unchanged: a numeric reference never starts a link, a mention or markup."""
    return "".join(char if char.isalnum() or char in _PLAIN or not char.isascii() else f"&#{ord(char)};" for char in text)
