"""Which rate limit tasks and scorers count for, and how many concurrent calls they make by default."""

import os
import resource
from typing import Any

import pytest

from evaljournal import Case, evaluation, scorers
from evaljournal.journal.events import AttemptStarted, LimitChanged, RateLimitSeen
from evaljournal.replay.state.known_limits import CallRate
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.calls.recorded_output import RecordedOutput
from evaljournal.runner.concurrency.adaptive import Adaptive
from evaljournal.runner.concurrency.key_policy import KeyPolicy
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.gates.known_limits import NeededSlots, max_slots
from evaljournal.runner.sessions.rate_limits import (
    TaskKeys,
    default_slots,
    has_elastic_slots,
    limit_identity,
    scorer_keys,
    scorer_slots,
)
from evaljournal.runner.testing import Return, Scripted
from tests.journal.disk import SimulatedDisk
from tests.runs import audited, count, define, events, numbered_cases, run_virtual

URL = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-first-secret")
    monkeypatch.setenv("SAME_KEY", "sk-first-secret")
    monkeypatch.setenv("OTHER_KEY", "sk-other-secret")


def chat(model: str = "small", url: str = URL, key: str | None = "MY_KEY") -> Chat:
    return Chat(model, base_url=url, key_env=key)


async def coroutine(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("task", "slots"),
    [
        (Chat("small", base_url=URL), 100),
        (Endpoint(URL), 100),
        (coroutine, 100),
        (lambda value: value, 32),
        (RecordedOutput("output"), 32),
        (Command("cat"), max(4, os.cpu_count() or 1)),
    ],
    ids=["chat", "endpoint", "async function", "plain function", "recorded outputs", "command"],
)
def test_slots_follow_the_kind_of_task(task: Any, slots: int) -> None:
    """Unless it is set, `slots` is 100, 32 or the number of CPUs, depending on what is called."""
    assert slots == default_slots(task)


@pytest.mark.parametrize(
    ("rpm", "latency", "options", "limits", "share"),
    [
        (5000, 2.0, {}, [100, 250], 0.92),
        (300, 20.0, {}, [100], 0.97),  # All are in use after 20 s, when the first calls end.
        (5000, 2.0, {"slots": 120}, [120], 0.6),
        (5000, 2.0, {"policy": "fixed"}, [100], 0.5),
        (600, 2.0, {"slots": 12}, [12], 0.5),
    ],
)
async def test_slots_follow_from_a_known_limit(
    rpm: int, latency: float, options: dict[str, Any], limits: list[int], share: float
) -> None:
    """They are 1.5 × its rate × the latency, unless the user has chosen them; whether fewer are as fast is not tested."""
    disk, seconds = SimulatedDisk(), 20.0
    task = define(Scripted(lambda *_: Return("yes", latency)), numbered_cases(2_000), limits={"rpm": rpm}, **options)
    await run_virtual(task, disk, deadline=seconds, grace=0.0)

    changes = events(disk, LimitChanged)
    assert limits == [change.after for change in changes]
    assert {"start", "known_limit"} >= {change.reason for change in changes}
    assert share <= count(disk, AttemptStarted) / (rpm * seconds / 60) <= 1.01
    assert [] == list(audited(disk).findings)


def test_an_advertised_limit_ends_the_climb() -> None:
    """Once a limit is known, all slots may be used; the change says why, and what the policy has lowered stays so."""
    tokens = RateLimitSeen(unit="tokens", size=600_000.0, window=60.0, source="advertised", header="x-ratelimit-limit-tokens")
    policy, raised = KeyPolicy(Adaptive, 100, patience=60.0, key="k"), NeededSlots().raised(CallRate(tokens, 800.0), 32, 1_000)
    assert raised is not None

    changes = policy.raise_slots(*raised, reason="known_limit")

    evidence = "600k tokens per minute: the known limit decides when calls start"
    assert [LimitChanged(before=32, after=100, reason="known_limit", evidence=evidence, key="k")] == changes
    assert [] == policy.raise_slots(*raised, reason="known_limit")


@pytest.mark.parametrize(
    ("task", "workers", "hooks", "is_elastic"),
    [
        (Chat("small", base_url=URL), None, {}, True),
        (Endpoint(URL), None, {}, True),
        (coroutine, None, {}, True),
        (coroutine, "processes:2", {}, False),
        (coroutine, None, {"setup": None}, False),
        (lambda value: value, None, {}, False),
        (RecordedOutput("output"), None, {}, False),
        (Command("cat"), None, {}, False),
    ],
)
def test_slots_that_cost_more(task: Any, workers: str | None, hooks: Any, *, is_elastic: bool) -> None:
    """No number of processes, threads, places in workers or set-ups follows from a limit."""
    keys = TaskKeys.of(evaluation(cases=[Case(input=1)], name="it")(task), None)

    assert is_elastic is has_elastic_slots("", keys, {}, Settings(workers=workers), hooks)


@pytest.mark.parametrize(
    ("descriptors", "used_slots", "slots"),
    [(65_536, 100, 1_000), (1_024, 0, 924), (1_024, 500, 424), (256, 300, 0), (resource.RLIM_INFINITY, 100, 1_000)],
)
def test_slots_need_descriptors(monkeypatch: pytest.MonkeyPatch, descriptors: int, used_slots: int, slots: int) -> None:
    """Slots that follow from a limit are at most 1,000, and no more than the process may open connections."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))

    assert slots == max_slots(used_slots)


@pytest.mark.parametrize(
    ("options", "is_same"),
    [
        ({"model": "large"}, True),
        ({"key": "SAME_KEY"}, True),
        ({"url": f"{URL}/"}, True),
        ({"key": "OTHER_KEY"}, False),
        ({"key": None}, False),
        ({"url": "http://127.0.0.1:8/v1"}, False),
        ({"url": "http://127.0.0.1:9/other"}, False),
    ],
)
def test_an_identity_is_endpoint_and_key(options: dict[str, Any], is_same: bool) -> None:  # noqa: FBT001  # of the table above
    """Two chats count for the same rate limit if their base URL and API key are equal, whatever the model."""
    assert is_same == (chat().rate_limit_identity == chat(**options).rate_limit_identity)


def test_an_endpoint_and_a_chat_may_be_the_same() -> None:
    """An endpoint task with the full URL of chat completions counts for the same rate limit as a chat with its base URL."""
    endpoint = Endpoint(f"{URL}/chat/completions", headers={"Authorization": "Bearer $MY_KEY"})

    assert chat().rate_limit_identity == endpoint.rate_limit_identity


def test_an_identity_holds_no_secret() -> None:
    """Neither the URL nor the API key can be read in an identity."""
    identity = chat().rate_limit_identity

    assert "secret" not in identity
    assert (128, set()) == (len(identity), set(identity) - set("0123456789abcdef"))


def test_judges_share_keys_by_their_identity() -> None:
    """A judge with the endpoint, API key and model of the task uses its rate-limit key; two others of one model share one."""
    options: dict[str, Any] = {"base_url": URL, "key_env": "MY_KEY"}
    defined: Any = evaluation(cases=[Case(name="a", input="a", expected="a")])(chat())
    defined.score(name="own")(scorers.judge(chat().model, **options))
    defined.score(name="first")(scorers.judge("judge", **{**options, "key_env": "OTHER_KEY"}))
    defined.score(name="second")(scorers.judge("judge", **{**options, "key_env": "OTHER_KEY"}))
    defined.score(name="other")(scorers.judge("other", **options))
    defined.score(name="plain")(lambda output, case: True)  # noqa: ARG005
    defined.score(scorers.exact)

    keys = scorer_keys(defined.scorers.values(), TaskKeys.of(defined, None))
    assert {"own": "", "first": "scorer:first", "second": "scorer:first", "other": "scorer:other"}.items() <= keys.items()
    assert {"first": 100, "other": 100, "plain": 32} == scorer_slots(defined.scorers, TaskKeys.of(defined, None), None)
    assert "scorer:own" == scorer_keys(defined.scorers.values(), TaskKeys.of(defined, "model"))["own"]


def test_a_rate_limit_is_identified_by_endpoint_key_and_model() -> None:
    """Runs of the same model have the same identity; with a `limit_key`, its value belongs to it; a function has none."""
    other_options: dict[str, Any] = {"base_url": URL, "key_env": "OTHER_KEY"}

    def identity(model: str, key: str = "", limit_key: str | None = None) -> tuple[object, ...] | None:
        defined: Any = evaluation(cases=[Case(name="a", input="a")])(chat(model=model))
        defined.score(name="first")(scorers.judge("judge", **other_options))
        return limit_identity(key, TaskKeys.of(defined, limit_key), defined.scorers)

    function: Any = evaluation(cases=[Case(name="a", input="a")])(str)
    assert None is limit_identity("", TaskKeys.of(function, None), {})
    assert identity("m") == identity("m") != identity("other")
    assert identity("m", "scorer:first") == identity("other", "scorer:first") != identity("m")
    assert identity("m", "x", "model") == identity("m", "x", "model") != identity("m", "y", "model")
