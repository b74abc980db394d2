"""Declared rate limits as a setting: how they are written, which apply to a model, and which are rejected."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from click.testing import CliRunner, Result

from evaljournal import Evaluation, UsageError, scorers
from evaljournal.journal.events import AttemptStarted
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.calls.recorded_output import RecordedOutput
from evaljournal.runner.cli import cli
from evaljournal.runner.data.dataset import parse_shard
from evaljournal.runner.definition.limits import declared_limits, describe_limits, parse_limits
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.runs.changes import effective_settings
from evaljournal.runner.sessions.plan import select_trials
from evaljournal.runner.testing import Return, Scripted
from tests.journal.disk import SimulatedDisk
from tests.runs import audited, count, define, numbered_cases, run_virtual

URL = "http://localhost:9/v1"


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (None, None),
        ({}, None),
        ({"rpm": 500}, {"rpm": 500.0}),
        ({"rpm": "500", "tpm": "200k", "otpm": "1.5m", "itpm": "1.5M", "rpd": "10K"}, None),
        ({"m": {"rpm": 100}, "rpm": 500}, {"rpm": 500.0, "m": {"rpm": 100.0}}),
        ({"rpm": ["500", "m=100", "llama=3=7"]}, {"rpm": 500.0, "llama=3": {"rpm": 7.0}, "m": {"rpm": 100.0}}),
        ({"rpm": None, "tpm": "none"}, None),
        ({"headers": "ignore"}, {"headers": "ignore"}),
        ({"headers": "read", "rpm": 5}, {"rpm": 5.0}),
        ({"headers": {"rpm": 5}}, {"headers": {"rpm": 5.0}}),
        ({"rpm": ["500", "m=none"], "m": {"tpm": None}}, {"rpm": 500.0, "m": {"rpm": "none"}}),
    ],
)
def test_forms(value: Any, limits: Any) -> None:
    """A limit is a number, with k or M, for every model or for one; parsed limits are parsed to themselves."""
    parsed = parse_limits(value)
    if value and len(value) == 5:
        limits = {"rpm": 500.0, "tpm": 200_000.0, "itpm": 1.5e6, "otpm": 1.5e6, "rpd": 10_000.0}

    assert limits == parsed == parse_limits(parsed)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rpm": 0}, "limits.rpm=0: must be a number above 0; k stands for thousands, M for millions"),
        ({"tpm": "abc"}, "limits.tpm='abc': must be a number above 0; k stands for thousands, M for millions"),
        ({"tpm": math.nan}, "limits.tpm=nan: must be a number above 0; k stands for thousands, M for millions"),
        ({"tpm": "nan"}, "limits.tpm='nan': must be a number above 0; k stands for thousands, M for millions"),
        ({"rpm": True}, "limits.rpm=True: must be a number above 0; k stands for thousands, M for millions"),
        ({"rpm": ["m=-1"]}, "limits.rpm='m=-1': must be a number above 0; k stands for thousands, M for millions"),
        ({"rpm": 0.5}, "limits.rpm=0.5: must be at least 1"),
        ({"rpm": "9999999M"}, "limits.rpm='9999999M': must be at most 1,000,000,000,000"),
        ({"rpm": ["1", "2"]}, "limits.rpm='2': is set twice"),
        ({"rpm": "=4"}, "limits.rpm='=4': expected a number, or MODEL=NUMBER"),
        ({"rpn": 4}, "limits: unknown limit 'rpn'; did you mean 'rpm' or 'rpd'?"),
        ({"m": 4}, "limits: unknown limit 'm'; use rpm, tpm, itpm, otpm, rpd, of one model {'MODEL': {'rpm': 500}}"),
        ({"rpm": 10**400}, f"limits.rpm={10**400}: must be at most 1,000,000,000,000"),
        ({"m": {}}, "limits: 'm' has no value; write {'MODEL': {'rpm': 500}}, or omit it"),
        ({"rpm": []}, "limits: 'rpm' has no value; write {'rpm': 500}, or omit it"),
        ({"headers": "no"}, "limits.headers='no': must be 'read' or 'ignore'"),
        ({"header": "ignore"}, "limits: unknown limit 'header'; did you mean 'headers'?"),
        (500, "limits=500: must map names of limits to numbers, such as {'rpm': 500}"),
    ],
)
def test_invalid_values(value: Any, message: str) -> None:
    """A value that is no limit is a usage error that names it."""
    with pytest.raises(UsageError) as caught:
        Settings(limits=value)

    assert message == str(caught.value)


def test_limits_of_a_model() -> None:
    """The values of a model replace the general ones; the prefix of a dialect does not matter; shards share the limit."""
    limits = parse_limits({"rpm": 500, "tpm": "80k", "anthropic:opus": {"rpm": 100}})

    assert {"rpm": 500.0, "tpm": 80_000.0} == declared_limits(limits)
    assert {"rpm": 100.0, "tpm": 80_000.0} == declared_limits(limits, "opus") == declared_limits(limits, "anthropic:opus")
    assert {"rpm": 125.0, "tpm": 20_000.0} == declared_limits(limits, "llama3:8b", shards=4)
    assert {} == declared_limits(None, "opus")


def test_a_model_can_be_exempt() -> None:
    """`none` for one model means that the limit of all models does not apply to it; `none` for all removes both."""
    limits = parse_limits({"rpm": ["500", "opus=none"], "tpm": 9_000})

    assert {"tpm": 9_000.0} == declared_limits(limits, "anthropic:opus")
    assert {"rpm": 500.0, "tpm": 9_000.0} == declared_limits(limits, "haiku")
    assert {"rpm": 500.0, "tpm": 9_000.0, "opus": {"rpm": 7.0}} == parse_limits({"rpm": "opus=7"}, limits)
    assert {"tpm": 9_000.0} == parse_limits({"rpm": "none"}, limits)
    assert "500 requests per minute, 9k tokens per minute; opus: any number of requests per minute" == describe_limits(limits)


def test_description() -> None:
    """Limits are described with their units and windows."""
    limits = parse_limits({"rpm": 500, "rpd": 10_000, "opus": {"itpm": 1_250_000, "otpm": 8_000}})

    assert (
        "500 requests per minute, 10k requests per day; opus: 1.25M input tokens per minute, 8k output tokens per minute"
        == describe_limits(limits)
    )


def test_later_values_replace_earlier_ones() -> None:
    """An option replaces one limit of the evaluation or of an earlier session, or removes it; the others stay."""
    own_settings = Settings(limits={"rpm": 500, "tpm": 1_000})
    settings, names = effective_settings(own_settings, {"limits": {"tpm": ["2k", "m=3k"]}}, {})
    recorded_settings = {**settings.to_json(), "overridden": names}
    later_settings, _ = effective_settings(own_settings, {"limits": {"rpm": ["none"]}}, recorded_settings)

    assert {"rpm": 500.0, "tpm": 2_000.0, "m": {"tpm": 3_000.0}} == settings.limits
    assert {"tpm": 2_000.0, "m": {"tpm": 3_000.0}} == later_settings.limits
    assert effective_settings(own_settings, {}, recorded_settings)[0] == settings


def test_ignored_headers_stay_ignored() -> None:
    """A later session ignores headers, too, until it says otherwise; the declared limits stay."""
    limits = parse_limits({"headers": "ignore", "rpm": 5})

    assert {"headers": "ignore", "rpm": 7.0} == parse_limits({"rpm": 7}, limits)
    assert {"rpm": 5.0} == parse_limits({"headers": "read"}, limits) == declared_limits(limits)
    assert "5 requests per minute" == describe_limits(limits)


def test_only_declared_limits_are_recorded() -> None:
    """A run without declared limits records no setting for them."""
    assert "limits" not in Settings().to_json()
    assert {"rpm": 5.0} == Settings(limits={"rpm": 5}).to_json()["limits"]


async def answer(value: str) -> str:
    """Return the input."""
    return value


def check(task: Any, limits: Any, *, judge: str = "", shard: str | None = None, **settings: Any) -> None:
    """Select the trials of an evaluation with these limits."""
    evaluation: Evaluation[Any, Any, Any] = define(task, numbered_cases(1), loop=None)
    if judge:
        evaluation.score(name="judge")(scorers.judge(judge, base_url=URL))
    select_trials(evaluation, Settings(limits=limits, **settings), parse_shard(shard), yes=True)


@pytest.mark.parametrize(
    ("task", "limits", "message"),
    [
        (answer, {"tpm": "200k"}, "limits.tpm='200000': the tokens of a function are unknown; add -s durable=http"),
        (Command("true"), {"itpm": 5}, "limits.itpm='5': the tokens of a command are unknown; add --gateway"),
        (Endpoint("http://localhost:9/"), {"otpm": 5}, "limits.otpm='5': an endpoint reports no tokens"),
        (answer, {"m": {"rpm": 5}}, "limits.rpm='m=5': no task or judge calls the model 'm'; models: none"),
        (
            Chat("gpt-5.6-luna", base_url=URL),
            {"gpt-5.6-lunar": {"tpm": 5}},
            "limits.tpm='gpt-5.6-lunar=5': no task or judge calls the model 'gpt-5.6-lunar'; did you mean 'gpt-5.6-luna'?",
        ),
        (
            Chat("{input}", base_url=URL),
            {"any": {"tpm": 5}},
            "limits='MODEL=…': cases name the models; add -s limit-key=…",
        ),
    ],
)
def test_limits_that_cannot_apply(task: Any, limits: Any, message: str) -> None:
    """A token limit needs a task whose tokens are seen, and the limit of a model a task or a judge with this model."""
    with pytest.raises(UsageError) as caught:
        check(task, limits)

    assert str(caught.value).startswith(message)


def test_shards_of_a_small_limit() -> None:
    """A limit that leaves less than one request to a shard is a usage error."""
    with pytest.raises(UsageError) as caught:
        check(answer, {"rpm": 4}, shard="1/8")

    assert "limits.rpm='4': is less than 1 for each of 8 shards" == str(caught.value)


def test_limits_that_apply() -> None:
    """Requests of every task can be limited, tokens where they are seen, and models that cannot be known are accepted."""
    check(answer, {"rpm": 5, "rpd": 9}, policy="fixed")
    check(answer, {"tpm": 5, "any": {"rpm": 5}}, durable="http")
    check(answer, {"any": {"tpm": 5}}, limit_key="input")
    check(RecordedOutput("input"), {"tpm": 5})
    check(answer, {"m": {"tpm": 5}}, judge="anthropic:m")
    check(Chat("anthropic:m", base_url=URL), {"tpm": 5, "m": {"rpm": 5}}, shard="1/2")
    check(Chat("{input}", base_url=URL), {"any": {"tpm": 5}}, limit_key="input")


def wall_at(seconds: float) -> float:
    """Return the time of a wall clock that is wrong by some seconds."""
    return 1_800_000_000.0 + seconds + trio.current_time()


@pytest.mark.parametrize("error", [-48, 48])
def test_a_wrong_clock_of_one_session(error: int) -> None:
    """If the clock of one session is wrong by days, the session after it makes no more calls than the limit per day allows."""
    defined, disk = define(Scripted(lambda *_: Return("yes", 1.0)), numbered_cases(20), slots=1), SimulatedDisk()
    stop_reasons = []
    for number, (hours, deadline) in enumerate([(0, 2.5), (error, 2.5), (1, None)]):
        options: dict[str, Any] = {"resume": number > 0, "deadline": deadline, "limits": {"rpd": 6}}
        main = partial(run_virtual, defined, disk, wall=partial(wall_at, 3600 * hours), **options)
        stop_reasons.append(trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)).stop_reason)

    assert ["deadline", "deadline", "quota"] == stop_reasons
    assert (6, []) == (count(disk, AttemptStarted), list(audited(disk).findings))


def dry_run(directory: Path, *options: str, config: str = "") -> Result:
    """Run `evaljournal run --dry-run` with a chat model."""
    (directory / "qa.jsonl").write_text('{"input": "a"}\n', encoding="utf-8")
    text = f'data = "{directory}/qa.jsonl"\nchat = "m"\nbase-url = "{URL}"\n{config}\n'
    (directory / "eval.toml").write_text(text, encoding="utf-8")
    arguments = ["run", "--dry-run", "--config", str(directory / "eval.toml"), *options]
    return CliRunner().invoke(cli, arguments, env={"OPENAI_API_KEY": "k"})


def test_dry_run(tmp_path: Path) -> None:
    """`--dry-run` shows declared limits: those of a file, and of options, which take precedence."""
    config = '[limits]\nrpd = 500\ntpm = "200k"\nrpm = 9\n[limits.m]\nrpm = 50\nitpm = 7'
    result = dry_run(tmp_path, "--rpm", "m=60", "-s", "limits.otpm=1k", "-s", "policy=fixed", "--shard", "1/2", config=config)

    assert 0 == result.exit_code
    assert (
        "  rate limits: at most 9 requests per minute, 200k tokens per minute, 1k output tokens per minute, "
        "500 requests per day; m: 60 requests per minute, 7 input tokens per minute, divided by 2 shards\n"
    ) in result.stdout


@pytest.mark.parametrize(("options", "config"), [([], '[limits]\nheaders = "ignore"'), (["-s", "limits.headers=ignore"], "")])
def test_headers_can_be_ignored(tmp_path: Path, options: list[str], config: str) -> None:
    """A file or an option can say that a proxy sends wrong headers."""
    result = dry_run(tmp_path, *options, config=config)

    assert (0, True) == (result.exit_code, "  rate limits in the headers of replies are ignored\n" in result.stdout), (
        result.output
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--rpm", "60"], "at most 100 slots, 1,000 if a known limit can use them (adaptive)"),
        (["--slots", "60"], "at most 60 slots (adaptive)"),
        (["-s", "policy=fixed"], "at most 100 slots (fixed)"),
    ],
)
def test_dry_run_with_slots_of_a_known_limit(tmp_path: Path, options: list[str], text: str) -> None:
    """`--dry-run` shows how many slots may follow from a known limit, unless they are fixed."""
    assert f"  {text}, timeout 10 min\n" in dry_run(tmp_path, *options).stdout


@pytest.mark.parametrize(
    ("options", "config", "message"),
    [
        (["--rpm", "0"], "", "--rpm 0: must be a number above 0; k stands for thousands, M for millions"),
        (["--tpm", "abc"], "", "--tpm abc: must be a number above 0; k stands for thousands, M for millions"),
        (["--rpm", "x=5"], "", "--rpm x=5: no task or judge calls the model 'x'; models: m"),
        ([], "rpm = 5", "eval.toml, line 4: unknown key 'rpm'; did you mean [limits] rpm = 500?"),
        ([], "[limits]\nrpm = true", "eval.toml: limits.rpm = True: must be a number above 0"),
        ([], "[limits]\nrpms = 5", "eval.toml, line 5: unknown key 'limits.rpms'; did you mean 'limits.rpm'"),
        ([], "[limits]\nheaders = 5", "eval.toml, line 5: limits.headers = 5: '5' is not one of 'read', 'ignore'"),
        ([], "limits = 5", "eval.toml, line 4: write limits as a table [limits]"),
    ],
)
def test_invalid_options(tmp_path: Path, options: list[str], config: str, message: str) -> None:
    """Invalid limits are usage errors, which name the option, or the file and its key."""
    result = dry_run(tmp_path, *options, config=config)

    assert (2, True) == (result.exit_code, message in result.stderr), result.stderr
