"""Durable steps: calls inside a task whose results are recorded, and can be reused by the next attempt at the trial.

A step is identified by what is asked, never by its position. There are three ways to one: `durable`, the HTTP clients of SDKs
(`http_clients`), and the `gateway` for programs in any language. Start with `attempt_steps`. It may import calls.
"""
