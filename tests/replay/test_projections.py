"""The projections of a run's state: small classes, attached only if the run uses them."""

import copy
import pkgutil
from importlib import import_module
from types import FunctionType
from typing import Any

import attrs
import pytest

from evaljournal.journal import Event
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, StepCompleted, TrialCompleted
from evaljournal.replay import RunState, fold, state
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.state.batches import Batches
from evaljournal.replay.state.budget import BudgetEvents
from evaljournal.replay.state.slot_use import SlotUses
from evaljournal.replay.state.steps import RunSteps
from tests.journal.samples import enqueued, prepared
from tests.replay.random_runs import random_records
from tests.replay.trial_events import run_state

MAX_FIELDS = 15
MAX_METHODS = 25
CAPABILITIES = {Batches, BudgetEvents, RunSteps, SlotUses}

STARTED: list[Event] = [enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0)]
ENDED: list[Event] = [AttemptSucceeded(trial="a", attempt=1, output="x", elapsed=0.1), TrialCompleted(trial="a", attempts=1)]
STEP = StepCompleted(trial="a", attempt=1, step=1, name="s", fingerprint="f", output=1, elapsed=0.1)


def all_classes() -> list[type]:
    """Return the classes of the state of a run."""
    modules = [import_module(f"{state.__name__}.{module.name}") for module in pkgutil.iter_modules(state.__path__)]
    values = [(value, module) for module in modules for value in vars(module).values()]
    return [value for value, module in values if isinstance(value, type) and value.__module__ == module.__name__]


def methods(cls: type) -> list[str]:
    """Return the names of the methods and properties of a class, without those that attrs generates."""
    functions = {name: value.fget if isinstance(value, property) else value for name, value in vars(cls).items()}
    return [name for name, value in functions.items() if isinstance(value, FunctionType) and is_written(value)]


def is_written(function: FunctionType) -> bool:
    """Return whether a function is in a source file."""
    return not function.__code__.co_filename.startswith("<")


def instances(value: object) -> dict[type, object]:
    """Return one object of each class that is reachable from a state by attributes."""
    by_class: dict[type, object] = {}
    stack = [value]
    while stack:
        owner = stack.pop()
        if type(owner).__module__.startswith(state.__name__) and type(owner) not in by_class:
            by_class[type(owner)] = owner
            stack += [getattr(owner, name) for name in fields(owner)]
    return by_class


def fields(owner: object) -> list[str]:
    """Return the names of an object's fields."""
    cls = type(owner)
    if attrs.has(cls):
        return [field.name for field in attrs.fields(cls)]
    return list(getattr(cls, "__slots__", None) or vars(owner))


def test_every_class_is_small() -> None:
    """No class of the state has more than 25 methods, and none of its objects more than 15 fields."""
    assert [] == [cls.__name__ for cls in all_classes() if len(methods(cls)) > MAX_METHODS]
    assert [] == [cls.__name__ for cls, owner in instances(RunState()).items() if len(fields(owner)) > MAX_FIELDS]


@pytest.mark.parametrize(
    ("events", "settings", "expected"),
    [
        ([*STARTED, *ENDED], {}, set()),
        ([*STARTED, STEP, *ENDED], {}, {RunSteps}),
        ([*STARTED, *ENDED], {"durable": ["http"]}, {RunSteps}),
        ([*STARTED, *ENDED], {"budget": {"cost": 1.0}}, {BudgetEvents}),
        ([enqueued("a"), prepared("a", batch=1)], {}, {Batches}),
        ([enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0, need={"requests": 1}), *ENDED], {}, {SlotUses}),
    ],
    ids=["plain", "step", "durable", "budget", "batch", "need"],
)
def test_a_capability_is_attached_by_its_first_event(events: list[Any], settings: Any, expected: set[type]) -> None:
    """A run calls no projection of a capability that it does not use."""
    table = run_state(events, **settings)._table  # What a run pays for is not visible otherwise.

    assert expected == CAPABILITIES & {type(method.__self__) for methods in table.values() for method in methods}


def test_a_plain_trial_calls_one_method_per_event() -> None:
    """Each of the four events of a trial without any capability is applied by the trials alone."""
    table = run_state([])._table

    assert [1, 1, 1, 1] == [len(table[type(event)]) for event in (*STARTED, *ENDED)]


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_is_independent(seed: int) -> None:
    """A deep copy of a state continues on its own: its table calls its own projections."""
    records = list(random_records(seed))
    half = fold(records[:100])
    before = summarize(half)

    assert summarize(fold(records)) == summarize(fold(records[100:], state=copy.deepcopy(half)))
    assert before == summarize(half)
