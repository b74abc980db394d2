"""Every number of the adaptive policy, and the reason for it.

They were tuned on `python -m benchmarks policy`, with seeds 0, 77 and 100 to 102: figures of those seeds are not independent
evidence, so check a change with seeds that were not used before. Most numbers were not varied one by one.
"""

from typing import Final

# The limit on attempts in flight.
LEAST_SHOWN: Final = 3
"""No limit on attempts in flight is learned at or below this: a bucket that holds few calls looks the same."""
FIRST_LIMIT: Final = 32
"""Attempts at once to begin with. With 16 short runs took 1.6 times as long; with 100 the ordinary mean fell by 5 points."""
SHORTEST_RUN, SHORT_RUN = 100, 1000
"""A run of at most the first number of trials may start all of them at once, and one of at most the second may grow to as many
before a lower load was measured: finding a limit takes longer than the run."""
UNPROVEN_LIMIT: Final = 64
"""The limit may grow to this before a lower load was measured. With 80 and 100 the ordinary mean was lower."""
FAST_GROWTH: Final = 2
"""Slots per success up to `UNPROVEN_LIMIT`; beyond it one, within `PER_ROUND_TRIP`."""
PER_ROUND_TRIP: Final = 1.25
"""Growth of the limit per round trip beyond `UNPROVEN_LIMIT`."""
GROWTH_PER_PROOF: Final = 1.75
"""The limit may grow to this many times the load whose latency was last found acceptable (TCP slow start uses 2)."""
BUSY: Final = 0.85
"""Share of the limit that must be in use before a higher one is tried; otherwise it would prove nothing."""
TRIAL_SOONEST, TRIAL_LATEST = 5.0, 60.0
"""Seconds between two trials of another limit; doubled while the outcome is the same."""
CHECKED_LEAST: Final = 8
"""Limits below this are not compared with a lower one: that would cost a third of them."""
TRIAL_PATIENCE: Final = 20.0
"""Seconds, and twelve mean latencies, after which a trial without a result is abandoned."""
NEAR_LIMIT: Final = 0.9
"""429s at more than this share of a known limit belong to it: calls overlap a little more than the client can see."""
OVER_LIMIT, OVER_WITHIN = 3, 15
"""Rate-limited starts above the highest accepted load that show a limit in flight, and starts between two of them."""
WITHIN_LIMIT, WITHIN_SHARE, DOUBT = 3, 0.4, 300.0
"""So many 429s within a known limit, at this part of the share that showed it, show that it is none; for so many seconds."""
SURE_SHARE: Final = 0.5
"""Share of rate-limited starts from which on a limit on attempts in flight is sure; a few too many are then taken off it."""
OUTWEIGHS: Final = 8
"""Successes above the known limit that outweigh one rate-limited start there."""
OVERLOAD_TIMEOUTS, OVERLOAD_SHARE = 3, 0.2
"""So many timeouts, and this share of all endings, are an overload."""
OVERLOAD_CUT, TIMEOUT_CUT = 0.5, 0.33
"""Share of the load to which the limit falls when nothing responds, and when calls time out. With 0.6 for both, servers that
collapse beyond 4 calls, and servers whose calls beyond a limit hang and stay as load, reached 50 to 57 % of their capacity."""
CEILING_SHARE, CEILING_SOONEST, CEILING_LATEST = 0.85, 120.0, 1200.0
"""After an overload the limit stays below this share of it for so many seconds: the second number, and the third when it
happens again at no higher load. The first time it may have been an outage; each overload costs a timeout."""

# Latency.
GROUP_LEAST, GROUP_MOST = 12, 64
"""Starts in a group: as many as the limit, within these bounds. Smaller groups are too noisy: with at most 32, chance made a
run of 2,000 trials with a judge take 1.24 times as long as with a fixed limit."""
LEFT_OUT: Final = 8
"""One in so many of a group is left out, the slowest: it may hang."""
GROUP_SAMPLES: Final = 6
"""Latencies without which a group is not judged."""
SLOWER: Final = 4.0
"""A success that took this many times the usual latency is no reason for a higher limit."""
SAME_LOAD, OTHER_LOAD = 1.05, 1.2
"""Up to the first ratio two loads are the same; from the second on they are compared."""
WORTH: Final = 0.6
"""Growth of latency per growth of load up to which a higher load still raises throughput noticeably."""
DECISIVE: Final = 1.3
"""Latency grew this many times as much as the load: one comparison is enough; otherwise it takes two in a row."""
WAVE: Final = 0.05
"""Share of the mean latency within which starts belong together: where calls take equally long, they end and start in waves."""
SMOOTHING: Final = 0.1
"""Weight of the newest sample in running averages."""

# The pace of starts.
FIRST_BELIEF: Final = 0.7
"""Share of the first observed rate that is believed: the content of a full bucket is part of what was observed."""
SEARCH_GROWTH: Final = 0.1
"""Growth of the pace per second while the rate is only roughly known."""
SEARCH_DOUBLING: Final = 3.0
"""Seconds of searching after which the growth has doubled; after twice as many it has tripled."""
SEARCH_STEP: Final = 0.1
"""Most growth of the pace per start."""
SWING, FLATTEST_SWING = 0.1, 0.04
"""How far a plateau dips below the measured rate and rises above it: at first, and after agreeing measurements."""
PLATEAU_SHORTEST, PLATEAU_LONGEST = 3.0, 30.0
"""Seconds to the middle of a plateau. With 20 a fifth more calls were rate limited; a study with 60 found a raised rate limit
late, and 30 finds it later than 20."""
STEADY: Final = 5
"""A plateau is at most this part of the time for which measurements have agreed."""
PLATEAU_CALLS: Final = 200
"""Calls to the middle of the longest plateau on slow endpoints, so that one 429 per plateau stays below 0.5 %."""
SLOWEST: Final = 1 / 60
"""Starts per second below which the pace never falls."""
ENOUGH: Final = 8
"""Accepted calls between two 429s that make a measurement; fewer only bound the rate."""
CONFIRM: Final = 20
"""Starts within which a second 429 confirms that the pace is too high; one may be random."""
CONTAMINATED: Final = 3.0
"""Growth of the pace since the last 429 beyond which the bucket has probably run over, so that there is no measurement."""
LATE: Final = 0.05
"""Seconds that a start may be late and still be caught up, because timers are not exact."""

# 429s that no limit explains.
SETTLE: Final = 0.5
"""A failure is judged after this share of its own duration more: calls that started with it and did not fail were accepted."""
LATEST, LATEST_SHARE, LATEST_LIMITED = 16, 0.65, 6
"""Of so many starts in a row this share, and at least so many, rate limited: a limit is exceeded. With 20 % of random 429s that
happens about once in 30,000 starts."""
POISONED: Final = 4
"""Rate limits in a row of one trial after which they say something about the trial, not about the endpoint."""
TESTED_SHARE: Final = 0.02
"""Share of random 429s from which on a test is worth its cost."""
TEST_SIGNS: Final = 4
"""429s without an explanation before a test."""
TEST_PACE: Final = 0.8
"""Pace of a test, as a share of the accepted rate: below any rate limit that could explain the 429s."""
TEST_EXPECTED: Final = 10
"""429s that a test would meet if they were random; none means a rate limit. A test begins where 429s happen to be frequent, so
fewer are met: with 6, and one tolerated, 1 % of random 429s were taken for a rate limit in one of three tests."""
TEST_LEAST: Final = 30
"""Starts of the shortest test."""
SHORT_TEST: Final = 20
"""In a short run a test may take one in so many trials; a longer one costs more than it can save."""
MEMORY: Final = 1000
"""Starts after which counts of random 429s are halved."""

# The circuit breaker.
FAILURES_MOST, FAILURES_LEAST, OUTNUMBER = 12, 4, 1.5
"""Failures that open it: twice what is in flight, within these bounds, and this many times the calls that outlived them,
so that half of all calls may fail before it opens."""
PROBE_SOONEST, PROBE_LATEST = 1.0, 30.0
"""Seconds between two probes; a tenth of the outage so far in between."""
PROBE_PATIENCE: Final = 10.0
"""Seconds after which another probe is sent although the one before has not ended."""
HUNG_LATENCIES, HUNG_LEAST, HUNG_CALLS = 6.0, 5.0, 4
"""No ending for this many mean latencies, and this many seconds, with at least so many calls in flight: no response.
A study used 10 latencies; 6 looked better on a few seeds."""

# Pauses.
LONGEST_PAUSE: Final = 120.0
"""Seconds. Some endpoints ask for an hour and accept calls after a minute, so one looks again by then."""

# The journal.
COARSE: Final = 8
"""While slots are added one by one, the limit is published in steps of an eighth, and the pace in steps of a tenth."""
