"""A careless user: keys on the command line, in the environment and in replies do not reach the journal."""

import base64
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from evaljournal import Case, Score, note, rescore
from evaljournal.journal.events import AttemptFailed, AttemptStarted, AttemptSucceeded, Noted, RunStarted, TrialScored
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.calls.http.address import Address
from evaljournal.runner.secrets import masking
from evaljournal.runner.secrets.masking import SecretValues, add_secret, mask, mask_output, mask_values
from evaljournal.runner.steps.inputs import step_input
from tests.runner_cli.commands import evaljournal
from tests.runs import define_real, events, outputs, run_real
from tests.security.replies import replying
from tests.server import Server

VALUE = "no/known+form=4711"
"""A secret that is recognized by its value only."""
MASKED = "evaljournal.masked"


@pytest.fixture(autouse=True)
def no_known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets of other tests."""
    for values in (masking._all_secrets, masking.sent_secrets):
        for name, value in vars(SecretValues()).items():
            monkeypatch.setattr(values, name, value)


def recorded_bytes(path: Path) -> bytes:
    """Return the bytes of all files of a run."""
    return b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())


def encoded_forms(value: str) -> dict[str, str]:
    """Return the forms in which a server or a library may repeat a value."""
    encoded = {
        f"base64, offset {offset}": base64.b64encode(b"user:abc"[: 5 + offset] + value.encode() + b"\n").decode()
        for offset in range(3)
    }
    return {
        "plain": value,
        "JSON": json.dumps(value)[1:-1],
        "slashes escaped": json.dumps(value)[1:-1].replace("/", "\\/"),
        "JSON in JSON": json.dumps(json.dumps(value).replace("/", "\\/")),
        "unicode escapes": "".join(f"\\u{ord(char):04x}" if not char.isalnum() else char for char in value),
        "percent": quote(value, safe=""),
        "repr": repr(value),
        **encoded,
        "base64 for URLs": base64.urlsafe_b64encode(value.encode()).decode(),
    }


@pytest.mark.parametrize("form", encoded_forms(VALUE))
@pytest.mark.parametrize("value", [VALUE, "abcdefghijkl", "\\/\"'\\/\"'\\/\"'", "pässwörter-überall"])
def test_a_value_is_masked_in_every_form(value: str, form: str) -> None:
    """A known value is recognized where it is escaped or encoded."""
    text = encoded_forms(value)[form]
    add_secret(value)

    assert "***" in mask_output(f"before {text} after")
    assert text not in mask(f"before {text} after")


@given(
    value=st.text(st.characters(min_codepoint=33, max_codepoint=382), min_size=12, max_size=40), before=st.binary(max_size=5)
)
def test_any_value_is_masked(value: str, before: bytes) -> None:
    """Whatever a value consists of, and wherever it is, it is masked in JSON and in base64."""
    values = SecretValues()
    values.add(value)
    encoded = base64.b64encode(before + value.encode() + before).decode()

    assert value not in values.mask(f"x{value}y")
    assert "***" in values.mask(json.dumps({"text": value}))
    assert "***" in values.mask(encoded)


def test_values_that_threads_add_at_the_same_time_are_all_masked() -> None:
    """The search that a slower thread makes does not replace one that has more values."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            for number in range(50):
                values, texts = SecretValues(), [f"{letter}/{number}+form=4711" for letter in "ab"]
                list(threads.map(values.add, texts))
                assert ["***", "***"] == [values.mask(text) for text in texts]
    finally:
        sys.setswitchinterval(interval)


def test_an_echoed_key_is_masked_and_that_is_recorded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that repeats what the run sent is recorded without it; scorers get the same text, also when re-scoring."""
    monkeypatch.setenv("OUR_SETTING", VALUE)
    scored_outputs: list[Any] = []
    reply = json.dumps({"output": f"your key is {VALUE}, really"}).replace("/", "\\/").encode()
    with replying(reply) as replies:
        evaluation = define_real(Endpoint(replies.url, headers={"X-Plain": "$OUR_SETTING"}, output_path="output"))

        @evaluation.score
        def scored(output: str) -> bool:
            scored_outputs.append(output)
            return True

        run_real(evaluation, path)
    rescore(evaluation, path, all_outputs=True)

    assert VALUE == replies.requests[0].headers["x-plain"]
    assert ["your key is ***, really"] == outputs(path)
    assert ["your key is ***, really"] * 2 == scored_outputs
    assert [{"output": True}] == [event.value for event in events(path, Noted) if event.name == MASKED]
    assert VALUE.encode() not in recorded_bytes(path)


@pytest.mark.parametrize(
    ("pieces", "output_path", "expected"),
    [
        (['{"t": "is no/kn"}', '{"t": "own+form=47"}', '{"t": "11."}'], "t", "is ***."),
        (['{"t": "is no/kn", "n": 1}', '{"t": "own+form=4711.", "n": 2}'], None, [{"t": "is ***", "n": 1}, {"t": ".", "n": 2}]),
    ],
    ids=["joined", "listed"],
)
def test_a_key_split_over_a_stream_is_masked(
    pieces: list[str], output_path: str | None, expected: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key whose parts are in several chunks of a stream is masked."""
    monkeypatch.setenv("MY_KEY", VALUE)
    with replying("".join(f"data: {piece}\n\n" for piece in pieces).encode(), "text/event-stream") as replies:
        run_real(define_real(Endpoint(replies.url, headers={"X-Api-Key": "$MY_KEY"}, output_path=output_path)), path)

    assert [expected] == outputs(path)


def test_an_output_without_a_key_is_not_copied() -> None:
    """An output in which nothing is masked is the same object."""
    add_secret(VALUE)
    output = [{"text": "no/known+form"}, {"text": "=4712"}]

    assert mask_output(output) is output


def test_variables_with_secret_names_are_masked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of a variable that is secret by its name is masked in errors, notes and requests, not in outputs."""
    monkeypatch.setenv("VENDOR_API_KEY", VALUE)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "an author of code")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(Path.cwd()))
    monkeypatch.setenv("PWD", str(Path.cwd()))

    def task(value: str) -> str:
        note(client=f"Client({VALUE})", by="an author of code", cwd=str(Path.cwd()))
        note(**{f"tokens of {VALUE}": 7, f"object of {VALUE}": {object()}, "api_key": "a password"})
        if value == "fail":
            raise ValueError(f"cannot use {VALUE}")
        return f"used {VALUE}"

    run_real(define_real(task, [Case(name=name, input=name) for name in ("fail", "ok")], slots=1), path)

    notes = [(event.name, event.value) for event in events(path, Noted) if event.name != "object of ***"]
    masked_notes = [("client", "Client(***)"), ("by", "an author of code"), ("cwd", str(Path.cwd()))]
    assert [*masked_notes, ("tokens of ***", 7), ("api_key", "***")] * 2 == notes
    (failed,) = events(path, AttemptFailed)
    assert "cannot use ***" == failed.message
    assert VALUE not in failed.traceback
    assert [f"used {VALUE}"] == outputs(path)
    assert mask_values({"q": [f"with {VALUE}"]}) == {"q": ["with ***"]}


def test_expanded_values_are_masked_in_errors(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that quotes an expanded value has a mask instead, also where the quotation ends within the value."""
    monkeypatch.setenv("OUR_SETTING", VALUE)
    with replying(json.dumps({"error": "x" * 495 + VALUE}).encode()) as replies:
        run_real(define_real(Endpoint(replies.url, headers={"X-Plain": "$OUR_SETTING"}, error_path="error")), path)

    (failed,) = events(path, AttemptFailed)
    assert "evaljournal.ErrorReply" == failed.error
    assert b"no/kn" not in recorded_bytes(path)


def test_the_host_is_not_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable with the base URL is shown, but not a long segment of its path."""
    monkeypatch.setenv("BASE", "http://127.0.0.1:4711/hooks/T0123456789abcdef")
    endpoint = Endpoint("$BASE/x")

    assert "http://127.0.0.1:4711/hooks/***/x" == endpoint.address


def test_fingerprints_do_not_depend_on_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another key, also a literal one, definitions and requests are the same; with another prompt they are not."""

    def fingerprints(key: str, prompt: str = "Password: required") -> list[str]:
        monkeypatch.setenv("MY_KEY", key)
        base = "http://127.0.0.1:1/"
        return [
            Endpoint(base, body={"api_key": key, "q": "{input}"}, headers={"X-Key": "$MY_KEY"}).fingerprint,
            Endpoint(f"{base}?code={key}", headers={"X-Key": key}).fingerprint,
            Endpoint(f"http://{key}@127.0.0.1:1/").fingerprint,
            Chat("m", base_url=base, extra_body={"api_key": key}, prompt=f"{prompt}, key sk-{key}").fingerprint,
            Command(f"cat --api-key {key}").fingerprint,
            Command(["cat", "--api-key", key]).fingerprint,
        ]

    first, second, other = (
        fingerprints("one-key-4711"),
        fingerprints("another-key-4712"),
        fingerprints("one-key-4711", "Password: optional"),
    )

    assert first == second
    assert first[3] != other[3]


def test_steps_do_not_depend_on_keys() -> None:
    """A step whose input contains a key has the same fingerprint on a machine with another key."""
    keys = ("no/form/of-one=4711", "no/form/of-another=4712", "sk-0123456789ab")
    for key in keys[:2]:
        add_secret(key)
    steps = [step_input({"url": f"http://127.0.0.1:1/{key}", "messages": [f"use {key}"]}, "ask") for key in keys]
    other = step_input({"url": "http://127.0.0.1:1/", "messages": ["use ***"]}, "ask")

    assert 1 == len({step.fingerprint for step in steps})
    assert other.fingerprint != steps[0].fingerprint
    assert not [key for key in keys if any(key in repr(step) for step in steps)]


def test_a_key_in_an_argument_is_not_recorded(path: Path) -> None:
    """A command's request and definition have a mask where the key of an option is; fields stay."""
    words = [
        "printf",
        "%s",
        "--api-key",
        "of-no-form",
        "--token=of-no-form",
        "-u",
        "eva:of-no-form",
        "-ueva:of-no-form",
        "{input}",
    ]
    run_real(define_real(Command(words)), path)

    masked = ["printf", "%s", "--api-key", "***", "--token=***", "-u", "eva:***", "-ueva:***"]
    (started,) = events(path, AttemptStarted)
    assert [*masked, "lima"] == started.request["command"]
    (run,) = events(path, RunStarted)
    assert [*masked, "{input}"] == run.definition["task"]["command"]
    assert ["".join(words[2:-1]) + "lima"] == [event.output for event in events(path, AttemptSucceeded)]


def test_variables_of_a_shell_are_masked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of a variable that a shell command names is masked in its output, also in base64."""
    monkeypatch.setenv("OUR_SETTING", VALUE)
    run_real(define_real(Command('echo "got $OUR_SETTING"; echo "${OUR_SETTING}" | base64', shell=True)), path)  # noqa: S604  # what is tested

    assert ["got ***\n***"] == [re.sub(r"\*\*\*\w*=*", "***", output) for output in outputs(path)]


def invoke(*arguments: str) -> Result:
    Path("qa.jsonl").write_text('{"id": "peru", "question": "Capital of Peru?", "answer": "Lima"}\n')
    return evaljournal("run", "--data", "qa.jsonl", "-o", "run", *arguments)


LITERAL_KEYS: Final = (
    "--api-key V",
    "--token=V --shell-like",
    "-H 'Authorization: Bearer V'",
    "-H 'Authorization: Digest username=\"V\"'",
    "-sSu eva:V",
    "-u eva:hunter2 'http://x/?a=1&b=$2'",
    "--user eva:hunter2",
    "--user=eva:hunter2",
    "-ueva:hunter2",
    "--proxy-user 'eva:hunter2'",
    "--password hunter2",
    "--oauth2-bearer hunter2 --pass hunter2",
    "-H 'X-Api-Key: hunter2' --data '$5 \"and\" `more`'",
    """-H 'Authorization: Bearer hunter2' -H "Cookie: hunter2" """,
    '-d \'{"password": "hunter2"}\' -sS MY_TOKEN=hunter2',
    "-u eva:hunter2 '{question}' {id}",
)
"""Arguments of a command that contain a key."""


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        (("--header", "X-Api-Key: V"), "'X-Api-Key: $NAME'"),
        (("--header", "Authorization: Bearer V"), "'Authorization: Bearer $NAME'"),
        (("--header", "Authorization: Bearer abcdefgh12$X"), "'Authorization: Bearer $NAME$X'"),
        (("--header", "X-Plain: sk-0123456789ab"), "'X-Plain: $NAME'"),
        (("--header", f"X-Plain: {VALUE}"), "'X-Plain: $VENDOR_API_KEY'"),
        (("--endpoint", "http://127.0.0.1:1/?code=0123456789ab"), "'http://127.0.0.1:1/?code=$NAME'"),
        (("--endpoint", "http://0123456789ab@127.0.0.1:1/"), "'http://$NAME@127.0.0.1:1/'"),
        (("--endpoint", "http://u:p@127.0.0.1:1/?v=$X"), "'http://$NAME@127.0.0.1:1/?v=$X'"),
        (("--chat", "m", "--base-url", "http://127.0.0.1:1/?key=V"), "'http://127.0.0.1:1/?key=$NAME'"),
        (("--command", f"x {VALUE}"), 'use "$VENDOR_API_KEY" with --shell or in a script'),
        *((("--command", f"x {words}"), 'use "$NAME" with --shell or in a script') for words in LITERAL_KEYS),
        *((("--command", f"x {words}", "--shell"), 'use "$NAME" with --shell or in a script') for words in LITERAL_KEYS),
    ],
)
def test_a_literal_key_is_rejected(arguments: tuple[str, ...], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in a header, a URL or a command is a usage error that shows how to pass it, without the key; nothing is written."""
    monkeypatch.setenv("VENDOR_API_KEY", VALUE)
    target = () if {"--endpoint", "--chat", "--command"} & {*arguments} else ("--endpoint", "http://127.0.0.1:1/")
    result = invoke(*target, *arguments)

    assert 2 == result.exit_code
    assert (
        f"{next(word for word in reversed(arguments) if word.startswith('--') and word != '--shell')} contains a key"
        in result.output
    )
    assert form in result.output
    assert [] == [key for key in (VALUE, "0123456789ab", "abcdefgh12", "hunter2") if key in result.output]
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--header", "Authorization: Bearer $MY_KEY"),
        ("--header", "Cookie: session=${MY_KEY}; theme=dark"),
        ("--header", "X-Plain: visible"),
        ("--endpoint", "http://$MY_KEY:$MY_KEY@127.0.0.1:1/?key=$MY_KEY&code=200"),
        ("--command", "curl -H 'Authorization: Bearer $MY_KEY' --token $MY_KEY", "--shell"),
        ("--command", "cat --api-key {question} --max-token 100"),
        (
            "--command",
            "cat --token $MY_KEY http://127.0.0.1:1/ -u $MY_KEY:$MY_KEY -u eva:${MY_KEY} -u 'eva:{question}'",
            "--shell",
        ),
        ("--command", "cat -u http://127.0.0.1:1/ -u 127.0.0.1:8080 -u 1000:1000 -H 'X-Key: $MY_KEY' MY_TOKEN=$MY_KEY"),
    ],
)
def test_variables_and_fields_are_accepted(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """`$NAME`, `{field}` and other values are not keys."""
    monkeypatch.setenv("MY_KEY", VALUE)
    target = () if {"--endpoint", "--command"} & {*arguments} else ("--endpoint", "http://127.0.0.1:1/")
    result = invoke(*target, *arguments, "--dry-run")

    assert 0 == result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "secret"),
    [
        (("--endpoint", "{url}", "--body", '{"api_key": "hunter2-hunter2", "q": "{question}"}'), "hunter2"),
        (("--chat", "m", "--base-url", "{url}", "-s", 'extra-body={"user": "sk-0123456789ab"}'), "0123456789ab"),
        (("--chat", "m", "--base-url", "{url}", "--prompt", "Use sk-0123456789ab: {question}"), "0123456789ab"),
    ],
    ids=["body", "extra_body", "prompt"],
)
def test_a_key_in_a_text_is_masked_with_a_warning(arguments: tuple[str, ...], secret: str, server: Server, name: str) -> None:
    """A key in a prompt, a body or a parameter is sent, but not recorded; such a run is resumed with the text in a file."""
    url = server.url(name, "401", "v1")
    result = invoke(*(word.replace("{url}", url) for word in arguments))
    resumed = evaljournal("resume", "run")

    assert 3 == result.exit_code, result.output
    key, value = arguments[-1].split("=", 1) if arguments[-2] == "-s" else (arguments[-2].removeprefix("--"), arguments[-1])
    assert "contains a key, which is recorded as ***masked***" in result.output
    assert secret in json.dumps(server.requests(name)[0]["body"])
    assert secret.encode() not in recorded_bytes(Path("run"))
    assert 2 == resumed.exit_code
    assert f"pass -s {key}=@FILE" in resumed.output
    Path("text").write_text(f"{value}\n" if key == "body" else value)
    retried = evaljournal("resume", "run", "--retry-failed", "-s", f"{key}=@text")
    assert 3 == retried.exit_code, retried.output
    assert secret in json.dumps(server.requests(name)[-1]["body"])
    assert 2 <= len(server.requests(name))


def test_a_prompt_about_passwords_is_recorded(server: Server, name: str) -> None:
    """Words after `password:` in a prompt are not a key: the prompt is recorded unchanged, without a warning."""
    prompt = "Password: {question} Secret: required. Token *** Authorization: Bearer"
    result = invoke("--chat", "m", "--base-url", server.url(name, "401", "v1"), "--prompt", prompt)

    assert "Warning" not in result.output
    (run,) = events(Path("run"), RunStarted)
    assert prompt in run.task


def test_reasons_of_scores_are_masked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason is masked as an error is: what the run sends, variables with secret names, and known key formats."""
    add_secret(VALUE)
    variable, key = "variable-0123456789", "sk-proj-0123456789abcdefghijklmn"
    monkeypatch.setenv("JUDGE_API_KEY", variable)

    def task(value: str) -> str:
        return value

    evaluation = define_real(task)
    reason = f"{VALUE}, {variable}, {key}"
    evaluation.score(name="quoting")(lambda output: Score(value=True, reason=f"{reason} in {output}"))
    evaluation.score(name="several")(lambda: {"a": Score(value=True, reason=reason)})
    run_real(evaluation, path)

    reasons = {event.scorer: event.reason for event in events(path, TrialScored)}
    assert {"quoting": "***, ***, *** in lima", "several.a": "***, ***, ***"} == reasons


def test_keys_of_objects_in_outputs_are_masked() -> None:
    """A value that the run sends is masked as the key of an object, too; two such keys stay apart."""
    value = "abcdefgh12345678ijkl"
    add_secret(value)
    masked = mask_output({value: 1, "a": [{value: {"b": None}}], f"x{value}": 2, "***": 3})

    assert {"***": 1, "a": [{"***": {"b": None}}], "x***": 2, "***-4": 3} == masked
    assert {"***-3": 0, "***": 1, "***-3-3": 2} == mask_output({"***-3": 0, value: 1, "***": 2})
    deep: Any = {value: 1}
    for _ in range(200):
        deep = [deep]
    assert value not in orjson.dumps(mask_output(deep)).decode()
    for _ in range(1_000):
        deep = [deep]
    assert mask_output(deep) is deep  # The journal rejects it.


def test_an_output_with_other_keys_than_texts_fails_its_trial(path: Path) -> None:
    """It cannot be recorded, with or without secrets to mask, and the error that quotes it has none."""
    add_secret(VALUE)
    run_real(define_real(lambda _: {1: VALUE}, name="it"), path)
    [failure] = events(path, AttemptFailed)

    assert "Unserializable" == failure.error
    assert VALUE.encode() not in recorded_bytes(path)


@pytest.mark.parametrize(
    "value", ["abcdefgh12&ijklmnop34567qrstuvwx", "abcdefgh12=ijklmnopqrst", "short&part&s123&abcdefghijkl"]
)
def test_a_variable_in_a_url_is_masked_as_a_whole(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A variable is masked even if it contains characters that separate parameters."""
    monkeypatch.setenv("V", value)
    address = Address.parse("http://127.0.0.1:9/x?foo=$V", {})

    assert "http://127.0.0.1:9/x?foo=***" == address.masked_url
    assert "got ***" == mask_output(f"got {value}")
