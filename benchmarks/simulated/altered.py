"""Providers with a difficulty: headers that are wrong, missing or late, bans, and a gateway in front of several deployments."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from attrs import define, evolve, field

from benchmarks.simulated.chance import uniform
from benchmarks.simulated.meter import DAY
from benchmarks.simulated.providers import REJECTED_AFTER, Call, Reply, Request, Server

_ROUTE, _MISSING = range(20, 22)
BAN, BAN_429S, BAN_WINDOW = 60.0, 3, 10.0
"""Seconds of a ban, which follows this number of 429s in so many seconds."""


class Provider(Protocol):
    """What a client talks to."""

    @property
    def host(self) -> str:
        """Its host name."""
        ...

    @property
    def accepted(self) -> int:
        """Calls that were accepted."""
        ...

    @property
    def rejected(self) -> int:
        """Calls that got a 429."""
        ...

    @property
    def bans(self) -> int:
        """Bans so far."""
        ...

    def start(self, t: float, request: Request) -> Call:
        """Admit or reject a request that arrives at `t`."""
        ...

    def finish(self, t: float, call: Call) -> Reply:
        """Return the reply to a call, which leaves at `t`."""
        ...

    def used_share(self, start: float, end: float) -> float:
        """Return the used share of the limits between two times."""
        ...


Alter = Callable[[Reply, float, Request], Reply]
"""Changes a reply that leaves at a time."""


@define(eq=False)
class Altered:
    """A provider whose replies are changed on their way."""

    server: Server
    alter: Alter

    @property
    def host(self) -> str:
        """Its host name."""
        return self.server.host

    @property
    def accepted(self) -> int:
        """Calls that were accepted."""
        return self.server.accepted

    @property
    def rejected(self) -> int:
        """Calls that got a 429."""
        return self.server.rejected

    @property
    def bans(self) -> int:
        """Bans so far."""
        return 0

    def start(self, t: float, request: Request) -> Call:
        """Admit or reject a request that arrives at `t`."""
        return self.server.start(t, request)

    def finish(self, t: float, call: Call) -> Reply:
        """Return the changed reply to a call."""
        return self.alter(self.server.finish(t, call), t, call.request)

    def used_share(self, start: float, end: float) -> float:
        """Return the used share of the limits between two times."""
        return self.server.used_share(start, end)


def unchanged(reply: Reply, _: float, __: Request) -> Reply:
    """Return the reply."""
    return reply


def without_retry_after(reply: Reply, _: float, __: Request) -> Reply:
    """Remove everything that says when to call again, except the rate-limit headers."""
    if reply.error is None:
        return reply
    headers = {name: value for name, value in reply.headers.items() if not name.startswith("retry-after")}
    return evolve(reply, headers=headers, error={"error": {"message": "rate limited", "code": "rate_limit_exceeded"}})


def without_headers(reply: Reply, _: float, __: Request) -> Reply:
    """Remove the rate-limit headers; `Retry-After` stays."""
    return evolve(reply, headers={name: value for name, value in reply.headers.items() if "ratelimit" not in name})


def sometimes_without_headers(reply: Reply, t: float, request: Request) -> Reply:
    """Remove the rate-limit headers from two of three replies."""
    return reply if uniform(0, *request.key, _MISSING) < 1 / 3 else without_headers(reply, t, request)


def late_headers(reply: Reply, t: float, request: Request) -> Reply:
    """Remove the rate-limit headers in the first minute."""
    return reply if t > 60 else without_headers(reply, t, request)


def rewrite(**values: Callable[[float], float]) -> Alter:
    """Return a function that changes the numbers of limit or remaining in every reply."""

    def alter(reply: Reply, _: float, __: Request) -> Reply:
        headers = {
            name: next((f"{change(float(text)):.0f}" for field, change in values.items() if f"-{field}-" in name), text)
            for name, text in reply.headers.items()
        }
        return evolve(reply, headers=headers)

    return alter


def replaced(**values: str) -> Alter:
    """Return a function that sets rate-limit headers of every reply; `-` is written as `_`."""
    texts = {name.replace("_", "-"): text for name, text in values.items()}
    return lambda reply, _, __: evolve(reply, headers={**reply.headers, **texts})


@define(eq=False)
class Constant:
    """Headers that never change: those of the first reply."""

    _headers: Mapping[str, str] | None = None

    def __call__(self, reply: Reply, _: float, __: Request) -> Reply:
        """Replace the rate-limit headers."""
        if self._headers is None:
            self._headers = {name: value for name, value in reply.headers.items() if "ratelimit" in name}
        return evolve(reply, headers={**reply.headers, **self._headers})


@define(eq=False)
class Stale:
    """Headers from a cache: those of 10 s before."""

    _headers: deque[tuple[float, Mapping[str, str]]] = field(factory=deque[tuple[float, Mapping[str, str]]])

    def __call__(self, reply: Reply, t: float, _: Request) -> Reply:
        """Replace the headers of a success."""
        if reply.error is not None:
            return reply
        self._headers.append((t, reply.headers))
        while len(self._headers) > 1 and self._headers[1][0] <= t - 10:
            self._headers.popleft()
        return evolve(reply, headers=self._headers[0][1])


@define(eq=False)
class Banning(Altered):
    """A provider that rejects everything for a minute after three 429s in 10 s."""

    alter: Alter = unchanged
    _bans: int = 0
    _banned_until: float = 0.0
    _banned_calls: int = 0
    _recent: deque[float] = field(factory=deque[float])

    @property
    def rejected(self) -> int:
        """Calls that got a 429, those during a ban included."""
        return self.server.rejected + self._banned_calls

    @property
    def bans(self) -> int:
        """Bans so far."""
        return self._bans

    def start(self, t: float, request: Request) -> Call:
        """Reject a request during a ban; otherwise count the 429s."""
        if t < self._banned_until:
            self._banned_calls += 1
            error = {"error": {"message": "too many requests", "code": "rate_limit_exceeded"}}
            return Call(request=request, seconds=REJECTED_AFTER, reply=Reply(status=429, headers={}, error=error))
        call = self.server.start(t, request)
        if call.reply is not None:
            self._recent.append(t)
            while self._recent[0] < t - BAN_WINDOW:
                self._recent.popleft()
            if len(self._recent) >= BAN_429S:
                self._recent.clear()
                self._bans += 1
                self._banned_until = t + BAN
        return call


@define(eq=False)
class Gateway:
    """A gateway that sends each call to a random deployment and, if that rejects it, to the next one, once."""

    deployments: list[Server]
    seed: int = 0
    host: str = ""
    rejected: int = 0
    bans: int = 0

    @property
    def accepted(self) -> int:
        """Calls that were accepted."""
        return sum(server.accepted for server in self.deployments)

    def start(self, t: float, request: Request) -> Call:
        """Send a request to a deployment, and to another one after a 429."""
        first = int(uniform(self.seed, *request.key, _ROUTE) * len(self.deployments))
        for k in (first, first + 1):
            server = self.deployments[k % len(self.deployments)]
            call = server.start(t, request)
            call.server = server
            if call.reply is None:
                return call
        self.rejected += 1
        return call

    def finish(self, t: float, call: Call) -> Reply:
        """Return the reply of the deployment, with its headers."""
        assert call.server is not None
        return call.server.finish(t, call)

    def used_share(self, start: float, end: float) -> float:
        """Return what all deployments admitted, divided by what flowed into all of them."""
        meters = [meter for server in self.deployments for meter in server.meters if meter.limit.window < DAY]
        kinds = {meter.limit.kind for meter in meters}
        shares: list[float] = []
        for kind in kinds:
            same = [meter for meter in meters if meter.limit.kind == kind]
            used = sum(meter.used_share(start, end) * meter.limit.rate for meter in same)
            shares.append(used / sum(meter.limit.rate for meter in same))
        return max(shares)
