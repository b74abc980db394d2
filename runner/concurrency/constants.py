"""The constants of the adaptive policy, with their reasons.

They were tuned on `python -m benchmarks policy`, with seeds 0, 77, 100 to 102, 901 to 976, 1000 to 1002, 1100 to 1119, 2000 to
2002, 3000 and 4000 to 4005: figures of those seeds are not independent evidence, so check a change with seeds that were not
used before. Most numbers were not varied one by one.
"""

from typing import Final

# The limit on attempts in flight.
LARGEST_UNCERTAIN_LIMIT: Final = 3
"""Limits on attempts in flight up to this are not inferred: a small token bucket looks the same."""
FIRST_LIMIT: Final = 32
"""The first limit. With 16, short runs took 1.6 times as long; with 100, the mean of ordinary scenarios fell by 5 points."""
SHORTEST_RUN, SHORT_RUN = 200, 1000
"""A run of up to the first number of trials may start all of them immediately; one of up to the second may grow to the first
before a lower load was measured: finding a limit takes longer than the run. With 100 instead of 200, runs of 200 trials took up
to 1.6 times as long as with a fixed limit."""
FIRST_PACE: Final = 20.0
"""Starts per second at the beginning of a longer run: the first 429 arrives before all slots of the first limit are filled,
which halves the 429s of endpoints with a small bucket. Also after the first 429 of the run: when all free slots were filled at
once, up to 70 calls were rate limited until the rate limit was known."""
FIRST_PACE_GROWTH, FIRST_PACE_END = 1.25, 100.0
"""Growth of that pace per answered call, and the pace at which pacing ends. When the first two answers ended the
pacing, small limits rejected dozens of calls in the first seconds."""
UNPROVEN_LIMIT: Final = 64
"""The limit may grow to this before a lower load was measured. With 80 and 100, the mean of ordinary scenarios was lower."""
FAST_GROWTH: Final = 2
"""Slots per success up to `UNPROVEN_LIMIT`; beyond it one, within `PER_ROUND_TRIP`."""
PER_ROUND_TRIP: Final = 1.25
"""Growth of the limit per round trip beyond `UNPROVEN_LIMIT`."""
GROWTH_PER_PROOF: Final = 1.75
"""The limit may grow to this many times the load whose latency was last found acceptable (TCP slow start uses 2)."""
BUSY_SHARE: Final = 0.85
"""Share of the limit that must be in use before a higher one is tried; otherwise a higher one is not used."""
LIMIT_TEST_SOONEST, LIMIT_TEST_LATEST = 5.0, 120.0
"""Seconds between two tests of another limit; doubled while the outcome is the same. Each test costs a 429: with at most 60,
the median of ordinary scenarios (seed 954) was 1.06 % instead of 0.95 % rate limited."""
SMALLEST_COMPARED_LIMIT: Final = 8
"""Limits below this are not compared with a lower one: that would cost a third of them."""
LIMIT_TEST_TIMEOUT: Final = 20.0
"""Seconds, and twelve mean latencies, after which a test without a result is abandoned."""
NEAR_LIMIT: Final = 0.9
"""429s at more than this share of a known limit belong to it: calls overlap a little more than the client can see."""
LIMITED_ABOVE, LIMITED_WITHIN = 3, 15
"""Rate-limited starts above the highest accepted load that show a limit, and maximum starts between two of them."""
DOUBT_SECONDS: Final = 100.0
"""Seconds for which no 429 is attributed to the number in flight, after a rate limit explained them better."""
DOUBTFUL_SHARE: Final = 0.5
"""Share of rate-limited starts up to which a limit on attempts in flight is doubtful."""
PACED_LIMIT: Final = 2
"""Limit per attempt in flight at a 429, once measurements of the rate agree. Without it, a paced server that slows down by
chance gets ever more calls, until they time out."""
OVERLOAD_TIMEOUTS, OVERLOAD_SHARE = 3, 0.2
"""This many timeouts, and this share of all ended attempts, are an overload."""
OVERLOAD_CUT, TIMEOUT_CUT = 0.5, 0.33
"""Share of the load to which the limit falls when nothing responds, and when calls time out. With 0.6 for both, servers that
collapse beyond 4 calls, and servers whose calls beyond a limit hang, reached 50 to 57 % of their capacity."""
CEILING_SECONDS: Final = 1200.0
"""Seconds for which the limit stays below the load of an overload that has happened twice: each costs a timeout. With 120,
servers that keep timed-out calls as load reached 39 and 44 % instead of 72 and 73 %. The first may have been an outage."""

# Latency.
GROUP_SMALLEST, GROUP_LARGEST = 12, 64
"""Starts in a group: as many as the limit, within these bounds. Smaller groups are too noisy: with at most 32, chance made a
run of 2,000 trials with a judge take 1.24 times as long as with a fixed limit."""
GROUP_IGNORED: Final = 8
"""One in this many attempts of a group is ignored, the slowest: it may hang."""
GROUP_SAMPLES: Final = 6
"""Minimum number of latencies in a group."""
SLOW_FACTOR: Final = 4.0
"""A success that took this many times the usual latency is not a reason for a higher limit."""
USUAL_LATENCY_GROWTH: Final = 1.002
"""Growth of the usual latency per success that took longer. With 1.01, the limit of servers with about 10 workers grew until
calls timed out: on 80 of them, 87 trials were lost instead of 3."""
SAME_LOAD, OTHER_LOAD = 1.05, 1.2
"""Two loads are the same up to the first ratio, and are compared from the second."""
MAX_LATENCY_GROWTH: Final = 0.6
"""Growth of latency per growth of load up to which a higher load still raises throughput noticeably."""
DECISIVE_GROWTH: Final = 1.3
"""If latency grew this many times as much as the load, one comparison is enough; otherwise, two in a row are needed."""
WAVE_SHARE: Final = 0.05
"""Share of the mean latency within which starts belong together: where calls take equally long, they end and start in waves."""
SMOOTHING: Final = 0.1
"""Weight of the newest sample in running averages."""

# The pace of starts.
FIRST_RATE_SHARE: Final = 0.7
"""Share of the first observed rate that is used, because that rate includes the content of a full bucket."""
SEARCH_GROWTH: Final = 0.2
"""Growth of the pace per round trip while the rate is only roughly known. With 0.1 per second instead, agents with 8 calls per
attempt behind 10/s reached 46 to 70 % of it instead of 77 to 88 %: the pace grew far beyond it before they were in flight."""
SEARCH_DOUBLING: Final = 1.5
"""Round trips of searching after which the growth has doubled; after twice as many it has tripled."""
SEARCH_STEP: Final = 0.1
"""Maximum growth of the pace per start."""
SWING, FLATTEST_SWING = 0.1, 0.04
"""How far a plateau goes below and above the measured rate: at first, and after measurements that agree."""
PLATEAU_SHORTEST, PLATEAU_LONGEST = 3.0, 30.0
"""Seconds to the middle of a plateau. With 20 a fifth more calls were rate limited; a study with 60 found a raised rate limit
late, and 30 finds it later than 20."""
STEADY_FACTOR: Final = 3.5
"""Measurements have agreed for at least this many times the seconds to the middle of a plateau."""
PLATEAU_CALLS: Final = 200
"""Calls to the middle of the longest plateau on slow endpoints, so that one 429 per plateau stays below 0.5 %."""
MIN_PACE: Final = 1 / 60
"""Minimum starts per second."""
MEASURED_CALLS: Final = 8
"""Accepted calls between two 429s that make a measurement; fewer only bound the rate."""
SHORTEST_ROUND_TRIP: Final = 2.0
"""Minimum seconds of a round trip, which is the mean latency, for a search and for a measurement."""
CONFIRM_GAP: Final = 20
"""Starts within which a second 429 confirms that the pace is too high; one may be random."""
MAX_MEASURED_GROWTH: Final = 3.0
"""Growth of the pace since the last 429 beyond which the bucket has probably overflowed, so that there is no measurement."""

# 429s that no limit explains.
SETTLE_SHARE: Final = 0.5
"""After the first 429 for a while, nothing starts for this share of its own duration, at most of a second: more may follow."""
WINDOW, WINDOW_SHARE, WINDOW_429S = 16, 0.65, 6
"""A limit is exceeded if, of the last `WINDOW` starts, this share and at least `WINDOW_429S` were rate limited. With 20 % of
random 429s that happens about once in 30,000 starts."""
FIRST_429S: Final = 3
"""This many rate limits, the first of a run, show an exceeded limit if they are in a row and before the first answer: a small
bucket accepts a few calls and no more."""
SAME_TRIAL_429S: Final = 4
"""Rate limits in a row of one trial after which the trial, not the endpoint, is considered the reason."""
TESTED_SHARE: Final = 0.02
"""Minimum share of random 429s for which a test is worth its cost."""
TEST_SIGNS: Final = 6
"""Unexplained 429s before a test. With 4, chance clusters of 1 % of random 429s began tests that found a rate limit."""
TEST_PACE: Final = 0.8
"""Pace of a test, as a share of the accepted rate: below any rate limit that could explain the 429s."""
TEST_EXPECTED_429S: Final = 10
"""429s expected in a test if they are random; none means a rate limit. A test begins where 429s happen to be frequent, so fewer
occur: with 6, and one tolerated, 1 % of random 429s were taken for a rate limit in one of three tests."""
TEST_TOLERATED_429S: Final = 2
"""Maximum 429s in a test that indicate a rate limit: those before the test were mostly due to the limit."""
TEST_ENOUGH_429S: Final = 4
"""429s that end a test early, as random, unless all are among the latest starts, as at an exceeded limit. Without it, 20 % of
random 429s took up to 1.95 times the time of a fixed limit."""
TEST_MIN_STARTS: Final = 30
"""Starts of the shortest test."""
MEMORY: Final = 1000
"""Starts after which counts of random 429s are halved."""

# The circuit breaker.
FAILURES_HIGHEST, FAILURES_LOWEST, OUTNUMBER_FACTOR = 12, 4, 1.5
"""Failures that open it: twice the number in flight, within these bounds, and this many times the calls still in flight,
so that up to half of all calls may fail without opening it."""
PROBE_SOONEST, PROBE_LATEST = 1.0, 30.0
"""Minimum and maximum seconds between two probes; within these bounds, a tenth of the outage so far, or a quarter if every call
is rate limited."""
HUNG_LATENCIES, HUNG_SECONDS, HUNG_CALLS = 6.0, 5.0, 4
"""If no call ends for this many mean latencies and seconds, with at least this many in flight, there is no response.
A study used 10 latencies; 6 looked better on a few seeds."""

# Pauses.
LONGEST_PAUSE: Final = 120.0
"""Maximum seconds of a pause: some endpoints send a Retry-After of an hour and accept calls after a minute."""

# The journal.
COARSE_STEPS: Final = 8
"""While slots are added one by one, the limit is recorded in steps of an eighth."""
