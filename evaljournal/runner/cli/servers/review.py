"""The server of `evaljournal review`: a page on which people label the outputs of a sample.

It listens on 127.0.0.1, at an address with a random token. Labels are accepted from its own page only: the origin is checked.
A label is acknowledged when it is on disk.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs

import orjson
import trio

from evaljournal.journal import Blob, JournalError
from evaljournal.journal.disk.files import DISK
from evaljournal.replay.page.page import review_page, review_policy
from evaljournal.replay.review.labels import Sample, read_review
from evaljournal.replay.runs.loaded_run import LoadedRun, read_values
from evaljournal.replay.runs.trajectory import read_trajectory
from evaljournal.replay.state.trial import Value
from evaljournal.replay.text import as_text, plural
from evaljournal.runner.calls.http.heads import RequestHead
from evaljournal.runner.calls.http.server import ClientConnection
from evaljournal.runner.cli.servers.server import HOST, TokenServer, open_listener, send_page
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.review.journal import Annotation, annotate
from evaljournal.runner.review.labels import parse_value
from evaljournal.runner.scorers.trajectory import trajectory_text

_MAX_BODY: Final = 64 * 1024
"""Maximum bytes of a label with its note."""
_MAX_CHOICES: Final = 9
"""Maximum number of labels that have a key."""
_MAX_DIGITS: Final = 9
"""Digits of an index; Python rejects integers with thousands."""
_JSON: Final = (b"content-type", b"application/json")


class ReviewServer(TokenServer):
    command = "review"
    methods: ClassVar[Sequence[str]] = ("GET", "HEAD", "POST")
    policy = review_policy()

    def __init__(
        self, run: LoadedRun, sample: Sample, port: int, *, reviewer: str, is_blind: bool, token: str | None = None
    ) -> None:
        super().__init__(port, token)
        self._run = run
        self._sample = sample
        self._trials = [trial for trial in sample.trials if trial in run.state.trials]
        self._reviewer = reviewer
        self._is_blind = is_blind
        self._origins = {f"http://{name}:{port}".encode() for name in (HOST, "localhost")}

    async def _route(self, connection: ClientConnection, request: RequestHead, path: str) -> None:
        query = parse_qs(request.target.partition("?")[2], keep_blank_values=True)
        try:
            if (path, request.method) == ("label", "POST"):
                await self._save(connection, request)
            elif request.method == "POST":
                await connection.reject(404, "not found")
            elif path == "":
                await send_page(connection, review_page(_unicode(self._run.path.name)))
            elif path == "state":
                state = await trio.to_thread.run_sync(self._state, query.get("reviewer", [self._reviewer])[0])
                await connection.send(200, [_JSON], orjson.dumps(state))
            elif path == "trial":
                details = await trio.to_thread.run_sync(self._details, query.get("index", [""])[0])
                await connection.send(200, [_JSON], orjson.dumps(details))
            else:
                await connection.reject(404, "not found")
        except UsageError as exc:
            await connection.reject(400, str(exc))
        except (JournalError, OSError) as exc:
            await connection.reject(500, str(exc))

    async def _save(self, connection: ClientConnection, request: RequestHead) -> None:
        """Record a label; the reply is sent when it is on disk. An empty label withdraws the reviewer's earlier one."""
        headers = dict(request.headers)
        if headers.get(b"origin") not in self._origins:
            await connection.reject(403, "labels are accepted from the page of this server only")
            return
        if headers.get(b"content-type") != b"application/json":
            await connection.reject(415, "expected Content-Type application/json")
            return

        fields = _parse_body(await connection.read_body(_MAX_BODY))
        if fields["trial"] not in self._trials:
            raise UsageError(f"{fields['trial']!r:.200} is not in the sample")
        value = parse_value(self._run, self._sample.name, fields["label"])
        annotation = Annotation(
            trial=fields["trial"],
            name=self._sample.name,
            value=value,
            note=fields["note"],
            reviewer=_checked_reviewer(fields["reviewer"]),
            is_blind=self._is_blind,
        )

        (label,) = await annotate(self._run, [annotation])
        reply = {"seq": label.seq, "label": None if label.value == "" else _label_text(label.value)}
        await connection.send(200, [_JSON], orjson.dumps(reply))

    def _state(self, reviewer: str) -> dict[str, Any]:
        reviewer = _checked_reviewer(reviewer)
        answers = read_review(self._run.path).answers(self._sample)
        texts = {label.trial: (_label_text(label.value), label.note) for label in answers if label.reviewer == reviewer}

        sample, choices = self._sample, self._choices
        drawn = f"sample {sample.sample}: {plural(len(self._trials), 'output')} of {sample.population:,}"
        return {
            "path": _unicode(str(self._run.path)),
            "question": sample.name,
            "sample": f"{drawn}, {sample.method}, seed {sample.seed}",
            "is_blind": self._is_blind,
            "reviewer": reviewer,
            "choices": choices,
            "takes_text": choices != ["yes", "no"],
            "command": _unicode(command("agreement", self._run.path)),
            "trials": [
                {"trial": trial, "label": texts.get(trial, (None, ""))[0], "note": texts.get(trial, (None, ""))[1]}
                for trial in self._trials
            ],
        }

    @property
    def _choices(self) -> list[str]:
        """The labels with a key: the values of the scorer, if they are few; yes and no for passes and other questions."""
        tally = self._run.state.scores.get(self._sample.name)
        if tally is None or tally.kind in {"pass", "nothing"}:
            return ["yes", "no"]
        scores = (trial.score(self._sample.name) for trial in self._run.state.trials.values())
        values = sorted({score[1] for score in scores if score is not None}, key=lambda value: (isinstance(value, str), value))
        return [_label_text(value) for value in values] if len(values) <= _MAX_CHOICES else []

    def _details(self, index: str) -> dict[str, Any]:
        """Return the contents of a trial, and its scores unless they are hidden."""
        if not index.isdecimal() or len(index) > _MAX_DIGITS or int(index) >= len(self._trials):
            raise UsageError(f"the sample has no output {index!r:.80}")

        trial = self._trials[int(index)]
        state = self._run.state.trials[trial]
        (values,) = read_values(self._run.path, self._run.state.trials, [trial])
        locations = self._run.state.steps.records.get(trial) or ()
        trajectory = read_trajectory(self._run.path, locations, state.attempts, DISK)

        reasons = self._run.state.scores.reasons
        scores = [[name, value, reasons.get((trial, name), "")] for name, (_, value) in state.scores.items()]
        return {
            "trial": trial,
            **{name: _shown(getattr(values, name)) for name in ("input", "expected", "output")},
            "trajectory": trajectory_text(trajectory) if trajectory else "",
            "scores": [] if self._is_blind else scores,
        }


def _parse_body(body: bytes) -> dict[str, str]:
    try:
        fields: Any = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise UsageError(f"the body is not valid JSON ({exc})") from exc
    names = ("trial", "label", "note", "reviewer")
    if not isinstance(fields, dict) or fields.keys() != set(names) or not all(isinstance(fields[name], str) for name in names):
        raise UsageError(f"expected a JSON object with the strings {', '.join(names)}")
    return fields


def _checked_reviewer(name: str) -> str:
    if not name.strip():
        raise UsageError("the name of the reviewer is empty")
    return name.strip()


def _unicode(text: str) -> str:
    """Return a path without the bytes that are not UTF-8, which JSON and HTML cannot contain."""
    return text.encode(errors="replace").decode()


def _label_text(value: Value) -> str:
    """Return a label as it is written: `yes`, `no`, a number or text."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else as_text(value)


def _shown(value: Any) -> Any:
    """Return a value as the page shows it: text unchanged, null, and JSON in a list."""
    value = value.load() if isinstance(value, Blob) else value
    return value if value is None or isinstance(value, str) else [orjson.dumps(value).decode()]


async def serve_review(run: LoadedRun, sample: Sample, port: int, *, on_ready: Callable[[str], object], **options: Any) -> None:
    """Serve the page until cancelled; `on_ready` is called with the address. For the options see `ReviewServer`."""
    listener = await open_listener(port)
    server = ReviewServer(run, sample, listener.socket.getsockname()[1], **options)
    on_ready(server.address)
    await server.serve(listener)
