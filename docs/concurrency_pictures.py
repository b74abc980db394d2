"""Draw the pictures of docs/concurrency.md: decisions of the adaptive policy on simulated endpoints.

    python docs/concurrency_pictures.py            # writes docs/concurrency-*.svg
    python docs/concurrency_pictures.py DIRECTORY  # writes them there

Nothing is drawn by hand: every line and mark is a decision of `runner.concurrency.adaptive`, or a call that it allowed.
"""  # noqa: INP001 - a script, not a package

import math
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from attrs import define, field, frozen

from benchmarks.simulated.endpoint import Burst, Endpoint
from benchmarks.simulated.rows import Row, simulate
from evaljournal.journal.events import IntakePaused, IntakeResumed, LimitChanged, PaceChanged
from evaljournal.runner.concurrency.adaptive import Adaptive
from evaljournal.runner.concurrency.policy import STARTS, CallEvent, Change, StartPermit, result_of

SEED = 3
LINES = 4
"""Lines of a grid above its axis."""
WIDTH, LEFT, RIGHT = 860, 56, 24
INK, FAINT, HAIR = "#24292f", "#57606a", "#d8dee4"
FLIGHT, LIMIT, PACE, BAD, PROBE, SHADE = "#1f6f8b", "#24292f", "#8a5a00", "#b3401a", "#7a3e8e", "#f0e3f2"
Step = tuple[float, float | None]


@define
class RecordedPolicy:
    """A policy whose events and decisions are recorded."""

    policy: Adaptive
    in_flight: list[Step] = field(factory=lambda: [(0.0, 0.0)])
    limits: list[Step] = field(factory=list)
    paces: list[Step] = field(factory=list)
    rate_limit_times: list[float] = field(factory=list)
    """When a call was rate limited."""
    failure_times: list[float] = field(factory=list)
    """When a call failed with a 5xx."""
    probes: list[float] = field(factory=list)
    open_periods: list[tuple[float, float]] = field(factory=list)
    """Start and end of each period in which the circuit breaker was open."""
    _count: int = 0
    _is_probe: bool = False
    """Whether the next start is a probe."""
    _open_time: float | None = None

    def __attrs_post_init__(self) -> None:
        """Start with the first limit."""
        self.limits.append((0.0, self.policy.limit))

    @property
    def limit(self) -> int:
        """Return the limit of the policy."""
        return self.policy.limit

    def may_start(self, t: float) -> StartPermit:
        """Return whether the policy allows a start."""
        permit = self.policy.may_start(t)
        self._is_probe = permit.probe
        return permit

    def elapse(self, t: float) -> Sequence[Change]:
        """Return the changes of the policy at a time."""
        return self._record(t, self.policy.elapse(t))

    def observe(self, event: CallEvent, t: float) -> Sequence[Change]:
        """Pass an event to the policy, and record it with the changes."""
        if isinstance(event, STARTS):
            self._count += 1
            if self._is_probe:
                self.probes.append(t)
        else:
            self._count -= 1
            outcome = result_of(event).outcome
            if outcome not in ("succeeded", "timed_out", "interrupted"):
                (self.rate_limit_times if outcome == "rate_limited" else self.failure_times).append(t)
        self.in_flight.append((t, self._count))
        return self._record(t, self.policy.observe(event, t))

    def _record(self, t: float, changes: Sequence[Change]) -> Sequence[Change]:
        for change in changes:
            match change:
                case LimitChanged():
                    self.limits.append((t, change.after))
                case PaceChanged():
                    self.paces.append((t, change.after))
                case IntakePaused(reason="unavailable") if self._open_time is None:
                    self._open_time = t
                case IntakeResumed(reason="unavailable") if self._open_time is not None:
                    self.open_periods.append((self._open_time, t))
                    self._open_time = None
                case _:
                    pass
        return changes


def simulate_policy(endpoint: Endpoint, seconds: float) -> RecordedPolicy:
    """Run the policy on an endpoint for this many seconds."""
    policies: list[RecordedPolicy] = []

    def make(row: Row) -> RecordedPolicy:
        policies.append(RecordedPolicy(Adaptive(row.slots, trials=row.trials)))
        return policies[-1]

    simulate(Row(name="picture", endpoint=endpoint, seconds=seconds), make, SEED)
    return policies[0]


@frozen
class Panel:
    """One chart of a picture, with a time axis and a value axis."""

    title: str
    top: float
    height: float
    seconds: float
    maximum: float

    @classmethod
    def of(cls, title: str, top: float, height: float, seconds: float, *steps: Sequence[Step]) -> "Panel":
        """Return a panel that is as high as the largest of these values."""
        return cls(title, top, height, seconds, _round_up(max(value or 0.0 for part in steps for _, value in part)))

    def x(self, t: float) -> float:
        """Return the x coordinate of a time."""
        return LEFT + (WIDTH - LEFT - RIGHT) * t / self.seconds

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return self.top + self.height * (1 - value / self.maximum)

    def frame(self, *, show_times: bool) -> list[str]:
        """Draw the title, the grid and the labels."""
        lines = [text(LEFT, self.top - 10, self.title, weight=600)]
        for value in (share * self.maximum / LINES for share in range(LINES + 1)):
            lines.append(line([(LEFT, self.y(value)), (WIDTH - RIGHT, self.y(value))], HAIR, 1))
            lines.append(text(LEFT - 8, self.y(value) + 4, f"{value:g}", anchor="end", color=FAINT))
        below = self.top + self.height + 18
        times = range(0, int(self.seconds) + 1, 10) if show_times else ()
        return lines + [text(self.x(t), below, f"{t} s", anchor="middle", color=FAINT) for t in times]

    def shade(self, spans: Sequence[tuple[float, float]]) -> list[str]:
        """Shade spans of time."""
        attributes = f'y="{self.top:.1f}" height="{self.height:.1f}" fill="{SHADE}"'
        return [f'<rect x="{self.x(a):.1f}" width="{self.x(b) - self.x(a):.1f}" {attributes}/>' for a, b in spans]

    def steps(self, steps: Sequence[Step], color: str, *, dash: str = "", fill: bool = False) -> list[str]:
        """Draw a step function, with gaps where it has no value."""
        elements: list[str] = []
        points: list[tuple[float, float]] = []
        visible_steps = list({round(2 * self.x(t)): (t, value) for t, value in steps}.values())  # At most two steps per pixel.
        for (t, value), (end, _) in zip(visible_steps, [*visible_steps[1:], (self.seconds, None)], strict=True):
            if value is not None and t < self.seconds:
                points += [(self.x(t), self.y(value)), (self.x(min(end, self.seconds)), self.y(value))]
            elif points:
                elements.append(line(points, color, 1.8, dash))
                points = []
        if points and fill:
            area = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(points[0][0], self.y(0)), *points, (points[-1][0], self.y(0))])
            elements.append(f'<polygon points="{area}" fill="{color}" fill-opacity="0.15"/>')
        return [*elements, *([line(points, color, 1.8 if not fill else 1.2, dash)] if points else [])]

    def ticks(self, times: Sequence[float], color: str, *, value: float) -> list[str]:
        """Draw a short mark at each time."""
        y = self.y(value)
        return [line([(self.x(t), y), (self.x(t), y - 9)], color, 1.4) for t in times if t <= self.seconds]

    def level(self, value: float, label: str) -> list[str]:
        """Draw the endpoint's real limit, with its label on the right."""
        y = self.y(value)
        return [
            line([(LEFT, y), (WIDTH - RIGHT, y)], FAINT, 1.2, "2 4"),
            text(WIDTH - RIGHT, y - 6, label, anchor="end", color=FAINT),
        ]


def _round_up(value: float) -> float:
    """Return a number that is at least as large, and of which a part per line of the grid is round."""
    part = 10.0 ** math.floor(math.log10(value / LINES))
    return LINES * part * math.ceil(value / LINES / part)


def text(x: float, y: float, label: str, *, anchor: str = "start", color: str = INK, weight: int = 400) -> str:
    """Return a text element."""
    style = f'font-weight="{weight}" fill="{color}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(label)}</text>'


def line(points: Sequence[tuple[float, float]], color: str, width: float, dash: str = "") -> str:
    """Return a line through points."""
    dash_attribute = f' stroke-dasharray="{dash}"' if dash else ""
    coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{coordinates}" fill="none" stroke="{color}" stroke-width="{width}"{dash_attribute}/>'


def legend(y: float, entries: Sequence[tuple[str, str, str]]) -> list[str]:
    """Draw the legend: for each entry a swatch (`fill`, `shade`, `line`, `dash` or `tick`), its color and its label."""
    lines, x = [], float(LEFT)
    for kind, color, label in entries:
        match kind:
            case "fill":
                lines.append(f'<rect x="{x}" y="{y - 10}" width="18" height="11" fill="{color}" fill-opacity="0.3"/>')
            case "shade":
                lines.append(f'<rect x="{x}" y="{y - 10}" width="18" height="11" fill="{color}"/>')
            case "tick":
                lines.append(line([(x + 9, y + 1), (x + 9, y - 9)], color, 1.8))
            case _:
                lines.append(line([(x, y - 4), (x + 18, y - 4)], color, 1.8, "6 4" if kind == "dash" else ""))
        lines.append(text(x + 24, y, label))
        x += 24 + 7.1 * len(label) + 22
    return lines


def picture(height: float, title: str, *parts: Sequence[str]) -> str:
    """Return the complete picture, on a light background."""
    body = "\n".join(piece for part in parts for piece in part)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height:g}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


IN_FLIGHT, LIMITED = ("fill", FLIGHT, "in flight"), ("tick", BAD, "429")
LIMIT_KEY, PACE_KEY = ("dash", LIMIT, "limit"), ("line", PACE, "pace (starts/s)")
OPEN = ("shade", SHADE, "breaker open")


def rate_limit() -> str:
    """Draw the first 60 s on an endpoint that accepts 10 calls per second, with a burst of 20."""
    policy = simulate_policy(Endpoint(rate=10.0, burst=20.0), 60.0)
    flight_panel = Panel.of("Attempts in flight", 66, 150, 60.0, policy.in_flight, policy.limits)
    pace_panel = Panel.of("Pace: starts per second", 262, 130, 60.0, policy.paces)
    return picture(
        432,
        "Ramp-up until a rate limit is detected",
        legend(24, [IN_FLIGHT, LIMIT_KEY, PACE_KEY, LIMITED]),
        flight_panel.frame(show_times=False),
        flight_panel.steps(policy.in_flight, FLIGHT, fill=True),
        flight_panel.steps(policy.limits, LIMIT, dash="6 4"),
        pace_panel.frame(show_times=True),
        pace_panel.level(10, "the endpoint accepts 10/s"),
        pace_panel.steps(policy.paces, PACE),
        pace_panel.ticks(policy.rate_limit_times, BAD, value=0),
    )


def outage() -> str:
    """Draw an outage of 15 s."""
    policy = simulate_policy(Endpoint(cap=48, bursts=(Burst(start=20.0, seconds=15.0, kind="unavailable"),)), 70.0)
    panel = Panel.of("Attempts in flight", 66, 190, 70.0, policy.in_flight, policy.limits)
    outage_bar = line([(panel.x(20), panel.top + 4), (panel.x(35), panel.top + 4)], BAD, 4)
    return picture(
        312,
        "An outage: circuit breaker and probes",
        legend(24, [IN_FLIGHT, LIMIT_KEY, OPEN, ("tick", PROBE, "probe"), ("tick", BAD, "failed call")]),
        panel.shade(policy.open_periods),
        panel.frame(show_times=True),
        panel.steps(policy.in_flight, FLIGHT, fill=True),
        panel.steps(policy.limits, LIMIT, dash="6 4"),
        [outage_bar, text(panel.x(20) + 4, panel.top + 22, "endpoint down for 15 s", color=BAD)],
        panel.ticks(policy.failure_times, BAD, value=0),
        panel.ticks(policy.probes, PROBE, value=6),
    )


def random_429s() -> str:
    """Draw random 429s above a real rate limit."""
    random_policy = simulate_policy(Endpoint(random_429=0.05), 60.0)
    paced_policy = simulate_policy(Endpoint(rate=20.0, burst=20.0, retry_after=False), 60.0)
    parts: list[str] = []
    titles = "5 % of the calls are rate limited at random: ignored", "The endpoint accepts 20 calls per second: paced"
    for policy, title, top in ((random_policy, titles[0], 66), (paced_policy, titles[1], 262)):
        panel = Panel.of(title, top, 130, 60.0, policy.in_flight, policy.limits, policy.paces)
        parts += panel.frame(show_times=True)
        parts += panel.steps(policy.in_flight, FLIGHT, fill=True)
        parts += panel.steps(policy.limits, LIMIT, dash="6 4")
        parts += panel.steps(policy.paces, PACE)
        parts += panel.ticks(policy.rate_limit_times, BAD, value=0)
    return picture(430, "Random 429s and a real rate limit", legend(24, [IN_FLIGHT, LIMIT_KEY, PACE_KEY, LIMITED]), parts)


PICTURES = {"rate-limit": rate_limit, "outage": outage, "random-429s": random_429s}


def main() -> None:
    """Write the pictures."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, draw in PICTURES.items():
        (target / f"concurrency-{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
