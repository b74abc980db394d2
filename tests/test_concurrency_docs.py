"""docs/concurrency.md is true: its pictures can be drawn again, and its texts are those of the screen."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree as ET

import attrs
import pytest

from evaljournal.journal.events import RateLimitSeen
from evaljournal.replay.runs.idle import IdleReason, busy_text, limit_text, pace_text, pause_text, rate_limit_use_text
from evaljournal.replay.state.known_limits import LimitUse
from evaljournal.replay.state.pauses import PAUSE_TEXTS, Pause
from evaljournal.runner.concurrency.in_flight import InFlight
from evaljournal.runner.concurrency.limits import DECLARED
from evaljournal.runner.retries.limit_headers import advertised_limits

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "concurrency.md").read_text()
TOKENS = RateLimitSeen(unit="tokens", size=150_000, window=60.0, source="advertised", header="x-ratelimit-limit-tokens")
RPM = RateLimitSeen(unit="requests", size=10, window=60.0, source="declared", header="rpm")
HEADERS = re.findall(r"^\| `([a-z_-]*ratelimit[a-z_-]*)` \| ([a-z ]+) \| (.*) \|$", PAGE, re.MULTILINE)
PICTURES = re.findall(r"\]\((concurrency-[a-z0-9-]+\.svg)\)", PAGE)


def test_the_pictures_can_be_drawn_again(tmp_path: Path) -> None:
    """The script draws exactly the pictures on the page, as well-formed SVG that loads nothing and runs nothing."""
    subprocess.run([sys.executable, "docs/concurrency_pictures.py", str(tmp_path)], cwd=ROOT, check=True, timeout=60)

    assert 3 == len(PICTURES)
    assert sorted(PICTURES) == sorted(file.name for file in tmp_path.iterdir())
    for file in tmp_path.iterdir():
        tags = {element.tag.rpartition("}")[2] for element in ET.parse(file).iter()}  # noqa: S314  # our own file
        assert {"svg", "title", "rect", "text", "polyline", "polygon"} == tags


@pytest.mark.parametrize(
    "text",
    [
        pace_text(4.2),
        limit_text(16, 100, "429 at 17 in flight"),
        pause_text(Pause(12.0, "retry_after"), 0.0),
        pause_text(Pause(0.8, "rate_limited"), 0.0),
        pause_text(Pause(3.0, "unavailable"), 0.0),
        PAUSE_TEXTS["no_response"],
        PAUSE_TEXTS["all_rate_limited"],
        rate_limit_use_text(LimitUse(limit=TOKENS, used=148_000, next_start=0.8)),
        rate_limit_use_text(LimitUse(limit=TOKENS, used=20_000, next_start=0.0)),
        rate_limit_use_text(LimitUse(limit=RPM, used=2, next_start=4.0)),
        f"`{busy_text(100, 250)}`",
    ],
)
def test_the_page_has_the_texts_of_the_screen(text: str) -> None:
    """The screen lines on the page are those that the screen shows."""
    assert f"`{text}`" in PAGE


def test_the_page_names_every_reason() -> None:
    """Every reason that `status --json` can have is in the table."""
    assert [] == [reason for reason in get_args(IdleReason) if f"| `{reason}` |" not in PAGE]


def _reasons(module: str, *functions: str) -> set[str]:
    """Return the literal reasons that a module of the policy passes to functions."""
    tree = ast.parse((ROOT / "evaljournal" / "runner" / "concurrency" / f"{module}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) in functions]
    arguments = [argument for call in named for argument in (*call.args, *(keyword.value for keyword in call.keywords))]
    texts = [str(argument.value) for argument in arguments if isinstance(argument, ast.Constant)]
    return {text for text in texts if re.fullmatch("[a-z][a-z_0-9]+", text)}


def test_the_tables_have_the_reasons_and_states_of_the_policy() -> None:
    """The section on the policy names every reason that the code records, no other, and the states of its parts."""
    section = PAGE.partition("## The inferring policy")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    states = {state for row in rows for cell in (row[0], row[2]) for state in re.findall("[a-z]+", cell.partition(":")[0])}
    recorded = (
        _reasons("adaptive", "_record_limit", "begin", "begin_retry_after")
        | _reasons("pause", "begin", "IntakePaused")
        | _reasons("key_policy", "LimitChanged")
        | _reasons("breaker", "begin")
        | set(re.findall('"([a-z_]+)"', _pace_reasons()))
    )

    assert recorded == {reason for row in rows for reason in re.findall("`([a-z_0-9]+)`", row[-1])} - {"reason"}
    phases = get_args(attrs.fields(InFlight).phase.type)
    assert {*phases, "searching", "plateau", "testing", "paused", "open", "closed"} <= states


def _pace_reasons() -> str:
    """Return the lines of the policy that choose the reason of a pace."""
    source = (ROOT / "evaljournal" / "runner" / "concurrency" / "adaptive.py").read_text()
    return source.partition("def _record_pace")[2].partition("self._recorded_pace = pace")[0]


def test_the_headers() -> None:
    """Each header of the table is read as the table says: what it counts, its window, and whether it needs a 429."""
    for header, unit, text in HEADERS:
        names = {header: "100"}
        for field, value in (("remaining", "40"), ("reset", "30")):
            start, _, end = header.rpartition("limit")
            names[f"{start}{field}{end}"] = value
        [(read_header, read_unit, _, window, _, _, is_read_as_advice, _)] = advertised_limits(names, 0.0)

        is_advice = "only after a 429" in text
        assert (header, unit, is_advice) == (read_header, read_unit.replace("_", " "), is_read_as_advice)
        assert window == (30.0 if text.startswith("until the reset") else 60.0)
        assert is_advice or "60 s" in text
        if period := re.match(r"`(x-ratelimit-renewalperiod-\w+)`", text):
            assert 10.0 == advertised_limits({**names, period[1]: "10"}, 0.0)[0][3]
        if "api.groq.com a day" in text:
            assert 86_400.0 == advertised_limits(names, 0.0, "api.groq.com")[0][3]
    assert 13 == len(HEADERS)


def test_declared_limits() -> None:
    """The page names every limit that can be declared."""
    assert [] == [name for name in DECLARED if f"| `--{name} " not in PAGE and f"| `-s limits.{name}=" not in PAGE]
