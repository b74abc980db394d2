"""A run, or two runs, as one HTML file that needs no network and no other file.

Everything in a run is untrusted. The data are compressed and in base64, so no text in them can be markup, and the scripts show
them as text only. The page's Content-Security-Policy allows only its own scripts and styles, and on a live page connections to
its server.
"""

import base64
import hashlib
import html
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.journal import JournalError
from evaljournal.journal.events import RunStarted
from evaljournal.replay.auditing.findings import Audit
from evaljournal.replay.history.history import History
from evaljournal.replay.history.text import basis_text
from evaljournal.replay.history.text import table as history_table
from evaljournal.replay.page.page_columns import PageCursor, columns, encode_json
from evaljournal.replay.page.page_content import Content
from evaljournal.replay.render.comparison import notes, table_columns
from evaljournal.replay.render.ending import ending_text, next_command
from evaljournal.replay.render.phrases import (
    compared_text,
    describe_score,
    difference_cells,
    estimate_text,
    in_time_unit,
    mean_text,
    p_text,
    pairwise_text,
    pass_at_k_texts,
    score_value_text,
    unpaired_text,
    verdict,
)
from evaljournal.replay.render.summary import billed_usage, replayed_text, saved_usage, substitution_lines
from evaljournal.replay.results.comparison import Comparison, Side
from evaljournal.replay.results.pairing import PairedDifference
from evaljournal.replay.results.summary import ScoreSummary, Summary, summarize
from evaljournal.replay.results.table import Row, compare_all
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.review.labels import labels_by_trial, read_review
from evaljournal.replay.review.reviewed import agreement, open_review
from evaljournal.replay.review.text import agreement_rows, confusion_table, corrected_text
from evaljournal.replay.review.text import basis_text as agreement_basis
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.state.definition import (
    definition_lines,
    definition_of_run,
    load_definition,
    substitution,
    used_task,
    variant_parameters,
)
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.tally import main_scorer
from evaljournal.replay.state.usage import total as total_usage
from evaljournal.replay.text import UNKNOWN, as_text, escape_controls, plural, printable

_FIRST_BYTES: Final = (
    b'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="evaljournal">\n'
)
"""The start of every page, by which `is_page` recognizes one."""

SCRIPTS: Final = (
    "uPlot.iife.min.js",
    "embedded.js",
    "format.js",
    "dom.js",
    "value.js",
    "diff.js",
    "run.js",
    "policy.js",
    "chart.js",
    "history.js",
    "filters.js",
    "trials.js",
    "breakdown.js",
    "variants.js",
    "grid.js",
    "pairs.js",
    "summary.js",
    "sections.js",
    "steps.js",
    "transcript.js",
    "judge.js",
    "drawer.js",
    "page.js",
)
STYLES: Final = {
    **dict.fromkeys(("uPlot.min.css", "page.css", "drawer.css"), ""),
    "dark.css": ' id="dark" media="screen and (prefers-color-scheme: dark)"',
}
"""Style sheet → attributes of its element; the page changes `media` of the last one when the user chooses a theme."""
_INDEX_SCRIPTS: Final = ("embedded.js", "format.js", "dom.js", "index.js")
INDEX_STYLES: Final = {"page.css": "", "index.css": "", "dark.css": STYLES["dark.css"]}
_REVIEW_SCRIPTS: Final = ("format.js", "dom.js", "value.js", "review.js")
_REVIEW_STYLES: Final = {"page.css": "", "drawer.css": "", "review.css": "", "dark.css": STYLES["dark.css"]}
_BASE64_CHUNK: Final = 1 << 16
"""Minimum bytes that are encoded at once."""
_DEFINITION_LINES: Final = 2_000
_FACT_CHARS: Final = 4_000
_MIN_VARIANTS: Final = 2
_MIN_RUNS: Final = 2


@attrs.frozen(kw_only=True)
class PageRun:
    run: LoadedRun
    content: Content
    audit: Audit
    variants: Mapping[str, Any] | None
    """The comparison of its variants, from `variants_data`."""
    since: Mapping[str, Any] | None = None
    """What changed since the previous run, from `since_data`."""
    claims: Sequence[str] = ()
    """What is claimed about the run, and what the statements commit to."""

    def _labels(self) -> dict[str, Any]:
        """Return the labels of outputs by trial; nothing without labels, or if the review is damaged."""
        with suppress(JournalError):
            if labels := labels_by_trial(self.run, read_review(self.run.path)):
                fields = ("name", "value", "reviewer", "note", "carried_from")
                return {
                    "labels": {
                        trial: [{name: getattr(label, name) for name in fields} for label in own_labels]
                        for trial, own_labels in labels.items()
                    }
                }
        return {}

    def data(self, cursor: PageCursor = PageCursor()) -> dict[str, Any]:  # noqa: B008  # immutable
        """Return the data of the page, with all columns or only the changes since the cursor."""
        state, path, run_started = self.run.state, self.run.path, self.run.state.started
        status, problem = self.run.status, self.run.problem
        path = Path(escape_controls(str(path)))  # It need not be valid UTF-8.
        summary, quoted_path = summarize(state), shlex.quote(str(path))
        next_verb = {"running": "watch", "damaged": "verify"}.get(status)
        review = [] if status == "running" else _review(self.run)  # The page of a running run is computed again and again.
        verb = next_verb or ("verify" if state.outcome == "finished" and not state.failed else "")

        return {
            "path": str(path),
            "name": path.name,
            "status": status,
            "problem": None if problem is None else str(problem),
            "headline": headline(summary, status if next_verb else ending_text(state), self.variants),
            "next_command": f"evaljournal {verb} {quoted_path}" if verb else next_command(state, path),
            "show_command": f"evaljournal show {quoted_path}",
            "verify_command": f"evaljournal verify {quoted_path}",
            "head": state.head,
            "total": self.run.total,
            "summary": view_json(summary),
            "scores": _score_tiles(summary, review),
            "review": review,
            "replies": [*([] if summary.replayed is None else [replayed_text(summary.replayed)]), *substitution_lines(state)],
            "usage": _page_usage(summary.usage),
            "usage_without_output": billed_usage(summary.usage_without_output),
            **({} if summary.steps is None else {"usage_saved": saved_usage(summary.steps)}),
            "audit": {
                **view_json(self.audit, omit="findings"),
                "ok": self.audit.ok,
                "findings": [view_json(finding) for finding in self.audit.findings],
            },
            "settings": {name: printable(value, 500) for name, value in state.settings.items()},
            "environment": {} if run_started is None else dict(run_started.environment),
            "definition": {} if run_started is None else _definition(run_started),
            "definition_text": "" if run_started is None else _definition_text(run_started),
            "sessions": [view_json(session) for session in state.sessions],
            "variants": self.variants,
            "since": self.since,
            "claims": list(self.claims),
            **({} if cursor.seq else self._labels()),
            "columns": columns(self.content, state, cursor),
        }


def _page_usage(usage: Mapping[str, float]) -> dict[str, float]:
    """Return the tokens and costs in some usage; `cost` includes that of judges, as at the end of a run and in `compare`."""
    cost = total_usage(usage, "cost")
    return billed_usage(usage) | ({} if cost is None else {"cost": cost})


def _review(run: LoadedRun) -> list[dict[str, Any]]:
    """Return what the review shows about each scorer as strings; if it is damaged, why."""
    try:
        reviewed = open_review(run)
    except JournalError as exc:
        return [
            {"name": "", "basis": printable(str(exc), _FACT_CHARS), "corrected": "", "confusion": [], "rows": [], "trials": []}
        ]
    if reviewed is None:
        return []

    results: list[dict[str, Any]] = []
    variants: Sequence[str | None] = run.state.variants.names
    for variant, name in product(variants or [None], reviewed.names):
        result = agreement(reviewed, Side(run.state, variant=variant), name)
        trials = [
            [item.trial, score_value_text(item.judge), score_value_text(item.label), printable("; ".join(item.notes))]
            for item in result.disagreements
        ]
        results.append(
            {
                "name": name if variant is None else f"{name}@{variant}",
                "basis": agreement_basis(result),
                "corrected": "" if result.corrected is None else corrected_text(result.corrected),
                "confusion": confusion_table(result),
                "rows": list(agreement_rows(result)),
                "trials": trials,
            }
        )
    return results


def _score_tiles(summary: Summary, review: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    tiles, corrected = list[dict[str, Any]](), {result["name"]: result["corrected"] for result in review}
    orders = {order for result in summary.pairwise.values() for order in result.orders}
    for scorer, score in summary.scores.items():
        if scorer in orders and not score.failed:
            continue

        unscored_outputs = summary.unscored.get(scorer, 0)
        text = describe_score(score, trials=summary.trials, unscored_outputs=unscored_outputs)
        estimates = (", ".join(texts) for texts in pass_at_k_texts(score))
        bar = [score.low, score.high, score.mean] if score.kind == "pass" and text.interval else None

        note_lines = [text.basis, text.interval, text.labels, corrected.get(scorer, ""), *estimates, text.answers, text.notes]
        if (pairwise := summary.pairwise.get(scorer)) is not None:
            note_lines.append(pairwise_text(pairwise))
            labels = {order: describe_score(summary.scores[order]).labels.partition("  ")[0] for order in pairwise.orders}
            note_lines += [f"{printable(order, 40)}: {shares}" for order, shares in labels.items()]

        fails = 0 if score.passed is None else score.numbers - score.passed
        tile = {"title": printable(scorer, 40), "figure": text.figure, "notes": note_lines, "bar": bar}
        tiles.append({**tile, "name": scorer, "kind": score.kind, "fails": fails})
    return tiles


def _definition(run_started: RunStarted) -> dict[str, str]:
    names = ("task", "task_fingerprint", "dataset", "dataset_fingerprint", "settings_fingerprint", "durability")
    return {name: str(getattr(run_started, name)) for name in names} | {
        f"scorer {name}": version for name, version in run_started.scorers.items()
    }


def _definition_text(run_started: RunStarted) -> str:
    return "\n".join(islice(definition_lines(definition_of_run(run_started)), _DEFINITION_LINES))


def variants_data(state: RunState) -> dict[str, Any] | None:
    """Return the table of `compare` with the best variant as the baseline; None if there are fewer than two."""
    sides = {name: Side(state, variant=name) for name in state.variants.names}
    if len(sides) < _MIN_VARIANTS:
        return None

    table = compare_all(sides)
    heads, *columns = zip(*((head, *cells) for head, cells in table_columns(table)), strict=True)
    names = dict.fromkeys(scorer for row in table.rows for scorer in row.differences)
    scores = {row.name: row.scores[table.score] for row in table.rows if table.score is not None and table.score in row.scores}
    shares = {name: score.mean for name, score in scores.items() if score.kind == "pass" and score.mean is not None}
    best = max(shares, key=lambda name: shares[name]) if shares else None

    return {
        **view_json(table, omit="rows"),
        "heads": heads,
        "rows": [_variant_row(row, cells, table.score) for row, cells in zip(table.rows, columns, strict=True)],
        "differences": {
            scorer: [_table_difference(row.name, row.differences[scorer]) for row in table.rows if scorer in row.differences]
            for scorer in names
        },
        "notes": list(notes(table)),
        "best": best,
        "best_text": ""
        if best is None
        else f"best: {printable(best, 40)}, {estimate_text(scores[best])} {printable(table.score or '', 40)}",
    }


def _variant_row(row: Row, cells: Sequence[str], scorer: str | None) -> dict[str, Any]:
    """Return a row of the table of variants; with the score and the cost, if both are known, of its point in the chart."""
    score = None if scorer is None else row.scores.get(scorer)
    is_point = score is not None and score.mean is not None and row.cost_per_trial is not None and not row.unpriced_calls
    return {
        "name": row.name,
        "cells": cells,
        "is_pareto_optimal": row.is_pareto_optimal,
        "cost": row.cost_per_trial,
        "score": {**view_json(score), "text": estimate_text(score)} if score is not None and is_point else None,
    }


def _table_difference(name: str, difference: PairedDifference) -> dict[str, Any]:
    row = _difference_row(name, difference)
    row["cells"].append(p_text(difference.p_adjusted) or UNKNOWN)
    return row


def _difference_row(name: str, difference: PairedDifference, subject: str = "", unit: str = "") -> dict[str, Any]:
    """Return a row of a table of differences; with a unit, they are times. `effect` is empty if no difference was found."""
    return {
        "name": printable(name, 60),
        "cells": difference_cells(difference, unit),
        "verdict": verdict(difference, subject, is_time=bool(unit)),
        "effect": "" if difference.verdict == "no_difference_found" else difference.verdict or "",
    }


def headline(summary: Summary, status: str, variants: Mapping[str, Any] | None = None) -> str:
    """Return the result of a run, or of the best of its variants, in a line.

    For example `capitals: finished. All 60 trials done, 93.3 % exact, no errors.`
    """
    trials = summary.trials
    done, total = trials.completed + trials.failed, max(summary.planned_trials, trials.enqueued)
    name = printable(summary.evaluation) if summary.evaluation else "Run"
    if not total:
        progress = "No trials yet"
    elif not summary.planned_trials and summary.outcome != "finished":
        progress = f"{plural(done, 'trial')} done"
    else:
        progress = f"{done:,} of {plural(total, 'trial')} done" if done < total else f"All {plural(total, 'trial')} done"

    scorer = main_scorer((name, score.kind) for name, score in summary.scores.items())
    score = None if scorer is None else summary.scores[scorer]
    brief_score = _brief_score(scorer, score) if scorer is not None and score is not None and score.scored else ""
    parts = [progress, *filter(None, [brief_score if variants is None else variants["best_text"]])]
    if done:
        parts.append(plural(trials.failed, "error") if trials.failed else "no errors")
    if trials.recovered:
        parts.append(f"{trials.recovered:,} retried")
    return f"{name}: {status}. {', '.join(parts)}."


def _brief_score(scorer: str, score: ScoreSummary) -> str:
    name, figure = printable(scorer, 40), describe_score(score).figure
    if score.mean is None:
        return f"{name}: {figure}"
    return f"{figure} {name}" if score.kind == "pass" else f"mean {name} {figure}"


def comparison_data(comparison: Comparison, sides: Sequence[Side], runs: Sequence[RunState]) -> dict[str, Any]:
    """Return a comparison with what its sides are, a headline and the rows of the table of differences.

    `runs` are the runs of the page, to which the sides belong.
    """
    rows = [_difference_row(scorer, difference, "B is ") for scorer, difference in comparison.scores.items()]
    latency, unit = in_time_unit(comparison.latency)
    rows.append(_difference_row("latency", latency, "B is ", unit))
    scorer = main_scorer((name, difference.kind) for name, difference in comparison.scores.items())
    score_text = "" if scorer is None else f"{printable(scorer, 40)}: {verdict(comparison.scores[scorer], 'B is ')}. "
    done_text = f"{plural(comparison.compared, 'trial')} done in both"

    facts_a, facts_b = map(_definition_texts, sides)
    facts = {name: (facts_a.get(name), facts_b.get(name)) for name in {**facts_a, **facts_b}}
    changed = comparison.definition_changes or [name for name, (fact_a, fact_b) in facts.items() if fact_a != fact_b]

    return {
        **view_json(comparison),
        "headline": f"{score_text}{compared_text(comparison)}.",
        "rows": rows,
        "note": " · ".join(filter(None, (done_text, unpaired_text(comparison)))),
        "since": {
            "changed": _changed_names(changed),
            "broken": [change.trial for change in comparison.broken],
            "fixed": [change.trial for change in comparison.fixed],
        },
        "sides": [
            {
                "run": next(number for number, state in enumerate(runs) if state is side.state),
                "variant": side.variant,
                "errors": side.totals.failed,
                "usage": _page_usage(side.totals.usage),
            }
            for side in sides
        ],
        "facts": [{"name": name, "a": fact_a, "b": fact_b} for name, (fact_a, fact_b) in facts.items()],
    }


def compare_command(history: History) -> str:
    """Return the command that compares the newest run with the one before it; empty if there are no two runs with results."""
    point = next((point for point in reversed(history.points) if point.previous is not None), None)
    return "" if point is None else shlex.join(["evaljournal", "report", str(point.previous), point.path])


def since_data(history: History) -> dict[str, Any] | None:
    """Return what changed in the last run of a history since the previous run; None without one.

    For each variant, the means of the score over the common cases; the cases that broke or were fixed; the definition.
    """
    paths = list(dict.fromkeys(point.path for point in history.points))
    if len(paths) < _MIN_RUNS:
        return None

    old_points, new_points = ([point for point in history.points if point.path == path] for path in paths[-2:])
    old_scores = {point.variant: point.score for point in old_points if not point.is_partial}
    scores = [
        f"{printable(history.scorer or '', 40)}{f'@{printable(point.variant, 40)}' if point.variant else ''} "
        f"{mean_text(score.kind, score.mean)} → {mean_text(point.score.kind, point.score.mean)}"
        for point in new_points
        if point.score is not None and not point.is_partial and (score := old_scores.get(point.variant)) is not None
    ]
    broken, fixed = (
        [f"{case}@{point.variant}" if point.variant else case for point in new_points for case in getattr(point, kind)]
        for kind in ("broken", "fixed")
    )

    return {
        "path": paths[-2],
        "command": compare_command(history),
        "scores": scores,
        "changed": _changed_names(new_points[0].changed),
        "broken": broken,
        "fixed": fixed,
    }


def _changed_names(changed: Sequence[str]) -> str:
    return printable(", ".join(changed), _FACT_CHARS)


def _definition_texts(side: Side) -> dict[str, str]:
    run_started = side.state.started
    if run_started is None:
        return {}

    definition = load_definition(run_started.definition)
    parameters = {} if side.variant is None else variant_parameters(definition, side.variant)
    settings = substitution(run_started.settings)
    values = {"task name": run_started.task, **used_task(definition, side.variant), **parameters, **settings}
    scorers = {f"scorer {name}": version for name, version in run_started.scorers.items()}

    facts = {
        **{name: value for name, value in values.items() if value not in (None, "", {}, []) and name != "name"},
        "cases": f"{run_started.dataset} {run_started.dataset_fingerprint}".strip(),
        **scorers,
        "revision": run_started.environment.get("git", ""),
    }
    return {printable(name, 60): as_text(value)[:_FACT_CHARS] for name, value in facts.items() if value != ""}


def page(runs: Sequence[Mapping[str, Any]], comparison: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the file in pieces; the same runs give the same bytes."""
    names = " and ".join(run["name"] for run in runs)
    evaluation = runs[0]["summary"]["evaluation"] or "run"
    yield page_start(f"{evaluation} · {names}", connect="'none'")
    yield from _data_element({"runs": list(runs), "comparison": comparison})
    yield page_end()


def index_page(
    histories: Sequence[History], links: Mapping[str, str], comparisons: Mapping[tuple[str, str], str]
) -> Iterator[bytes]:
    """Yield a page with the histories of evaluations.

    `links` are the addresses of the reports of some runs, by path, and `comparisons` those of two runs.
    """
    runs = plural(len({point.path for history in histories for point in history.points}), "run")
    title = f"{plural(len(histories), 'evaluation')}, {runs}"
    yield page_start(title, "index.html", _INDEX_SCRIPTS, INDEX_STYLES, connect="'none'")
    data = [
        {
            **view_json(history),
            "table": history_table(history),
            "basis": basis_text(history),
            "command": compare_command(history),
        }
        for history in histories
    ]
    pairs = [[*paths, address] for paths, address in comparisons.items()]
    yield from _data_element({"histories": data, "links": list(links.items()), "comparisons": pairs})
    yield page_end(_INDEX_SCRIPTS)


def _data_element(data: Mapping[str, Any]) -> Iterator[bytes]:
    yield b'<script type="application/octet-stream" id="data">'
    yield from _base64(_compress(encode_json(data)))
    yield b"</script>\n"


def _compress(pieces: Iterable[bytes]) -> Iterator[bytes]:
    gzip = zlib.compressobj(5, wbits=16 + zlib.MAX_WBITS)  # Level 5 takes half the time of 6, for 5 % more bytes.
    yield from map(gzip.compress, pieces)
    yield gzip.flush()


def _base64(pieces: Iterable[bytes]) -> Iterator[bytes]:
    buffer = b""
    for piece in pieces:
        buffer += piece
        if len(buffer) >= _BASE64_CHUNK:
            end = len(buffer) - len(buffer) % 3
            yield base64.b64encode(buffer[:end])
            buffer = buffer[end:]
    yield base64.b64encode(buffer)


def live_page(title: str) -> bytes:
    """Return a page that gets its data and updates from the server that it was loaded from."""
    return page_start(title, connect="'self'") + b'<script type="application/octet-stream" id="data"></script>\n' + page_end()


def review_page(title: str) -> bytes:
    """Return the page on which people label outputs; it gets them from the server that it was loaded from."""
    return page_start(title, "review.html", _REVIEW_SCRIPTS, _REVIEW_STYLES, connect="'self'") + page_end(_REVIEW_SCRIPTS)


def review_policy() -> str:
    """Return the Content-Security-Policy of the page on which people label outputs."""
    return security_policy(_REVIEW_SCRIPTS, _REVIEW_STYLES, connect="'self'")


def security_policy(scripts: Iterable[str] = SCRIPTS, styles: Iterable[str] = tuple(STYLES), *, connect: str) -> str:
    """Return a Content-Security-Policy that allows only a page's scripts and styles, by hash, and connections to `connect`."""
    script_hashes, style_hashes = (" ".join(_hash(_resource(name)) for name in names) for names in (scripts, styles))
    return (
        f"default-src 'none'; script-src {script_hashes}; style-src {style_hashes}; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'; object-src 'none'"
    )


def _resource(name: str) -> str:
    return (files("evaljournal.replay") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_start(
    title: str,
    body: str = "page.html",
    scripts: Sequence[str] = SCRIPTS,
    styles: Mapping[str, str] = STYLES,
    *,
    connect: str,
) -> bytes:
    """Return a page up to its data or its scripts."""
    elements = "".join(f"<style{attributes}>{_resource(name)}</style>\n" for name, attributes in styles.items())
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{security_policy(scripts, styles, connect=connect)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="referrer" content="no-referrer">\n<title>{html.escape(printable(title, 200))}</title>\n'
    )
    return _FIRST_BYTES + f"{head}{elements}</head>\n{_resource(body)}".encode()


def page_end(scripts: Iterable[str] = SCRIPTS) -> bytes:
    """Return the scripts and the end of a page."""
    elements = "".join(f"<script>{_resource(name)}</script>\n" for name in scripts)
    return f"{elements}</body>\n</html>\n".encode()


def is_page(path: Path) -> bool:
    """Return whether a file is a page written by this module."""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(_FIRST_BYTES)) == _FIRST_BYTES
    except OSError:
        return False
