"""A run as one HTML file, that shows it, goes back through its history, and opens anywhere: no network, no other file.

Everything in a run is untrusted. The data stand in the file compressed and in base64, where no text can mean anything; the page
puts them on the screen as text and in no other way; and its own policy forbids it to load, to send or to run anything but
itself.
"""

import base64
import gzip
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from journal import JournalError
from journal.events import RunStarted
from replay.auditing import Audit
from replay.comparison import Comparison
from replay.comparison import in_json as comparison_in_json
from replay.comparison_text import sentence
from replay.ending import ending_in_words, next_command
from replay.export.page_content import Content, Cursor
from replay.loaded_run import LoadedRun
from replay.summary import Score, Summary, in_json, summarise
from replay.summary_text import billed_usage
from replay.text import plural, printable

MARK: Final = (
    b'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="evaljournal">\n'
)
"""How every page of ours begins."""

_OURS: Final = ("words", "run", "policy", "chart", "history", "trials", "drawer", "page")
_SCRIPTS: Final = ("uPlot.iife.min.js", *(f"{name}.js" for name in _OURS))
_STYLES: Final = {"uPlot.min.css": "", "page.css": "", "dark.css": ' id="dark" media="screen and (prefers-color-scheme: dark)"'}
"""Each with what its element says; the page changes when the last applies, for who wants another theme than the system's."""
_AT_ONCE: Final = 57 * 1024
"""Bytes that are put into base64 at a time; a multiple of three."""


@attrs.frozen(kw_only=True)
class Shown:
    """A run that is shown on a page, and what is known of it beside its records."""

    history: LoadedRun
    content: Content
    audit: Audit
    status: str
    """In one word: running, finished, stopped, interrupted or damaged."""
    problem: JournalError | None

    def facts(self) -> dict[str, Any]:
        """Tell everything but the columns."""
        state, path = self.history.state, self.history.path
        summary = summarise(state)
        started = state.started
        return {
            "path": str(path),
            "name": path.name,
            "status": self.status,
            "problem": None if self.problem is None else str(self.problem),
            "verdict": verdict(summary, self.status, ending_in_words(state)),
            "next": f"evaljournal watch {shlex.quote(str(path))}" if self.status == "running" else next_command(state, path),
            "show": f"evaljournal show {shlex.quote(str(path))}",
            "verify": f"evaljournal verify {shlex.quote(str(path))}",
            "head": state.head,
            "durable": self.history.durable,
            "total": self.history.total,
            "summary": in_json(summary),
            "usage": billed_usage(summary.usage),
            "usage_lost": billed_usage(summary.usage_lost),
            "audit": {
                **attrs.asdict(self.audit, filter=attrs.filters.exclude("findings")),
                "agrees": self.audit.agrees,
                "findings": [attrs.asdict(finding) for finding in self.audit.findings],
            },
            "settings": {name: _short(value) for name, value in state.settings.items()},
            "environment": {} if started is None else dict(started.environment),
            "pinned": {} if started is None else _pinned(started),
            "lives": [attrs.asdict(session) for session in state.sessions],
        }

    def told(self, known: Cursor = Cursor()) -> dict[str, Any]:  # noqa: B008  # it cannot be changed
        """Tell everything, or what somebody does not know yet."""
        return {**self.facts(), "columns": self.content.since(known, self.history.state)}


def _pinned(started: RunStarted) -> dict[str, str]:
    names = ("task", "task_fingerprint", "dataset", "dataset_fingerprint", "settings_fingerprint", "durability")
    return {name: str(getattr(started, name)) for name in names} | {
        f"scorer {name}": version for name, version in started.scorers.items()
    }


def _short(value: Any) -> str:
    return printable(value, 500)


def verdict(summary: Summary, status: str, ended: str) -> str:
    """Say in one sentence what came of a run."""
    trials = summary.trials
    done, of = trials.completed + trials.failed, max(summary.planned, trials.enqueued)
    name = printable(summary.evaluation) if summary.evaluation else "The run"
    how = {"running": "is going on", "damaged": "is damaged"}.get(status, ended)
    how = f"was {how}" if how.startswith(("interrupted", "cut off")) else how
    parts = [f"{done:,} of {plural(of, 'trial')} done" if done < of else f"all {plural(of, 'trial')} done"]
    if not of:
        parts = ["no trial was taken in"]
    elif not summary.planned and summary.ending != "finished":
        parts = [f"{plural(done, 'trial')} done"]
    parts += [_score_in_brief(scorer, score) for scorer, score in list(summary.scores.items())[:1] if score.scored]
    parts.append(f"{trials.failed:,} failed" if trials.failed else "none failed" if done else "nothing answered yet")
    if trials.recovered:
        parts.append(f"{trials.recovered:,} recovered after a failure")
    return f"{name} {how}: {', '.join(parts)}."


def _score_in_brief(scorer: str, score: Score) -> str:
    name = printable(scorer, 40)
    if score.passed is not None and score.mean is not None:
        return f"{100 * score.mean:.1f} % {name}"
    if score.mean is not None:
        return f"{name} {score.mean:.3g} on average"
    label, count = next(iter(score.labels.items()), ("", 0))
    return f"{name}: {printable(label, 24)} {100 * count / score.scored:.0f} %"


def compared(comparison: Comparison) -> dict[str, Any]:
    """Tell a comparison, and each difference in a few words; its numbers stand beside them."""
    return {
        **comparison_in_json(comparison),
        "verdict": _comparison_verdict(comparison),
        "sentences": {scorer: _in_brief(sentence(paired)) for scorer, paired in comparison.scores.items()},
        "latency_sentence": _in_brief(sentence(comparison.latency, more="slower", less="faster")),
    }


def _comparison_verdict(comparison: Comparison) -> str:
    """Say in one sentence what the first scorer makes of it, and how many trials are no longer what they were."""
    said = ""
    for name, paired in islice(comparison.scores.items(), 1):
        told = sentence(paired).partition(" (")[0]
        said = f"By {printable(name, 40)}, {'A and B are ' if told.startswith('not ') else ''}{told}: "
    changed = f", {len(comparison.changed):,} otherwise changed" if comparison.changed else ""
    same = f"{comparison.same:,} of {plural(comparison.compared, 'trial')} the same"
    return f"{said}{len(comparison.fixed):,} fixed, {len(comparison.broke):,} broke{changed}, {same}."


def _in_brief(said: str) -> str:
    """Leave out of a sentence about a difference what its numbers are."""
    return re.split(r" (?:by|at) | \(", said, maxsplit=1)[0]


def page(runs: Sequence[Mapping[str, Any]], comparison: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Make the file, a piece at a time; the same runs give the same bytes."""
    title = " and ".join(run["name"] for run in runs)
    evaluation = runs[0]["summary"]["evaluation"] or "a run"
    data = orjson.dumps({"runs": runs, "comparison": comparison}, option=orjson.OPT_NON_STR_KEYS)
    packed = gzip.compress(data, 5, mtime=0)  # Half the time of 6, for a twentieth more bytes.
    yield _top(f"{evaluation} · {title}", connect="'none'")
    yield b'<script type="application/octet-stream" id="data">'
    for at in range(0, len(packed), _AT_ONCE):
        yield base64.b64encode(packed[at : at + _AT_ONCE])
    yield b"</script>\n"
    yield _bottom()


def live_page(title: str) -> bytes:
    """Make the page that asks whoever served it for the data, and for what comes."""
    return _top(title, connect="'self'") + b'<script type="application/octet-stream" id="data"></script>\n' + _bottom()


def policy(*, connect: str) -> str:
    """Forbid everything but the scripts and styles that stand in the page, told by their hashes."""
    scripts = " ".join(_hash(_resource(name)) for name in _SCRIPTS)
    styles = " ".join(_hash(_resource(name)) for name in _STYLES)
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'; object-src 'none'"
    )


def _resource(name: str) -> str:
    return (files("replay") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _top(title: str, *, connect: str) -> bytes:
    styles = "".join(f"<style{said}>{_resource(name)}</style>\n" for name, said in _STYLES.items())
    body = _resource("page.html")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy(connect=connect)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="referrer" content="no-referrer">\n<title>{_escaped(title)}</title>\n'
    )
    return MARK + f"{head}{styles}</head>\n{body}".encode()


def _bottom() -> bytes:
    scripts = "".join(f"<script>{_resource(name)}</script>\n" for name in _SCRIPTS)
    return f"{scripts}</body>\n</html>\n".encode()


def _escaped(text: str) -> str:
    text = printable(text, 200)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def is_page(path: Path) -> bool:
    """Say whether a file is a page that we made, and that can be made again."""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(MARK)) == MARK
    except OSError:
        return False
