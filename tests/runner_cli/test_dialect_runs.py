"""Runs of every dialect, with a judge of another one, that are killed and resumed."""

import json
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from evaljournal.journal import verify
from evaljournal.replay import load
from tests.processes import wait_until
from tests.runner_cli.commands import ONE_BY_ONE, evaljournal, process, scores
from tests.runs import outputs
from tests.server import Server

BASES: Final = {"chat": "v1", "anthropic": "", "responses": "v1", "gemini": ""}
"""Dialect → path of its base URL."""
CITIES: Final = ("lima", "havana", "santiago", "quito", "bogota", "caracas")
VERDICT: Final = "reply:It is right. verdict: correct"


def cities(server: Server, name: str) -> list[str]:
    """Return the city in each request."""
    return [next(city for city in CITIES if f"of {city}" in request["body"].lower()) for request in server.requests(name)]


def recorded(event: str) -> int:
    """Return how many records of a type are in the journal."""
    return Path("runs/cities/0001/journal-000001.jsonl").read_text().count(f'"type":"{event}"')


@pytest.mark.parametrize(
    ("dialect", "judge_dialect"),
    [
        *(("chat", "anthropic"), ("responses", "gemini")),
        *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in (("anthropic", "responses"), ("gemini", "chat"))),
    ],
)
def test_a_killed_run_is_resumed(server: Server, name: str, dialect: str, judge_dialect: str) -> None:
    """No trial is lost, and only the call and the verdict that were in flight are repeated."""
    rows = [{"id": city, "question": f"The country of {city}?", "answer": "?"} for city in CITIES]
    Path("cities.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    judge = f"{name}-judge"
    arguments = (
        *("run", "--data", "cities.jsonl", "--stream", *ONE_BY_ONE),
        *("--chat", f"{dialect}:small", "--base-url", server.url(name, "sse,sse,sse,hang,sse", BASES[dialect])),
        *("--judge", f"{judge_dialect}:big", "--judge-url"),
        server.url(judge, f"{VERDICT},{VERDICT},hang,{VERDICT}", BASES[judge_dialect]),
    )
    with process(*arguments) as running:
        assert wait_until(lambda: len(server.requests(name)) >= 4 and len(server.requests(judge)) >= 3)
        assert wait_until(
            lambda: recorded("attempt_succeeded") >= 3 and recorded("trial_scored") >= 2
        )  # A record takes a moment.
        running.kill()
        running.communicate()
    in_flight = cities(server, name)[3], cities(server, judge)[2]
    resumed = evaljournal("resume")

    path = Path("runs/cities/0001")
    assert 0 == resumed.exit_code, resumed.stderr
    assert {city: 1 + (city == in_flight[0]) for city in CITIES} == Counter(cities(server, name))
    assert {city: 1 + (city == in_flight[1]) for city in CITIES} == Counter(cities(server, judge))
    assert sorted(f"THE COUNTRY OF {city.upper()}?" for city in CITIES) == sorted(outputs(path))
    assert dict.fromkeys(CITIES, True) == scores(path, "judge")
    assert verify(path).ok
    assert 6 * 1100 == sum(load(path).state.usage[f"{kind}_tokens"] for kind in ("input", "output"))
