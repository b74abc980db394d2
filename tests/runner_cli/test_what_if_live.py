"""`evaljournal what-if --from-step`: recorded steps up to one, calls to another model from there, and a comparison."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evaljournal.journal.events import AttemptSucceeded, StepCompleted, StepReplayed
from evaljournal.journal.readers.reader import read
from evaljournal.replay.runs.loaded_run import load
from evaljournal.runner.runs.paths import newest_run
from evaljournal.runner.steps.replies.rewrite import CannotRewrite, Rewrite
from tests.replay.test_page import page_data
from tests.runner_cli.commands import evaljournal, printed, rejected
from tests.runs import events

AGENT = """
import httpx
from evaljournal import evaluation

@evaluation(cases=["lima", "oslo"], slots=1, durable="http", loop="asyncio")
async def agent(name):
    history = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": name}]
    async with httpx.AsyncClient(base_url="URL", verify=False) as client:  # TLS certificates take long to load.
        for _ in range(4):
            reply = (await client.post("/chat/completions", json={"model": "large", "messages": history})).json()
            history.append(reply["choices"][0]["message"])
    return " ".join(message["content"] for message in history[2:])

@agent.score
def is_large(output):
    return "small" not in output
"""


FALLBACK = """
        status = (await client.post("/chat/completions", json={"model": "broken", "messages": history})).status_code
        for _ in range(4):
"""
TOOL = """
        @durable(kind="tool")
        async def find():
            raise LookupError("no such file")

        try:
            status = await find()
        except LookupError:
            status = "missing"
        for _ in range(4):
"""


class _Provider(BaseHTTPRequestHandler):
    """Answers with the model of the request."""

    requests: ClassVar[list[dict[str, Any]]] = []
    rejected_once: ClassVar[set[int]] = set()
    """Numbers of requests that are rate limited."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(request)
        message = {"role": "assistant", "content": request["model"]}
        usage = {"prompt_tokens": 1_000, "completion_tokens": 10}
        body = json.dumps({"model": request["model"], "choices": [{"message": message}], "usage": usage}).encode()
        self.send_response(400 if request["model"] == "broken" else 429 if len(self.requests) in self.rejected_once else 200)
        self.send_header("retry-after", "0")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def provider(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    """Record a run of an agent with four calls in each of two trials; return the requests from then on."""
    requests: list[dict[str, Any]] = []
    _Provider.requests, _Provider.rejected_once = requests, getattr(request, "param", set())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        Path("agent.py").write_text(AGENT.replace("URL", f"http://127.0.0.1:{server.server_port}/v1"))
        Path("prices.toml").write_text("[models.small]\ninput = 1.0\noutput = 0.0\n")
        assert 0 == evaljournal("run", "agent.py", "-o", "recorded", "--plain").exit_code
        requests.clear()
        _Provider.rejected_once = set()
        yield requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _outputs(path: Path) -> list[Any]:
    return [event.output for event in events(path, AttemptSucceeded)]


def test_the_other_model_takes_over_at_a_step(provider: list[dict[str, Any]]) -> None:
    """Steps before it are served from the record; the others call the other model, and the scores of both runs are paired."""
    Path("system.txt").write_text("Be brief.")
    options = ("--from-step", "3", "--from-step", "4", "--model", "small", "--system", "system.txt", "--prices", "prices.toml")

    result = evaljournal("what-if", "recorded", *options)

    assert 0 == result.exit_code, result.output
    assert "from step 3: 2 of 2 trials go live, about 4 model calls, about $0.00400" in result.stderr
    runs = [Path("runs/agent/0001"), Path("runs/agent/0002")]
    assert [["large large small small"] * 2, ["large large large small"] * 2] == [_outputs(run) for run in runs]
    assert ["small"] * 6 == [request["model"] for request in provider]
    assert [{"role": "system", "content": "Be brief."}] * 6 == [request["messages"][0] for request in provider]
    assert [(4, 8), (6, 8)] == [(len(events(run, StepReplayed)), len(events(run, StepCompleted))) for run in runs]
    assert "is_large" in result.stdout


@pytest.mark.parametrize("provider", [{2}], indirect=True)
def test_a_call_that_was_rejected_and_sent_again(provider: list[dict[str, Any]]) -> None:
    """It is one call of the task, but two recorded steps, of which the first does not happen again."""
    result = evaljournal("what-if", "recorded", "--from-step", "3", "--from-step", "4", "--model", "small")

    assert 0 == result.exit_code, result.output
    outputs = [_outputs(Path("runs/agent", name)) for name in ("0001", "0002")]
    assert [
        ["large small small small", "large large small small"],
        ["large large small small", "large large large small"],
    ] == outputs
    assert ["small"] * 8 == [request["model"] for request in provider]


def test_a_failed_call_after_which_the_task_goes_on(provider: list[dict[str, Any]]) -> None:
    """It is a step before K like any other: it fails again, and the task calls its fallback."""
    code = Path("agent.py").read_text()
    Path("agent.py").write_text(
        code.replace("        for _ in range(4):\n", FALLBACK, 1).replace('return " "', 'return f"{status} " + " "')
    )
    assert 0 == evaljournal("run", "agent.py", "-o", "fallback", "--plain").exit_code
    provider.clear()

    result = evaljournal("what-if", "fallback", "--from-step", "4", "--model", "small")

    assert 0 == result.exit_code, result.output
    assert ["400 large large small small"] * 2 == _outputs(Path("runs/agent/0001"))
    assert ["small"] * 4 == [request["model"] for request in provider]


def test_a_failed_tool_is_executed_again(provider: list[dict[str, Any]]) -> None:
    """It is the user's code, which may catch its own exception: a replayed failure is another one."""
    code = Path("agent.py").read_text().replace("import evaluation", "import durable, evaluation")
    code = code.replace("        for _ in range(4):\n", TOOL, 1).replace('return " "', 'return f"{status} " + " "')
    Path("agent.py").write_text(code)
    assert 0 == evaljournal("run", "agent.py", "-o", "tool", "--plain").exit_code
    provider.clear()

    result = evaljournal("what-if", "tool", "--from-step", "4", "--model", "small")

    assert 0 == result.exit_code, result.output
    assert ["missing large large small small"] * 2 == _outputs(Path("runs/agent/0001"))
    assert ["small"] * 4 == [request["model"] for request in provider]


def test_the_exit_code_is_that_of_the_runs(provider: list[dict[str, Any]]) -> None:
    """Trials that have an error are not passed over: a step before K is not as recorded, because the prompt has changed."""
    agent = Path("agent.py")
    agent.write_text(agent.read_text().replace("Be kind.", "Be rude."))

    result = evaljournal("what-if", "recorded", "--from-step", "3", "--model", "small")

    assert 1 == result.exit_code, result.output
    assert [] == _outputs(Path("runs/agent/0001"))
    assert [] == provider


def test_an_interrupted_run_is_resumed_with_the_other_model(provider: list[dict[str, Any]]) -> None:
    """A budget stops it; `resume` continues it from the same step, and calls the same model."""
    options = ("--from-step", "3", "--model", "small", "--budget", "input_tokens=1", "--json")
    result = evaljournal("what-if", "recorded", *options)

    assert 3 == result.exit_code, result.output
    assert "budget" == json.loads(result.stdout)["steps"][0]["stop_reason"]

    resumed = evaljournal("resume", "runs/agent/0001", "--budget", "input_tokens=100k", "--plain")

    assert resumed.exit_code in {0, 1}, resumed.output
    assert ["large large small small"] * 2 == _outputs(Path("runs/agent/0001"))
    assert ["small"] * 4 == [request["model"] for request in provider]


def test_trials_that_call_nothing_need_not_report_usage(provider: list[dict[str, Any]]) -> None:
    """A budget does not stop a run because its first trials have no step that is live, or no step at all."""
    code = Path("agent.py").read_text().replace('"lima", "oslo"', "*map(str, range(44))")
    Path("agent.py").write_text(code.replace("range(4)", "range(0 if int(name) < 21 else 1 if int(name) < 42 else 4)"))
    assert 0 == evaljournal("run", "agent.py", "-o", "longer", "--plain").exit_code
    provider.clear()

    result = evaljournal("what-if", "longer", "--from-step", "4", "--model", "small", "--budget", "input_tokens=1M")

    assert 0 == result.exit_code, result.output
    assert ["small", "small"] == [request["model"] for request in provider]


def test_repeats_start_from_the_same_steps(provider: list[dict[str, Any]]) -> None:
    """Each repeat is served the recorded steps of its case."""
    result = printed("what-if", "recorded", "--from-step", "4", "--model", "small", "--repeats", "3")

    assert 6 == len(provider)
    assert ["large large large small"] * 6 == _outputs(Path(result["steps"][0]["path"]))


def _what_if() -> tuple[Path, Path]:
    """Run the evaluation, and again from its first step on with another model; return both runs."""
    assert evaljournal("run", "agent.py", "--plain").exit_code in {0, 1}
    result = evaljournal("what-if", "runs/agent/0001", "--from-step", "1", "--model", "small")
    assert 0 == result.exit_code, result.output
    return Path("runs/agent/0001"), Path("runs/agent/0002")


def test_a_run_of_what_if_is_not_the_one_that_was_planned(provider: list[dict[str, Any]]) -> None:
    """It fulfils no plan of the evaluation, and a statement about it counts what was replaced."""
    assert 0 == evaljournal("attest", "--plan", "agent.py", "--claim", "is_large>=0", "-o", "plan.json").exit_code
    planned, other = _what_if()

    error = rejected("attest", other, "--planned", "plan.json", "-o", "statement.json")

    assert f"{other} is not the run that was planned: calls (what-if has replaced some) differ" in error
    assert 0 == evaljournal("attest", planned, "--planned", "plan.json", "-o", "planned.json").exit_code
    assert 0 == evaljournal("attest", other, "--claim", "is_large>=0", "-o", "statement.json").exit_code
    checks = [
        evaljournal("check", name, "--journal", run) for name, run in (("planned.json", planned), ("statement.json", other))
    ]
    assert [0, 0] == [check.exit_code for check in checks]
    assert [False, True] == ["1 run of what-if" in check.output for check in checks]


def test_a_run_of_what_if_is_no_run_of_the_evaluation(provider: list[dict[str, Any]]) -> None:
    """It is no baseline, no noise of one and nothing to resume; lists show what was replaced, and its cases are not flaky."""
    first, other = _what_if()
    third = Path("runs/agent/0003")
    assert evaljournal("run", "agent.py", "--plain").exit_code in {0, 1}

    gated = json.loads(evaljournal("gate", third, "--baseline", "newest", "--json").stdout)
    history = printed("history", "runs/agent")[0]

    assert str(first) == gated["baseline"]["path"]
    assert [] == history["flaky"]
    changes = [["live_from none → 1", "live_model none → small"], ["live_from 1 → none", "live_model small → none"]]
    assert changes == [point["changed"] for point in history["points"][1:]]
    compared = printed("compare", first, other)
    assert (changes[0], False) == (compared["definition_changes"], compared["model_drift"])
    os.utime(next(other.glob("journal-*")))
    assert third == newest_run("agent")
    assert {"live_from": 1, "live_model": "small"} == printed("status", other)["what_if"]
    shown = [evaljournal(*command, other).stdout for command in (("show", "--definition"), ("status",))]
    assert "live_model: small" in shown[0].splitlines()
    assert "  what-if: calls from step 1 on to small" in shown[1].splitlines()
    evaljournal("report", first, other, "-o", "report.html")
    facts = page_data(Path("report.html"))["comparison"]["facts"]
    assert {"name": "live_model", "a": None, "b": "small"} in facts


def test_a_shard_goes_live_alone(provider: list[dict[str, Any]]) -> None:
    """Only the trials of the shard run; the run is finished with them."""
    for number in (1, 2):
        evaljournal("run", "agent.py", "--plain", "--shard", f"{number}/2", "-o", f"shard{number}")
    shard, trials = next(
        (name, load(Path(name)).state.trials) for name in ("shard1", "shard2") if load(Path(name)).state.trials
    )
    provider.clear()

    result = evaljournal("what-if", shard, "--from-step", "3", "--model", "small")
    run = load(Path("runs/agent/0001"))

    assert f"from step 3: {len(trials)} of {len(trials)} trial" in result.stderr
    assert (list(trials), 2 * len(trials)) == (list(run.state.trials), len(provider))
    assert (0, "finished", len(trials)) == (result.exit_code, run.state.outcome, run.state.sessions.planned)


def test_trials_without_an_output_do_not_go_live(provider: list[dict[str, Any]]) -> None:
    """Of an unfinished run, those run that were finished, also after `resume`; more repeats go on from the first."""
    second_start = [record.seq for record in read(Path("recorded")) if isinstance(record.event, StepCompleted)][5]
    assert 0 == evaljournal("fork", "recorded", "--at", second_start, "-o", "fork").exit_code
    options = ("--trust", "--from-step", "3", "--model", "small", "--repeats", "2", "--budget", "input_tokens=1", "--json")

    stopped = json.loads(evaljournal("what-if", "fork", *options).stdout)["steps"][0]
    resumed = evaljournal("resume", stopped["path"], "--budget", "input_tokens=100k", "--plain")

    assert resumed.exit_code in {0, 1}, resumed.output
    assert ["large large small small"] * 2 == _outputs(Path(stopped["path"]))
    assert (["lima", "lima"], 4) == ([request["messages"][1]["content"] for request in provider][::2], len(provider))
    assert "finished" == load(Path(stopped["path"])).status


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--from-step", "9"], "--from-step 9 is beyond the last step of recorded; its longest trial has 4"),
        (["--from-step", "2", "--model", "anthropic:claude-haiku-5-5"], "cannot be sent to anthropic:claude-haiku-5-5"),
        (["--from-step", "2", "--system", "missing.txt"], "cannot read the system prompt"),
        (["--from-step", "2", "--rpm", "5"], "pass options that only compute in another command"),
        (["--from-step", "2", "--cache-hit", "0"], "pass options that only compute in another command"),
        (["--model", "small"], "--model has no effect without --from-step"),
    ],
)
def test_an_impossible_request(provider: list[dict[str, Any]], options: list[str], error: str) -> None:
    """It is a usage error, and nothing is called."""
    assert error in rejected("what-if", "recorded", *options)
    assert [] == provider


def test_a_run_without_steps() -> None:
    """The error names the options that record steps."""
    Path("plain.py").write_text("from evaljournal import evaluation\n@evaluation(cases=[1])\ndef plain(n): return n\n")
    evaljournal("run", "plain.py", "-o", "plain", "--plain")

    error = rejected("what-if", "plain", "--from-step", "1")

    assert "plain has recorded no replies" in error
    assert "durable=http" in error


_BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v1/chat/completions": (
        {"model": "a", "messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]},
        {"model": "b", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "y"}]},
    ),
    "/v1/responses": (
        {"model": "a", "input": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]},
        {"model": "b", "input": [{"role": "user", "content": "y"}], "instructions": "S"},
    ),
    "/v1/messages": ({"model": "a", "system": [{"text": "x"}]}, {"model": "b", "system": "S"}),
    "/v1beta/models/a:generateContent": (
        {"system_instruction": {"parts": []}, "contents": []},
        {"contents": [], "systemInstruction": {"parts": [{"text": "S"}]}},
    ),
}


@pytest.mark.parametrize("path", _BODIES)
def test_requests_are_rewritten_by_their_dialect(path: str) -> None:
    """Model and system prompt are replaced where each API has them; earlier steps and other requests stay as they are."""
    body, expected = _BODIES[path]
    url, content, rewrite = f"https://api.example{path}?alt=sse&at=1:2", json.dumps(body).encode(), Rewrite(3, "b", "S")

    new_url, new_content = rewrite(3, "POST", url, content)

    assert expected == json.loads(new_content)
    assert url.replace("/a:", "/b:") == new_url
    assert (url, content) == rewrite(2, "POST", url, content)
    assert (other := url.replace("?", "/x?"), content) == rewrite(3, "POST", other, content)


def test_a_request_that_cannot_be_rewritten_is_not_sent() -> None:
    """A body that is not JSON, or a model of another API, is an error before the call."""
    url = "https://api.example/v1/messages"

    for rewrite, body in ((Rewrite(1, "b"), b"[1]"), (Rewrite(1, "gemini:b"), b"{}")):
        with pytest.raises(CannotRewrite, match="step 2 cannot be rewritten"):
            rewrite(2, "POST", url, body)
