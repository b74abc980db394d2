"""Recorded replies: what is answered from a run, what is a miss, and what is recorded about it."""

from pathlib import Path
from typing import Any

import pytest

from evaljournal import Case, UsageError, durable, verify
from evaljournal.journal.events import AttemptFailed, AttemptSucceeded, StepCompleted, StepEvent, StepFailed, StepReplayed
from tests.runs import define_real, events, run_real

CASES = [Case(name=name, input=name, expected=name.upper()) for name in ("lima", "oslo", "rome")]


class Agent:
    """An agent that plans, calls a tool twice and answers; it counts its calls."""

    def __init__(self, prompt: str = "Plan") -> None:
        self.prompt = prompt
        self.calls: list[str] = []
        self.__name__ = "agent"

    def task(self) -> Any:
        """Return the task."""

        @durable(kind="model")
        async def ask(prompt: str, history: list[str]) -> dict[str, Any]:
            self.calls.append(prompt)
            text = f"{prompt}:{len(history)}:{len(self.calls)}"
            return {"text": text, "usage": {"input_tokens": 10, "cost": 0.5}}

        @durable(kind="tool", usage=lambda _: None)
        async def look_up(name: str) -> str:
            reply = await ask(f"inner {name}", [])
            return str(reply["text"])

        async def agent(name: str) -> str:
            history: list[str] = []
            for number in range(3):
                history.append((await ask(f"{self.prompt} {name}", history))["text"])
                history.append(await look_up(f"{name} {number % 2}"))
            return " ".join(history)

        return agent


def echo(name: str) -> str:
    """Return the input, without a call."""
    return name


def steps(path: Path) -> list[Any]:
    """Return what a run has recorded about its steps, apart from when they ended and whether they were replayed."""
    recorded: list[Any] = events(path, StepEvent)  # type: ignore[arg-type]  # a union
    fields = ("trial", "attempt", "step", "name", "kind", "fingerprint", "input", "output", "parent")
    return sorted([getattr(event, field) for field in fields] for event in recorded)


def outputs(path: Path) -> dict[str, Any]:
    """Return trial → output."""
    return {event.trial: event.output for event in events(path, AttemptSucceeded)}


def test_an_unchanged_agent_makes_no_call(tmp_path: Path) -> None:
    """Outputs and steps, also those inside others, are the recorded ones; nothing is called and nothing is paid."""
    source, replayed, agent = tmp_path / "a", tmp_path / "b", Agent()
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)

    outcome = run_real(define_real(agent.task(), CASES, loop="asyncio"), replayed, replies=str(source), on_miss="fail")

    assert [] == agent.calls
    assert outputs(source) == outputs(replayed)
    assert steps(source) == steps(replayed)
    assert {} == outcome.state.usage
    assert 3 * 6 * 0.5 == outcome.state.usage_parts.unpaid["cost"]
    assert [] == list(outcome.state.trials.attempts.latencies)
    assert verify(replayed).ok


def test_a_changed_prompt_is_a_miss_that_shows_the_difference(tmp_path: Path) -> None:
    """The trial fails at the step that asks something else; the error has both requests."""
    source, replayed, agent = tmp_path / "a", tmp_path / "b", Agent("Plan!")
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)

    run_real(define_real(agent.task(), CASES, loop="asyncio"), replayed, replies=str(source), on_miss="fail")

    failures = events(replayed, AttemptFailed)
    assert [] == agent.calls
    assert [1, 1, 1] == [event.step for event in events(replayed, StepFailed)]
    assert ["fatal"] * 3 == [event.category for event in failures]
    assert "no reply is recorded for step 1 of " in failures[0].message
    assert "Plan l" in failures[0].message or "Plan o" in failures[0].message or "Plan r" in failures[0].message
    assert "Plan! " in failures[0].message


def test_a_miss_is_made_live(tmp_path: Path) -> None:
    """Without --offline, a call without a reply is made; the others are answered."""
    source, replayed, agent = tmp_path / "a", tmp_path / "b", Agent("Plan!")
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)

    run_real(define_real(agent.task(), CASES, loop="asyncio"), replayed, replies=str(source))

    assert {"Plan! lima", "Plan! oslo", "Plan! rome"} == set(agent.calls)
    assert (9, 9 + 9) == (
        len([event for event in events(replayed, StepCompleted) if type(event) is StepCompleted]),
        len(events(replayed, StepReplayed)),
    )


def test_a_run_without_replies_is_rejected(tmp_path: Path) -> None:
    """The error says which options record replies."""
    source = tmp_path / "a"
    run_real(define_real(echo, CASES), source)

    with pytest.raises(UsageError, match=r"has recorded no replies.*durable=http.*--gateway"):
        run_real(define_real(Agent().task(), CASES, loop="asyncio"), tmp_path / "b", replies=str(source))
