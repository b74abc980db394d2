"""What silently makes results wrong: warnings where the journal shows it, errors where there is no answer."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from evaljournal import Case, scorers
from evaljournal.journal import read
from evaljournal.journal.events import AttemptFailed, Noted
from evaljournal.replay import fold
from evaljournal.replay.render.ending import final_summary
from evaljournal.replay.results.summary import summarize
from evaljournal.runner.calls.call_size import unread_words
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.dialects import names
from evaljournal.runner.scorers.builtin import exact
from tests.processes import ROOT
from tests.runner_cli.commands import evaljournal, printed
from tests.runs import define_real, events, outputs, run_real
from tests.security.dialect_replies import REPLIES
from tests.security.replies import replying
from tests.server import Server
from tests.test_docs import PAGES, blocks

TEXT = "Lima is the capital of Peru, on the coast of the Pacific. " * 10
CASES = [Case(name=f"case-{number}", input=number) for number in range(60)]
SAME = "{} and {} gave the same {} long outputs: the endpoint may ignore {}"


def run_variants(
    path: Path, variants: dict[str, Any], output: Any = lambda number, _: f"{number} {TEXT}", **options: Any
) -> Any:
    """Run a task with variants; `output` gets the input and the parameters. Return the state."""

    def task(number: int, **parameters: Any) -> Any:
        return output(number, parameters)

    return run_real(define_real(task, CASES, variants=variants, **options), path).state


@pytest.mark.parametrize(
    ("variants", "warnings"),
    [
        ({"temperature": [0, 1]}, [SAME.format("temperature-0", "temperature-1", 60, "temperature")]),
        ({"a": {"model": "m", "seed": 1}, "b": {"model": "n", "seed": 2}}, [SAME.format("a", "b", 60, "model")]),
        (
            {"a": {"extra_body": {"top_p": 0.1}}, "b": {"extra_body": {"top_p": 1}}},
            [SAME.format("a", "b", 60, "top_p")],
        ),
        ({"seed": [1, 2]}, []),
        ({"max_tokens": [1_000, 2_000]}, []),
        ({"a": {"temperature": 1}}, []),
    ],
)
def test_variants_with_the_same_outputs(path: Path, variants: dict[str, Any], warnings: list[str]) -> None:
    """Variants whose long outputs are all the same are noted if a parameter that changes answers differs."""
    state = run_variants(path, variants)

    assert warnings == summarize(state).warnings == summarize(fold(read(path))).warnings
    assert all(warning in final_summary(state, path=path) for warning in warnings)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(lambda number, _: "yes" if number % 2 else "no", id="labels"),
        pytest.param(lambda number, _: f"{number} {TEXT}"[:199], id="short answers"),
        pytest.param(lambda number, variant: f"{number} {variant if number == 7 else ''} {TEXT}", id="one differs"),
        pytest.param(
            lambda number, variant: f"{TEXT} {variant['temperature'] > 0}" if number < 40 else "yes", id="most differ"
        ),
        pytest.param(lambda number, _: TEXT if number < 20 else "yes", id="few long answers"),
        pytest.param(lambda number, _: {"label": number % 3}, id="labels as JSON"),
    ],
)
def test_other_variants_are_not_noted(path: Path, output: Any) -> None:
    """Labels and short answers may be the same for good reasons; one output that differs shows that parameters are used."""
    assert [] == summarize(run_variants(path, {"temperature": [0, 1]}, output)).warnings


def test_errors_do_not_hide_that_outputs_are_the_same(path: Path) -> None:
    """Trials without an output are left out of the comparison; outputs may be JSON."""

    def output(number: int, variant: dict[str, Any]) -> Any:
        if number in {3, 5} and variant["temperature"]:
            raise ValueError
        return {"reason": f"{number} {TEXT}", "label": "yes"}

    assert [SAME.format("temperature-0", "temperature-1", 58, "temperature")] == summarize(
        run_variants(path, {"temperature": [0, 1]}, output)
    ).warnings


def test_many_pairs_are_counted(path: Path) -> None:
    """Three pairs of variants are named, the others are counted."""
    warnings = summarize(run_variants(path, {"temperature": [0, 1, 2, 3]})).warnings

    assert ["0 and temperature-1", "0 and temperature-2", "0 and temperature-3"] == [
        warning[12:31] for warning in warnings[:-1]
    ]
    assert "3 more pairs of variants gave the same outputs" == warnings[-1]


TRUNCATED = {"chat": 2, "responses": 4, "anthropic": 2, "gemini": 2}
"""Dialect → its reply whose reasoning used all tokens."""


@pytest.mark.parametrize("dialect", names())
def test_empty_answers(path: Path, dialect: str) -> None:
    """Answers that reasoning left empty are counted as truncated, and noted with the option to raise."""
    with replying(orjson.dumps(REPLIES[dialect][TRUNCATED[dialect]])) as replies:
        cases = [Case(name=name, input=name) for name in ("lima", "rome")]
        state = run_real(define_real(Chat("m", dialect=dialect, base_url=replies.url), cases), path).state

    assert (["", ""], 2) == (outputs(path), state.totals.truncated)
    warning = "2 of 2 outputs are empty: the token limit was reached before any text; raise --max-tokens"
    assert [warning] == summarize(state).warnings == summarize(fold(read(path))).warnings
    assert warning in final_summary(state, path=path)


def test_truncated_answers_with_a_text(path: Path) -> None:
    """A truncated answer with a text is no warning."""
    reply = {"choices": [{"message": {"content": "Li"}, "finish_reason": "length"}]}
    with replying(orjson.dumps(reply)) as replies:
        state = run_real(define_real(Chat("m", base_url=replies.url)), path).state

    assert (["Li"], []) == (outputs(path), summarize(state).warnings)


def test_empty_outputs(path: Path) -> None:
    """Empty texts are outputs of any task, and counted at the end of the run and in `status`, as far as they are current."""
    texts = {"": "", "a": "", "b": "b", "c": "c"}
    task = texts.__getitem__
    state = run_real(define_real(task, [Case(name=f"case-{text}", input=text) for text in texts]), path).state

    warning = "2 of 4 outputs are empty"
    assert [warning] == summarize(state).warnings == printed("status", path)["warnings"]
    assert f"  {warning}\n" in evaljournal("status", path).stdout
    adopted = run_real(define_real(task, [Case(name="case-a", input="a")]), path, resume=True, adopt=True).state
    assert ["1 of 1 output is empty"] == summarize(adopted).warnings


def test_outputs_that_are_empty_for_two_reasons(server: Server, path: Path, name: str) -> None:
    """If only some of the empty outputs are empty because of the token limit, their number is named."""
    replies = [{"choices": [{"message": {"content": ""}, "finish_reason": reason}]} for reason in ("length", "stop")]
    script = quote(",".join(f"raw:{quote(orjson.dumps(reply).decode())}" for reply in replies))
    cases = [Case(name=name, input=name) for name in ("lima", "rome")]
    state = run_real(define_real(Chat("m", base_url=server.url(name, script, "v1/")), cases, slots=1), path).state

    text = "2 of 2 outputs are empty: the token limit was reached before any text in 1 of them; raise --max-tokens"
    assert [text] == summarize(state).warnings


@pytest.mark.parametrize("dialect", names())
def test_structured_output_that_is_a_text(path: Path, dialect: str) -> None:
    """An API that ignores the schema and answers with a text fails the attempt; the text is not an output."""
    with replying(orjson.dumps(REPLIES[dialect][0])) as replies:
        run_real(define_real(Chat("m", dialect=dialect, base_url=replies.url, schema={"type": "object"})), path)

    assert [] == outputs(path)
    assert ["evaljournal.InvalidReply"] == [event.error for event in events(path, AttemptFailed)]


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "examples").glob("*.py"))], ids=lambda page: page.stem)
def test_sdks_do_not_retry(page: Path) -> None:
    """A client of an SDK in the docs and examples does no retries, which would hide attempts, unless its calls are steps."""
    text = page.read_text()
    programs = [block for language, _, block in blocks(page) if language == "python"] if page.suffix == ".md" else [text]
    clients = [program for program in programs if re.search(r"\b(OpenAI|Anthropic)\(|Async(OpenAI|Anthropic)\(", program)]

    assert [] == [program for program in clients if "max_retries=0" not in program and 'durable="http"' not in program]


WORDS = "word " * 2_000


@pytest.mark.parametrize(
    ("text", "usage", "words"),
    [
        pytest.param(WORDS, {"input_tokens": 1_999}, 2_000, id="fewer tokens than words"),
        pytest.param(WORDS, {"input_tokens": 2_000}, 0, id="a token per word"),
        pytest.param(WORDS, {"input_tokens": 0}, 0, id="unknown"),
        pytest.param(WORDS, {}, 0, id="no usage"),
        pytest.param(WORDS, {"input_tokens": 10, "cached_tokens": 1_000, "cache_write_tokens": 990}, 0, id="caches excluded"),
        pytest.param("利马是秘鲁的首都" * 1_000, {"input_tokens": 2_000}, 0, id="Chinese, four characters per token"),
        pytest.param("利马是秘鲁的首都" * 1_000, {"input_tokens": 1_024}, 2_000, id="Chinese, truncated"),
        pytest.param("ลิมาเป็นเมืองหลวงของเปรู" * 500, {"input_tokens": 1_000}, 0, id="a script without spaces"),
        pytest.param(" \n" * 5_000 + "word", {"input_tokens": 40}, 0, id="white space"),
        pytest.param("=" * 10_000, {"input_tokens": 200}, 0, id="one character"),
        pytest.param(
            [{"type": "image_url", "image_url": {"url": "data:," + "a b" * 9_000}}], {"input_tokens": 85}, 0, id="image"
        ),
        pytest.param([{"type": "text", "text": WORDS}], {"input_tokens": 85}, 2_000, id="parts"),
    ],
)
def test_unread_words(text: Any, usage: dict[str, Any], words: int) -> None:
    """A prompt with more words than tokens was truncated, whatever its language; one that compresses well was not."""
    assert words == unread_words([{"role": "system", "content": None}, {"role": "user", "content": text}], usage)


def test_a_truncated_prompt_is_noted(server: Server, path: Path, name: str) -> None:
    """Calls whose server counts fewer tokens than words are noted, those of judges too; others are not."""
    url = server.url(name, "ok", "v1")  # It counts 1,000 tokens.
    cases = [Case(name="long", input=WORDS), Case(name="short", input="lima", expected="LIMA")]
    evaluation = define_real(Chat("m", base_url=url), cases)
    evaluation.score(exact)
    evaluation.score(scorers.judge("m", base_url=server.url(name, "reply:verdict: correct", "v1")))
    state = run_real(evaluation, path).state

    notes = [(note.trial, note.value) for note in events(path, Noted) if note.name == "evaljournal.short_prompt"]
    assert [("long", {"input_tokens": 1_000, "words": 2_000})] == notes[:1]
    assert ["long", "long"] == [trial for trial, _ in notes]
    assert (
        ["2 prompts have more words than input tokens: the server truncates them; raise its context length"]
        == summarize(state).warnings
        == summarize(fold(read(path))).warnings
    )
