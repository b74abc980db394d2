"""What a source has recorded about one trial: the steps of an attempt, an answer, and verdicts.

**A reply belongs to what was asked**, as a step does: to the name and the fingerprint of its input. Equal keys are a queue, in
the order in which the calls started; the order of their ends depends on latencies, which a replay does not have.

**Which attempt.** The replies are those of the last attempt, executed or reused there, from which the output came. If there is
no output, what earlier attempts had completed follows.

**Steps inside steps.** If a step is answered, its function is not called, so those inside it do not happen. They are recorded
again with it, because scorers and people read trajectories. The steps inside one that is executed (`reuse=False`) are offered
like those of the task itself.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import attrs

from evaljournal.journal.events import StepKind, StepReplayed
from evaljournal.replay.state.usage import add
from evaljournal.runner.steps.admission import ReplayedFailure
from evaljournal.runner.steps.attempt_steps import AttemptSteps, Key, RecordedResult, Step

TrialKey = tuple[str, str, int]
"""Fingerprint of the case's content, variant and repeat: two trials with the same key ask the same."""


@attrs.frozen(kw_only=True)
class Origin:
    """Where a reply is recorded."""

    run: str
    """Id of the run."""
    seq: int
    head: str
    """Hash of the record, which no other record of any run has."""

    def to_json(self, usage: Any = None) -> dict[str, Any]:
        """Return it as it is recorded with an answer that was replayed; `usage` was not paid again."""
        unpaid = {"unpaid": usage} if usage else {}
        return {"run": self.run, "seq": self.seq, "head": self.head, **unpaid}


@attrs.frozen(kw_only=True)
class RecordedReply(RecordedResult):
    """The result of a step in a source."""

    step: int
    """Its number in its attempt."""
    name: str
    kind: StepKind
    fingerprint: str
    origin: Origin
    input: Any = None
    """Its complete input; None: the source does not have it."""
    reusable: bool = True
    error: str = ""
    """Type of the exception that it raised; empty if it was completed."""
    message: str = ""
    inner: tuple["RecordedReply", ...] = ()
    """The steps inside it, in the order in which they started."""

    @property
    def key(self) -> Key:
        """What identifies it in its trial."""
        return self.name, self.fingerprint

    @property
    def all_inner(self) -> Iterator["RecordedReply"]:
        """The steps inside it, at any depth."""
        for reply in self.inner:
            yield reply
            yield from reply.all_inner

    @property
    def unpaid(self) -> dict[str, Any] | None:
        """What it and the steps inside it used."""
        usage: dict[str, Any] = {}
        for reply in (self, *self.all_inner):
            add(usage, reply.usage)
        return usage or None

    def record_use(self, steps: AttemptSteps, step: Step) -> None:
        """Record that a step got this reply, after the steps inside it; raise if the reply is a failure."""
        if self.error:
            failure = ReplayedFailure(self.error, self.message, is_repeated=steps.has_result(step))
            steps.fail(step, failure)
            raise failure
        self.record_inner(steps, step.number)
        input_to_record, continues = steps.inputs.record(step.number, step.input)
        self._record(steps, step.number, step.parent, input_to_record, continues)

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
                source_run=self.origin.run,
                source_seq=self.origin.seq,
                source_head=self.origin.head,
                unpaid=self.usage,
            )
        )


@attrs.frozen(kw_only=True)
class RecordedAnswer:
    """The output of a trial that makes one call: that of a chat model or of an endpoint."""

    request: Any
    """The request as it is recorded; None: it is not."""
    key: str
    """Fingerprint of the request."""
    output: Any
    facts: Any = None
    """What the attempt has noted about the answer, without its usage."""
    usage: Any = None
    origin: Origin


@attrs.frozen(kw_only=True)
class RecordedVerdict:
    """The reply of a judge."""

    scorer: str
    key: str
    """Fingerprint of what the judge was asked."""
    reply: str
    model: str = ""
    """The model that answered, if it is not the one that was asked."""
    usage: Any = None
    origin: Origin


@attrs.frozen(kw_only=True)
class TrialReplies:
    """What a source has recorded for one trial."""

    trial: str
    """Its id in the source."""
    steps: tuple[RecordedReply, ...] = ()
    """Those that the task itself has called, in the order in which they started; others are inside them."""
    answer: RecordedAnswer | None = None
    verdicts: tuple[RecordedVerdict, ...] = ()
    """In the order in which the judges answered."""

    def offered(self, *, before: float = float("inf"), errors: bool = False) -> Iterator[tuple[Key, RecordedReply]]:
        """Yield the replies that answer calls, with their keys; `before`: only those of steps with a smaller number.

        `errors`: also the failures that calls had.
        """
        stack = list(reversed(self.steps))
        while stack:
            reply = stack.pop()
            if not reply.reusable:
                stack += reversed(reply.inner)  # Its function is called again, and they with it.
            elif reply.step < before and (errors or not reply.error):
                yield reply.key, reply


class ReplySource(Protocol):
    """A run, or a packed file, with recorded replies. Its methods may be called in any thread."""

    @property
    def name(self) -> str:
        """Its path, as the user has passed it."""
        ...

    @property
    def run(self) -> str:
        """Id of the run."""
        ...

    @property
    def is_own(self) -> bool:
        """Whether this user has written it on this machine."""
        ...

    def destination(self, variant: str) -> dict[str, Any]:
        """Return where the calls of a variant went."""
        ...

    def pooled(self, key: Key, used_seqs: set[int]) -> RecordedReply | None:
        """Return the first reply of any trial that has a key and is not used yet."""
        ...

    @property
    def identity(self) -> dict[str, str]:
        """The `run` and its `head` when it was opened, which a later session must find again."""
        ...

    def find(self, key: TrialKey, case: str) -> TrialReplies | None:
        """Return what is recorded for a trial; None: nothing. Of several trials with the key, that of the case of this name."""
        ...
