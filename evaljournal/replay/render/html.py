"""Results of a run as HTML for a notebook. Names, outputs and messages are untrusted: every value is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from evaljournal.replay.render import summary as summary_text
from evaljournal.replay.render.ending import ending_text, progress_text
from evaljournal.replay.render.failing import listed_cases, listed_values, value_texts
from evaljournal.replay.render.phrases import score_text, score_value_text
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.state.run import RunState
from evaljournal.replay.text import duration, escape_controls, printable, shorten

_CELL: Final = "text-align: left; vertical-align: top; white-space: pre-wrap; overflow-wrap: anywhere"
_VALUE_CHARS: Final = 300


def results_html(state: RunState, path: Path | str, *, stop_reason: str, problems: Iterable[str]) -> str:
    """Return the scores, the failing cases and why the run did not pass, with a link to its directory."""
    summary = summarize(state)
    name = printable(state.started.evaluation) if state.started else "the run"
    link = f'<a href="{escape(quote(str(path)))}" target="_blank">{_text(path)}</a>'
    parts = [f"<p><b>{_text(f'{name} {ending_text(state, stop_reason)}: {progress_text(state)} done')}</b> in {link}</p>"]
    if state.variants:
        parts.append(_table(("variant", "results"), summary_text.variant_rows(state)))
    elif summary.scores:
        scores = ((scorer, score_text(score, trials=summary.trials)) for scorer, score in summary.scores.items())
        parts.append(_table(("score", "mean"), scores))

    if cases := listed_cases(state):
        rows = _case_rows(state, path, list(cases.suffixes))
        parts.append(f"<p>{_text(cases.heading)}:</p>{_table(('trial', 'output', 'expected', 'scores'), rows)}")
        parts.append(f"<p>{_text(cases.more)}</p>" if cases.more else "")

    figures = [summary_text.trials_text(state), f"took {duration(state.elapsed)}" if state.sessions else ""]
    figures.append(summary_text.cost_text(summary.usage, summary.unpriced_models))
    parts.append(f"<p>{_text(' · '.join(filter(None, figures)))}</p>")
    parts += [f"<p>{_text(problem)}</p>" for problem in problems]
    return f"<div>{''.join(parts)}</div>"


def _case_rows(state: RunState, path: Path | str, names: Sequence[str]) -> Iterable[Sequence[str]]:
    for name, values in zip(names, listed_values(state, path, names), strict=True):
        output, expected = ("", "") if values is None else value_texts(values.output, values.expected)
        trial = state.trials[name]
        scores = {scorer: trial.scores[scorer][1] for scorer in state.scores if scorer in trial.scores}
        lines = [
            f"{printable(scorer, 24)}: {score_value_text(value)}"
            + (f" ({shorten(reason, _VALUE_CHARS)})" if (reason := state.scores.reasons.get((name, scorer))) else "")
            for scorer, value in scores.items()
        ]
        has_expected = values is not None and values.expected is not None
        yield name, shorten(output, _VALUE_CHARS), shorten(expected, _VALUE_CHARS) if has_expected else "", "\n".join(lines)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"<table>{_row('th', heads)}{''.join(_row('td', row) for row in rows)}</table>"


def _row(tag: str, texts: Sequence[str]) -> str:
    cells = (f'<{tag} style="{_CELL}">{_text(text)}</{tag}>' for text in texts)
    return f"<tr>{''.join(cells)}</tr>"


def _text(value: object) -> str:
    return escape(escape_controls(str(value)))
