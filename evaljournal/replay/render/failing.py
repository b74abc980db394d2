"""The cases with a failing score, with their outputs and expected outputs, at the end of a run.

The state of a run has the scores; only the outputs that are listed are read from the journal.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import attrs

from evaljournal.journal import Blob, JournalError
from evaljournal.replay.render.phrases import score_value_text
from evaljournal.replay.runs.loaded_run import TrialValues, read_values
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.tally import is_summable
from evaljournal.replay.text import as_json, as_text, cell_width, pad, plural, printable, quote, shorten

DEFAULT_WIDTH: Final = 80
"""Characters in a line, if the width of the terminal is unknown."""
_MAX_CASES: Final = 5
_NAME_CHARS: Final = 24
_ARROW: Final = " → "
_MIN_WIDTH: Final = 23
"""Characters of an output and an expected output, even if the line is then longer than the terminal is wide."""


@attrs.frozen
class ListedCases:
    """The first cases with a failing score, or with the lowest scores."""

    heading: str
    suffixes: Mapping[str, str]
    """Trial → its suffix in a line."""
    more: str = ""
    """How many are not listed."""


def failing_lines(state: RunState, path: Path | str, width: int = DEFAULT_WIDTH) -> Iterator[str]:
    if cases := listed_cases(state):
        yield f"{cases.heading}:"
        yield from _case_lines(state, path, cases.suffixes, width)
        if cases.more:
            yield f"  {cases.more}: evaljournal show {quote(path)} --failing"


def listed_cases(state: RunState) -> ListedCases | None:
    """Return the first cases with a failing score; None if there are none.

    If the scores are numbers, which neither pass nor fail, the cases with the lowest values of the first are listed.
    """
    if not any(tally.booleans for tally in state.scores.values()):
        return _lowest_cases(state)
    if all(tally.mean == 1 for tally in state.scores.values() if tally.booleans):
        return None  # Without a pass over the trials.

    count, names, cases = 0, dict[str, str](), set[str]()
    for name, trial in state.trials.items():
        if trial.failing_scorers:
            count += 1
            if state.scores.is_grouped_by_case:
                cases.add(trial.case)
            if len(names) < _MAX_CASES:
                names.setdefault(trial.case, name)
    if not count:
        return None

    case_count = len(cases) or count
    outputs = plural(state.totals.outputs, "output")
    in_cases = f", in {plural(case_count, 'case')}" if case_count < count else ""
    heading = f"{count:,} of {outputs} {'fails' if count == 1 else 'fail'}{in_cases}"

    suffixes = dict.fromkeys(names.values(), "")
    if sum(tally.booleans > 0 for tally in state.scores.values()) > 1:
        scorers = {
            name: ", ".join(printable(scorer, _NAME_CHARS) for scorer in state.trials[name].failing_scorers)
            for name in suffixes
        }
        suffixes = {name: f"  ({text})" for name, text in scorers.items()}

    more = case_count - len(names)
    others = plural(more, "more case") if case_count < count else f"{more:,} more"
    return ListedCases(heading, suffixes, f"and {others}" if more > 0 else "")


def _lowest_cases(state: RunState) -> ListedCases | None:
    scorer, mean = next(((name, tally.mean) for name, tally in state.scores.items() if tally.mean is not None), ("", None))
    if mean is None:
        return None
    scores = ((name, trial.score(scorer)) for name, trial in state.trials.items() if trial.stage != "withdrawn")
    values = ((name, score[1]) for name, score in scores if score is not None)
    lowest = heapq.nsmallest(_MAX_CASES, ((name, value) for name, value in values if is_summable(value)), key=itemgetter(1))
    if not lowest or lowest[0][1] >= mean:
        return None
    suffixes = {name: f"  ({score_value_text(value)})" for name, value in lowest}
    return ListedCases(f"lowest {printable(scorer, _NAME_CHARS)}", suffixes)


def _case_lines(state: RunState, path: Path | str, suffixes: Mapping[str, str], width: int) -> Iterator[str]:
    labels = {name: printable(name, _NAME_CHARS) for name in suffixes}
    column = max(map(cell_width, labels.values()))
    for (name, suffix), values in zip(suffixes.items(), listed_values(state, path, list(suffixes)), strict=True):
        room = width - column - len(suffix) - 4
        text = "" if values is None else output_and_expected(values.output, values.expected, room)
        yield f"  {pad(labels[name], column)}  {text}{suffix}".rstrip()
        for scorer in state.trials[name].failing_scorers:
            if reason := state.scores.reasons.get((name, scorer)):
                indent = " " * (column + 4)
                text = f"{printable(scorer, _NAME_CHARS)}: {shorten(' '.join(reason.split()), 2 * width)}"
                yield from wrap(text, max(40, width), initial_indent=indent, subsequent_indent=f"{indent}  ", max_lines=3)


def listed_values(state: RunState, path: Path | str, names: Sequence[str]) -> list[TrialValues | None]:
    """Return the values of trials; None if they cannot be read."""
    try:
        return [*read_values(path, state.trials, names)]
    except (OSError, JournalError):  # The disk may have failed; the report is printed nevertheless.
        return [None] * len(names)


def output_and_expected(output: Any, expected: Any, width: int) -> str:
    """Return `output → expected output` in one line of at most `width` characters; only the output if nothing is expected.

    Values of different types that would look the same, such as "42" and 42, are JSON.
    """
    width = max(_MIN_WIDTH, width)
    if expected is None:
        return shorten(value_text(output), width)
    left, right = value_texts(output, expected)
    room = width - len(_ARROW)
    right = shorten(right, max(room // 2, room - cell_width(left)))
    return f"{shorten(left, room - cell_width(right))}{_ARROW}{right}"


def value_texts(output: Any, expected: Any) -> tuple[str, str]:
    """Return an output and an expected output as texts that differ if the values do."""
    texts = value_text(output), value_text(expected)
    is_ambiguous = texts[0] == texts[1] and output.__class__ is not expected.__class__
    return (as_json(output), as_json(expected)) if is_ambiguous else texts


def value_text(value: Any) -> str:
    """Return a value as text; text that is empty or has blanks at an end is quoted."""
    if isinstance(value, Blob):
        return printable(value)
    is_quoted = isinstance(value, str) and (not value or value != value.strip())
    return as_json(value) if is_quoted else as_text(value)
