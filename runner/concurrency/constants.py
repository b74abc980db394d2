"""The constants of the adaptive policy, with their reasons.

"With 15: +0.3" is the mean difference in points of goodput with that value instead, on 12 rows of `python -m benchmarks policy`
(A, C, E, G, L, T and six adversarial ones, 300 s each, seed 7003). Chance alone makes a difference of a point or two.
"""

from typing import Final

# Evidence.
FEW, SEVERAL, MANY = 3, 4, 6
"""Events that show a pattern, where chance would need that many in a row: with 20 % of random 429s, 0.8 %, 0.2 % and 0.006 %.
The first are enough for what is undone soon; the last begin something that costs more, such as a test or a pause."""
WINDOW, WINDOW_SHARE = 16, 0.65
"""A limit is exceeded if, of this many latest starts, this share and at least `MANY` were rate limited. With 20 % of random
429s that happens about once in 30,000 starts. With `WINDOW_SHARE` 0.5: +0.9."""
MEASURED_CALLS: Final = 8
"""Accepted calls between two 429s that make a measurement; fewer only bound the rate. Limits below it are not compared with a
lower one, because that would cost a third of them. With 4: -0.2."""
SMALL_PART: Final = 8
"""One in this many does not matter: slow attempts that a group ignores, and slots by which a recorded limit may be too low.
With 4: +0.8."""
SAME: Final = 0.05
"""Two loads are the same, and starts belong to the same wave, up to this difference, relative to a load or the mean latency.
With 0.1: +0.3."""
SMOOTHING: Final = 0.1
"""Weight of the newest sample in running averages. With 0.2: +0.4."""
SHORT_TIME, LONG_TIME = 5.0, 120.0
"""Seconds until what was found is tested again: at first, and at most. They are doubled while the result is the same. Also the
shortest time without a response that is an outage, and the longest pause for a Retry-After. With `SHORT_TIME` 10: +0.4. With
`LONG_TIME` 60: -0.1."""

# The limit on attempts in flight.
FIRST_LIMIT: Final = 32
"""The first limit; the limit may grow to twice as many before a lower load was measured. With 16: +1.5, but three times the
429s, and short runs took 1.6 times as long; with 100, the mean of ordinary rows fell by 5 points."""
SHORTEST_RUN, SHORT_RUN = 200, 1000
"""A run of up to the first number of trials may start all of them immediately; one of up to the second may grow to the first
before a lower load was measured: finding a limit takes longer than the run. With 100 instead of 200, runs of 200 trials took up
to 1.6 times as long as with a fixed limit; with 200 instead of 1000, runs of 500 trials 1.6 times instead of 1.2 times."""
FAST_GROWTH: Final = 2
"""Slots per success up to twice the first limit; beyond it one, within `GROWTH_STEP` per round trip. With 1: +1.1."""
GROWTH_STEP: Final = 1.25
"""Growth of the limit per round trip, and of the first pace per answer. With 1.5: +0.0."""
GROWTH_PER_PROOF: Final = 1.75
"""The limit may grow to this many times the load whose latency was last found acceptable (TCP slow start uses 2). With 2:
+0.6."""
BUSY_SHARE: Final = 0.85
"""Share of the limit that must be in use before a higher one is tried. 429s at more than this share of a known limit belong to
it, and a limit that was an overload twice is not exceeded by more than this share again. With 0.7: +0.2."""
DOUBTFUL_SHARE: Final = 0.5
"""Share of rate-limited starts up to which a limit on attempts in flight is doubtful. Without it, 5 % of random 429s lowered a
limit of 32 to 23."""
PACED_LIMIT: Final = 2
"""Limit per attempt in flight at a 429, once measurements of the rate agree. Without it, a paced server that slows down by
chance gets ever more calls, until they time out. With 3: +0.0."""
OVERLOAD_SHARE, OVERLOAD_CUT, TIMEOUT_CUT = 0.2, 0.5, 0.33
"""Share of timeouts among ended attempts that is an overload, and the share of the load to which the limit falls when nothing
responds, and when calls time out. With 0.33 for both, a server with 48 places that did not respond for 2 minutes reached 33 %
instead of 89 %; with 0.5 for both, servers that collapse beyond 4 calls 30 % instead of 79 %. With `OVERLOAD_SHARE` 0.4:
+0.0."""

# Latency.
USUAL_LATENCY_GROWTH: Final = 1.002
"""Growth of the usual latency per success that took longer. With 1.01, the limit of servers with about 10 workers grew until
calls timed out: on 80 of them, 87 trials were lost instead of 3."""
OTHER_LOAD: Final = 1.2
"""Ratio from which two loads are compared. With 1.1: +1.0."""
MAX_LATENCY_GROWTH: Final = 0.6
"""Growth of latency per growth of load up to which a higher load still raises throughput noticeably. With 0.8: -0.0."""
DECISIVE_GROWTH: Final = 1.3
"""If latency grew this many times as much as the load, one comparison is enough; otherwise, two in a row are needed. With 1.1:
-0.5."""

# The pace of starts.
FIRST_PACE, FIRST_PACE_END = 20.0, 100.0
"""Starts per second at the beginning of a longer run and after its first 429, and the pace at which pacing ends: the first 429
arrives before all slots are filled, which halves the 429s of endpoints with a small bucket. With `FIRST_PACE` 40: +1.9. With
`FIRST_PACE_END` 50: +0.0."""
FIRST_RATE_SHARE: Final = 0.7
"""Share of the first observed rate that is used, because that rate includes the content of a full bucket. With 1: +1.6."""
SEARCH_GROWTH: Final = 0.2
"""Growth of the pace per round trip while the rate is only roughly known. With 0.1 per second instead, agents with 8 calls per
attempt behind 10/s reached 46 to 70 % of it instead of 77 to 88 %: the pace grew far beyond it before they were in flight."""
SEARCH_DOUBLING: Final = 1.5
"""Round trips of searching after which the growth has doubled; after twice as many it has tripled. With 3: -0.1."""
SWING, FLATTEST_SWING = 0.1, 0.04
"""How far a plateau goes below and above the measured rate, at first and after measurements that agree. The first is also the
maximum growth of the pace per start of a search. With `SWING` 0.2: +0.0. With `FLATTEST_SWING` 0.08: +0.1."""
PLATEAU_SHORTEST, PLATEAU_LONGEST = 3.0, 30.0
"""Seconds to the middle of a plateau, and maximum seconds between two probes. With `PLATEAU_SHORTEST` 6: -0.3. With
`PLATEAU_LONGEST` 15: +0.3."""
PLATEAU_CALLS: Final = 200
"""Calls to the middle of the longest plateau on slow endpoints, so that one 429 per plateau stays below 0.5 %. With 100:
+0.0."""
MIN_PACE: Final = 1 / 60
"""Minimum starts per second: what the smallest limits of providers, one request per minute, allow."""
SHORTEST_ROUND_TRIP: Final = 2.0
"""Minimum seconds of a round trip, which is the mean latency, for a search and for a measurement. With 1: +0.2."""
SETTLE_SHARE: Final = 0.5
"""After the first 429 for a while, nothing starts for this share of its own duration, at most of a second: more may follow.
With 1: +0.2."""

# 429s that no limit explains.
TESTED_SHARE: Final = 0.02
"""Minimum share of random 429s for which a test is worth its cost. With 0.05: +0.6."""
TEST_PACE: Final = 0.8
"""Pace of a test, as a share of the accepted rate: below any rate limit that could explain the 429s. With 0.9: +0.3."""
TEST_EXPECTED_429S: Final = 10
"""429s expected in a test if they are random; none means a rate limit. A test begins where 429s happen to be frequent, so fewer
occur: with 6, and one tolerated, 1 % of random 429s were taken for a rate limit in one of three tests."""

# The circuit breaker.
OUTNUMBER_FACTOR: Final = 1.5
"""Failures per call still in flight that open it, so that up to half of all calls may fail without opening it. With 3: +0.0."""
PROBE_SOONEST: Final = 1.0
"""Minimum seconds between two probes; otherwise a tenth of the outage so far, or a quarter if every call is rate limited. With
3: +0.0."""
