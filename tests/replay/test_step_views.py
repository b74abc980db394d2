"""Steps in the views of a run: the summary, the final report, the live screen and `show`."""

from pathlib import Path

import attrs
import pytest

from evaljournal.journal.events import AttemptInterrupted, AttemptStarted, Event
from evaljournal.replay import RunState, load
from evaljournal.replay.render.ending import final_report
from evaljournal.replay.render.screen import line
from evaljournal.replay.results.summary import summarize
from tests.journal.samples import session
from tests.replay.agent_run import USAGE, agent_run, completed
from tests.replay.screens import screen_lines
from tests.replay.trial_events import answered, enqueued, state_of


@pytest.fixture
def state(tmp_path: Path) -> RunState:
    """Return the state of the run of an agent."""
    return load(agent_run(tmp_path / "run")).state


def test_summary(state: RunState) -> None:
    """The summary counts steps by how they ended, and adds up what was not paid again; it is part of `status --json`."""
    saved = {unit: 2 * amount for unit, amount in USAGE.items()}

    counts = {"completed": 9, "failed": 1, "reused": 3, "usage_saved": saved, "seconds_waited": 0.0}

    assert counts == attrs.asdict(summarize(state))["steps"]


def test_a_run_without_steps_has_none() -> None:
    """Nothing is shown about steps if there are none."""
    state = state_of(answered("a", {"exact": True}))

    assert summarize(state).steps is None
    assert "step" not in final_report(state, path="r") + "".join(screen_lines(state, now=5.0))


def test_final_report(state: RunState) -> None:
    """The final report has executed and reused steps, what was saved, and from where a resume continues."""
    report = final_report(state, path="r").splitlines()

    assert "  10 steps (1 error) · 3 steps reused, $0.500 not paid again" in report
    assert "  1 attempt in flight at the end, to be continued after 3 completed steps on resume" in report


def test_without_a_cost_the_saved_tokens_are_shown() -> None:
    """Tokens are shown where no price is known; steps without usage are only counted."""
    state = RunState()
    state.steps.last_seq, state.steps.completed, state.steps.reused = 9, 1, 2
    assert "  1 step · 2 steps reused" in final_report(state, path="r").splitlines()

    state.steps.usage_saved.update({"input_tokens": 1200, "unpriced_calls": 1})
    assert "  1 step · 2 steps reused, input_tokens 1,200 not paid again" in final_report(state, path="r").splitlines()


@pytest.mark.parametrize(
    ("reuses", "calls", "text"), [(1, 1, "its calls in flight"), (0, 3, "its calls in flight and 2 completed steps")]
)
def test_repeated_calls_are_calls(reuses: int, calls: int, text: str) -> None:
    """Calls in flight, of which an attempt may have several, and completed steps that are not reused may be paid for twice."""
    events: list[Event] = [
        enqueued("a"),
        AttemptStarted(trial="a", attempt=1, slot=0),
        completed("a", 1, 1, "plan", output=1),
        completed("a", 1, 2, "walk", output=1),
        session(2),
        AttemptInterrupted(trial="a", attempt=1, reason="process_died"),
        AttemptStarted(trial="a", attempt=2, slot=0, reuses=reuses),
    ]
    state = state_of(events)

    assert calls == summarize(state).attempts.repeated_calls
    assert f"1 attempt was interrupted and repeated; {text} may have been paid for twice" in final_report(state, path="r")
    report = final_report(state_of(events[:-1]), path="r")
    assert "1 attempt was interrupted; if repeated, its calls in flight may be paid for twice" in report


def test_screen(state: RunState) -> None:
    """The screen shows the steps of this session per second, and how far the longest attempts are."""
    shown = screen_lines(state, now=2.007, total=3, width=120)

    assert any("10 steps (1 error), 0.5/s · 3 steps reused, $0.500 not paid again" in text for text in shown)
    assert any("attempt 2  2 s · 2 steps, the last 2 s ago: walk" in text for text in shown)
    assert "10 steps, 0.5/s" in line(state, now=2.007, total=3)


def test_untrusted_names_are_escaped(state: RunState) -> None:
    """The name of a step cannot control the terminal."""
    state.trials.running["route"].end_step("\x1b[31m", 0.008)

    assert not any("\x1b" in text for text in screen_lines(state, now=1.0))
