"""A run recomputed: its own settings give its own cost and wall time, other ones what they must."""

import random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from evaljournal import Case, Fatal, RateLimited, Retry, note
from evaljournal.journal import Record, read
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, Event, Noted, ScorerCallStarted, StepCompleted
from evaljournal.replay import RunState
from evaljournal.replay.state.answers import ANSWER
from evaljournal.replay.state.usage import JUDGE_USAGE, add, noted_usage
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.calls.prices import DEFAULT_PRICES, read_prices
from evaljournal.runner.calls.usage import priced_usage
from evaljournal.runner.sessions.what_if.recompute import recompute
from evaljournal.runner.sessions.what_if.recorded import RecordedCalls
from evaljournal.runner.sessions.what_if.repricing import Repricing, parse_models
from evaljournal.runner.steps.attempt_steps import LimitedCall, Step, current_steps
from evaljournal.runner.steps.inputs import step_input
from evaljournal.runner.steps.waiting import admit_in_loop
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, define, numbered_cases, run_virtual


@attrs.frozen
class Recorded:
    """A run, as `what-if` reads it."""

    calls: RecordedCalls
    state: RunState

    def seconds(self, **change: Any) -> float:
        """Return the wall time under other settings."""
        return recompute(self.calls, **change)


def record(defined: AnyEvaluation) -> Recorded:
    """Run an evaluation in virtual time, and read what it recorded."""
    disk = SimulatedDisk()
    trio.run(lambda: run_virtual(defined, disk), clock=trio.testing.MockClock(autojump_threshold=0))
    state = RunState()
    calls = RecordedCalls(state)
    for each in read(PATH, files=disk):
        calls.apply(each)
        state.apply(each)
    return Recorded(calls, state)


async def _model_call(model: str, seconds: float, tokens: int) -> None:
    """Make a model call of an agent, as an SDK's client does."""
    steps = current_steps()
    assert steps is not None
    step = Step(f"chat.completions {model}", "model", step_input({"model": model}, "call", key=b"x"), reusable=False)
    step.call = LimitedCall("https://api.example", (), model, CallSize(3 * tokens, None))
    steps.begin(step)
    await admit_in_loop(steps, step)
    await trio.sleep(seconds)
    steps.complete(step, None, {"input_tokens": tokens, "output_tokens": 10})


class _RandomTask:
    """A task that waits, fails and calls models, by its input and the number of the attempt."""

    __name__ = "random_task"

    def __init__(self, seed: int, ills: float, calls: int) -> None:
        self._seed = seed
        self._ills = ills
        self._calls = calls
        self._attempts: dict[str, int] = {}

    async def __call__(self, value: str) -> str:
        number = self._attempts[value] = self._attempts.get(value, 0) + 1
        chance = random.Random(f"{self._seed} {value} {number}")
        await trio.sleep(chance.uniform(0.1, 2))
        async with trio.open_nursery() as nursery:
            for _ in range(self._calls):
                tokens = chance.randint(10, 500)
                if chance.random() < 0.3:
                    nursery.start_soon(_model_call, "m", chance.uniform(0.2, 1), tokens)
                else:
                    await _model_call(chance.choice(["m", "n"]), chance.uniform(0.2, 1), tokens)
        if not self._calls:
            note(usage={"input_tokens": 100, "output_tokens": 20})
        if chance.random() < self._ills:
            raise chance.choice(
                [ConnectionError("down"), RateLimited(chance.choice([None, 3.0])), Fatal("never"), KeyError("x")]
            )
        return value


def random_evaluation(seed: int) -> AnyEvaluation:
    """Return an evaluation whose settings, calls and failures depend on a seed."""
    chance = random.Random(seed)
    calls = chance.choice([0, 0, 3])
    cases = [
        Case(name=f"c{number}", input=f"i{number}", metadata={"group": f"k{number % 2}"})
        for number in range(chance.randint(1, 40))
    ]
    options: dict[str, Any] = {
        "slots": chance.choice([1, 3, 10]),
        "policy": chance.choice(["fixed", "adaptive"]),
        "retry": Retry(errors=chance.choice([0, 4]), rate_limits=chance.choice([0, 600])),
        "repeats": chance.choice([1, 1, 2]),
        "limit_key": chance.choice([None, None, "group"]),
    }
    if calls:
        options["durable"] = "http"
    if chance.random() < 0.4 and (calls or options["limit_key"] is None):
        options["limits"] = {"rpm": chance.choice([30, 600]), **({"tpm": 10_000} if calls else {})}
    defined = define(_RandomTask(seed, chance.choice([0.0, 0.1, 0.3]), calls), cases, **options)
    if chance.random() < 0.4:
        seconds = chance.uniform(0.1, 3)

        async def judge(output: Any) -> bool:
            await trio.sleep(seconds)
            return bool(output)

        defined.score(judge)
    return defined


def check_own_time(seed: int) -> None:
    """Compare the wall time of a random run with that under its own settings."""
    run = record(random_evaluation(seed))
    if not run.calls.ended_trials:
        return

    assert run.state.elapsed == pytest.approx(run.seconds(), rel=0, abs=0.001), seed


@pytest.mark.parametrize("seed", [*range(10), 197, 302])  # The last two: calls that start together; failures that keep steps.
def test_own_settings_give_the_own_wall_time(seed: int) -> None:
    """A run with failures, rate limits, judges, agents and known limits takes as long again as it took."""
    check_own_time(seed)


@pytest.mark.exhaustive
def test_own_settings_give_the_own_wall_time_of_many_runs() -> None:
    """The same is true of 500 runs."""
    for seed in range(500):
        check_own_time(seed)


async def _forever(_: str) -> None:
    await trio.sleep_forever()


async def _two_seconds(_: str) -> str:
    await trio.sleep(2)
    return "yes"


def test_slots_and_limits_change_the_wall_time() -> None:
    """Twenty calls of two seconds take ten rounds in two slots, one in twenty, and 19 waits at 60 requests per minute."""
    run = record(define(_two_seconds, numbered_cases(20), slots=2, policy="fixed"))

    assert [20.0, 20.0, 2.0] == [run.state.elapsed, run.seconds(slots=2), run.seconds(slots=20)]
    assert run.seconds(slots=20, limits={"rpm": 60.0}) == pytest.approx(2 + 19 / 0.93, abs=0.5)


def test_a_single_rate_limit_key_can_have_a_name() -> None:
    """With `limit_key`, the only key of a run is the value of a case."""
    run = record(define(_two_seconds, [Case(name="a", input="a", metadata={"group": "k"})], limit_key="group"))

    assert [2.0, 2.0] == [run.state.elapsed, run.seconds()]


def test_a_timeout_that_is_off_later_ends() -> None:
    """An attempt that timed out takes its recorded seconds if a later session has turned the timeout off."""
    run = record(define(_forever, numbered_cases(1), timeout=5.0))
    run.state.settings["timeout"] = None

    assert 5 <= run.seconds() < 60


def test_the_result_is_the_same_each_time() -> None:
    """Nothing in a recomputation is random."""
    run = record(random_evaluation(1))

    assert 1 == len({run.seconds(slots=4) for _ in range(5)})


def test_declared_limits_replace_rate_limits_of_the_provider() -> None:
    """A call that was rate limited is so again, unless limits are declared, which stand for those of the provider."""
    rejected: set[str] = set()

    async def task(value: str) -> str:
        await trio.sleep(0.1 + int(value[-1]) / 10)
        if value not in rejected:
            rejected.add(value)
            raise RateLimited(30.0)
        return value

    run = record(define(task, numbered_cases(3), slots=3, policy="fixed"))

    assert 3 == run.calls.counts["rate_limited"]
    assert run.seconds() == pytest.approx(run.state.elapsed)
    assert run.seconds(limits={"rpm": 6_000.0}) < 1
    assert run.seconds() > 30


_MODELS = ("gpt-5.4-mini", "gpt-5.4", "claude-haiku-5-5", "unknown-model")


def _records(seed: int) -> list[Record]:
    """Return records of priced calls of every kind: answers, steps, judges, SDK responses and notes of the task."""
    chance, prices = random.Random(seed), read_prices(DEFAULT_PRICES)
    events: list[Event] = []
    for number in range(chance.randint(1, 30)):
        trial, model, batch = f"c{number}", chance.choice(_MODELS), chance.choice([0, 0, 1])
        tokens = chance.randint(0, 400_000)
        usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": chance.randint(0, 9_999)}
        if chance.random() < 0.5:
            usage["prompt_tokens_details"] = {"cached_tokens": chance.randint(0, tokens)}
        writes = chance.randint(0, 1_000) if model.startswith("claude") else 0
        if model.startswith("claude"):
            usage = {"input_tokens": tokens, "output_tokens": 7, "cache_creation_input_tokens": writes}
        tier = chance.choice(["", "default", "batch", "flex", "priority"])
        noted = {"model": model, **({"service_tier": tier} if tier and not batch else {})}
        price_tier = "batch" if batch else tier
        priced = priced_usage(usage, model, prices, price_tier)
        reply = {"model": model, "usage": usage, **({"service_tier": tier} if tier else {})}
        step: dict[str, Any] = {"trial": trial, "attempt": 1, "step": 1, "name": "chat.completions x", "fingerprint": "x"}
        if model.startswith("claude"):
            usage["cache_creation"] = {"ephemeral_1h_input_tokens": chance.randint(0, writes)}
        events += [
            AttemptStarted(trial=trial, attempt=1, slot=0, batch=batch),
            StepCompleted(
                **step,
                kind="model",
                output={"status": 200, "content_type": "application/json", "body": reply},
                elapsed=1.0,
                usage=priced_usage(usage, model, prices, tier) or None,
            ),
            Noted(name=ANSWER, value={**noted, "usage": priced}, trial=trial, attempt=1),
            Noted(name="usage", value={"cost": 0.25, "input_tokens": 1, "output_tokens": 2}, trial=trial, attempt=1),
            Noted(name="cost", value=0.125, trial=trial, attempt=1),
            AttemptSucceeded(
                trial=trial, attempt=1, output=reply, elapsed=1.0, usage=priced_usage(usage, model, prices, tier) or None
            ),
            ScorerCallStarted(trial=trial, scorer="judge", call=1, batch=batch),
            Noted(
                name=JUDGE_USAGE,
                value={
                    "model": model,
                    "usage": priced_usage(
                        {"prompt_tokens": 9, "completion_tokens": 1}, model, prices, "batch" if batch else ""
                    ),
                },
                trial=trial,
            ),
        ]
    return [Record(number, "", 0.0, event, 0, "", 1, 0) for number, event in enumerate(events, 1)]


def _repriced(records: list[Record], **change: Any) -> Repricing:
    repricing = Repricing(read_prices(DEFAULT_PRICES), **change)
    for each in records:
        repricing.apply(each)
    return repricing


def _recorded_usage(records: list[Record]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for each in records:
        event: Any = each.event
        usage = noted_usage(event.name, event.value) if isinstance(event, Noted) else getattr(event, "usage", None)
        add(sums, usage)
    return sums


@pytest.mark.parametrize("seed", range(20))
def test_own_prices_give_the_own_usage_exactly(seed: int) -> None:
    """Calls priced again by the same table cost the same, to the last digit, in every service tier and with every cache."""
    records = _records(seed)

    assert _recorded_usage(records) == dict(_repriced(records).usage)


@pytest.mark.exhaustive
def test_own_prices_give_the_own_usage_of_many_runs_exactly() -> None:
    """The same is true of 2,000 runs."""
    for seed in range(2_000):
        test_own_prices_give_the_own_usage_exactly(seed)


def _answers(*models: str) -> list[Record]:
    usage = {"input_tokens": 1_000_000, "output_tokens": 100_000, "cost": 9.0}
    return [
        Record(
            number,
            "",
            0.0,
            Noted(name=ANSWER, value={"model": model, "usage": usage}, trial=f"c{number}", attempt=1),
            0,
            "",
            1,
            0,
        )
        for number, model in enumerate(models, 1)
    ]


def test_other_models_caches_and_batches_change_the_cost() -> None:
    """The tokens are priced as those of another model, as read from a cache, or as lines of a batch."""
    records, price = _answers("a"), read_prices(DEFAULT_PRICES)["gpt-5.4-mini"]
    own = price.input + 0.1 * price.output
    models = {"": "gpt-5.4-mini"}

    assert price.cached is not None
    assert own == pytest.approx(_repriced(records, models=models).usage["cost"])
    assert own / 2 == pytest.approx(_repriced(records, models=models, batch=True).usage["cost"])
    cached = own - 0.8 * (price.input - price.cached)
    assert cached == pytest.approx(_repriced(records, models=models, cache_hit=0.8).usage["cost"])


def test_an_output_that_reports_no_usage_is_priced_by_the_usage_of_its_attempt() -> None:
    """The usage may come from the task, and its output may be any text or object."""
    usage = {"input_tokens": 1_000_000, "output_tokens": 100_000, "cost": 9.0}
    outputs = ("a text", {"role": "assistant", "content": "a message"}, None)
    attempts = [
        AttemptSucceeded(trial=f"c{n}", attempt=1, elapsed=1.0, output=out, usage=usage) for n, out in enumerate(outputs)
    ]
    records = [Record(number, "", 0.0, event, 0, "", 1, 0) for number, event in enumerate(attempts, 1)]
    price = read_prices(DEFAULT_PRICES)["gpt-5.4-mini"]

    cost = _repriced(records, models={"": "gpt-5.4-mini"}).usage["cost"]

    assert cost == pytest.approx(3 * (price.input + 0.1 * price.output))


def test_a_model_can_be_replaced_alone() -> None:
    """`OLD=NEW` prices the calls of one model; without a price, a call has no cost and its model is named."""
    repricing = _repriced(_answers("a", "b"), models=parse_models(("a=gpt-5.4-mini",)))

    assert ["b"] == list(repricing.unpriced_models)
    assert 1 == repricing.usage["unpriced_calls"]
