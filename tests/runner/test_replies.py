"""Recorded replies: what is answered from a run, what is a miss, and what is recorded about it."""

import gzip
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaljournal import Case, Chat, Command, Endpoint, Retry, UsageError, durable, evaluation, rescore, scorers, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    ScorerCallStarted,
    ScoringFailed,
    StepCompleted,
    StepEvent,
    StepFailed,
    StepReplayed,
    TrialScored,
)
from evaljournal.replay.state.totals import REPLAYED
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.runs.sources import verify_sources
from evaljournal.runner.steps.replies import packed
from evaljournal.runner.steps.replies.offline import PLACEHOLDER, OfflineError, offline
from evaljournal.runner.steps.replies.packed import open_packed, pack
from evaljournal.runner.steps.replies.source import ReplySource, open_run
from tests import sdk_agents
from tests.journal.samples import change_with_hashes
from tests.judge_server import judge_server
from tests.runs import define_real, events, run_real
from tests.server import Server

HEADER = b'{"format":"evaljournal-replies","version":1,"run":"r","head":"h"}\n'
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

    outcome = run_real(define_real(agent.task(), CASES, loop="asyncio"), replayed, replies=str(source), on_miss="fail", slots=1)

    assert [] == agent.calls
    assert outputs(source) == outputs(replayed)
    assert steps(source) == steps(replayed)
    assert {} == outcome.state.usage
    assert 3 * 6 * 0.5 == outcome.state.usage_parts.unpaid["cost"]
    assert [] == list(outcome.state.trials.attempts.latencies)
    assert verify(replayed).ok


@pytest.mark.parametrize("as_replies", [str, Path, lambda path: [str(path)], lambda path: [path], lambda path: (path,)])
def test_sources_are_texts_or_paths(tmp_path: Path, as_replies: Callable[[Path], Any]) -> None:
    """One of them, or several; all are the same setting, which a session that resumes the run must find again."""
    source, replayed, agent = tmp_path / "a", tmp_path / "b", Agent()
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)

    task = define_real(agent.task(), CASES, loop="asyncio")
    outcome = run_real(task, replayed, replies=as_replies(source), on_miss="fail", slots=1)
    resumed = run_real(task, replayed, replies=as_replies(source), resume=True)
    own_setting = define_real(agent.task(), CASES, loop="asyncio", replies=as_replies(source))

    assert [] == agent.calls
    assert [str(source)] == outcome.state.settings["replies"] == resumed.state.settings["replies"]
    assert (str(source),) == own_setting.settings.replies


@pytest.mark.parametrize("value", [5, [5], [None], b"runs/a", ""])
def test_sources_that_are_no_paths_are_invalid(tmp_path: Path, value: Any) -> None:
    """The error names the setting."""
    with pytest.raises(UsageError, match="replies"):
        run_real(define_real(echo, CASES), tmp_path / "a", replies=value)


def test_a_run_without_calls_has_no_gates(tmp_path: Path) -> None:
    """Its limits and its budget do not apply, and are none of a later session that makes calls."""
    source, replayed, agent = tmp_path / "a", tmp_path / "b", Agent()
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)
    evaluation_ = define_real(agent.task(), CASES, loop="asyncio", budget={"cost": 9.0})
    options: Any = {"replies": str(source), "offline": True, "budget": {"cost": 0.01}, "limits": {"rpm": 1.0}}

    outcome = run_real(evaluation_, replayed, **options)

    assert ("", 3) == (outcome.stop_reason, outcome.state.completed)
    assert {"budget", "limits"}.isdisjoint(outcome.state.settings["overridden"])
    assert None is outcome.state.settings["budget"]
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

    run_real(define_real(agent.task(), CASES, loop="asyncio"), replayed, replies=source)

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


def test_a_command_without_a_gateway_is_rejected(tmp_path: Path) -> None:
    """Nothing of it would be answered, so all of its calls would be paid for again."""
    source = run_real(define_real(Agent().task(), CASES, loop="asyncio"), tmp_path / "a").path

    with pytest.raises(UsageError, match="pass --gateway with its replies"):
        run_real(define_real(Command("cat"), CASES), tmp_path / "b", replies=[source], offline=True)


def test_resume_needs_the_same_replies(tmp_path: Path) -> None:
    """A run that was started with replies is not resumed with others, nor without them."""
    source, other, replayed = tmp_path / "a", tmp_path / "other", tmp_path / "b"
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), other)
    run_real(define_real(Agent("x").task(), CASES, loop="asyncio"), replayed, replies=str(source), offline=True)

    with pytest.raises(RunChanged, match="was started with other replies"):
        run_real(
            define_real(Agent("x").task(), CASES, loop="asyncio"), replayed, resume=True, retry_failed=True, replies=str(other)
        )
    with pytest.raises(RunChanged, match="was started with other replies"):
        run_real(define_real(Agent("x").task(), CASES, loop="asyncio"), replayed, resume=True, retry_failed=True, replies=())
    agent = Agent("x")
    outcome = run_real(define_real(agent.task(), CASES, loop="asyncio"), replayed, resume=True, retry_failed=True)

    assert ([], 3) == (agent.calls, outcome.state.failed)


def test_a_packed_file_has_the_same_replies(tmp_path: Path) -> None:
    """A run from a packed file has the same outputs and steps; foreign replies need trust, because tools follow them."""
    source, file, replayed, agent = tmp_path / "a", tmp_path / "r.jsonl.gz", tmp_path / "b", Agent()
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)
    content, suspicious = pack(open_run(str(source)))
    file.write_bytes(content)

    with pytest.raises(UsageError, match="add --trust"):
        run_real(define_real(agent.task(), CASES, loop="asyncio"), replayed, replies=str(file), offline=True)
    run_real(define_real(agent.task(), CASES, loop="asyncio"), replayed, replies=str(file), offline=True, trust=True)

    assert ([], []) == (agent.calls, suspicious)
    assert (content, []) == pack(open_run(str(source)))
    assert (outputs(source), steps(source)) == (outputs(replayed), steps(replayed))
    assert (18 + 9, ()) == (verify_sources(replayed).checked, verify_sources(replayed).findings)


def test_a_packed_file_keeps_the_order_of_keys(tmp_path: Path) -> None:
    """What an agent writes of a recorded object into its next request is the same from the packed file."""
    calls: list[str] = []

    @durable(kind="tool")
    def look_up(city: str) -> dict[str, Any]:
        calls.append(city)
        return {"zone": city, "degrees": 4, "sky": {"wind": 2, "cloud": "no"}}

    @durable(kind="model")
    def ask(text: str) -> str:
        calls.append(text)
        return text

    def agent(city: str) -> str:
        return ask(json.dumps(look_up(city)))

    source, file = tmp_path / "a", tmp_path / "replies.gz"
    run_real(define_real(agent, CASES), source)
    del calls[:]
    file.write_bytes(pack(open_run(str(source)))[0])

    outcome = run_real(define_real(agent, CASES), tmp_path / "b", replies=str(file), offline=True, trust=True)

    assert ([], 3) == (calls, outcome.state.completed)
    assert outputs(source) == outputs(tmp_path / "b")


def test_replies_that_were_changed_after_the_start_are_not_own(tmp_path: Path) -> None:
    """A run of the user needs trust if its end is not in the list of own runs: anyone who changes it can compute all hashes."""
    source = tmp_path / "a"
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)
    is_own = open_run(str(source)).is_own
    change_with_hashes(source, b"Plan oslo:0", b"Plan oslo:9")

    assert (True, False) == (is_own, open_run(str(source)).is_own)
    with pytest.raises(UsageError, match="add --trust"):
        run_real(define_real(Agent().task(), CASES, loop="asyncio"), tmp_path / "b", replies=str(source), offline=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a packed file"),
        (b"\x1f\x8b\x08\x00broken", "is damaged"),
        (b'{"format":"evaljournal-replies","version":2}\n', "has version 2 of the packed format; .* reads 1"),
        (HEADER + b"[]", "is damaged"),
        (gzip.compress(HEADER + b'{"key":["f","",1],"case":"c"}\n' * 100), "decompresses to more than"),
        (gzip.compress(HEADER + b" " * 200), "has a line of more than"),
    ],
    ids=["empty", "broken", "version", "line", "bomb", "long"],  # A compressed file has the time.
)
def test_a_bad_packed_file_is_rejected(content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what is wrong; only a bounded amount is decompressed."""
    monkeypatch.setattr(packed, "MAX_BYTES", 1_000)
    monkeypatch.setattr(packed, "MAX_LINE", 150)
    file = tmp_path / "r.jsonl.gz"
    file.write_bytes(content)

    with pytest.raises(UsageError, match=message):
        open_packed(str(file))


def test_a_damaged_record_is_found_before_the_start(tmp_path: Path) -> None:
    """A record of a packed file is checked like one of a run; nothing is executed, and nothing is written."""
    source, file = tmp_path / "a", tmp_path / "r.jsonl"
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)
    text = gzip.decompress(pack(open_run(str(source)))[0])
    file.write_bytes(text.replace(b'"kind":"tool"', b'"kind":"saw"'))

    with pytest.raises(UsageError, match=r"is damaged \(kind is 'saw'\)"):
        run_real(define_real(echo, CASES), tmp_path / "b", replies=str(file), offline=True, trust=True)
    assert not (tmp_path / "b").exists()


def test_a_key_of_two_trials_is_decided_by_the_name_of_the_case(tmp_path: Path) -> None:
    """Trials with the same content have the replies of the case of the same name; under another name, they have none."""
    source, replayed, missed = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    twins = [Case(name=name, input="lima") for name in ("first", "second")]
    run_real(define_real(Agent().task(), twins, loop="asyncio"), source)
    run_real(define_real(Agent().task(), twins[::-1], loop="asyncio"), replayed, replies=str(source), offline=True)
    third = [Case(name="third", input="lima")]
    run_real(define_real(Agent().task(), third, loop="asyncio"), missed, replies=str(source), offline=True)

    assert outputs(source) == outputs(replayed)
    (failure,) = events(missed, AttemptFailed)
    assert ("fatal", True) == (
        failure.category,
        "has several cases with this content, 'first' and 'second'; give the case one of their names" in failure.message,
    )


def test_verify_finds_a_changed_source(tmp_path: Path) -> None:
    """A source that was changed after it was used is found, whether its hashes are right or not."""
    source, replayed = tmp_path / "a", tmp_path / "b"
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), replayed, replies=str(source), on_miss="fail")
    file = source / "journal-000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b"Plan oslo:0", b"Plan oslo:9"))

    assert not verify_sources(replayed).ok


def test_offline_connects_to_this_machine_only(tmp_path: Path) -> None:
    """A connection to another machine is not made, and its trial fails, even if the task catches the error."""
    listener = socket.create_server(("127.0.0.1", 0))

    def connect(name: str) -> str:
        socket.create_connection(listener.getsockname()).close()
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=1).close()
        except Exception:  # noqa: BLE001  # as a client that retries
            return "caught"
        return name

    with listener:
        run_real(define_real(connect, CASES[:1]), tmp_path / "a", offline=True)

    (failure,) = events(tmp_path / "a", AttemptFailed)
    assert (
        "fatal",
        "a call of the task is offline, so nothing connects to 192.0.2.1:80; record its reply, or run without --offline",
    ) == (
        failure.category,
        failure.message,
    )


def _connect_vsock() -> None:
    with socket.socket(socket.AF_VSOCK) as endpoint:
        endpoint.connect((2, 80))


@pytest.mark.parametrize(
    "connect",
    [
        lambda endpoint: endpoint.connect(("192.0.2.1", 80)),
        lambda endpoint: endpoint.connect_ex(("192.0.2.1", 80)),
        lambda endpoint: endpoint.sendto(b"x", ("192.0.2.1", 80)),
        lambda endpoint: endpoint.sendmsg([b"x"], [], 0, ("192.0.2.1", 80)),
        lambda _: socket.getaddrinfo("example.com", 80),
        lambda _: socket.gethostbyname_ex("example.com"),
        lambda _: socket.gethostbyaddr("192.0.2.1"),
        pytest.param(lambda _: _connect_vsock(), marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux only")),
    ],
)
def test_offline_prevents_every_way_to_connect(connect: Callable[[socket.socket], object]) -> None:
    """Connections, datagrams and lookups of names raise; those to this machine do not."""
    with offline(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        with pytest.raises(OfflineError, match="offline, so nothing connects to"):
            connect(endpoint)
        endpoint.sendto(b"x", ("127.0.0.1", 9))


def test_keys_are_set_while_a_run_is_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is not set has a value for SDKs; afterwards, it is not set, so that another run of the process asks for it."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "own")

    def keys(_: str) -> list[str | None]:
        return [os.environ.get(name) for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")]

    run_real(define_real(keys, "lima"), tmp_path / "a", offline=True)

    assert {"lima": [PLACEHOLDER, "own"]} == outputs(tmp_path / "a")
    assert [None, "own"] == keys("")


def test_workers_are_rejected(tmp_path: Path) -> None:
    """Attempts in workers have no recorded replies, and the connections of other processes are not prevented."""
    source = tmp_path / "a"
    run_real(define_real(Agent().task(), CASES, loop="asyncio"), source)

    for options, message in (
        ({"offline": True}, "workers are other processes"),
        ({"replies": str(source)}, "in workers cannot"),
    ):
        with pytest.raises(UsageError, match=message):
            run_real(define_real(echo, CASES, workers="processes:1"), tmp_path / "b", **options)


def test_recorded_failures_fail_again(tmp_path: Path) -> None:
    """With `replay_errors`, a call that failed raises again; otherwise, its later reply is used."""

    def task(counts: list[int]) -> Any:
        @durable(kind="model")
        def ask(question: str) -> str:
            counts[0] += 1
            if counts[0] == 1:
                raise ValueError("too long")
            return question.upper()

        def agent(question: str) -> str:
            try:
                return ask(question)
            except Exception as exc:  # noqa: BLE001  # an agent that asks again
                return f"{type(exc).__name__} {exc} {ask(question)}"

        return agent

    source = tmp_path / "a"
    run_real(define_real(task([0]), CASES[:1]), source)
    run_real(define_real(task([9]), CASES[:1]), tmp_path / "b", replies=str(source), on_miss="fail")
    run_real(define_real(task([9]), CASES[:1]), tmp_path / "c", replies=str(source), on_miss="fail", replay_errors=True)

    assert {"lima": "ValueError too long LIMA"} == outputs(source)
    assert {"lima": "LIMA"} == outputs(tmp_path / "b")
    assert {"lima": "ReplayedFailure too long LIMA"} == outputs(tmp_path / "c")


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # The OpenAI SDK leaves its own open.
@pytest.mark.parametrize("way", ["durable", "gateway"])
@pytest.mark.parametrize("turn", [sdk_agents.chat, sdk_agents.message_async_streamed], ids=lambda turn: turn.__name__)
def test_sdk_agents_are_answered(  # noqa: PLR0917  # fixtures
    tmp_path: Path, server: Server, name: str, provider: Callable[[str], None], turn: Any, way: str
) -> None:
    """Clients of SDKs and programs behind the gateway get the recorded replies; a changed message is a miss, not a retry."""
    loop = "trio" if "async" in turn.__name__ else None
    ok = "sse" if "streamed" in turn.__name__ else "ok"
    provider(ok)
    setting: Any = {"gateway": True} if way == "gateway" else {"durable": "http"}

    def new_client() -> Any:
        url = server.url(name, ok, "api")
        return sdk_agents.gateway_client(turn) if way == "gateway" else sdk_agents.make_client(url, sdk_agents.CLIENTS[turn])

    def run_it(path: Path, question: str = "lima", **options: Any) -> sdk_agents.Agent:
        agent = sdk_agents.Agent(new_client, turn)
        task = agent.plain if loop is None else agent.awaited
        run_real(define_real(task, [Case(name="lima", input="lima")], loop=loop, **setting), path, **options)
        return agent

    source = tmp_path / "a"
    recorded = run_it(source)
    replayed = run_it(tmp_path / "b", replies=str(source), offline=True)
    calls = len(server.requests(name))
    changed = sdk_agents.Agent(new_client, turn)
    begin = changed._begin  # to ask something else
    changed._begin = lambda question: begin(f"{question}?")  # type: ignore[method-assign]
    task = changed.plain if loop is None else changed.awaited
    run_real(
        define_real(task, [Case(name="lima", input="lima")], loop=loop, **setting),
        tmp_path / "c",
        replies=str(source),
        offline=True,
    )

    assert recorded.replies == replayed.replies
    assert (outputs(source), steps(source)) == (outputs(tmp_path / "b"), steps(tmp_path / "b"))
    assert (3, 3) == (calls, len(server.requests(name)))
    assert [1] == [event.step for event in events(tmp_path / "c", StepFailed)]
    (failure,) = events(tmp_path / "c", AttemptFailed)
    assert "fatal" == failure.category
    assert "lima?" in failure.message


def test_chat_models_endpoints_and_judges_are_answered(tmp_path: Path, server: Server, name: str) -> None:
    """The output, what is known about the answer and the verdict are the recorded ones; another prompt is a miss."""
    with judge_server(lambda _: "Fine.\nverdict: correct") as judges:

        def chat(prompt: str, choices: Any) -> Any:
            url = server.url(name, "ok", "v1")
            defined = evaluation(name="chat", cases=CASES)(Chat("gpt-4o-mini", base_url=url, prompt=prompt))
            rubric = scorers.judge("large", base_url=judges.url, choices=choices)
            defined.score(name="judge")(rubric)
            return defined

        choices = {"correct": True, "incorrect": False}
        source, replayed, missed = (tmp_path / letter for letter in "abc")
        first = run_real(chat("Q: {input}", choices), source)
        second = run_real(chat("Q: {input}", choices), replayed, replies=str(source), offline=True, slots=1)
        run_real(chat("Q:  {input}", choices), missed, replies=str(source), offline=True)
        run_real(chat("Q: {input}", {**choices, "partly": 0.5}), tmp_path / "d", replies=str(source), offline=True)
        verdicts = [
            [
                (event.trial, event.value, event.reason)
                for event in sorted(events(path, TrialScored), key=lambda event: event.trial)
            ]
            for path in (source, replayed)
        ]
        file = tmp_path / "replies.gz"
        file.write_bytes(pack(open_run(str(source)))[0])
        run_real(chat("Q: {input}", choices), tmp_path / "e", replies=str(file), offline=True)

        assert (3, 3) == (len(judges.prompts), len(server.requests(name)))
        assert verdicts[0] == verdicts[1]
        assert outputs(source) == outputs(replayed) == outputs(tmp_path / "e")
        assert verify(replayed).ok
        assert first.state.usage
        assert not {unit: amount for unit, amount in second.state.usage.items() if amount}
        assert first.state.usage["cost"] == second.state.usage_parts.unpaid["cost"]
        assert [] == list(second.state.trials.attempts.latencies)
        assert all("recorded: " in event.message and "Q:  " in event.message for event in events(missed, AttemptFailed))
        assert 3 == len(events(missed, AttemptFailed))
        assert ["evaljournal.ReplyMissing"] * 3 == [event.error for event in events(tmp_path / "d", ScoringFailed)]
        assert ((6, True), (6, True)) == tuple(
            (verification.checked, verification.ok) for verification in map(verify_sources, (replayed, tmp_path / "e"))
        )


def test_an_endpoint_is_answered(tmp_path: Path, server: Server, name: str) -> None:
    """The output of an endpoint is the recorded one; another path of the output is a miss."""
    url = server.url(name, "ok")
    source, replayed, missed = (tmp_path / letter for letter in "abc")

    def endpoint(output_path: str) -> Any:
        return evaluation(name="endpoint", cases=CASES)(Endpoint(url, output_path=output_path))

    run_real(endpoint("output"), source)
    run_real(endpoint("output"), replayed, replies=str(source), offline=True)
    run_real(endpoint("outputs"), missed, replies=str(source), offline=True)

    assert outputs(source) == outputs(replayed)
    assert 3 == len(server.requests(name))
    assert all('output_path":"outputs"' in event.message for event in events(missed, AttemptFailed))
    assert 3 == len(events(missed, AttemptFailed))


@pytest.mark.parametrize("definition", [None, [], {"task": 3, "variants": ["a"]}, {"task": {}, "variants": {"a": 1}}])
def test_a_foreign_definition_is_data(definition: Any) -> None:
    """One of another shape names no destination of the calls."""
    source = ReplySource("run", list, definition=definition)  # type: ignore[arg-type]  # no record is read

    assert {"request": "?"} == source.asked("?", "a")


def test_recorded_calls_pass_no_gate(tmp_path: Path, server: Server, name: str) -> None:
    """With `on_miss="live"`, only calls without a reply wait for limits and need a budget, of tasks and of judges."""
    with judge_server(lambda _: "Fine.\nverdict: correct") as judges:

        def chat(cases: Any) -> Any:
            defined = evaluation(name="chat", cases=cases)(
                Chat("gpt-4o-mini", base_url=server.url(name, "ok", "v1"), prompt="{input}", max_tokens=100)
            )
            defined.score(name="judge")(scorers.judge("gpt-4o-mini", base_url=judges.url, max_tokens=100))
            return defined

        many = [Case(name=f"case-{number}", input=f"case-{number}") for number in range(30)]
        source, replayed = tmp_path / "a", tmp_path / "b"
        run_real(chat(many), source)
        options: Any = {
            "replies": str(source),
            "limits": {"rpm": 1.0},
            "budget": {"cost": 1e-9},
            "slots": 1,
            "timeout": 30,
        }
        outcome = run_real(chat([*many, Case(name="new", input="new")]), replayed, **options)

        assert (30, "budget") == (outcome.state.completed, outcome.stop_reason)
        assert (30, 30) == (len(server.requests(name)), len(judges.prompts))
        assert {REPLAYED} == {event.key for event in events(replayed, AttemptStarted)}
        assert {REPLAYED} == {event.key for event in events(replayed, ScorerCallStarted)}
        assert outputs(source) == outputs(replayed)
        assert (True, True) == (verify(replayed).ok, verify_sources(replayed).ok)


def _many(count: int) -> list[Case]:
    return [Case(name=f"case-{number}", input=f"case-{number}") for number in range(count)]


def test_trials_that_call_nothing_need_not_report_usage(tmp_path: Path) -> None:
    """Any number of them may precede the first call, which the budget limits."""
    source, replayed, agent = tmp_path / "a", tmp_path / "b", Agent()
    run_real(define_real(Agent().task(), _many(30), loop="asyncio"), source)

    evaluation_ = define_real(agent.task(), _many(31), loop="asyncio")
    outcome = run_real(evaluation_, replayed, replies=str(source), budget={"cost": 100.0}, slots=1)

    assert (31, "") == (outcome.state.completed, outcome.stop_reason)
    assert {"cost": 3.0, "input_tokens": 60} == outcome.state.usage
    assert verify(replayed).ok


def test_trials_whose_judge_calls_nothing_need_not_report_usage(tmp_path: Path) -> None:
    """The output is computed, and the verdict is recorded."""
    with judge_server(lambda _: "Fine.\nverdict: correct") as judges:

        def judged(count: int) -> Any:
            defined = define_real(echo, _many(count))
            defined.score(name="judge")(scorers.judge("gpt-4o-mini", base_url=judges.url, max_tokens=100))
            return defined

        run_real(judged(30), tmp_path / "a")
        outcome = run_real(judged(31), tmp_path / "b", replies=str(tmp_path / "a"), budget={"cost": 9.0}, slots=1)

        assert (31, "") == (outcome.state.completed, outcome.stop_reason)
        assert 31 == len(judges.prompts)


def test_a_call_beside_recorded_ones_must_report_usage(tmp_path: Path) -> None:
    """Steps that are executed are calls, whatever precedes them."""

    def task(*, is_longer: bool) -> Any:
        @durable(kind="model", usage=lambda _: None)
        async def ask(question: str) -> str:
            return question

        async def agent(name: str) -> str:
            return await ask(name) + (await ask(f"{name} again") if is_longer else "")

        return agent

    run_real(define_real(task(is_longer=False), _many(30), loop="asyncio"), tmp_path / "a")
    options: Any = {"replies": str(tmp_path / "a"), "budget": {"cost": 9.0}, "slots": 1}
    outcome = run_real(define_real(task(is_longer=True), _many(30), loop="asyncio"), tmp_path / "b", **options)

    assert (20, "budget") == (outcome.state.completed, outcome.stop_reason)


def test_a_miss_of_a_judge_is_made_live(tmp_path: Path, server: Server, name: str) -> None:
    """A judge that asks something else is called, in its own lane; the answer that it judges is the recorded one."""
    with judge_server(lambda _: "Fine.\nverdict: correct") as judges:

        def chat(rubric: str) -> Any:
            defined = evaluation(name="chat", cases=CASES)(
                Chat("gpt-4o-mini", base_url=server.url(name, "ok", "v1"), prompt="{input}")
            )
            defined.score(name="judge")(scorers.judge("large", base_url=judges.url, rubric=rubric))
            return defined

        run_real(chat("Good? {output}"), tmp_path / "a")
        outcome = run_real(chat("Right? {output}"), tmp_path / "b", replies=str(tmp_path / "a"))

        assert (3, 6, 3) == (len(server.requests(name)), len(judges.prompts), outcome.state.completed)
        assert {"scorer:judge"} == {event.key for event in events(tmp_path / "b", ScorerCallStarted)}
        assert verify(tmp_path / "b").ok


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_verdict_belongs_to_the_judge_that_gave_it(tmp_path: Path, *, is_packed: bool) -> None:
    """A judge that a re-scoring adds, or puts in place of another one, is answered with its own replies only."""
    replies = ["I cannot say."] * 3 + ["Fine.\nverdict: correct"] * 3 + ["No.\nverdict: incorrect"] * 3
    with judge_server(lambda _: replies.pop(0)) as judges:

        def judged(**names: str) -> Any:
            defined = define_real(echo, CASES)
            for name, model in names.items():
                defined.score(name=name, retry=Retry(errors=0))(scorers.judge(model, base_url=judges.url))
            return defined

        source, file = tmp_path / "a", tmp_path / "replies.gz"
        run_real(judged(judge="first"), source)
        rescore(judged(judge="second"), source)
        rescore(judged(added="second"), source)
        file.write_bytes(pack(open_run(str(source)))[0])
        options: Any = {"replies": str(file if is_packed else source), "offline": True, "trust": True}
        run_real(judged(judge="first"), tmp_path / "b", **options)
        run_real(judged(judge="second", added="second"), tmp_path / "c", **options)
        verdicts = {(event.scorer, event.value) for event in events(tmp_path / "c", TrialScored)}

        assert (9, []) == (len(judges.prompts), replies)
        assert [] == events(tmp_path / "b", TrialScored)
        assert ["evaljournal.InvalidReply"] * 3 == [event.error for event in events(tmp_path / "b", ScoringFailed)]
        assert [] == events(tmp_path / "c", ScoringFailed)
        assert {("judge", True), ("added", False)} == verdicts
        assert verify(tmp_path / "c").ok
        assert (6, ()) == (verify_sources(tmp_path / "c").checked, verify_sources(tmp_path / "c").findings)


def test_a_verdict_of_an_interrupted_call_is_not_used(tmp_path: Path) -> None:
    """Of a reply whose score was not recorded before the process died, it is not known which version of the judge gave it."""
    replies = ["Fine.\nverdict: correct", "No.\nverdict: incorrect"]
    with judge_server(lambda _: replies.pop(0)) as judges:

        def judged(model: str) -> Any:
            defined = define_real(echo, CASES[:1])
            defined.score(name="judge")(scorers.judge(model, base_url=judges.url))
            return defined

        source = tmp_path / "a"
        run_real(judged("first"), source)
        journal = source / "journal-000001.jsonl"
        content, _, _ = journal.read_bytes().partition(b'"type":"trial_scored"')
        journal.write_bytes(content[: content.rindex(b"\n") + 1])
        rescore(judged("second"), source)
        for name, model in (("b", "first"), ("c", "second")):
            run_real(judged(model), tmp_path / name, replies=str(source), offline=True, trust=True)
        content = gzip.decompress(pack(open_run(str(source)))[0])

        assert ["evaljournal.ReplyMissing"] == [event.error for event in events(tmp_path / "b", ScoringFailed)]
        assert [False] == [event.value for event in events(tmp_path / "c", TrialScored)]
        assert (0, 1) == (content.count(b"verdict: correct"), content.count(b"verdict: incorrect"))


@pytest.mark.parametrize("is_packed", [False, True])
def test_replies_of_any_trial(tmp_path: Path, server: Server, name: str, *, is_packed: bool) -> None:
    """With `replies_any_trial`, steps, answers and verdicts of other trials are a cache; without, they are misses."""
    with judge_server(lambda _: "Fine.\nverdict: correct") as judges:

        def chat(case: str) -> Any:
            url = server.url(name, "ok", "v1")
            defined = evaluation(name="chat", cases=[Case(name=case, input="same", metadata={"case": case})])(
                Chat("gpt-4o-mini", base_url=url, prompt="{input}")
            )
            defined.score(name="judge")(scorers.judge("large", base_url=judges.url))
            return defined

        source, file = tmp_path / "a", tmp_path / "replies.gz"
        run_real(chat("first"), source)
        file.write_bytes(pack(open_run(str(source)))[0])
        replies = str(file if is_packed else source)
        cached = run_real(chat("second"), tmp_path / "b", replies=replies, offline=True, replies_any_trial=True)
        missed = run_real(chat("second"), tmp_path / "c", replies=replies, offline=True)

        assert (1, 0) == (cached.state.completed, missed.state.completed)
        assert list(outputs(source).values()) == list(outputs(tmp_path / "b").values())
        assert (1, 1) == (len(server.requests(name)), len(judges.prompts))
        assert 2 == verify_sources(tmp_path / "b").checked
