"""Claims about a run that can be checked without trusting its owner: what is claimed, committed, disclosed and recomputed.

Everything here is a computation on bytes and records. Salts and signatures are made in `runner.sessions.claims`; what a file contains is
specified in docs/claims.md, so exactly that a program of 150 lines can check it without this package.

Start with `statement` (what is claimed), then `leaves` (what a trial contributes), `merkle` (how a root commits to all of
them) and `checking` (what is handed over, and recomputed). It imports the state and the review of a run.
"""
