"""Size of a report, the time to write it compared with `status`, and how fast a browser shows it.

Commands are measured in CPU seconds; the browser (the Chromium on the PATH, driven by Playwright) in wall-clock time.
"""

import argparse
import heapq
import itertools
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

from benchmarks._figures import Figures, machine
from evaljournal import journal
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    Event,
    LimitChanged,
    Noted,
    RetryScheduled,
    RunFinished,
    RunStarted,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialScored,
)
from evaljournal.journal.fact import evolve_fact

ROUNDS = 4
SLOTS = 16
VARIANTS = ("nano-brief", "nano-careful", "mini-brief", "mini-careful", "large-brief", "large-careful")
WORDS = ("the", "capital", "of", "a", "country", "is", "where", "its", "government", "sits", "and", "maps", "put", "star")

FRAMES = """async () => {
    page.execution.open = true;
    await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
    const seqs = Array.from({ length: 120 }, (_, at) => 1 + Math.floor(((page.run.seq - 1) * at) / 119));
    const began = performance.now();
    for (const seq of seqs) {
        page.history.isDragging = true;
        page.history.go(seq);
        await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
    }
    page.history.isDragging = false;
    return seqs.length / ((performance.now() - began) / 1000);
}"""

FILTERS = """async () => {
    const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const time = async (act) => {
        const began = performance.now();
        act();
        await drawn();
        return (performance.now() - began) / 1000;
    };
    const { results } = page;
    const type = (text) => { results.search.value = text; results.search.dispatchEvent(new Event("input")); };
    await drawn();
    const differ = await time(() => document.querySelector("[data-filter=differ]").click());
    const search = await time(() => type("government star"));
    type("");
    results.choose("all");
    await drawn();
    const step = (document.documentElement.scrollHeight - innerHeight) / 60;
    let began = performance.now();
    for (let at = 0; at < 60; at++) {
        scrollTo({ top: at * step, behavior: "instant" });
        await drawn();
    }
    const frames = 60 / ((performance.now() - began) / 1000);
    began = performance.now();
    for (let at = 0; at < 20; at++) {
        results.turn(1);
        await drawn();
    }
    return [differ, search, frames, (performance.now() - began) / 20_000];
}"""


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks page", description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help="trials of the small run (default: 10,000)")
    parser.add_argument("--large", type=int, default=100_000, help="trials of the large run (default: 100,000)")
    parser.add_argument("--cases", type=int, default=2_000, help="cases of the run with 6 variants (default: 2,000)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory:
        for trials in (options.trials, options.large):
            _measure(figures, Path(directory), trials, is_small=trials == options.trials)
        _measure_variants(figures, Path(directory), options.cases)
    return 1 if figures.missed else 0


def _measure(figures: Figures, directory: Path, trials: int, *, is_small: bool) -> None:
    run, target = directory / f"run-{trials}", directory / f"{trials}.html"
    trio.run(write_run, run, trials)
    size = sum(file.stat().st_size for file in run.iterdir())
    print(f"\n{trials:,} trials, a journal of {size / 1e6:,.1f} MB, best of {ROUNDS}")
    # Alternating, so that other load affects both.
    rounds = [(_command("status", str(run)), _command("report", str(run), "-o", str(target))) for _ in range(ROUNDS)]
    status, report = map(min, zip(*rounds, strict=True))
    figures.show("status", status, unit="s")
    figures.show("report", report, unit="s")
    figures.show("report / status", report / status, maximum=3.0 if is_small else None)
    figures.show("size of the file", target.stat().st_size / 1e6, maximum=3.0 if is_small else None, unit="MB")
    ready, frames = _in_browser(target, FRAMES)
    figures.show("time until the page is ready", ready, maximum=2.0 if is_small else None, unit="s")
    figures.show("scrubbing from the first record to the last", frames, minimum=20.0, unit="frames/s")


def _measure_variants(figures: Figures, directory: Path, cases: int) -> None:
    run, target = directory / "variants", directory / "variants.html"
    trio.run(partial(write_run, run, cases * len(VARIANTS), variants=VARIANTS))
    print(f"\n{len(VARIANTS)} variants of {cases:,} cases")
    figures.show("report", _command("report", str(run), "-o", str(target)), unit="s")
    figures.show("size of the file", target.stat().st_size / 1e6, unit="MB")
    ready, (differ, search, frames, turn) = _in_browser(target, FILTERS)
    figures.show("time until the page is ready", ready, maximum=2.0, unit="s")
    figures.show("filter: cases on which variants differ", differ, maximum=0.2, unit="s")
    figures.show("first search in all cases", search, maximum=0.5, unit="s")
    figures.show("scrolling through the results", frames, minimum=20.0, unit="frames/s")
    figures.show("turning to the next page of results", turn, maximum=0.2, unit="s")


def _command(*args: str) -> float:
    """Run a command; return its CPU seconds."""
    before = os.times()
    code = "from evaljournal.runner.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True)  # noqa: S603  # our own command
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _in_browser(target: Path, script: str) -> tuple[float, Any]:
    """Open a report; return the seconds until it is drawn, and the result of a script."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # only this needs it

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        sys.exit("no Chromium on the PATH")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto("about:blank")
        start = time.perf_counter()
        page.goto(target.as_uri())
        page.wait_for_selector("main:not([aria-busy])", timeout=60_000)
        page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
        seconds = time.perf_counter() - start
        result = page.evaluate(script)
        browser.close()
    return seconds, result


async def write_run(
    path: Path, trials: int, seed: int = 7, variants: Sequence[str] = ("",), *, shard: str = "", first: int = 0
) -> None:
    """Write a realistic run: short answers, every tenth attempt rate limited, scores, tokens, many slots.

    Its cases are numbered from `first`, so that several runs can be the shards of one.
    """
    rng = random.Random(seed)
    clock = [0.0]

    def read_clock() -> tuple[str, float]:
        seconds = clock[0]
        wall = f"2026-11-15T{int(seconds // 3600) % 24:02}:{int(seconds // 60) % 60:02}:{seconds % 60:09.6f}Z"
        return wall, round(seconds, 6)

    async with journal.writing(path, new=True, clock=read_clock, durability="os") as log:
        log.append(evolve_fact(_started(trials), shard=shard))
        log.append(SessionStarted(session=1, pid=os.getpid(), host="here", boot_id=""))
        log.append(LimitChanged(before=0, after=SLOTS, reason="start"))
        free = [(0.0, slot) for slot in range(SLOTS)]
        order = itertools.count()
        scheduled: list[tuple[float, int, Event]] = []
        for number in range(trials):
            start, slot = heapq.heappop(free)
            while scheduled and scheduled[0][0] <= start:
                clock[0], _, event = heapq.heappop(scheduled)
                log.append(event)
            case, variant = divmod(number, len(variants))
            events = list(_trial_events(rng, start, first + case, slot, variants[variant]))
            for t, event in events:
                heapq.heappush(scheduled, (t, next(order), event))
            heapq.heappush(free, (events[-1][0], slot))
            if number % 64 == 0:
                await trio.lowlevel.checkpoint()
        while scheduled:
            clock[0], _, event = heapq.heappop(scheduled)
            log.append(event)
        log.append(RunFinished(completed=trials, failed=0, withdrawn=0, head=""))


def _trial_events(rng: random.Random, t: float, number: int, slot: int, variant: str) -> Iterator[tuple[float, Event]]:
    """Return the events of a trial that gets a slot at `t`, with their times."""
    case = f"case-{number:06}"
    name = f"{case}@{variant}" if variant else case

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count))

    yield (
        t,
        TrialEnqueued(
            trial=name,
            case=case,
            variant=variant,
            repeat=1,
            input=f"{number}: {words(12)}",
            expected=words(3),
            metadata={"level": rng.choice(["easy", "hard"])},
            fingerprint=f"{number:08x}",
        ),
    )
    attempt = 1
    yield t, AttemptStarted(trial=name, attempt=1, slot=slot)
    if rng.random() < 0.1:
        elapsed = round(rng.uniform(0.01, 0.1), 6)
        t += elapsed
        rate_limited = AttemptFailed(
            trial=name, attempt=1, error="RateLimited", message="429", category="rate_limited", elapsed=elapsed, retry_after=1
        )
        yield t, rate_limited
        yield t, RetryScheduled(trial=name, attempt=2, delay=0.1, reason="rate_limited")
        attempt, t = 2, t + 0.1
        yield t, AttemptStarted(trial=name, attempt=2, slot=slot)
    elapsed = math.exp(rng.gauss(-1, 0.4))
    t += elapsed
    yield t, Noted(name="tokens", value=rng.randint(10, 90), trial=name, attempt=attempt)
    if variant:
        yield t, Noted(name="cost", value=1e-6 * 4 ** VARIANTS.index(variant), trial=name, attempt=attempt)
    yield t, AttemptSucceeded(trial=name, attempt=attempt, output=words(10), elapsed=round(elapsed, 6))
    t += 0.0003
    yield t, TrialScored(trial=name, scorer="exact", version="1", value=rng.random() < 0.8, elapsed=0.0001)
    yield t, TrialScored(trial=name, scorer="closeness", version="1", value=round(rng.random(), 4), elapsed=0.0001)
    yield t, TrialCompleted(trial=name, attempts=attempt)


def _started(trials: int) -> RunStarted:
    return RunStarted(
        evaluation="benchmark",
        task="benchmark",
        task_fingerprint="",
        scorers={"exact": "1", "closeness": "1"},
        dataset="",
        dataset_fingerprint="",
        trials=trials,
        settings={"slots": SLOTS},
        settings_fingerprint="",
        durability="os",
        environment={},
    )
