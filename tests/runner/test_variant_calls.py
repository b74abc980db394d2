"""The calls of variants: functions of all kinds, steps, the gateway, and the rate-limit keys of variants."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from evaljournal import Case, Retry, gateway_env, scorers
from evaljournal.journal import read
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, IntakePaused, StepCompleted, TrialCompleted
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.sessions.rate_limits import TaskKeys, scorer_keys
from evaljournal.runner.testing import SimulatedEndpoint
from tests.journal.disk import SimulatedDisk
from tests.processes import TIMEOUT
from tests.runner.test_variants import FOUR, Calls
from tests.runs import PATH, define, define_real, events, findings, numbered_cases, outputs, run_real, run_virtual
from tests.server import Server


async def test_a_parameter_as_rate_limit_key(disk: SimulatedDisk) -> None:
    """With `limit_key`, the key of a trial may be a parameter of its variant."""
    await run_virtual(Calls().define(FOUR, limit_key="model"), disk)

    assert set(FOUR) == {event.key for event in events(disk, AttemptStarted)}
    assert [] == findings(disk)


@pytest.mark.parametrize("kind", ["plain", "asyncio"])
def test_functions_of_all_kinds(kind: str, tmp_path: Path) -> None:
    """Plain functions and functions of asyncio get the parameters of their variant."""

    def plain(value: str, *, model: str) -> str:
        return f"{model} {value}"

    async def in_asyncio(value: str, *, model: str) -> str:
        import asyncio  # Its loop is detected from this.

        await asyncio.sleep(0)
        return f"{model} {value}"

    task: Any = plain if kind == "plain" else in_asyncio
    outcome = run_real(define_real(task, variants={"a": {"model": "A"}, "b": {"model": "B"}}), tmp_path / "run", quiet=True)

    assert 2 == outcome.state.completed
    recorded = {event.trial: event.output for event in events(outcome.path, AttemptSucceeded)}
    assert {"lima@a": "A lima", "lima@b": "B lima"} == recorded


def test_keys_of_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variants of one endpoint, API key and model share a rate-limit key without secrets; a judge shares that of its model."""
    for name, key in {"KEY_A": "secret-a", "KEY_B": "secret-b"}.items():
        monkeypatch.setenv(name, key)
    options: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "key_env": "KEY_A"}
    variants: dict[str, Any] = {
        "a": {},
        "a-brief": {"prompt": "Briefly: {input}"},
        "b": {"model": "b"},
        "a-other-key": {"key_env": "KEY_B"},
        "a-other-host": {"base_url": "http://user:secret-a@127.0.0.1:8/v1"},
    }
    cases = [Case(name="x", input="x")]
    defined: Any = define(Chat("a", **options), cases, loop=None, variants=variants)
    for model in ("b", "c"):
        defined.score(name=model)(scorers.judge(model, **options))
    keys = TaskKeys.of(defined, None)

    assert {
        "a": "chat a 127.0.0.1:9",
        "a-brief": "chat a 127.0.0.1:9",
        "b": "chat b 127.0.0.1:9",
        "a-other-key": "chat a 127.0.0.1:9 (2)",
        "a-other-host": "chat a 127.0.0.1:8",
    } == keys.by_variant
    assert {"b": "chat b 127.0.0.1:9", "c": "scorer:c"} == scorer_keys(defined.scorers.values(), keys)
    prompts: Any = define(Chat("a", **options), cases, loop=None, variants={"prompt": ["{input}", "{input}?"]})
    assert {""} == set(TaskKeys.of(prompts, None).by_variant.values())


@attrs.frozen(kw_only=True)
class Model:
    """A model behind an endpoint, as a task with an identity; variants have other models."""

    __name__ = "model"

    endpoints: Mapping[str, SimulatedEndpoint]
    model: str = "quick"
    prompt: str = ""
    takes_trial = False

    @property
    def rate_limit_identity(self) -> str:
        """Identity of the one endpoint and API key of all models."""
        return "endpoint"

    @property
    def fingerprint(self) -> str:
        """Digest of all that differs."""
        return f"{self.model} {self.prompt}"

    @asynccontextmanager
    async def open_session(self, _: str, /) -> AsyncGenerator["Model"]:
        """Open nothing."""
        yield self

    async def call(self, value: Any, _: object, /) -> Any:
        """Call the endpoint of the model."""
        return await self.endpoints[self.model](value)

    async def __call__(self, value: Any, /) -> Any:
        """Make one call without a run."""
        return await self.call(value, None)


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
async def test_a_rate_limited_model_does_not_delay_the_other(policy: str, disk: SimulatedDisk) -> None:
    """Two variants of a rate-limited model share its pauses; the variant of the other model never waits for it."""
    limited = SimulatedEndpoint(lambda _: "yes", latency=0.1, rate=0.1, burst=1, retry_after=10.0)
    endpoints = {"limited": limited, "quick": SimulatedEndpoint(lambda _: "yes", latency=0.1)}
    variants = {"a": {"model": "limited"}, "b": {"model": "limited", "prompt": "?"}, "c": {"model": "quick"}}
    defined = define(Model(endpoints=endpoints), numbered_cases(12), loop=None, variants=variants, slots=4)
    outcome = await run_virtual(defined, disk, policy=policy, retry=Retry(rate_limits=10_000))

    completed = [
        (record.event.trial, record.t) for record in read(PATH, files=disk) if isinstance(record.event, TrialCompleted)
    ]
    ends = {variant: [t for trial, t in completed if trial.endswith(variant)] for variant in "abc"}
    assert (36, 0) == (outcome.state.completed, outcome.state.failed)
    assert ends["c"][-1] < (12 / 4) * 0.1 * 2  # Twice what it takes alone, to find its pace.
    assert min(ends["a"][-1], ends["b"][-1]) > 80
    assert {"model limited", "model quick"} == {event.key for event in events(disk, AttemptStarted)}
    assert {"model limited"} == {event.key for event in events(disk, IntakePaused)}
    assert [] == findings(disk)


@pytest.mark.parametrize("options", [{"durable": "http"}, {"gateway": True}], ids=["http", "gateway"])
@pytest.mark.usefixtures("provider")
def test_model_calls_of_variants_are_steps(path: Path, server: Server, name: str, options: dict[str, Any]) -> None:
    """The model call of each variant is a step of its own trial; the variants share one gateway."""
    urls: set[str] = set()

    def task(value: str, *, model: str) -> str:
        url = gateway_env()["OPENAI_BASE_URL"] if "gateway" in options else server.url(name, "ok", "v1")
        urls.add(url.split("/")[2])
        body = {"model": model, "messages": [{"role": "user", "content": value}]}
        reply = httpx.post(f"{url}/chat/completions", json=body, timeout=TIMEOUT).json()
        return f"{model} {reply['choices'][0]['message']['content']}"

    defined = define_real(task, variants={"a": {"model": "gpt-a"}, "b": {"model": "gpt-b"}}, **options)
    run_real(defined, path, quiet=True)

    assert {"gpt-a LIMA", "gpt-b LIMA"} == set(outputs(path))
    assert 1 == len(urls)
    assert {"lima@a": "gpt-a", "lima@b": "gpt-b"} == {
        event.trial: event.name.split()[-1] for event in events(path, StepCompleted)
    }
