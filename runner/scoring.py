"""What follows a success: every scorer looks at the output, in the same slot.

A scorer that fails is asked again where that may help, and costs its own score only; the task is never asked again for it.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import trio

from journal.errors import JournalError, Unserialisable
from journal.events import Noted, ScoringFailed, TrialScored
from runner.attempt import Answered, Flight, Raised
from runner.failure import describe
from runner.notes import Sink
from runner.recorder import Recorder
from runner.retry import GiveUp, Spent, chance
from runner.score import Judged, Scorer
from runner.tasks import Task
from runner.work import Work


class Scoring:
    """The scorers of a run."""

    def __init__(
        self,
        scorers: dict[str, tuple[Scorer, Task]],
        recorder: Recorder,
        *,
        seed: int,
        sink: Callable[[Work], Sink],
        refused: Callable[[BaseException], None],
    ) -> None:
        self.scorers = tuple(scorers.values())
        self._recorder = recorder
        self._seed = seed
        self._sink = sink
        self._refused = refused
        """Stops everything, because every other output would meet the same."""

    async def score(self, work: Work, flight: Flight) -> None:
        """Let every scorer have its turn that has not had it."""
        for scorer, task in self.scorers:
            if scorer.name not in work.scored:
                await self._ask(scorer, task, work, flight)

    async def _ask(self, scorer: Scorer, task: Task, work: Work, flight: Flight) -> None:
        """Ask one scorer, again where that may help, and record what came of it."""
        clock, spent = self._recorder.clock, Spent()
        began, judged = clock.now(), Judged(work.output, work.case)
        for times in itertools.count(1):
            outcome = await flight.ask(task, judged, due=math.inf, sink=self._sink(work), late=lambda _: None)
            if isinstance(outcome, Answered):
                self._answered(scorer, work, outcome.output, began)
                return
            assert isinstance(outcome, Raised)  # It has no limit.
            failure = scorer.retry.judge(outcome.exc, now=clock.wall())
            if failure.stop_run:
                self._note_refusal(scorer, work, outcome.exc)
                self._refused(outcome.exc)
                flight.cut()
                await trio.sleep_forever()  # Until that is felt. The output has no score of this scorer, and gets it later.
            spent = spent.plus(failure)
            decision = scorer.retry.after(failure, spent, chance(self._seed, f"{work.trial}\0{scorer.name}", times))
            if isinstance(decision, GiveUp):
                self._failed(scorer, work, outcome.exc, began)
                return
            spent = spent.plus(decision)
            del outcome  # An exception holds all that its frames held.
            await trio.sleep(decision.delay)

    def _answered(self, scorer: Scorer, work: Work, returned: Any, began: float) -> None:
        elapsed = round(self._recorder.clock.now() - began, 6)
        try:
            for name, score in scorer.scores(returned).items():
                self._recorder.record(
                    TrialScored(
                        trial=work.trial,
                        scorer=name,
                        version=scorer.version,
                        value=score.value,
                        reason=score.reason,
                        elapsed=elapsed,
                    )
                )
        except Exception as exc:  # What it returned is not a score.
            if isinstance(exc, JournalError) and not isinstance(exc, Unserialisable):
                raise
            self._failed(scorer, work, exc, began)

    def _note_refusal(self, scorer: Scorer, work: Work, exc: BaseException) -> None:
        said = describe(exc)
        words = f"{scorer.name}: {said.type}: {said.message}"
        self._recorder.record(Noted(name="refused", value=words, trial=work.trial, attempt=work.attempts))

    def _failed(self, scorer: Scorer, work: Work, exc: BaseException, began: float) -> None:
        said = describe(exc)
        self._recorder.record(
            ScoringFailed(
                trial=work.trial,
                scorer=scorer.name,
                version=scorer.version,
                error=said.type,
                message=said.message,
                traceback=said.traceback,
                elapsed=round(self._recorder.clock.now() - began, 6),
            )
        )
