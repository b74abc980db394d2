"""Answers that are truncated or declined, and the models that gave them: what a run records and counts."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from evaljournal import Case, Chat, Endpoint, Retry, UsageError, rescore, scorers, verify
from evaljournal.journal import read
from evaljournal.journal.events import (
    AttemptFailed,
    Noted,
    ScoringFailed,
    StepCompleted,
    StepReused,
    TrialCompleted,
    TrialScored,
)
from evaljournal.replay import load
from evaljournal.replay.render.ending import final_report, next_action
from evaljournal.replay.results.summary import summarize, unscored_counts
from evaljournal.replay.state.answers import ADVICE, ANSWER, Answers
from evaljournal.replay.state.trial import outcome_of
from evaljournal.runner.runs.fork import fork
from evaljournal.runner.testing import inline
from tests.runner.test_provider_errors import CASES as PROVIDER_ERRORS
from tests.runner_cli.commands import evaljournal, printed
from tests.runs import AnyEvaluation, define_real, events, outputs, run_real
from tests.security.replies import replying
from tests.server import Server

DECLINED = ("azure_content_filter", "openrouter_moderation", "openrouter_guardrail")


def completion(
    text: str = "Lima", finish_reason: str = "stop", model: str = "small-2026-05-01", **fields: Any
) -> dict[str, Any]:
    """Return a chat completion."""
    return {"model": model, "choices": [{"message": {"content": text}, "finish_reason": finish_reason}], **fields}


def raw(*replies: dict[str, Any]) -> str:
    """Return the script of a server that sends these replies, one after the other."""
    return quote(",".join(f"raw:{quote(json.dumps(reply))}" for reply in replies))


def answers(path: Path) -> list[Any]:
    """Return the noted answers of a run."""
    return [event.value for event in events(path, Noted) if event.name == ANSWER]


def test_an_answer_is_one_note(path: Path) -> None:
    """One note has the served model, the fingerprint, the service tier, the finish reason and the usage of an answer."""
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "cost": 0.5}
    reply = completion(system_fingerprint="fp_1", service_tier="flex", usage=usage)
    with replying(json.dumps(reply).encode()) as replies:
        outcome = run_real(define_real(Chat("small", base_url=replies.url)), path)

    (note,) = events(path, Noted)
    assert ANSWER == note.name
    assert {
        "finish_reason": "stop",
        "model": "small-2026-05-01",
        "fingerprint": "fp_1",
        "service_tier": "flex",
        "usage": {"input_tokens": 9, "output_tokens": 1, "cost": 0.5},
    } == note.value
    assert ({"small-2026-05-01": 1}, 0.5) == (dict(outcome.state.totals.models), outcome.state.usage["cost"])


@pytest.mark.parametrize(
    "message", [{"content": "Li", "finish_reason": "content_filter"}, {"refusal": "I cannot."}], ids=["filter", "refusal"]
)
def test_a_declined_answer_is_an_output(path: Path, message: dict[str, str]) -> None:
    """An answer that a content filter ended, and a refusal, are outputs that count as declined."""
    choice = {"message": message, "finish_reason": message.get("finish_reason", "stop")}
    with replying(json.dumps({"choices": [choice]}).encode()) as replies:
        outcome = run_real(define_real(Chat("small", base_url=replies.url)), path)

    assert (1, 1, 0) == (outcome.state.completed, outcome.state.totals.declined, outcome.state.totals.truncated)
    assert outcome.state.totals.answers == load(path).state.totals.answers


@pytest.mark.parametrize("name", DECLINED)
def test_a_declined_request_is_an_output(path: Path, name: str) -> None:
    """An error that says that the provider declined a request is an empty output of a chat model; an endpoint has an error."""
    error = PROVIDER_ERRORS[name]
    with replying(json.dumps(error["body"]).encode(), status=error["status"]) as replies:
        outcome = run_real(define_real(Chat("small", base_url=replies.url)), path)
        endpoint = run_real(define_real(Endpoint(replies.url)), path.with_name("endpoint"))

    (answer,) = answers(path)
    assert ([""], 1, 0) == (outputs(path), outcome.state.totals.declined, outcome.state.failed)
    assert ("declined", str(error["status"])) == (answer["outcome"], answer["explanation"][:3])
    assert (0, 1) == (endpoint.state.totals.declined, endpoint.state.failed)
    assert ["fatal"] == [event.category for event in events(path.with_name("endpoint"), AttemptFailed)]


@pytest.mark.parametrize(("reason", "outcome"), [("length", "truncated"), ("content_filter", "declined")])
def test_an_incomplete_answer_need_not_be_json(path: Path, reason: str, outcome: str) -> None:
    """With a schema, the text of a truncated or declined answer is the output if it is not JSON."""
    with replying(json.dumps(completion('{"answer": "Li', reason)).encode()) as replies:
        state = run_real(define_real(Chat("small", base_url=replies.url, schema={"type": "object"})), path).state

    assert (['{"answer": "Li'], {outcome: 1}) == (outputs(path), dict(state.totals.answers))


def test_a_judge_that_declines_gives_no_verdict(path: Path) -> None:
    """Scoring fails without a retry if the judge declines to answer; the error has its words."""
    with replying(json.dumps({"choices": [{"message": {"refusal": "I must not judge."}}]}).encode()) as replies:
        defined = define_real(str)
        defined.score(scorers.judge("judge", base_url=replies.url))
        run_real(defined, path)

    (failure,) = events(path, ScoringFailed)
    assert "the judge declined to answer: I must not judge." == failure.message
    assert 1 == len(replies.requests)


def test_a_judge_without_a_text(path: Path) -> None:
    """A reply of a judge without a text is retried once, like that of a task; it is not a verdict."""
    with replying(json.dumps({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}).encode()) as replies:
        defined = define_real(str)
        defined.score(name="judge", retry=Retry(base_delay=0.001))(scorers.judge("judge", base_url=replies.url))
        run_real(defined, path)

    assert ["evaljournal.EmptyReply"] == [event.error for event in events(path, ScoringFailed)]
    assert 2 == len(replies.requests)


def test_a_reply_that_is_not_an_answer_is_paid_for(path: Path) -> None:
    """The usage of a rejected reply counts for the run and its budget, for a task and for a judge."""
    reply = {"model": "small", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1, "cost": 0.5}}
    with replying(json.dumps(reply).encode()) as replies:
        chat = Chat("small", base_url=replies.url)
        state = run_real(define_real(chat, retry=Retry(errors=1)), path).state
        judged = define_real(str, [Case(name="a", input="a", expected="a")])
        judged.score(name="judge", retry=Retry(errors=0))(scorers.judge("big", base_url=replies.url))
        judge_state = run_real(judged, path.with_name("judged")).state

    assert (2, 1.0) == (state.totals.attempts, state.usage["cost"])
    assert 0.5 == judge_state.usage["judge.cost"]


@pytest.mark.parametrize("reasons", [("length", "content_filter"), ("content_filter", "stop")])
def test_a_conversation_is_declined_if_a_turn_is(server: Server, path: Path, name: str, reasons: tuple[str, str]) -> None:
    """Any turn can decline; it counts also if a fork of the run reuses the recorded replies."""
    script = raw(completion(finish_reason=reasons[0]), completion("", reasons[1], "small-2"))
    case = {"id": "a", "input": "", "turns": ["Hello", "Go on"]}
    chat = Chat("small", base_url=server.url(name, script, "v1/"), turns="turns")
    first = run_real(define_real(chat, [case]), path).state
    last_step = [record.seq for record in read(path) if isinstance(record.event, StepCompleted)][-1]
    trio.run(partial(fork, path, path.with_name("fork"), last_step, in_thread=inline))
    forked = run_real(define_real(chat, [case]), path.with_name("fork"), resume=True).state

    for state in (first, forked):
        assert ({"declined": 1}, {"small-2": 1}) == (dict(state.totals.answers), dict(state.totals.models))
    assert [{"outcome": "declined", "finish_reason": reasons[1], "model": "small-2"}] == answers(path)
    assert (2, 2) == (len(server.requests(name)), len(events(path.with_name("fork"), StepReused)))


def test_only_current_outputs_count(path: Path) -> None:
    """A withdrawn output is neither counted as truncated nor for the model that gave it."""
    with replying(json.dumps(completion("Li", "length")).encode()) as replies:
        chat = Chat("small", base_url=replies.url)
        run_real(define_real(chat, [Case(name="a", input="a"), Case(name="b", input="b")]), path)
        outcome = run_real(define_real(chat, "a"), path, resume=True, adopt=True)

    assert (1, {"small-2026-05-01": 1}) == (outcome.state.totals.truncated, dict(outcome.state.totals.models))


OUTCOMES = {"content_filter": "declined", "length": "truncated", "stop": ""}
"""Finish reason → outcome, or empty."""


def script(*finish_reasons: str) -> str:
    """Return the script of a server with one answer for each finish reason."""
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "cost": 0.5}
    return raw(*(completion(reason, reason, usage=usage) for reason in finish_reasons))


def define_outcomes(server: Server, name: str, **settings: Any) -> AnyEvaluation:
    """Return an evaluation with an answer that is declined, one that is truncated and one that is complete."""
    cases = [Case(name=reason, input=reason, expected="stop") for reason in OUTCOMES]
    chat = Chat("small", base_url=server.url(name, script(*OUTCOMES), "v1/"))
    defined = define_real(chat, cases, slots=1, **settings)
    defined.score(scorers.exact)
    return defined


def test_counts_are_beside_the_mean(server: Server, path: Path, name: str) -> None:
    """All answers are scored, and counted beside the mean if declined or truncated; excluded ones are named as such."""
    state = run_real(define_outcomes(server, name), path).state
    assert ({"declined": 1, "truncated": 1}, {}) == (dict(state.totals.answers), dict(state.totals.excluded))
    assert (3, 3) == (state.completed, state.scores["exact"].scored)
    excluding = run_real(define_outcomes(server, f"{name}-2", on_declined="exclude"), path.with_name("excluding")).state

    scored, excluded = (final_report(each, path=path) for each in (state, excluding))
    assert "passed (95 % CI 6.1–79.2 %) · 1 declined · 1 truncated\n" in scored
    assert "passed (95 % CI 9.5–90.5 %) · 1 truncated; excluded: 1 declined\n" in excluded
    assert "served by small-2026-05-01 (3)" in final_report(state, path=path, verbose=True)
    no_scores = run_real(define_outcomes(server, f"{name}-3", on_truncated="exclude"), path.with_name("truncated")).state
    assert "1 of 3 outputs truncated by the token limit, so not scored; raise --max-tokens" in final_report(
        no_scores, path=path
    )
    trials = summarize(excluding).trials
    assert (1, 1, {"declined": 1}) == (trials.declined, trials.truncated, trials.excluded)


def test_counts_of_variants(server: Server, path: Path, name: str) -> None:
    """Each variant has its own counts of declined and truncated answers, and of the models that served it."""
    urls = {reason: server.url(f"{name}-{reason}", script(reason), "v1/") for reason in OUTCOMES}
    chat = Chat("small", base_url=urls["stop"])
    run_real(define_real(chat, variants={reason: {"base_url": url} for reason, url in urls.items()}), path)
    summary = printed("status", path)

    assert (1, 1) == (summary["trials"]["declined"], summary["trials"]["truncated"])
    counts = {name: variant["trials"] for name, variant in summary["variants"].items()}
    assert {reason: int(outcome == "declined") for reason, outcome in OUTCOMES.items()} == {
        name: trials["declined"] for name, trials in counts.items()
    }
    assert {"small-2026-05-01": 1} == summary["variants"]["stop"]["models"]
    assert "1 declined" in evaljournal("status", path).stdout


def test_show(server: Server, path: Path, name: str) -> None:
    """`show` selects declined and truncated answers, and says of a trial how its answer ended and which model gave it."""
    run_real(define_outcomes(server, name, on_declined="exclude"), path)
    declined, truncated = (printed("show", path, option)["trials"] for option in ("--declined", "--truncated"))
    text = evaljournal("show", path, "content_filter").stdout

    assert [("content_filter", True, True)] == [(row["trial"], row["declined"], row["excluded"]) for row in declined]
    assert [("length", True, False)] == [(row["trial"], row["truncated"], row["excluded"]) for row in truncated]
    assert "answer    declined (excluded), served by small-2026-05-01" in text


def run_served(server: Server, path: Path, name: str, *served: Sequence[str]) -> list[str]:
    """Run an evaluation several times, each time served by these models; return the paths."""
    cases = [Case(name=f"case-{number}", input=str(number), expected="Lima") for number in range(len(served[0]))]
    url = server.url(name, raw(*(completion(model=model) for models in served for model in models)), "v1/")
    paths = [path.with_name(f"{number}") for number in range(len(served))]
    for run_path in paths:
        defined = define_real(Chat("small", base_url=url), cases, slots=1)
        defined.score(scorers.exact)
        run_real(defined, run_path)
    return [str(run_path) for run_path in paths]


def test_models_that_cases_name_are_not_mixed(server: Server, path: Path, name: str) -> None:
    """If each case names its model, several served models are neither a warning nor a reason for a gate not to decide."""
    cases = [Case(name=model, input="a", expected="Lima", metadata={"model": model}) for model in ("small-1", "small-2")]
    paths = [str(path), str(path.with_name("baseline"))]
    for run_path in paths:
        url = server.url(f"{name}-{Path(run_path).name}", raw(*(completion(model=str(case.name)) for case in cases)), "v1/")
        defined = define_real(Chat("{model}", base_url=url), cases, slots=1)
        defined.score(scorers.exact)
        run_real(defined, Path(run_path))
    state = load(path).state
    gate = printed("gate", paths[0], "--baseline", paths[1])

    assert ({"small-1": 1, "small-2": 1}, []) == (dict(state.totals.models), summarize(state).warnings)
    assert gate["mixed_models"] is False


def test_several_served_models_are_too_little_evidence(server: Server, path: Path, name: str) -> None:
    """`gate` does not decide if several models served one variant, unless it may; one dated model is not several."""
    served = [["small-1"] * 20, ["small-1"] * 20, ["small-1"] * 19 + ["small-2"]]
    uniform, other, mixed = run_served(server, path, name, *served)

    rejected = evaljournal("gate", mixed, "--baseline", uniform)
    allowed = evaljournal("gate", mixed, "--baseline", uniform, "--allow-mixed-models", "--json")
    warning = "the run was served by several models: small-1 (19), small-2 (1)"
    assert [warning] == summarize(load(mixed).state).warnings
    text = evaljournal("gate", mixed, "--baseline", uniform, "--allow-mixed-models").stdout
    assert "several models" not in text
    passed = evaljournal("gate", other, "--baseline", uniform)
    assert (5, 0, 0) == (rejected.exit_code, allowed.exit_code, passed.exit_code), rejected.output
    assert "too little evidence several models served one variant" in rejected.output
    assert "run was served by small-1 (19) and small-2 (1)" in rejected.output
    assert {"small-1": 19, "small-2": 1} == json.loads(allowed.stdout)["answers"]["run"]["models"][""]
    assert "served by" not in passed.output


def test_compare_notes_the_served_models(server: Server, path: Path, name: str) -> None:
    """`compare` names several models of one side, and different models of two sides that requested the same."""
    served = [["small-1", "small-1"], ["small-1", "small-2"], ["", ""]]
    first, mixed, unknown = run_served(server, path, name, *served)
    texts = {other: evaljournal("compare", first, other).stdout for other in (mixed, unknown)}
    table = evaljournal("compare", first, mixed, unknown).stdout

    assert "B was served by small-1 (1) and small-2 (1)" in texts[mixed]
    assert "A and B requested the same model, but different models answered" in texts[mixed]
    assert "served by" not in texts[unknown]
    assert f"{mixed[-30:]}: served by small-1 (1) and small-2 (1)" in table


def test_compare_counts_incomplete_answers(server: Server, path: Path, name: str) -> None:
    """`compare` has the numbers of declined and truncated answers of each side, and names the changed setting.

    Excluded trials are not broken, and not among the completed ones: a gate checks these.
    """
    run_real(define_outcomes(server, name), path.with_name("a"))
    run_real(define_outcomes(server, f"{name}-2", on_declined="exclude"), path.with_name("b"))
    a, b = str(path.with_name("a")), str(path.with_name("b"))
    result = evaljournal("compare", a, b)
    comparison = printed("compare", a, b)

    assert "answers  A: 1 declined · 1 truncated; B: 1 truncated, excluded: 1 declined" in result.stdout
    assert ([], {"declined": 1}) == (comparison["broken"], comparison["answers_b"]["excluded"])
    assert "on_declined score → exclude" in comparison["definition_changes"]
    assert (1.0, 2 / 3) == (comparison["completion"]["mean_a"], comparison["completion"]["mean_b"])


@pytest.mark.parametrize("outcome", ["declined", "truncated"])
def test_such_answers_can_be_errors(server: Server, path: Path, name: str, outcome: str) -> None:
    """With `error`, the trial ends with an error that has the answer, after one attempt whose usage counts."""
    options: dict[str, Any] = {f"on_{outcome}": "error"}
    state = run_real(define_outcomes(server, name, **options, retry=Retry(errors=3)), path).state

    (failed,) = events(path, AttemptFailed)
    messages = {
        "declined": ("Declined", "the model declined to answer: content_filter"),
        "truncated": ("Truncated", "the answer was truncated by the token limit: length"),
    }
    assert (*messages[outcome], "fatal") == (failed.error, failed.message, failed.category)
    assert (2, 1, 0, 1.5) == (state.completed, state.failed, state.totals.answers[outcome], state.usage["cost"])
    assert {"cost": 0.5} == {unit: state.usage_parts.without_output[unit] for unit in ("cost",)}
    assert verify(path).ok


@pytest.mark.parametrize(
    ("dialect", "reason", "cause"),
    [
        ("chat", "length", "the token limit"),
        ("chat", "model_length", "the context window"),
        ("anthropic", "max_tokens", "the token limit"),
        ("anthropic", "model_context_window_exceeded", "the context window"),
        ("anthropic", "pause_turn", "a pause of the provider's tools"),
        ("gemini", "TOO_MANY_TOOL_CALLS", "a pause of the provider's tools"),
    ],
)
def test_what_truncates_an_answer(path: Path, dialect: str, reason: str, cause: str) -> None:
    """A full context window and a pause of the provider have advice of their own, also where they are errors."""
    replies = {
        "chat": completion("Li", reason),
        "anthropic": {"content": [{"type": "text", "text": "Li"}], "stop_reason": reason},
        "gemini": {"candidates": [{"content": {"parts": [{"text": "Li"}]}, "finishReason": reason}]},
    }
    with replying(json.dumps(replies[dialect]).encode()) as server:
        chat = Chat("small", dialect=dialect, base_url=server.url)
        state = run_real(define_real(chat), path).state
        failing_state = run_real(define_real(chat, on_truncated="error"), path.with_name("errors")).state

    (failed,) = events(path.with_name("errors"), AttemptFailed)
    assert f"1 of 1 output truncated by {cause}; {ADVICE[cause]}" in final_report(load(path).state, path=path)
    assert {cause: 1} == state.totals.truncation_causes
    assert f"the answer was truncated by {cause}: Li" == failed.message
    assert next_action(failing_state, path).startswith(ADVICE[cause])


@pytest.mark.parametrize(
    ("outcome", "workers"),
    [
        *(("declined", None), ("truncated", None), ("truncated", "processes:2")),
        pytest.param("declined", "processes:2", marks=pytest.mark.exhaustive),
    ],
)
def test_such_answers_can_be_excluded(server: Server, path: Path, name: str, outcome: str, workers: str | None) -> None:
    """With `exclude`, the trial is completed with its output and without scores, and no scorer is called for it."""
    options: dict[str, Any] = {f"on_{outcome}": "exclude", "workers": workers}
    state = run_real(define_outcomes(server, name, **options), path).state
    excluded = next(name for name, trial in state.trials.items() if trial.is_excluded)

    assert (3, {outcome: 1}, 2) == (state.completed, dict(state.totals.excluded), state.scores["exact"].scored)
    assert outcome == OUTCOMES[excluded]
    assert excluded not in [event.trial for event in events(path, TrialScored)]
    assert {} == unscored_counts(state)
    assert "skipped" == outcome_of(state.trials[excluded])
    assert verify(path).ok


def test_excluded_outputs_stay_excluded(server: Server, path: Path, name: str) -> None:
    """Re-scoring skips excluded outputs; a resumed run cannot be given another setting, and does not score them."""
    defined = define_outcomes(server, name, on_declined="exclude")
    run_real(defined, path)
    completed = [record.seq for record in read(path) if isinstance(record.event, TrialCompleted)]
    trio.run(partial(fork, path, path.with_name("fork"), completed[0] - 1, in_thread=inline))
    defined.score(scorers.contains)
    rescored = rescore(defined, path, all_outputs=True)
    with pytest.raises(UsageError, match="different definition") as rejected:
        run_real(define_outcomes(server, name), path.with_name("fork"), resume=True)
    with pytest.raises(UsageError, match="different definition"):
        run_real(
            define_outcomes(server, name, on_declined="exclude", on_truncated="error"), path.with_name("fork"), resume=True
        )
    resumed = run_real(define_outcomes(server, name, on_declined="exclude"), path.with_name("fork"), resume=True).state

    assert (2, 0, 0) == (rescored.outputs, rescored.already_scored, rescored.unscored)
    assert {"exact": 2, "contains": 2} == {name: tally.scored for name, tally in rescored.outcome.state.scores.items()}
    assert (3, {"declined": 1}, 2) == (resumed.completed, dict(resumed.totals.excluded), resumed.scores["exact"].scored)
    assert "setting on_declined: 'exclude' is now 'score'" in str(rejected.value)


def test_merged_shards_keep_what_is_excluded(path: Path) -> None:
    """Shards with the same settings are merged, and the merged run excludes what they did; other settings are rejected."""
    with replying(json.dumps(completion("Li", "length")).encode()) as replies:
        chat = Chat("small", base_url=replies.url)
        for number, action in ((1, "exclude"), (2, "exclude"), (3, "score")):
            defined = define_real(chat, [Case(name=name, input=name) for name in "abcdef"], on_truncated=action)
            defined.score(scorers.exact)
            run_real(defined, path.with_name(f"{number}"), shard=f"{min(number, 2)}/2")
    first, second, other, merged = (str(path.with_name(name)) for name in ("1", "2", "3", "merged"))
    result = evaljournal("merge", first, second, "-o", merged)
    rejected = evaljournal("merge", first, other, "-o", path.with_name("rejected"))

    state = load(merged).state
    assert (0, 2) == (result.exit_code, rejected.exit_code), result.output
    assert ({"truncated": 6}, {}, {"small-2026-05-01": 6}) == (
        dict(state.totals.excluded),
        dict(state.scores),
        dict(state.totals.models),
    )
    assert "setting on_truncated: 'exclude' is now 'score'" in rejected.output
    assert verify(merged).ok


def test_scorers_get_the_outcome(server: Server, path: Path, name: str) -> None:
    """A scorer may have the parameters `declined` and `truncated`."""
    defined = define_outcomes(server, name)

    @defined.score
    def flags(*, declined: bool, truncated: bool) -> str:
        return "declined" * declined + "truncated" * truncated

    run_real(defined, path)

    assert OUTCOMES == {event.trial: event.value for event in events(path, TrialScored) if event.scorer == "flags"}


def test_names_of_models_are_bounded() -> None:
    """The first 20 names of a server's models are kept, shortened; all others are counted together."""
    noted = Answers()
    models = [answer.model for number in range(30) if (answer := noted.read(ANSWER, {"model": f"m{number}" * 400})) is not None]

    assert (30, 21, 200) == (len(models), len(set(models)), max(map(len, models)))
    assert models[-1] == "(other models)"


@pytest.mark.parametrize("value", [None, 1, "x", [], {"outcome": ["declined"], "model": {}}, {"outcome": "lost", "model": 1}])
def test_a_foreign_note_is_no_outcome(value: Any) -> None:
    """A note of a foreign journal that has other types or words counts as nothing."""
    answer = Answers().read(ANSWER, value)

    assert answer is None or ("", "", False, "", False) == answer
