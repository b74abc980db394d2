"""What a source has recorded about one trial: the steps of an attempt, an answer, and the replies of judges.

**A reply belongs to what was asked**, as a step does: to the name and the fingerprint of its input. Equal keys are a queue, in
the order in which the calls started; the order of their ends depends on latencies, which a replay does not have.

**Which attempt.** The replies are those of the last attempt, executed or reused there, from which the output came. If there is
no output, what earlier attempts had completed follows.

**Steps inside steps.** If a step is answered, its function is not called, so those inside it do not happen. They are recorded
again with it, because scorers and people read trajectories. The steps inside one that is executed (`reuse=False`) are offered
like those of the task itself.

**A miss** is an error that shows its trial and step, the nearest recorded request, and the first difference.
"""

import math
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any, Final

import attrs

from evaljournal.journal.events import StepKind, StepReplayed
from evaljournal.replay.text import printable
from evaljournal.runner.data.fingerprint import canonical, digest
from evaljournal.runner.steps.attempt_steps import AttemptSteps, Key, NotSent, RecordedResult, ReplayedFailure, Step
from evaljournal.runner.steps.keys import NO_RULES, KeyRules, common_length, first_difference

TrialKey = tuple[str, str, int]
"""Fingerprint of the case's content, variant and repeat: two trials with the same key ask the same."""
CALL: Final = "call"
"""Name of the reply to the one call of a chat model or an endpoint."""
_HTTP_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_NAME_CHARS: Final = 60
_TEXT_CHARS: Final = 200


def is_own_tool(kind: StepKind, name: str) -> bool:
    """Return whether a step is a tool of the user's code, and not a request of an HTTP client."""
    return kind == "tool" and name.partition(" ")[0] not in _HTTP_METHODS


def judge_name(scorer: str) -> str:
    """Return the name of the replies of a judge."""
    return f"judge {scorer}"


def fingerprint_of(asked: Any) -> str:
    """Return what identifies a call that is no step: its request and where it goes, or what a judge is asked."""
    return digest(canonical(asked, "the request"))


@attrs.frozen(kw_only=True)
class RecordedReply(RecordedResult):
    """The result of a step in a source, the output of a chat model or an endpoint, or the reply of a judge."""

    step: int = 0
    """Its number in its attempt; 0: it is no step."""
    name: str
    kind: StepKind = "model"
    fingerprint: str
    run: str
    """Id of the run that has recorded it, with `seq` the number of its record there."""
    head: str
    """Hash of that record, which no other record of any run has."""
    input: Any = None
    """What was asked, completely; None: the source does not have it."""
    facts: Any = None
    """What was noted about an answer, without its usage."""
    reusable: bool = True
    error: str = ""
    """Type of the exception that it raised; empty if it was completed."""
    message: str = ""
    inner: tuple["RecordedReply", ...] = ()
    """The steps inside it, in the order in which they started."""

    @property
    def key(self) -> Key:
        return self.name, self.fingerprint

    @property
    def note(self) -> dict[str, Any]:
        """Where it is recorded, as it is noted for an answer or a verdict; its usage was not paid again."""
        unpaid = {"unpaid": self.usage} if self.usage else {}
        return {"run": self.run, "seq": self.seq, "head": self.head, **unpaid}

    @property
    def all_inner(self) -> Iterator["RecordedReply"]:
        """The steps inside it, at any depth."""
        for reply in self.inner:
            yield reply
            yield from reply.all_inner

    def record_use(self, steps: AttemptSteps, step: Step) -> None:
        """Record that a step got this reply, after the steps inside it; raise if the reply is a failure."""
        if self.error:
            failure = ReplayedFailure(self.error, self.message, is_repeated=steps.has_result(step))
            steps.fail(step, failure)
            raise failure
        if self.inner:
            self.record_inner(steps, step.number)
        input_to_record, continues = steps.inputs.new_part(step.input)
        self._record(steps, step.number, step.parent, input_to_record, continues)
        steps.inputs.add(step.number, step.input)

    def record_inner(self, steps: AttemptSteps, number: int) -> None:
        """Record the steps inside it as those of the step with this number, numbered as they started."""
        numbers = {self.step: number}
        parents = {reply.step: caller.step for caller in (self, *self.all_inner) for reply in caller.inner}
        replies = sorted(self.all_inner, key=lambda reply: reply.step)
        numbers.update((reply.step, steps.next_number()) for reply in replies)
        for reply in sorted((reply for reply in replies if not reply.error), key=lambda reply: reply.seq):
            reply._record(steps, numbers[reply.step], numbers[parents[reply.step]], reply.input, 0)  # noqa: SLF001  # of this class

    def _record(self, steps: AttemptSteps, number: int, parent: int, step_input: Any, continues: int) -> None:
        steps.record(
            StepReplayed(
                trial=steps.trial,
                attempt=steps.attempt,
                step=number,
                name=self.name,
                kind=self.kind,
                fingerprint=self.fingerprint,
                input=step_input,
                output=self.output,
                elapsed=0.0,
                parent=parent,
                continues=continues,
                source_run=self.run,
                source_seq=self.seq,
                source_head=self.head,
                unpaid=self.usage,
            )
        )


@attrs.frozen(kw_only=True)
class TrialReplies:
    steps: tuple[RecordedReply, ...] = ()
    """Those that the task itself has called, in the order in which they started; others are inside them."""
    calls: tuple[RecordedReply, ...] = ()
    """The output of a chat model or an endpoint, and the replies of judges, those of each in the order in which they came."""

    def offered(self, *, before: float = math.inf, errors: bool = False) -> Iterator[tuple[Key, RecordedReply]]:
        """Yield the replies that answer steps, with their keys.

        `before`: those of steps with a smaller number, with the failures of calls after which the task went on; a tool that
        failed is executed again, because the task may need its own exception. `errors`: all failures.
        """
        last_results = self._last_results
        for reply in self._called_steps:
            is_final = reply.step > last_results.get(reply.key, 0) and not is_own_tool(reply.kind, reply.name)
            is_offered = errors or not reply.error or (before < math.inf and is_final)
            if reply.step < before and is_offered:
                yield reply.key, reply

    def omitted(self, *, before: float) -> int:
        """Return how many steps with a smaller number a replay does not have: a call that failed, and was repeated."""
        last_results = self._last_results
        return sum(reply.step < min(before, last_results.get(reply.key, 0)) for reply in self._called_steps if reply.error)

    @property
    def _last_results(self) -> dict[Key, int]:
        """The last step with a result, of the calls that ask the same."""
        return {reply.key: reply.step for reply in self._called_steps if not reply.error}

    @property
    def _called_steps(self) -> Iterator[RecordedReply]:
        """The steps that answer calls of the task, or of a step that is executed again."""
        stack = list(reversed(self.steps))
        while stack:
            reply = stack.pop()
            if reply.reusable:
                yield reply
            else:
                stack += reversed(reply.inner)  # Its function is called again, and they with it.

    @property
    def all_steps(self) -> Iterator[RecordedReply]:
        for step in self.steps:
            yield from (step, *step.all_inner)

    @property
    def usable_elsewhere(self) -> Iterator[RecordedReply]:
        """The replies that may answer a call of any trial."""
        return (reply for reply in chain(self.all_steps, self.calls) if reply.reusable and not reply.error)


class ReplyMissing(NotSent):
    """No reply is recorded for a call, so it was not made."""


def missing_reply(
    trial: str,
    key: Key,
    asked: Any,
    replies: Collection[RecordedReply],
    sources: str,
    *,
    step: int = 0,
    rules: KeyRules = NO_RULES,
) -> ReplyMissing:
    """Return the error of a call without a reply; `replies` are those of its trial that were not used; `step` 0: it is none."""
    name = key[0]
    label, trial = printable(name, _NAME_CHARS), printable(trial, _NAME_CHARS)

    problem = f"no reply is recorded for {f'step {step:,} of {trial} ({label})' if step else f'the {label} of {trial}'}"
    failed = next((reply for reply in replies if reply.error and reply.key == key), None)
    if failed is not None:
        error = printable(f"{failed.error}: {failed.message}", _TEXT_CHARS)

        return ReplyMissing(f"{problem}: it failed in {sources} ({error}); --replay-errors replays failures")
    asked_text = rules.request_text(name, asked)
    texts = [(reply, rules.request_text(reply.name, reply.input)) for reply in replies if not reply.error]
    nearest, nearest_text = max(
        texts, key=lambda pair: (pair[0].name == name, common_length(pair[1], asked_text), -pair[0].step), default=(None, "")
    )
    if nearest is None:
        return ReplyMissing(f"{problem}; {sources} has no further reply for this trial")
    place = f"; the nearest recorded request is step {nearest.step:,} ({printable(nearest.name, _NAME_CHARS)})" if step else ""
    if nearest.input is None and asked is not None:
        return ReplyMissing(f"{problem}{place}; {sources} has no requests, so pass the run itself to see the difference")
    difference = first_difference(nearest_text, asked_text) or first_difference(nearest.name, name)
    if difference is None:
        return ReplyMissing(f"{problem}{place}, whose recorded part is the same")
    recorded, requested = (printable(text, _TEXT_CHARS) for text in difference)
    return ReplyMissing(f"{problem}{place}\n  recorded: {recorded}\n  asked:    {requested}")
