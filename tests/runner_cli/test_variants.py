"""Variants without code: repeated options, tables in the configuration file, and the commands that select variants."""

from pathlib import Path

import orjson
import pytest

from evaljournal import verify
from evaljournal.journal.events import AttemptStarted, RunStarted, TrialEnqueued, TrialScored
from evaljournal.replay import load
from tests.runner_cli.commands import evaljournal, printed, rejected
from tests.runs import events
from tests.server import Server

RUN = "runs/qa/0001"
ROWS = [{"id": "peru", "question": "lima", "answer": "LIMA"}, {"id": "cuba", "question": "havana", "answer": "no"}]


@pytest.fixture(autouse=True)
def _data() -> None:
    Path("qa.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))


@pytest.fixture(name="url")
def _url(server: Server, name: str) -> str:
    return server.url(name, "ok", "v1")


def bodies(server: Server, name: str) -> set[tuple[str, str]]:
    """Return model and prompt of each request."""
    sent = [orjson.loads(request["body"]) for request in server.requests(name)]
    return {(body["model"], body["messages"][0]["content"]) for body in sent}


def test_repeated_options_give_the_product(server: Server, name: str, url: str) -> None:
    """Two models and two prompts are four variants, named after the models and the files of the prompts; `verify` passes."""
    for word in ("brief", "polite"):
        Path(f"{word}.txt").write_text(f"{word}: {{question}}")
    options = ("--data", "qa.jsonl", "--chat", "a", "--chat", "org/b", "--prompt", "@brief.txt", "--prompt", "@polite.txt")
    result = evaljournal("run", *options, "--base-url", url, "--score", "exact", "-s", "policy=fixed")

    assert 0 == result.exit_code, result.stderr
    names = ["a-brief", "a-polite", "org-b-brief", "org-b-polite"]
    assert [f"peru@{name}" for name in names] == [event.trial for event in events(RUN, TrialEnqueued)[:4]]
    prompts = [f"{word}: {question}" for word in ("brief", "polite") for question in ("lima", "havana")]
    assert {(model, prompt) for model in ("a", "org/b") for prompt in prompts} == bodies(server, name)
    host = url.split("/")[2]
    assert {f"chat a {host}", f"chat org/b {host}"} == {event.key for event in events(RUN, AttemptStarted)}
    (started,) = events(RUN, RunStarted)
    assert {"chat": "a", "prompt": "brief: {question}"} == started.definition["variants"]["a-brief"]["parameters"]
    assert verify("runs/qa/0001").ok
    Path("polite.txt").write_text("please: {question}")
    changed = evaljournal("resume", "--adopt")
    assert 0 == changed.exit_code, changed.stderr
    assert 4 == sum(prompt.startswith("please") for _, prompt in bodies(server, name))
    assert 8 + 4 == len(events(RUN, TrialEnqueued))


def test_a_prompt_can_be_named(server: Server, name: str, url: str) -> None:
    """`--prompt NAME=TEXT` names a variant, also if the text is in a file; `resume` finds both again."""
    Path("polite.txt").write_text("please: {question}")
    options = ("--data", "qa.jsonl", "--chat", "a", "--prompt", "short={question}", "--prompt", "kind=@polite.txt")
    result = evaljournal("run", *options, "--base-url", url, "--score", "exact", "--limit", 1)

    assert 0 == result.exit_code, result.stderr
    assert ["peru@short", "peru@kind"] == [event.trial for event in events(RUN, TrialEnqueued)]
    assert {("a", "lima"), ("a", "please: lima")} == bodies(server, name)
    assert "is finished: 2 outputs" in evaljournal("resume").stderr
    (started,) = events(RUN, RunStarted)
    assert {"prompt": "{question}"} == started.definition["variants"]["short"]["parameters"]


@pytest.mark.parametrize("source", ["command line", "file"])
@pytest.mark.parametrize(
    ("prompts", "sent"),
    [
        (["Question={question}\nAnswer="], {"Question=lima\nAnswer="}),
        (["Question={question}", "Answer: {question}"], {"Question=lima", "Answer: lima"}),
        (["long=Q={question}", "short={question}"], {"Q=lima", "lima"}),
    ],
    ids=["single", "one-named", "named"],
)
def test_only_several_named_prompts_have_names(
    server: Server, name: str, source: str, prompts: list[str], sent: set[str]
) -> None:
    """A prompt is sent verbatim unless there are several and each starts with `NAME=`; `resume` sends the same texts."""
    options: list[object] = [word for prompt in prompts for word in ("--prompt", prompt)]
    if source == "file":
        Path("eval.toml").write_text(f"prompt = {orjson.dumps(prompts if len(prompts) > 1 else prompts[0]).decode()}\n")
        options = ["--config", "eval.toml"]
    options += ["--chat", "a", "--base-url", server.url(name, "401,ok", "v1")]
    result = evaljournal("run", *options, "--data", "qa.jsonl", "--limit", 1, "--slots", 1)
    resumed = evaljournal("resume")

    assert (3, 0) == (result.exit_code, resumed.exit_code), resumed.stderr
    assert {("a", prompt) for prompt in sent} == bodies(server, name)


def test_tables_of_variants(server: Server, name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[[variant]]` tables may have other addresses, keys and targets; what the file sets is shared."""
    monkeypatch.setenv("OTHER_KEY", "secret-of-no-shape")
    Path("eval.toml").write_text(
        f"""
        data = "qa.jsonl"
        chat = "a"
        base-url = "{url}"
        prompt = "{{question}}!"
        score = ["exact"]
        policy = "fixed"
        [[variant]]
        name = "plain"
        [[variant]]
        name = "keyed"
        key-env = "OTHER_KEY"
        temperature = 0.5
        [[variant]]
        name = "own"
        endpoint = "{server.url(name, "ok")}"
        body = {{ input = "{{question}}" }}
        output-path = "output"
        """
    )
    result = evaljournal("run", "--config", "eval.toml")

    assert 0 == result.exit_code, result.stderr
    run = load("runs/qa/0001")
    assert {"plain": 2, "keyed": 2, "own": 2} == {variant: totals.done for variant, totals in run.state.variants.items()}
    host = url.split("/")[2]
    assert {f"chat a {host}", f"chat a {host} (2)", f"endpoint {host}/{name}/ok/generate"} == {
        event.key for event in events(RUN, AttemptStarted)
    }
    assert b"secret-of-no-shape" not in b"".join(file.read_bytes() for file in Path("runs").rglob("*.jsonl"))
    assert {"key_env": "OTHER_KEY", "temperature": 0.5} == events(RUN, RunStarted)[0].definition["variants"]["keyed"][
        "parameters"
    ]
    assert verify("runs/qa/0001").ok


@pytest.mark.parametrize(
    ("tables", "flags", "message"),
    [
        ("[variant]\nname = 'a'", "", "eval.toml: write a table [[variant]] for each variant"),
        ("variant = []", "", "eval.toml: write a table [[variant]] for each variant"),
        ("[[variant]]\nchat = 'a'", "", "eval.toml: variant 1 has no name; add name = …"),
        ("[[variant]]\nname = 'a b'", "", "variant 'a b': a name consists of letters"),
        ("[[variant]]\nname = 3", "", "variant 3: a name consists of letters"),
        ("[[variant]]\nname = 'a'\n[[variant]]\nname = 'a'", "", "two variants have the name 'a'"),
        ("[[variant]]\nname = 'a'\n[[variant]]\nname = 'A'", "", "'a' differs only in capitalization"),
        ("[[variant]]\nname = 'a'\ntemprature = 1", "", "variant 'a': unknown key 'temprature'; did you mean 'temperature'?"),
        ("[[variant]]\nname = 'a'\nscore = 'exact'", "", "variant 'a': unknown key 'score'"),
        ("[[variant]]\nname = 'a'\ntemperature = 'hot'", "", "variant 'a': temperature = 'hot'"),
        ("[[variant]]\nname = 'a'\nchat = ['x', 'y']", "", "expected a single value; add a table [[variant]] for each"),
        (
            "[[variant]]\nname = 'a'\nbody = {}",
            "",
            "variant 'a': body (in the file) requires --endpoint, not chat",
        ),
        ("[[variant]]\nname = 'a'", "--chat x --chat y", "[[variant]] and several values of --chat are mutually exclusive"),
        ("prompt = { a = 'b' }", "", "expected a value, or a list of values"),
        ("", "--chat x --chat x", "two variants are equal"),
        ("", "--only-variant x", "--only-variant x: 'qa' has no variants"),
        ("", "--chat x --chat y --only-variant xx", "'qa' has no variant 'xx'"),
        ("", "--prompt a=x --prompt a=y", "2 prompts are named 'a'; give each a name of its own"),
        ("", "--endpoint http://h", "--endpoint and chat (in the file) are mutually exclusive"),
    ],
)
def test_mistakes(tables: str, flags: str, message: str) -> None:
    """A mistake in the variants is a usage error that names the variant; nothing is started."""
    shared = "data = 'qa.jsonl'\nchat = 'm'\nbase-url = 'http://127.0.0.1:9'\n"
    Path("eval.toml").write_text(shared + tables)

    assert message in rejected("run", "--config", "eval.toml", *flags.split())
    assert not Path("runs").exists()


PYTHON = """
from evaljournal import Case, evaluation, note

@evaluation(cases=[Case(name=name, input=1, expected=1) for name in "ab"], variants={"n": [1, 2, 3]}, policy="fixed")
def task(value, *, n):
    note(cost=n / 4)
    return value * n
"""


def test_only_some_variants_are_run_and_scored() -> None:
    """`--only-variant` selects variants of a run, of a session and of a re-scoring."""
    Path("task.py").write_text(PYTHON)
    assert 0 == evaljournal("run", "task.py", "--only-variant", "n-1", "--only-variant", "n-3").exit_code
    assert ["a@n-1", "a@n-3", "b@n-1", "b@n-3"] == [event.trial for event in events("runs/task/0001", TrialEnqueued)]
    assert 0 == evaljournal("resume", "runs/task/0001", "--adopt").exit_code
    scored = evaljournal("rescore", "runs/task/0001", "--score", "exact", "--only-variant", "n-3")
    unknown = rejected("rescore", "runs/task/0001", "--score", "exact", "--only-variant", "n-4")

    assert {"a@n-3", "b@n-3"} == {event.trial for event in events("runs/task/0001", TrialScored)}
    assert "2 outputs re-scored by exact\n" in scored.stderr
    assert "has no variant 'n-4'; did you mean" in unknown


def test_a_dry_run_shows_cells_and_cost() -> None:
    """A dry run prints cases × variants × repeats, and the cost of each variant from an earlier run."""
    Path("task.py").write_text(PYTHON)
    before = evaljournal("run", "task.py", "--dry-run", "--repeats", 2)
    evaljournal("run", "task.py", "--only-variant", "n-1", "--only-variant", "n-2")
    after = evaljournal("run", "task.py", "--dry-run", "--repeats", 2)
    answer = printed("run", "task.py", "--dry-run")

    assert "2 cases × 3 variants × 2 repeats = 12 trials" in before.stdout
    assert "n-1: expected cost $1.00" in after.stdout
    assert "n-2: expected cost $2.00" in after.stdout
    assert "n-3: usage unknown" in after.stdout
    assert (6, {"n-1": {"cost": 0.5}, "n-2": {"cost": 1.0}, "n-3": None}) == (answer["trials"], answer["variants"])
    assert None is answer["expected_usage"]


def test_usage_is_estimated_by_model(url: str) -> None:
    """A variant has the usage of its own model in the last run of that model; without such a run, it is unknown."""
    options = ("--data", "qa.jsonl", "--base-url", url, "-s", "policy=fixed", "--prompt", "{question}")
    evaljournal("run", *options, "--chat", "a")
    evaljournal("run", *options, "--chat", "gpt-4o")
    answer = printed("run", *options, "--chat", "a", "--chat", "b", "--dry-run")
    text = evaljournal("run", *options, "--chat", "b", "--dry-run").stdout

    assert {"a": {"input_tokens": 2000.0, "output_tokens": 200.0, "unpriced_calls": 2.0}, "b": None} == answer["variants"]
    assert ["runs/qa/0001"] == answer["usage_sources"]
    assert text.endswith("  cost: unknown; none of the last 20 runs in runs/qa recorded usage of b\n")


def test_the_cost_of_a_first_run_is_bounded(url: str) -> None:
    """Without an earlier run, a dry run bounds the cost of models with a price and a token limit."""
    Path("limits.toml").write_text('[models."a"]\ninput = 0\noutput = 1000\n[models."b"]\ninput = 0\noutput = 3000\n')
    options = ("--data", "qa.jsonl", "--base-url", url, "--prices", "limits.toml", "--chat", "a", "--chat", "b", "--dry-run")
    bounded = evaljournal("run", *options, "--max-tokens", 100)
    answer = printed("run", *options)

    assert "    a: cost at most $0.200 without retries" in bounded.stdout
    assert "    b: cost at most $0.600 without retries" in bounded.stdout
    assert "  cost: at most $0.800 without retries" in bounded.stdout
    assert answer["max_cost_without_retries"] is None
