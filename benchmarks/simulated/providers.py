"""Servers with the rate limits of OpenAI, Azure, Groq, Mistral, Anthropic and Gemini: what they count, when, how they state it.

`start(t, request)` is the moment at which a request arrives, `finish(t, call)` that at which its reply leaves; both are pure
and take seconds since the start, which never decrease. They run in the simulation and behind HTTP
(`benchmarks._provider_server`). Headers are text, in each provider's own format, and describe the moment of admission or the
moment of the reply (`headers_at`).

server = OpenAI(limits=per_minute(requests=500, tokens=200_000))
call = server.start(0.0, Request(characters=4000, input_tokens=1000, output_tokens=200, max_tokens=500))
reply = server.finish(call.seconds, call)
"""

import heapq
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from attrs import define, field, frozen

from benchmarks.simulated.chance import log_normal, uniform
from benchmarks.simulated.endpoint import Curve
from benchmarks.simulated.formats import duration, http_date, rfc3339
from benchmarks.simulated.meter import DAY, Kind, Limit, Meter

CHARACTERS_PER_TOKEN = 4
"""By which servers estimate tokens at admission."""
REJECTED_AFTER = 0.02
"""Median seconds until a request is rejected."""
UNSET_MAX_TOKENS = 4096
"""Tokens that are reserved for a request without `max_tokens`, where they are."""
_LATENCY, _TAIL, _FAULT = range(10, 13)


def per_minute(**amounts: float) -> tuple[Limit, ...]:
    """Return continuous buckets that hold a minute's worth, by their kind."""
    return tuple(Limit(kind=kind, amount=amount) for kind, amount in amounts.items())  # type: ignore[arg-type]  # a `Kind`


@frozen(kw_only=True)
class Request:
    """A request of a model, and what the model would do with it."""

    characters: int
    input_tokens: int
    """What a tokenizer would count; the server estimates it by characters at admission."""
    output_tokens: int
    max_tokens: int | None = None
    key: tuple[int, int] = (0, 0)
    """Number of the trial and of the call; they determine the latency."""


@frozen(kw_only=True)
class Reply:
    """What arrives at the client."""

    status: int
    headers: Mapping[str, str]
    """Name in lower case → value."""
    usage: Mapping[str, int] | None = None
    """The usage of a success, as the provider writes it."""
    error: Any = None
    """The body of an error."""


@define(eq=False, kw_only=True)
class Call:
    """A request that has arrived."""

    request: Request
    seconds: float
    """Seconds until its reply leaves."""
    needs: Mapping[Kind, float] = field(factory=dict[Kind, float])
    """What was taken at admission."""
    reply: Reply | None = None
    """The reply, if it is an error."""
    headers: Mapping[str, str] | None = None
    """The headers of its success, if they are from the moment of admission."""
    server: "Server | None" = None
    """The deployment that a gateway chose."""


@define(eq=False, kw_only=True)
class Server:
    """A provider: its limits and its latency. Subclasses have its rules and its headers."""

    limits: tuple[Limit, ...]
    seed: int = 0
    median: float = 2.0
    """Median seconds of a success, log-normal."""
    sigma: float = 0.5
    tail: float = 0.0
    """Fraction of the calls with a Pareto tail: at least the median, its mean is three times that, and there is no maximum."""
    headers_at: Literal["admission", "reply"] = "reply"
    others: Curve | None = None
    """Share of every limit that another tenant uses."""
    initial: float = 1.0
    """Share of every limit that is left at the start."""
    quota: int | None = None
    """Calls until a quota of the day, or of the spend, is used up."""
    epoch: float = 1_793_491_200.0
    """Wall time, in seconds since 1970, at t = 0."""
    accepted: int = 0
    rejected: int = 0
    """Calls that got a 429."""
    bans: int = 0
    """Bans so far; see `altered`."""
    meters: list[Meter] = field(init=False)

    host = ""
    """The provider's host; empty: unknown, as behind a gateway."""
    failed_calls_count = True
    """Whether a rejected call takes what is left."""

    def __attrs_post_init__(self) -> None:
        """Start with what is left of each limit."""
        self.meters = [Meter(limit, self.others, self.initial) for limit in self.limits]

    def start(self, t: float, request: Request) -> Call:
        """Admit or reject a request that arrives at `t`."""
        self.advance(t)
        needs = self.needs(request)
        pairs = [(meter, needs.get(meter.limit.kind, 0.0)) for meter in self.meters]
        if self.quota is not None and self.accepted >= self.quota:
            return self._reject(request, self.over_quota(t))
        if any(need > meter.limit.size for meter, need in pairs):
            return self._reject(request, self.too_large(t, request))
        exceeded = [(meter, need) for meter, need in pairs if not meter.fits(need)]
        if exceeded or not self.may_accelerate(t):
            meter, need = max(exceeded, key=lambda pair: pair[0].seconds_until(pair[1]), default=(None, 0.0))
            wait = REJECTED_AFTER if meter is None else max(meter.seconds_until(max(need, 1.0)), 0.001)
            reply = self.rate_limited(t, meter, wait)
            if self.failed_calls_count:
                for wasted, need in pairs:
                    wasted.waste(need)
            return self._reject(request, reply)
        for meter, need in pairs:
            meter.take(need)
        self.accepted += 1
        call = Call(request=request, seconds=self._latency(request), needs=needs)
        if self.headers_at == "admission":
            call.headers = self.headers(t)
        self.admitted(t, call)
        return call

    def finish(self, t: float, call: Call) -> Reply:
        """Return the reply to a call, which leaves at `t`."""
        self.advance(t)
        if call.reply is not None:
            return call.reply
        self.settle(call)
        headers = self.headers(t) if call.headers is None else call.headers
        return Reply(status=200, headers=headers, usage=self.usage(call.request))

    def advance(self, t: float) -> None:
        """Let time pass until `t`."""
        for meter in self.meters:
            meter.advance(t)

    def used_share(self, start: float, end: float) -> float:
        """Return the used share of the limit that is used most, between two times; quotas of a day do not count."""
        return max(meter.used_share(start, end) for meter in self.meters if meter.limit.window < DAY)

    def needs(self, request: Request) -> Mapping[Kind, float]:
        """Return what a request takes at admission."""
        raise NotImplementedError

    def headers(self, t: float) -> dict[str, str]:
        """Return the rate-limit headers at `t`."""
        raise NotImplementedError

    def rate_limited(self, t: float, meter: Meter | None, wait: float) -> Reply:
        """Return a 429; `meter` is the limit that was exceeded, `wait` the seconds until the request would fit."""
        raise NotImplementedError

    def over_quota(self, t: float) -> Reply:
        """Return the reply after the quota is used up."""
        raise NotImplementedError

    def too_large(self, t: float, request: Request) -> Reply:
        """Return the reply to a request that can never fit."""
        raise NotImplementedError

    def usage(self, request: Request) -> Mapping[str, int]:
        """Return the usage of a success, in the provider's format."""
        return {"prompt_tokens": request.input_tokens, "completion_tokens": request.output_tokens}

    def may_accelerate(self, t: float) -> bool:  # noqa: ARG002  # for subclasses
        """Return whether the use does not increase too quickly."""
        return True

    def admitted(self, t: float, call: Call) -> None:
        """Process that a call was admitted."""

    def settle(self, call: Call) -> None:
        """Correct what was taken at admission by the real usage."""

    def draw(self, request: Request, purpose: int) -> float:
        """Draw a number between 0 and 1 for a request."""
        return uniform(self.seed, *request.key, purpose)

    def _reject(self, request: Request, reply: Reply) -> Call:
        self.rejected += reply.status == 429
        seconds = log_normal(self.draw(request, _LATENCY), REJECTED_AFTER, 0.5)
        return Call(request=request, seconds=seconds, reply=reply)

    def _latency(self, request: Request) -> float:
        u = self.draw(request, _LATENCY)
        if self.tail and self.draw(request, _TAIL) < self.tail:
            return self.median / math.cbrt(u * u)
        return log_normal(u, self.median, self.sigma)


def estimate(request: Request) -> int:
    """Return the input tokens of a request by its characters."""
    return math.ceil(request.characters / CHARACTERS_PER_TOKEN)


class OpenAI(Server):
    """`x-ratelimit-*`, with durations until the bucket is full; max_tokens or the estimate counts at admission."""

    host = "api.openai.com"

    def needs(self, request: Request) -> Mapping[Kind, float]:
        """Return the larger of max_tokens and the estimate by characters."""
        tokens = max(request.max_tokens or 0, estimate(request))
        return {"requests": 1, "tokens": tokens, "project_tokens": tokens}

    def headers(self, t: float) -> dict[str, str]:
        """Return limit, remaining and reset of each advertised limit."""
        values = {"date": http_date(self.epoch + t)}
        for meter in self.meters:
            limit = meter.limit
            if limit.is_advertised:
                name = limit.kind.replace("_", "-")
                values[f"x-ratelimit-limit-{name}"] = f"{limit.amount:.0f}"
                values[f"x-ratelimit-remaining-{name}"] = str(meter.remaining)
                values[f"x-ratelimit-reset-{name}"] = duration(meter.seconds_until(limit.size))
        return values

    def rate_limited(self, t: float, meter: Meter | None, wait: float) -> Reply:
        """Return a 429 with `retry-after` in whole seconds and `retry-after-ms`."""
        kind = "requests" if meter is None else meter.limit.kind
        message = f"Rate limit reached for m on {kind}. Please try again in {duration(wait)}."
        return Reply(
            status=429,
            headers=self.headers(t) | {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(1000 * wait))},
            error={"error": {"message": message, "type": kind, "code": "rate_limit_exceeded"}},
        )

    def over_quota(self, t: float) -> Reply:
        """Return the error of a project without credit."""
        message = "You exceeded your current quota, please check your plan and billing details."
        error = {"message": message, "type": "insufficient_quota", "code": "insufficient_quota"}
        return Reply(status=429, headers=self.headers(t), error={"error": error})

    def too_large(self, t: float, request: Request) -> Reply:
        """Return the 429 of a request above the limit itself."""
        message = f"Request too large for m: requested {self.needs(request)['tokens']:.0f} tokens; they must be reduced"
        error = {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}
        return Reply(status=429, headers=self.headers(t), error={"error": error})


@define(eq=False, kw_only=True)
class Azure(OpenAI):
    """OpenAI's names with renewal periods instead of resets; the estimate and max_tokens are reserved."""

    host = "name.openai.azure.com"
    faults: float = 0.0
    """Fraction of the replies that state -1 or 0 for what is unknown."""
    _replies: int = 0

    def needs(self, request: Request) -> Mapping[Kind, float]:
        """Return the estimate plus max_tokens."""
        reserved = UNSET_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        return {"requests": 1, "tokens": estimate(request) + reserved}

    def headers(self, t: float) -> dict[str, str]:
        """Return limit, remaining and renewal period of each advertised limit."""
        values = {"date": http_date(self.epoch + t)}
        self._replies += 1
        unknown = uniform(self.seed, self._replies, 0, _FAULT) < self.faults
        for meter in self.meters:
            limit = meter.limit
            if limit.is_advertised:
                values[f"x-ratelimit-limit-{limit.kind}"] = "0" if unknown else f"{limit.amount:.0f}"
                values[f"x-ratelimit-remaining-{limit.kind}"] = "-1" if unknown else str(meter.remaining)
                values[f"x-ratelimit-renewalperiod-{limit.kind}"] = f"{limit.window:.0f}"
        return values

    def rate_limited(self, t: float, meter: Meter | None, wait: float) -> Reply:
        """Return a 429 that names the type; every other `retry-after-ms` is 0, which means unknown."""
        kind = "requests" if meter is None else meter.limit.kind
        milliseconds = 0 if self.rejected % 2 else math.ceil(1000 * wait)
        headers = {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(milliseconds), "x-ratelimit-type": kind}
        message = f"Requests have exceeded the call rate limit. Please retry after {math.ceil(wait)} seconds."
        return Reply(status=429, headers=self.headers(t) | headers, error={"error": {"code": "429", "message": message}})


class Groq(OpenAI):
    """OpenAI's names, but `-requests` is the limit of the day; the limit of requests per minute is not advertised."""

    host = "api.groq.com"

    def needs(self, request: Request) -> Mapping[Kind, float]:
        """Return the estimate plus max_tokens."""
        return {"requests": 1, "tokens": estimate(request) + (request.max_tokens or 0)}

    def rate_limited(self, t: float, meter: Meter | None, wait: float) -> Reply:
        """Return a 429 with a fractional `retry-after`."""
        reply = super().rate_limited(t, meter, wait)
        headers = {name: value for name, value in reply.headers.items() if name != "retry-after-ms"}
        return Reply(status=429, headers=headers | {"retry-after": f"{wait:.3f}"}, error=reply.error)

    def over_quota(self, t: float) -> Reply:
        """Return the 429 of a day without requests left."""
        wait = DAY - (self.epoch + t) % DAY
        message = f"Rate limit reached for model m on requests per day (RPD): Please try again in {duration(wait)}."
        error = {"message": message, "type": "requests", "code": "rate_limit_exceeded"}
        return Reply(status=429, headers=self.headers(t) | {"retry-after": f"{wait:.3f}"}, error={"error": error})

    def too_large(self, t: float, request: Request) -> Reply:
        """Return a 413."""
        reply = super().too_large(t, request)
        return Reply(status=413, headers=reply.headers, error=reply.error)


class Mistral(Groq):
    """`x-ratelimitbysize-*`: tokens in fixed windows of a minute, with the whole seconds until the next one begins.

    Requests per second are limited, too, but not advertised.
    """

    host = "api.mistral.ai"

    def headers(self, t: float) -> dict[str, str]:
        """Return limit, remaining and reset of the tokens."""
        values = {"date": http_date(self.epoch + t)}
        for meter in self.meters:
            if meter.limit.is_advertised:
                values["x-ratelimitbysize-limit-minute"] = f"{meter.limit.amount:.0f}"
                values["x-ratelimitbysize-remaining-minute"] = str(meter.remaining)
                values["ratelimitbysize-reset"] = str(math.ceil(meter.seconds_until(meter.limit.size)))
        return values


@define(eq=False, kw_only=True)
class Anthropic(Server):
    """`anthropic-ratelimit-*` with times; input is corrected, output counts while it is generated, max_tokens does not."""

    acceleration: bool = True
    """Whether the use may not increase sharply."""
    _output: list[tuple[float, float]] = field(factory=list[tuple[float, float]])
    """(Time, tokens) that the calls in flight will generate, a heap."""
    _starts: deque[float] = field(factory=deque[float])
    """Starts of the last 70 s."""

    host = "api.anthropic.com"
    failed_calls_count = False

    def needs(self, request: Request) -> Mapping[Kind, float]:
        """Return the estimate of the input; output needs only that something is left."""
        return {"requests": 1, "input_tokens": estimate(request)}

    def advance(self, t: float) -> None:
        """Let time pass, and count the tokens that were generated until `t`."""
        output = [meter for meter in self.meters if meter.limit.kind == "output_tokens"]
        while self._output and self._output[0][0] <= t:
            moment, tokens = heapq.heappop(self._output)
            for meter in output:
                meter.advance(max(moment, meter.now))
                meter.take(tokens)
        super().advance(t)

    def admitted(self, t: float, call: Call) -> None:
        """Generate the output evenly over the time of the call."""
        self._starts.append(t)
        parts = max(math.ceil(call.seconds), 1)
        for part in range(1, parts + 1):
            heapq.heappush(self._output, (t + call.seconds * part / parts, call.request.output_tokens / parts))

    def settle(self, call: Call) -> None:
        """Correct the estimate of the input by its real size."""
        for meter in self.meters:
            if meter.limit.kind == "input_tokens":
                meter.take(call.request.input_tokens - call.needs["input_tokens"])

    def may_accelerate(self, t: float) -> bool:
        """Allow twice the mean of the minute before the last 10 s; at least 0.6 of what the limits allow, and 50 calls."""
        starts = self._starts
        while starts and starts[0] < t - 70:
            starts.popleft()
        if not self.acceleration or not starts:
            return True
        recent = sum(1 for start in starts if start >= t - 10)
        before = (len(starts) - recent) / max(t - 10 - starts[0], 1.0)
        return recent < 10 * max(0.6 * self._calls_per_second(), 2 * before, 5.0)

    def _calls_per_second(self) -> float:
        """Return the calls that the tightest limit allows, at the mean needs so far."""
        count = max(self.accepted, 1)
        return min(meter.limit.rate / max(meter.total / count, 1.0) for meter in self.meters)

    def headers(self, t: float) -> dict[str, str]:
        """Return limit, remaining and reset of each limit; tokens are rounded to 1,000."""
        values = {"date": http_date(self.epoch + t)}
        for meter in self.meters:
            limit = meter.limit
            name = f"anthropic-ratelimit-{limit.kind.replace('_', '-')}"
            remaining = meter.remaining if limit.kind == "requests" else 1000 * round(meter.remaining / 1000)
            values[f"{name}-limit"] = f"{limit.amount:.0f}"
            values[f"{name}-remaining"] = str(remaining)
            values[f"{name}-reset"] = rfc3339(self.epoch + t + meter.seconds_until(limit.size))
        return values

    def rate_limited(self, t: float, meter: Meter | None, wait: float) -> Reply:
        """Return a 429 with `retry-after` in whole seconds."""
        what = "acceleration limit" if meter is None else f"limit of {meter.limit.kind}"
        headers = self.headers(t) | {"retry-after": str(math.ceil(wait))}
        return Reply(
            status=429, headers=headers, error=_anthropic_error("rate_limit_error", f"This request would exceed the {what}")
        )

    def over_quota(self, t: float) -> Reply:
        """Return the 400 of a used-up spend, without Retry-After."""
        message = "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."
        return Reply(
            status=400, headers={"date": http_date(self.epoch + t)}, error=_anthropic_error("invalid_request_error", message)
        )

    def too_large(self, t: float, request: Request) -> Reply:
        """Return the 429 of a request above the limit itself."""
        message = f"This request of {estimate(request)} tokens would exceed the limit of input tokens per minute"
        return Reply(status=429, headers=self.headers(t), error=_anthropic_error("rate_limit_error", message))

    def usage(self, request: Request) -> Mapping[str, int]:
        """Return the usage in Anthropic's names."""
        return {"input_tokens": request.input_tokens, "output_tokens": request.output_tokens}


def _anthropic_error(kind: str, message: str) -> Any:
    return {"type": "error", "error": {"type": kind, "message": message}}


class Gemini(Server):
    """No headers; a 429 names the quota and a delay in its body. Only input counts."""

    host = "generativelanguage.googleapis.com"

    def needs(self, request: Request) -> Mapping[Kind, float]:
        """Return the input tokens."""
        return {"requests": 1, "input_tokens": request.input_tokens}

    def headers(self, t: float) -> dict[str, str]:
        """Return no rate-limit header."""
        return {"date": http_date(self.epoch + t)}

    def rate_limited(self, t: float, meter: Meter | None, wait: float) -> Reply:
        """Return a 429 with `RetryInfo` and `QuotaFailure`."""
        tokens = meter is not None and meter.limit.kind == "input_tokens"
        quota = f"Generate{'ContentInputTokens' if tokens else 'Requests'}PerMinutePerProjectPerModel"
        return self._exhausted(t, quota, wait)

    def over_quota(self, t: float) -> Reply:
        """Return the 429 of a day without requests left; its delay is misleading."""
        return self._exhausted(t, "GenerateRequestsPerDayPerProjectPerModel", 46.0)

    def too_large(self, t: float, request: Request) -> Reply:
        """Return a 400."""
        message = f"The input token count ({request.input_tokens}) exceeds the maximum number of tokens allowed"
        return Reply(
            status=400,
            headers=self.headers(t),
            error={"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}},
        )

    def usage(self, request: Request) -> Mapping[str, int]:
        """Return the usage in Gemini's names."""
        return {"promptTokenCount": request.input_tokens, "candidatesTokenCount": request.output_tokens}

    def _exhausted(self, t: float, quota: str, wait: float) -> Reply:
        details = [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{math.ceil(wait)}s"},
        ]
        error = {"code": 429, "message": "Resource has been exhausted", "status": "RESOURCE_EXHAUSTED", "details": details}
        return Reply(status=429, headers=self.headers(t), error={"error": error})
