"""The events of steps: recorded calls inside an attempt."""

from typing import Literal

from evaljournal.journal.fact import Json, fact

StepKind = Literal["model", "tool", "other"]
"""The kind of call that a step makes."""


@fact
class StepCompleted:
    """A step of the attempt in flight, such as a model call or a tool call, returned a result."""

    trial: str
    attempt: int
    step: int
    """Number of the step, from 1, in the order in which the attempt's steps started."""
    name: str
    kind: StepKind = "other"
    fingerprint: str
    """Fingerprint of the input: steps of a trial with the same name and fingerprint can replace one another."""
    input: Json = None
    """Arguments or request, with secrets masked. If `continues` is not 0, a member that is a list in this input and in that of
    the earlier step contains only the elements after those of the earlier step."""
    output: Json
    elapsed: float
    """Seconds, measured by the monotonic clock."""
    usage: Json = None
    parent: int = 0
    """Number of the step that called it; 0: the task itself."""
    continues: int = 0
    """Number of the earlier step of this attempt whose lists precede those in `input`; 0: none."""
    reusable: bool = True
    """Whether a later attempt may use the result instead of executing the step again."""


@fact
class StepFailed:
    """A step of the attempt in flight raised an exception; it is never reused."""

    trial: str
    attempt: int
    step: int
    name: str
    kind: StepKind = "other"
    fingerprint: str
    input: Json = None
    error: str
    """Type of the exception."""
    message: str
    elapsed: float
    parent: int = 0
    continues: int = 0


@fact
class StepReused:
    """The result of a step that an earlier attempt had completed was used again; nothing was called."""

    trial: str
    attempt: int
    step: int
    completed_seq: int
    """The record of the step that was completed."""
    parent: int = 0


StepEvent = StepCompleted | StepFailed | StepReused
