"""Gateways in front of several deployments of a model: how they choose one, and what they do after its 429."""

from collections.abc import Sequence

from attrs import define, field

from benchmarks.simulated.altered import Gateway
from benchmarks.simulated.chance import uniform
from benchmarks.simulated.meter import Limit
from benchmarks.simulated.providers import REJECTED_AFTER, Call, OpenAI, Reply, Request, Server, per_minute

TOKENS = 2_000_000
"""Tokens per minute of a deployment: more than its requests need."""
_CHOICE = 40


@define(eq=False)
class CoolingGateway(Gateway):
    """A gateway that does not use a deployment for a while after its 429, as LiteLLM's router does.

    It chooses among the others at random and tries a second one after a 429. If all of them cool down, it rejects the call.
    """

    cool_down: float = 5.0
    """Seconds for which a deployment is not used."""
    weighted: bool = True
    """Whether it chooses by the limits of the deployments; otherwise each is as likely."""
    retry_after: bool = True
    """Whether its own 429 states the seconds until a deployment is used again."""
    _until: dict[int, float] = field(factory=dict[int, float])
    """Deployment → when it is used again."""

    def start(self, t: float, request: Request) -> Call:
        """Send a request to a deployment, and to another one after a 429."""
        for attempt in range(2):
            ready = [k for k in range(len(self.deployments)) if self._until.get(k, 0.0) <= t]
            if not ready:
                break
            k = self._choose(ready, request, attempt)
            call = self.deployments[k].start(t, request)
            call.server = self.deployments[k]
            if call.reply is None:
                return call
            self._until[k] = t + self.cool_down
        self.rejected += 1
        return Call(request=request, seconds=REJECTED_AFTER, reply=self._no_deployment(t))

    def finish(self, t: float, call: Call) -> Reply:
        """Return the reply of the deployment, or of the gateway itself."""
        if call.server is None:
            assert call.reply is not None
            return call.reply
        return super().finish(t, call)

    def _choose(self, ready: Sequence[int], request: Request, attempt: int) -> int:
        weights = [self.deployments[k].limits[0].rate if self.weighted else 1.0 for k in ready]
        left = uniform(self.seed, *request.key, _CHOICE + attempt) * sum(weights)
        for k, weight in zip(ready, weights, strict=True):
            left -= weight
            if left <= 0:
                return k
        return ready[-1]

    def _no_deployment(self, t: float) -> Reply:
        wait = max(min(self._until.values(), default=t) - t, 1.0)
        headers = {"retry-after": f"{wait:.0f}"} if self.retry_after else {}
        return Reply(status=429, headers=headers, error={"error": {"message": "no deployments available", "code": "429"}})


def plain_gateway(seed: int, requests: Sequence[int]) -> Gateway:
    """Return a gateway in front of deployments with these requests per minute."""
    return Gateway(_deployments(seed, requests, 60.0), seed)


def cooling_gateway(
    seed: int, requests: Sequence[int], cool_down: float = 5.0, *, weighted: bool = True, retry_after: bool = True
) -> CoolingGateway:
    """Return a gateway that cools its deployments down; they enforce their limits over 10 s, not over a minute."""
    servers = _deployments(seed, requests, 10.0)
    return CoolingGateway(servers, seed, cool_down=cool_down, weighted=weighted, retry_after=retry_after)


def _deployments(seed: int, requests: Sequence[int], seconds: float) -> list[Server]:
    """Return deployments whose buckets hold the requests of this many seconds."""
    servers: list[Server] = []
    for k, amount in enumerate(requests):
        limit = Limit(kind="requests", amount=amount, holds=amount * seconds / 60)
        servers.append(OpenAI(limits=(limit, *per_minute(tokens=TOKENS)), seed=seed + k))
    return servers
