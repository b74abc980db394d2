"""A report opens from a file without network, shows untrusted text as text, and fits screen and paper."""

from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from evaljournal.journal import Event
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    LimitChanged,
    Noted,
    RunFinished,
    RunStarted,
    RunStopped,
    StepCompleted,
    StepFailed,
    StepReused,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
)
from evaljournal.replay.state.usage import JUDGE_USAGE
from evaljournal.replay.text import duration
from evaljournal.runner.cli import cli
from tests.browser.conftest import OpenTab, Tab
from tests.browser.pages import capitals, write_report
from tests.journal.samples import flip, lines_of, segment, session, started, write_sync
from tests.replay.eventful_run import eventful_run
from tests.replay.trial_events import answered


def test_opens_from_a_file_without_requests(tmp_path: Path, open_tab: OpenTab) -> None:
    """The page opens from a file without a console message and requests nothing but itself."""
    address = write_report(tmp_path / "report.html", eventful_run(tmp_path / "run"))

    tab = open_tab(address)

    assert [] == tab.messages
    assert [address] == tab.requests
    assert "capitals: interrupted. 4 trials done, 50.0 % exact, 1 error." == tab.text("h1")
    assert "Audit" in tab.text("#execution footer")


def test_durations_agree_with_the_commands(tmp_path: Path, open_report: OpenTab) -> None:
    """The page formats durations as the commands do."""
    times = [0.0123, 0.5, 12.4, 59.6, 200, 600, 3600, 7500, 9_000_000]

    tab = open_report(eventful_run(tmp_path / "run"))

    assert [duration(seconds) for seconds in times] == tab.evaluate("times => times.map(duration)", times)


def test_empty_run(open_report: OpenTab, tmp_path: Path) -> None:
    """A journal with nothing but its first record can be shown."""
    write_sync(tmp_path / "run", [])

    tab = open_report(tmp_path / "run")

    assert [] == tab.messages
    assert "No trials yet." in tab.text(".table")


def test_damaged_run(open_tab: OpenTab, tmp_path: Path) -> None:
    """A damaged run is shown up to the damage, and the page reports it."""
    run = eventful_run(tmp_path / "run")
    flip(segment(run), len(b"".join(lines_of(run)[:20])) + 30)
    CliRunner().invoke(cli, ["report", str(run), "-o", str(tmp_path / "report.html")])

    tab = open_tab((tmp_path / "report.html").as_uri())

    assert [] == tab.messages
    assert tab.text(".banner").startswith("Shown up to the damage: ")
    assert 20 == tab.evaluate("() => page.run.seq")


HOSTILE = [
    "<script>window.pwned = 1; alert('pwned')</script>",
    "</script><script>window.pwned = 2</script>",
    "<img src=x onerror='window.pwned = 3'>",
    "![image](http://127.0.0.1:9/steal.png)",
    "<!--<script>",
    "]]> --> \u0000 \u202egnitrow\u202c \u200f \ufeff \x1b[31m",
    "javascript:window.pwned=4",
    "__proto__",
    "constructor",
    "</style></textarea></title><svg onload=window.pwned=5>",
    "x" * 1_000_000,
    "\U0001f600" * 5_000,
]


def hostile_steps(trial: str, text: str) -> list[Event]:
    """Return steps in which every text is hostile: a model call, a tool call, one that failed, and one that reuses nothing."""
    step_fields: dict[str, Any] = {"trial": trial, "attempt": 1, "name": text[:1_000], "fingerprint": "f", "elapsed": 0.1}
    request = {"messages": [{"role": text[:100], "content": text}], "__proto__": text[:100]}
    reply = {"content": text, "tool_calls": [{"function": {"name": text[:100], "arguments": text[:1_000]}}]}
    return [
        StepCompleted(**step_fields, step=1, kind="model", input=request, output=reply, usage={text[:50]: 1, "__proto__": 2}),
        StepCompleted(**step_fields, step=2, kind="tool", input={text[:50]: text}, output=[text], parent=1),
        StepFailed(**step_fields, step=3, input=text, error=text[:100], message=text, parent=2, continues=1),
        StepReused(trial=trial, attempt=1, step=4, completed_seq=4, parent=3),
        Noted(name="evaljournal.step_not_reused", value={"step": text[:100], "problem": text[:100]}, trial=trial, attempt=1),
    ]


def hostile_run(path: Path) -> Path:
    """Write a run in which every untrusted text is hostile."""
    events: list[Event] = [
        RunStarted(
            evaluation=HOSTILE[1],
            task=HOSTILE[0],
            task_fingerprint=HOSTILE[1],
            scorers={HOSTILE[2]: HOSTILE[1], "__proto__": "1"},
            dataset=HOSTILE[2],
            dataset_fingerprint="",
            settings={HOSTILE[1]: HOSTILE[2], "__proto__": 1},
            settings_fingerprint="",
            durability="sync",
            environment={HOSTILE[0]: HOSTILE[1]},
        ),
        session(),
        LimitChanged(before=0, after=2, reason=HOSTILE[0], evidence=HOSTILE[1], key=HOSTILE[2]),
    ]
    for number, text in enumerate(HOSTILE):
        name = text[:1_000] + f" {number}" if number % 2 else text[:1_000]
        meta = {text[:200]: text[:200], "__proto__": {"polluted": True}}
        events += [
            TrialEnqueued(trial=name, case=name, repeat=1, input=text, expected=[text], metadata=meta, fingerprint="f"),
            AttemptStarted(trial=name, attempt=1, slot=0),
            Noted(name=text[:100], value=text[:100], trial=name, attempt=1),
            *hostile_steps(name, text),
        ]
        if number % 3:
            events += [
                AttemptSucceeded(trial=name, attempt=1, output={"answer": text}, elapsed=0.5, usage={text[:50]: 1}),
                TrialScored(trial=name, scorer=HOSTILE[2], version="1", value=text[:100], reason=text, elapsed=0.0),
                TrialCompleted(trial=name, attempts=1),
            ]
        else:
            trace = f"Traceback {text[:10_000]}"
            events += [
                AttemptFailed(
                    trial=name, attempt=1, error=text[:100], message=text, traceback=trace, category="fatal", elapsed=0.5
                ),
                TrialFailed(trial=name, attempts=1, reason="fatal"),
            ]
    write_sync(path, [*events, RunFinished(completed=8, failed=4, withdrawn=0, head="")])
    return path


def open_everything(tab: Tab) -> None:
    """Open every trial and every <details>, and search for hostile texts."""
    unfold = "() => { for (const details of document.querySelectorAll('details')) details.open = true; }"
    tab.evaluate(unfold)
    for number in range(len(HOSTILE)):
        tab.evaluate("number => page.open(number)", number)
        tab.evaluate(unfold)
    for text in HOSTILE[:4]:
        tab.page.fill("#search", text)
    tab.page.fill("#search", "")


def assert_harmless(tab: Tab) -> None:
    """Assert that hostile text has run, loaded and changed nothing."""
    assert [] == tab.messages
    assert tab.evaluate("() => window.pwned === undefined && ({}).polluted === undefined")
    assert 0 == tab.page.locator("main :is(img, svg:not(.scatter), script, iframe), #drawer :is(img, script)").count()
    assert "\u202e" not in tab.evaluate("() => document.body.innerText")


@pytest.mark.parametrize("runs", [1, 2])
def test_hostile_text_is_only_text(runs: int, tmp_path: Path, open_tab: OpenTab) -> None:
    """Scripts, closing tags, bidi controls, NULs, megabytes and Markdown images are shown as text and load nothing."""
    target = tmp_path / "report.html"
    address = write_report(target, *(hostile_run(tmp_path / f"run-{number}") for number in range(runs)))

    tab = open_tab(address)
    open_everything(tab)

    assert_harmless(tab)
    assert [address] == tab.requests
    assert len(HOSTILE) == tab.evaluate("() => page.run.trials.name.length")
    assert 2_000_000 * runs > target.stat().st_size


def test_models_without_a_price_are_named(open_report: OpenTab) -> None:
    """The usage of a run names a few models whose calls have no price, as text."""
    models = [HOSTILE[2], "\u202eb", "c", "d", "e"]
    trials = [
        event
        for number, model in enumerate(models)
        for event in (
            TrialEnqueued(trial=f"t{number}", case=f"t{number}", repeat=1, input="", fingerprint="f"),
            AttemptStarted(trial=f"t{number}", attempt=1, slot=0),
            Noted(name="usage", value={"cost": 0, "unpriced_calls": 1, "unpriced_model": model}, trial=f"t{number}", attempt=1),
            AttemptSucceeded(trial=f"t{number}", attempt=1, output="", elapsed=0.0),
        )
    ]
    tab = open_report(trials)

    assert_harmless(tab)
    assert f"5 calls without a price ({HOSTILE[2]}, ⟨U+202E⟩b, c, 2 more)" in tab.text("main")


def test_the_cost_includes_judges(open_report: OpenTab) -> None:
    """The tile has the cost of the task and of its judges together, and their part in small print."""
    note = Noted(name=JUDGE_USAGE, value={"usage": {"cost": 0.5, "input_tokens": 9}}, trial="a", attempt=1)
    tab = open_report([*answered("a", {"exact": True}, usage={"cost": 0.25}), note])

    tiles = tab.evaluate("() => [...document.querySelectorAll('.tile')].map((tile) => tile.innerText.split(/\\n+/))")
    assert ["$0.750", "of this, judges: $0.500", "judge input tokens 9"] in [parts for _, *parts in tiles]


def test_a_budget(tmp_path: Path, open_report: OpenTab) -> None:
    """The page shows what is spent of the budget, how many more trials that buys, and which trials have exceeded theirs."""
    settings = {"slots": 1, "budget": {"cost": 0.5, "input_tokens": 2000}, "budget_per_trial": {"cost": 0.2}}
    run = attrs.evolve(started(), settings=settings)  # type: ignore[misc]  # an event is an attrs class
    trial: list[Event] = [
        TrialEnqueued(trial="a", case="a", repeat=1, input="", fingerprint="f"),
        AttemptStarted(trial="a", attempt=1, slot=0, reserved={"cost": 0.1, "input_tokens": 300}),
        Noted(name="usage", value={"cost": 0.21, "input_tokens": 250}, trial="a", attempt=1),
        AttemptFailed(trial="a", attempt=1, error="OverBudget", message="", category="fatal", elapsed=0.0),
        TrialFailed(trial="a", attempts=1, reason="budget"),
    ]
    write_sync(tmp_path / "run", [run, session(), *trial, RunStopped(reason="budget")])

    tab = open_report(tmp_path / "run")

    assert_harmless(tab)
    tiles = tab.evaluate("() => [...document.querySelectorAll('.tile')].map((tile) => tile.innerText.split(/\\n+/))")
    shown = {title.lower(): parts for title, *parts in tiles}
    assert ["$0.210", "spent of $0.500", "enough for about 1 more trial", "worst possible overshoot: none"] == shown[
        "budget: cost"
    ]
    assert ["300", "spent of 2,000"] == shown["budget: input tokens"][:2]
    assert ["1", "trial exceeded cost $0.200"] == shown["budget per trial"]


def test_long_values_are_shortened(tmp_path: Path, open_report: OpenTab) -> None:
    """Of a value of a megabyte the page has the beginning, its length and the command that shows it in full."""
    tab = open_report(hostile_run(tmp_path / "run"))
    tab.evaluate("number => page.open(number)", 10)

    note = tab.text("#drawer .block:has-text('Input') .truncated")
    assert note.startswith("First 16,384 characters of 1,000,002 bytes. In full: evaljournal show")
    assert note.endswith("--json")


def test_policy_forbids_everything(tmp_path: Path, open_report: OpenTab) -> None:
    """The browser blocks a script, an image or a connection that is injected into the page."""
    tab = open_report(eventful_run(tmp_path / "run"))

    blocked = tab.evaluate("""async () => {
        const seen = [];
        document.addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.pwned = 1";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/x.png";
        document.body.append(image);
        await fetch("http://127.0.0.1:9/").catch(() => {});
        await new Promise((done) => setTimeout(done));
        return [window.pwned === undefined, seen.sort()];
    }""")

    assert [True, ["connect-src", "img-src", "script-src-elem"]] == blocked


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark"), (3840, "light")])
def test_fits_the_screen(width: int, scheme: Any, tmp_path: Path, open_report: OpenTab) -> None:
    """Nothing is wider than the screen, and every control has an accessible name."""
    tab = open_report(capitals(tmp_path / "run", wrong=["chad"]), width=width, scheme=scheme)

    assert width >= tab.evaluate("() => document.documentElement.scrollWidth")
    nameless = """() => [...document.querySelectorAll('button, input, select, .timeline > canvas, [role=img]')]
        .filter((each) => !(each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length)).length"""
    assert 0 == tab.evaluate(nameless)


def test_theme_can_be_chosen(tmp_path: Path, open_tab: OpenTab) -> None:
    """The page has the system's theme until one is chosen; the choice is part of the address."""
    address = write_report(tmp_path / "report.html", capitals(tmp_path / "run"))
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = open_tab(address).evaluate(ground), open_tab(address, scheme="dark").evaluate(ground)

    tab = open_tab(address)
    tab.page.click("#theme")
    assert dark == tab.evaluate(ground)
    tab.page.wait_for_function("() => location.hash === '#theme=dark'")
    tab.page.click("#theme")
    assert light == tab.evaluate(ground)
    assert light != dark == open_tab(f"{address}#theme=dark").evaluate(ground)
    assert light == open_tab(f"{address}#theme=light", scheme="dark").evaluate(ground)
    assert [] == tab.messages


def test_printing(open_report: OpenTab) -> None:
    """A page printed from a dark screen is light and has every row; afterwards it is as before."""
    events = [event for number in range(60) for event in answered(f"case-{number}", {"exact": True})]
    tab = open_report(events, scheme="dark", width=1600, execution=True)
    tab.evaluate("""() => {
        window.layout = () => [color("ground"), document.querySelector(".timeline canvas").clientWidth < 700,
            document.querySelectorAll("[data-trial]").length === 60, document.querySelector("footer details").open];
        addEventListener("beforeprint", () => { window.printed = layout(); });
    }""")
    before = tab.evaluate("() => layout()")

    tab.page.pdf()

    assert ["#fff", True, True, True] == tab.evaluate("() => printed")
    tab.page.wait_for_function("before => JSON.stringify(layout()) === JSON.stringify(before)", arg=before)
    assert [False, False, False] == before[1:]
