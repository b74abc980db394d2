"""Evaluations without code: targets, scorers and gates as options, and configuration files."""

import shlex
from pathlib import Path

import orjson
import pytest

from evaljournal import Chat
from evaljournal.journal import read, verify
from evaljournal.journal.events import Noted, RunStarted, SessionStarted
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.cli.options.locate import load_reference
from evaljournal.runner.cli.options.no_code import scorers_from_options
from evaljournal.runner.retries.rules import retry_rules
from tests.runner_cli.commands import COMMANDED, evaljournal, printed, rejected, scores
from tests.runs import events
from tests.server import Server

pytestmark = pytest.mark.usefixtures("dataset")


def test_a_command_is_run() -> None:
    """A dataset, a command and a scorer are an evaluation, named after the data."""
    result = evaljournal(*COMMANDED)

    assert 0 == result.exit_code
    assert {"peru": True, "cuba": True, "chile": False} == scores("runs/qa/0001", "exact")
    assert "exact  66.7 %  2 of 3 passed" in result.stdout


def test_an_endpoint_is_called(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint receives the case and headers from the environment; no key is written to disk."""
    monkeypatch.setenv("MY_TOKEN", "word-of-no-shape")
    result = evaljournal(
        *("run", "--data", "qa.jsonl", "--endpoint", server.url(name, "ok"), "--output-path", "output", "-s", "policy=fixed"),
        *("--body", '{"input": "{question}", "topic": "{topic}"}', "--header", "Authorization: Bearer $MY_TOKEN"),
        *("--score", "exact", "--score", "iexact", "--score", "regex:^[A-Z]+$", "--name", "asked"),
    )

    assert 0 == result.exit_code
    assert {"peru": True, "cuba": True, "chile": True} == scores("runs/asked/0001", "regex")
    sent = server.requests(name)
    assert {"Bearer word-of-no-shape"} == {request["headers"]["authorization"] for request in sent}
    assert {'{"input":"lima","topic":"west"}'} <= {request["body"] for request in sent}
    assert b"word-of-no-shape" not in b"".join(file.read_bytes() for file in Path("runs").rglob("*.jsonl"))


def test_a_variable_in_an_address(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`$NAME` in an address is recorded unchanged, and read from the environment again on resume."""
    monkeypatch.setenv("MY_KEY", "word{of}no-shape")
    url = server.url(name, "echo,500,ok")
    evaljournal("run", "--data", "qa.jsonl", "--endpoint", f"{url}?api_key=$MY_KEY", "-s", "retry.errors=0", "--slots", 1)
    resumed = evaljournal("resume", "--retry-failed")

    assert 0 == resumed.exit_code, resumed.stderr
    assert {"api_key=word%7Bof%7Dno-shape"} == {request["target"].partition("?")[2] for request in server.requests(name)}
    assert f'"endpoint": "{url}?api_key=$MY_KEY"' in events("runs/qa/0001", RunStarted)[0].task
    assert b"no-shape" not in b"".join(file.read_bytes() for file in Path("runs").rglob("*.jsonl"))


def test_a_chat_model_with_a_judge(server: Server, name: str) -> None:
    """A prompt, a model and a judge are an evaluation; prompts can be in files."""
    Path("prompt.txt").write_text("Answer: {question}")
    result = evaljournal(
        *("run", "--data", "qa.jsonl", "--chat", "gpt-4o", "--base-url", server.url(name, "ok", "v1"), "-s", "policy=fixed"),
        *("--prompt", "@prompt.txt", "--temperature", 0.5, "--max-tokens", 9, "--limit", 1),
        *("--judge", "big", "--judge-url", server.url(f"{name}-judge", "reply:Fine. verdict: so so", "v1")),
        *("--rubric", "{output} of {expected}", "-s", "choice=good=1", "-s", "choice=so so=0.5", "-s", "choice=bad=0"),
    )

    assert 0 == result.exit_code
    (body,) = [orjson.loads(request["body"]) for request in server.requests(name)]
    assert ("Answer: lima", 0.5, 9) == (body["messages"][0]["content"], body["temperature"], body["max_tokens"])
    assert {"peru": 0.5} == scores("runs/qa/0001", "judge")
    (judged,) = [event.value for event in events("runs/qa/0001", Noted) if event.name == "evaljournal.judge"]
    assert "Fine. verdict: so so" == judged["reply"]
    assert "cost $0.00350" in result.stdout


def test_the_next_command_after_an_unknown_model(server: Server, name: str) -> None:
    """If some trials are done, the next command resumes with the recorded options, of which the user corrects one."""
    url = server.url(name, "ok,404,ok", "v1")
    result = evaljournal("run", *("--data", "qa.jsonl", "--chat", "m", "--base-url", url, "--slots", 1, "--limit", 2))
    edit, retry = [line for line in result.stdout.splitlines() if "the model name" in line or "  retry: " in line]
    resumed = evaljournal(*shlex.split(retry.removeprefix("  retry: evaljournal ")))

    assert (1, "    correct the model name or the URL") == (result.exit_code, edit)
    assert 0 == resumed.exit_code, resumed.stderr
    assert "2 of 2 trials done" in resumed.stdout


def test_the_next_command_after_an_unknown_judge(server: Server, name: str) -> None:
    """The command re-scores with the recorded options, of which the user corrects the judge."""
    judge = ("--judge", "missing", "--judge-url", server.url(name, "404,reply:verdict: correct", "v1"))
    result = evaljournal("run", "--data", "qa.jsonl", "--command", "cat", "--limit", 1, *judge)
    (line,) = [line for line in result.stdout.splitlines() if "correct the judge's model or URL" in line]
    rescored = evaljournal(*shlex.split(line.partition(": evaljournal ")[2].replace("missing", "right")))

    assert 0 == rescored.exit_code, rescored.stderr
    assert ["missing", "right"] == [orjson.loads(request["body"])["model"] for request in server.requests(name)]


def test_several_judges(server: Server, name: str) -> None:
    """Each judge is a scorer, with its own name or a number; `resume` and a configuration file have the same judges."""
    url = server.url(name, "reply:verdict: correct", "v1")
    target = ("--data", "qa.jsonl", "--command", "cat", "--limit", 1, "--judge-url", url)
    judges = ("--judge", "a", "--judge", "strict=b", "--judge", "x/y=z", "--judge", "q=v=w", "--fail-under", "judge-2=1")
    result = evaljournal("run", *target, *judges)
    reference = events("runs/qa/0001", RunStarted)[0].task
    Path("eval.toml").write_text(
        'judge = ["a", "strict=b", "x/y=z", "q=v=w"]\ndata = "qa.jsonl"\ncommand = "cat"\njudge-url = "http://h"'
    )
    resumed, configured = (
        {scorer: getattr(judge.function, "chat").model for scorer, judge in evaluation.scorers.items()}  # noqa: B009
        for evaluation, _ in (load_reference(reference), load_reference("eval.toml"))
    )

    assert 0 == result.exit_code, result.stderr
    models = {"judge": "a", "strict": "b", "judge-2": "x/y=z", "q": "v=w"}
    assert [models, models] == [resumed, configured]
    assert {*models.values()} == {orjson.loads(request["body"])["model"] for request in server.requests(name)}
    assert {"peru": True} == scores("runs/qa/0001", "judge") == scores("runs/qa/0001", "q")


def test_a_dry_run_counts_judges(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and usage include the judges that are configured, and no others; the first request is printed, masked."""
    monkeypatch.setenv("MY_TOKEN", "word-of-no-shape")
    judge = ("--judge", "j", "--judge-url", server.url(name, "reply:verdict: correct", "v1"))
    options = ("run", "--data", "qa.jsonl", "--chat", "m", "-s", "policy=fixed", "-s", "retry.timeouts=0", "--repeats", 2)
    target = (*options, "--base-url", server.url(name, "ok", "v1"), "--prompt", "word-of-no-shape {question}")
    headers = ("--header", "X-Key: $MY_TOKEN")
    evaljournal(*target, *headers, *judge)
    without_judge = printed(*target, *headers, "--dry-run")
    with_judges = printed(*target, *headers, *judge, "--judge", "k", "--dry-run")
    text = evaljournal(*target, *headers, *judge, "--dry-run").stdout

    usage = {"input_tokens": 6000.0, "output_tokens": 600.0, "unpriced_calls": 6.0}
    judge_usage = {f"judge.{unit}": amount for unit, amount in usage.items()}
    assert ({"min": 6, "max": 36}, usage, {}) == tuple(without_judge[key] for key in ("calls", "expected_usage", "judges"))
    assert ({"min": 18, "max": 108}, None) == (with_judges["calls"], with_judges["expected_usage"])
    assert {"judge": {"model": "j", "usage": judge_usage}, "judge-2": {"model": "k", "usage": None}} == with_judges["judges"]
    assert "  at least 12 (6 of the task, 6 of judge), at most 72 calls, plus retries" in text
    assert f"  first request (peru) to {server.url(name, 'ok', 'v1')}/chat/completions: " in text
    assert '{"model":"m","messages":[{"role":"user","content":"*** lima"}]}' in text


def test_the_usage_of_a_judge_with_a_long_prompt(server: Server, name: str) -> None:
    """The usage of a judge counts if its prompt is a blob, in the run, when it is read again and in a dry run."""
    Path("long.jsonl").write_bytes(orjson.dumps({"id": "a", "question": "x " * 200_000}))
    judge = ("--judge", "j", "--judge-url", server.url(name, "reply:verdict: correct", "v1"))
    options = ("run", "--data", "long.jsonl", "--command", "cat", *judge)
    usages = [printed(*options)["usage"], printed("status")["usage"]]
    usages.append(printed(*options, "--dry-run")["judges"]["judge"]["usage"])

    assert [1000] * 3 == [usage["judge.input_tokens"] for usage in usages]


def test_a_dry_run_counts_turns() -> None:
    """Each turn of a conversation is a call, for each variant and repeat."""
    Path("chats.jsonl").write_text('{"id": "a", "turns": ["x", "y", "z"]}\n{"id": "b", "turns": ["x"]}\n')
    options = ("--data", "chats.jsonl", "--turns", "turns", "--chat", "m", "--chat", "n", "--base-url", "http://h")
    answer = printed("run", *options, "--repeats", 2, "-s", "retry.errors=0", "-s", "retry.timeouts=0", "--dry-run")

    assert {"min": 16, "max": 16} == answer["calls"]


def test_recorded_outputs_are_scored() -> None:
    """With --output-key, the outputs are read from the dataset and nothing is called."""
    Path("done.csv").write_text("id,question,answer,generated\n1,q,LIMA,LIMA\n2,q2,0042,\n")
    result = evaljournal("run", "--data", "done.csv", "--output-key", "generated", "--score", "exact")

    assert 0 == result.exit_code
    assert {"1": True, "2": False} == scores("runs/done/0001", "exact")


def test_scorers_may_be_functions() -> None:
    """`file.py:function` is a scorer named after the function."""
    Path("mine.py").write_text("def shout(output, case):\n    return output.isupper()\n")
    result = evaljournal(*COMMANDED, "--score", "mine.py:shout")

    assert 0 == result.exit_code
    assert {"peru": True, "cuba": True, "chile": True} == scores("runs/qa/0001", "shout")


TARGETS = {
    "CHAT": "--data qa.jsonl --chat m --base-url http://h",
    "COMMAND": "--data qa.jsonl --command cat",
    "ENDPOINT": "--data qa.jsonl --endpoint http://h",
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "no evaluation: pass a file"),
        ("--data qa.jsonl", "no target: pass one of --endpoint URL"),
        ("--command cat", "--data is missing"),
        ("--data no.jsonl --command cat", "no.jsonl"),
        ("COMMAND --endpoint http://h/", "--endpoint and --command are mutually exclusive"),
        ("COMMAND --prompt x", "--prompt requires --chat or --acp, not --command"),
        ("--data qa.jsonl --output-key generated", "has no field {generated}"),
        ("CHAT --prompt {qestion}", "did you mean {question}?"),
        ("CHAT --prompt @no.txt", "--prompt @no.txt: cannot be read"),
        ("CHAT --prompt Hi", "the prompt has no field, so all cases would send"),
        ("CHAT --prompt Hi --dry-run", "fields: 'topic', 'id', 'question'"),
        ("CHAT --prompt 'Q: {{ question }}'", "write {question}; {{question}} is literal"),
        ("CHAT --prompt Hi --prompt {input}", "variant 'Hi': the prompt has no field"),
        ("CHAT -s messages=hi.json", "the list of messages has no field"),
        ('ENDPOINT --body \'{"q": ["{{topic}}"]}\'', "the body has no field"),
        ("--data qa.jsonl --command no-such-command", "command 'no-such-command' not found"),
        ("COMMAND --score exat", "assertions or file.py:function; did you mean 'exact'"),
        ("COMMAND --score nope", "unknown scorer 'nope'; use exact, iexact, contains, one_of"),
        ("COMMAND --score exact:1", "exact takes no argument"),
        ("COMMAND --score no.py:f", "no.py does not exist"),
        ("COMMAND --score 'regex:('", "is not a valid regular expression"),
        (f"COMMAND --score 'regex:{'(' * 5000}'", "is not a valid regular expression"),
        ("COMMAND --score tool_args:[1]", "an expected call is"),
        ("COMMAND --score max_steps", "such as max_steps:10"),
        ("--data qa.jsonl --output-key x\udcff", "has no field {x\\udcff}"),
        ("--data qa.jsonl --endpoint 'http://['", "'http://[' is not a valid http"),
        ("COMMAND --rubric x", "--rubric requires --judge"),
        ("COMMAND --judge j=a --judge j=b --judge-url http://h", "two judges have the name 'j'"),
        ("COMMAND --judge m --judge-url http://h -s choice=good", "expected WORD=VALUE"),
        ("COMMAND --judge '' --judge-url http://h", "the model is empty"),
        ("COMMAND --judge j= --judge-url http://h", "the model is empty"),
        ("COMMAND --score exact --fail-under exact=90", "--fail-under exact=90: exact is at most 1; did you mean 0.9?"),
        ("COMMAND --score exact --fail-under exat=1", "no scorer 'exat'; did you mean 'exact'?"),
        ("ENDPOINT --header X", "expected 'Name: value'"),
        ("ENDPOINT -s retry.errors=-1", "retry.errors = -1: must be a whole number"),
        ("ENDPOINT -s retry.max-delay=0.5", "retry.max-delay = 0.5: must not be less than base_delay"),
        ("--data qa.jsonl --endpoint http://h/{idd}", "has no field {idd}; fields: 'topic', 'id', 'question'"),
        ("--data qa.jsonl --endpoint http://{topic}/", "must not contain fields"),
        ("--data qa.jsonl --chat m --base-url http://h/{topic}", "must not contain fields; the model may"),
        ("CHAT -s extra-body=x", "extra-body is not JSON"),
        ("CHAT -s 'extra-body=\"[1]\"'", "extra-body must be a JSON object"),
        ("ENDPOINT --header 'X: $NO_SUCH'", "needs the environment variable NO_SUCH"),
        ("evals.py --data qa.jsonl", "evals.py and --data both define the evaluation"),
        ("--config no.toml", "no.toml: cannot be read"),
    ],
)
def test_invalid_options(arguments: str, message: str) -> None:
    """An invalid option or combination of options exits with 2 before anything is started."""
    Path("hi.json").write_text('[{"role": "user", "content": "Hi"}]')
    for target, options in TARGETS.items():
        arguments = arguments.replace(target, options)

    assert message in rejected("run", *shlex.split(arguments))
    assert not Path("runs").exists()


def test_a_configuration_file() -> None:
    """The keys of a configuration file are the options; flags take precedence; its settings are not recorded as overridden."""
    Path("eval.toml").write_text(
        'data = "qa.jsonl"\ncommand = "./answer.sh"\nscore = ["exact", "iexact"]\nslots = 3\ntimeout = 7.5\n'
        'policy = "fixed"\nlimit = 2\nfail_under = "exact=0.5"\n'
    )
    result = evaljournal("run", "--config", "eval.toml", "--slots", 2)
    started_event = events("runs/qa/0001", RunStarted)[0]

    assert 0 == result.exit_code
    assert (2, 7.5, 2, ["exact=0.5"]) == tuple(
        started_event.settings[option] for option in ("slots", "timeout", "limit", "fail_under")
    )
    assert ["slots"] == started_event.settings["overridden"]
    file = {"slots": 3, "timeout": 7.5, "policy": "fixed", "limit": 2, "fail-under": ["exact=0.5"]}
    assert file.items() <= orjson.loads(started_event.task)["file"].items()
    assert {"exact", "iexact"} == set(started_event.scorers)


def test_a_judge_has_the_endpoint_and_the_key_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is that of the task, unless the judge has its own URL: it is not sent to another server."""
    urls, keys = {"base_url": "http://a/v1", "judge_url": "http://b/v1"}, {"key_env": "KEY_A", "judge_key_env": "KEY_B"}

    for key in keys.values():
        monkeypatch.setenv(key, "a-key")

    def judge(*names: str) -> tuple[str, str | None]:
        options = {name: value for name, value in {**urls, **keys}.items() if name in names}
        ((_, scorer),) = scorers_from_options({"judge": ("big",), **options}, ["m"])
        return scorer.chat.url, scorer.chat.key_env

    default = Chat("big", key_env="KEY_A").url
    assert (default, "KEY_A") == judge("key_env")
    assert ("http://a/v1", "KEY_A") == judge("base_url", "key_env")
    assert ("http://b/v1", None) == judge("base_url", "key_env", "judge_url")
    assert (default, "KEY_B") == judge("key_env", "judge_key_env")


def test_a_missing_key_on_resume(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the missing variable is reported, not a missing evaluation."""
    monkeypatch.setenv("SOME_KEY", "abcdefgh1")
    url = server.url(name, "401", "v1")
    evaljournal("run", "--data", "qa.jsonl", "--chat", "m", "--base-url", url, "--key-env", "SOME_KEY")
    monkeypatch.delenv("SOME_KEY")

    error = "the header 'Authorization' needs the environment variable SOME_KEY; set it: export SOME_KEY=…"
    assert f"Error: {error}\n" == rejected("resume")


def test_retry_options(server: Server, name: str) -> None:
    """Every retry number is a key; `-s` takes precedence over the file and stays in force on resume."""
    Path("eval.toml").write_text(
        f'data = "qa.jsonl"\nendpoint = "{server.url(name, "500")}"\nslots = 1\npolicy = "fixed"\nlimit = 1\n'
        "[retry]\nerrors = 3\ntimeouts = 0\nrate-limits = 5\nbase-delay = 0.01\nmax-delay = 0.02\n"
    )
    result = evaljournal("run", "--config", "eval.toml", "-s", "retry.errors=1")
    calls = len(server.requests(name))
    evaljournal("resume", "--retry-failed", "-s", "retry.timeouts=7")
    Path("eval.toml").write_text(Path("eval.toml").read_text().replace("limits = 5", "limits = 6"))
    evaljournal("resume", "--retry-failed", "--task", "eval.toml")
    started_event, sessions = events("runs/qa/0001", RunStarted)[0], events("runs/qa/0001", SessionStarted)
    numbers = {"errors": 1, "timeouts": 0, "rate_limits": 5.0, "base_delay": 0.01, "max_delay": 0.02}

    assert (1, 2) == (result.exit_code, calls)
    assert numbers == {option: started_event.settings["retry"][option] for option in numbers}
    assert ["retry.errors"] == started_event.settings["overridden"]
    later = [session.settings["retry"] for session in sessions[1:]]
    assert [(1, 7, 5.0), (1, 7, 6.0)] == [(session["errors"], session["timeouts"], session["rate_limits"]) for session in later]
    assert 6 == len(server.requests(name))
    assert () == tuple(audit(read("runs/qa/0001"), rules=retry_rules).findings)


def test_further_request_parameters(server: Server, name: str) -> None:
    """`extra-body` sends further parameters, from a flag or a table."""
    line = ("run", "--data", "qa.jsonl", "--chat", "m", "--base-url", server.url(name, "ok", "v1"), "--limit", 1)
    evaljournal(*line, "-s", 'extra-body={"top_p": 0.5, "stop": ["."]}')
    Path("eval.toml").write_text("[extra-body]\ntop_p = 0.25\n")
    evaljournal(*line, "--config", "eval.toml")
    sent = [orjson.loads(request["body"]) for request in server.requests(name)]

    assert [(0.5, ["."]), (0.25, None)] == [(body["top_p"], body.get("stop")) for body in sent]


def test_tables_in_a_configuration_file(server: Server, name: str) -> None:
    """Headers, choices and a body can be tables."""
    Path("eval.toml").write_text(
        f'data = "qa.jsonl"\nendpoint = "{server.url(name, "ok")}"\noutput_path = "output"\njudge = "m"\nlimit = 1\n'
        f'judge-url = "{server.url(name + "-judge", "reply:verdict: yes", "v1")}"\n'
        '[header]\nX-One = "1"\n[body]\ninput = "{question}"\nn = 5\n[choice]\nyes = 1\nno = 0\n'
    )
    result = evaljournal("run", "--config", "eval.toml")

    assert 0 == result.exit_code
    (request,) = server.requests(name)
    assert ("1", '{"input":"lima","n":5}') == (request["headers"]["x-one"], request["body"])
    assert {"peru": 1.0} == scores("runs/qa/0001", "judge")


FILE = "data = 'qa.jsonl'\ncommand = 'cat'\n"
ENDPOINT_FILE = "data = 'qa.jsonl'\nendpoint = 'http://h'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datta = 1", "unknown key 'datta'; did you mean 'data'?"),
        ("max-failure = 1", "did you mean 'max-failures'?"),
        ("config = 'x'", "unknown key 'config'"),
        ("data = ", "not valid TOML"),
        (f"data = {'[' * 5_000}{']' * 5_000}", "Error: eval.toml: nested too deeply\n"),
        (f"{ENDPOINT_FILE}body = '{'[' * 900}{']' * 900}'", "Error: the body is nested too deeply\n"),
        (f"{FILE}slots = 'many'", "Error: eval.toml, line 3: slots = 'many': 'many' is not a valid integer\n"),
        (f"{FILE}slots = true", "Error: eval.toml, line 3: slots = True: expected a single value\n"),
        ("data = 'qa.jsonl'\ncommand = ['cat']", "Error: eval.toml, line 2: command = ['cat']: expected a single value\n"),
        (f"{FILE}shell = ['x']", "Error: eval.toml, line 3: shell = ['x']: expected true or false\n"),
        (f"{ENDPOINT_FILE}shell = true", "shell (in the file) requires --command, not endpoint (in the file)"),
        (f"{FILE}slots = 0", "eval.toml: slots = 0: must be a whole number"),
        (f"{FILE}shell = 'perhaps'", "shell"),
        (f"{ENDPOINT_FILE}body = {{ n = 99999999999999999999999 }}", "Integer exceeds 64-bit range"),
        ('data = "qa.jsonl\\u0000"\ncommand = "cat"', "contains a null character"),
        ("data = 'qa.jsonl'\nchat = 'm'\nbase-url = 'none'", "is not a valid http:// or https:// URL"),
        (f"{FILE}fail-fast = 1", "Error: eval.toml, line 3: fail-fast = 1: expected true or false\n"),
        (f"{FILE}shuffle = 0.5", "Error: eval.toml, line 3: shuffle = 0.5: expected true or false\n"),
    ],
)
def test_invalid_configuration_files(text: str, message: str) -> None:
    """An unknown key or an invalid value exits with 2 and a message that names it."""
    Path("eval.toml").write_text(text)

    assert message in rejected("run", "--config", "eval.toml")
    assert not Path("runs").exists()


def test_recorded_options_are_resumed() -> None:
    """The options are recorded, so `resume` needs only the run."""
    Path("prompt me.sh").write_text('#!/bin/sh\n[ -e ready ] || exit 127\necho "$1" | tr a-z A-Z\n')
    Path("prompt me.sh").chmod(0o700)
    line = "'./prompt me.sh' {question}"
    options = ("--score", "iexact", "--max-failures", 0, "-s", "policy=fixed", "--slots", 1)
    result = evaljournal("run", "--data", "qa.jsonl", "--command", line, *options)
    Path("ready").touch()
    resumed = evaljournal("resume", "--retry-failed", "--max-failures", "none")

    assert 3 == result.exit_code
    assert 0 == resumed.exit_code, resumed.stderr
    assert {"peru": True, "cuba": True, "chile": False} == scores("runs/qa/0001", "iexact")
    assert verify("runs/qa/0001").ok


@pytest.mark.parametrize(
    ("verb", "moved", "key"),
    [
        ("resume", "mine.py", "score=away/mine.py:shout"),
        ("resume", "qa.jsonl", "data=away/qa.jsonl"),
        ("rescore", "mine.py", "score=away/mine.py:shout"),
    ],
)
@pytest.mark.parametrize("is_file", [False, True], ids=["options", "file"])
def test_a_missing_file_is_named(verb: str, moved: str, key: str, *, is_file: bool) -> None:
    """A missing file is named, with the option that passes its new location; the configuration file itself is not needed."""
    Path("mine.py").write_text("def shout(output, case):\n    return output.isupper()\n")
    Path("some.sh").write_text("#!/bin/sh\n[ -e ready ] || exit 127\necho LIMA\n")
    Path("some.sh").chmod(0o700)
    Path("eval.toml").write_text("data = 'qa.jsonl'\ncommand = './some.sh'\nscore = 'mine.py:shout'\n")
    options = ["--data", "qa.jsonl", "--command", "./some.sh", "--score", "mine.py:shout"]
    target = ["--config", "eval.toml"] if is_file else options
    evaljournal("run", *target, "--max-failures", 0, "-s", "policy=fixed", "-o", "run")
    Path("eval.toml").unlink()
    first = evaljournal(verb, "run", *(["--retry-failed"] if verb == "resume" else ["--all"]))
    Path("away").mkdir()
    Path(moved).rename(f"away/{moved}")
    missing = evaljournal(verb, "run", *(["--retry-failed"] if verb == "resume" else ["--all"]))
    Path("ready").touch()
    relocated = evaljournal(verb, "run", "-s", key)

    assert "does not exist" not in first.stderr
    assert 2 == missing.exit_code
    assert moved in missing.stderr.splitlines()[0]
    assert "run was started in another directory, or a file was moved. Run this from that directory, or pass" in missing.stderr
    assert f"`evaljournal {verb} run -s KEY=FILE`" in missing.stderr
    assert 2 != relocated.exit_code, relocated.stderr


def test_a_changed_configuration_file() -> None:
    """A run continues with the configuration that it has recorded, and says so; `--task` reads the file again."""
    Path("eval.toml").write_text('data = "qa.jsonl"\ncommand = "sh -c \\"exit 127\\""\nscore = "exact"\nmax-failures = 0\n')
    evaljournal("run", "--config", "eval.toml")
    unchanged = evaljournal("resume", "--retry-failed")
    Path("eval.toml").write_text('data = "qa.jsonl"\ncommand = "./answer.sh"\nscore = "exact"\n')
    recorded = evaljournal("resume", "--retry-failed")
    changed = rejected("resume", "--retry-failed", "--task", "eval.toml")
    adopted = evaljournal("resume", "--retry-failed", "--task", "eval.toml", "--adopt")

    command = "`evaljournal resume runs/qa/0001 --task eval.toml`"
    note = f"eval.toml has changed; the run uses what it has recorded. To use the file: {command}"
    assert (False, True) == (note in unchanged.stderr, note in recorded.stderr)
    assert ("-  command: sh -c" in changed, "+  command: ./answer.sh" in changed) == (True, True)
    assert 0 == adopted.exit_code
    assert (0, "") == ((last := evaljournal("resume", "--retry-failed")).exit_code, last.stderr.partition("eval.toml")[1])


@pytest.mark.parametrize(
    ("gate", "code", "message"),
    [
        ("exact=0.6", 0, ""),
        ("exact=66%", 0, ""),
        ("exact>=0.9", 1, "gate did not pass: exact>=0.9: the mean of exact is 0.6667"),
        ("exact>=0.6@lower", 1, "the lower end of exact is 0.20"),
        ("exact>=0.2@lower", 0, ""),
        ("one>=0.9@lower", 1, "the lower end of one is 0.4385"),
        ("one>=0.9", 0, ""),
        ("five>=4@lower", 1, "five is 5 for every case, which gives no confidence interval; omit @lower, or score from 0 to 1"),
    ],
)
def test_a_gate_decides_the_exit_code(gate: str, code: int, message: str) -> None:
    """A gate that is not reached exits with 1 and is printed last; '@lower' uses the end of the interval.

    Equal scores from 0 to 1 have the interval of a proportion; others have none, and do not pass a gate with '@lower'.
    """
    Path("mine.py").write_text("def one(output):\n    return 1.0\n\ndef five(output):\n    return 5.0\n")
    result = evaljournal(*COMMANDED, "--score", "mine.py:one", "--score", "mine.py:five", "--fail-under", gate)

    assert code == result.exit_code
    assert message in result.stdout.splitlines()[-1]


def test_images_in_a_worker(server: Server, name: str) -> None:
    """`image` names a column with paths relative to the dataset; a worker sends the file."""
    Path("data").mkdir()
    Path("data/a.gif").write_bytes(b"GIF89a")
    Path("data/qa.jsonl").write_text('{"question": "What is this?", "photo": "a.gif"}\n')
    url = server.url(name, "reply:a cat", "v1")
    result = evaljournal(
        "run", "--data", "data/qa.jsonl", "--chat", "m", "--base-url", url, "-s", "image=photo", "--workers", "processes:1"
    )
    (request,) = server.requests(name)

    assert 0 == result.exit_code, result.stderr
    assert "data:image/gif;base64,R0lGODlh" in request["body"]
