"""Evaluate a plain function; its calls run in threads.

evaljournal run examples/plain_function.py
"""

from evaljournal import Case, evaluation

CASES = [
    Case(name="refund", input="I want my money back", expected="billing"),
    Case(name="login", input="I cannot log in since Monday", expected="account"),
    Case(name="crash", input="The app crashes when I open it", expected="technical"),
]
KEYWORDS = {"money": "billing", "invoice": "billing", "log in": "account", "password": "account", "crash": "technical"}


@evaluation(cases=CASES)
def route(ticket: str) -> str:
    """Return the queue for a support ticket."""
    return next((queue for word, queue in KEYWORDS.items() if word in ticket.lower()), "other")


@route.score
def exact(output: str, expected: str) -> bool:
    """Pass if the queue is as expected."""
    return output == expected
