"""A first evaluation that needs no API key and no network: a simulated model answers sixty questions about capitals.

The model has realistic latency, 429s, 503s and wrong answers. Run it, press Ctrl-C in the middle, and resume it:

    evaljournal run examples/quickstart.py
    evaljournal resume
"""

import hashlib
from collections import Counter
from difflib import SequenceMatcher

import trio

from evaljournal import Case, RateLimited, evaluation, note

CAPITALS = """
Albania Tirana, Algeria Algiers, Argentina Buenos-Aires, Armenia Yerevan, Australia Canberra, Austria Vienna, Belgium
Brussels, Bolivia Sucre, Botswana Gaborone, Brazil Brasilia, Bulgaria Sofia, Cambodia Phnom-Penh, Cameroon Yaounde,
Canada Ottawa, Chile Santiago, China Beijing, Colombia Bogota, Croatia Zagreb, Cuba Havana, Cyprus Nicosia, Denmark
Copenhagen, Ecuador Quito, Egypt Cairo, Estonia Tallinn, Ethiopia Addis-Ababa, Finland Helsinki, France Paris, Georgia
Tbilisi, Germany Berlin, Ghana Accra, Greece Athens, Hungary Budapest, Iceland Reykjavik, India New-Delhi, Indonesia
Jakarta, Iran Tehran, Iraq Baghdad, Ireland Dublin, Italy Rome, Japan Tokyo, Jordan Amman, Kenya Nairobi, Laos
Vientiane, Latvia Riga, Lebanon Beirut, Lithuania Vilnius, Malta Valletta, Mexico Mexico-City, Mongolia Ulaanbaatar,
Morocco Rabat, Nepal Kathmandu, Norway Oslo, Oman Muscat, Peru Lima, Poland Warsaw, Portugal Lisbon, Senegal Dakar,
Spain Madrid, Turkey Ankara, Uruguay Montevideo
"""
RATE_LIMITED, UNAVAILABLE, WRONG = 0.05, 0.07, 0.12
"""Probabilities of a 429, a 503 and a wrong answer."""

CASES = [
    Case(name=country.lower(), input=f"What is the capital of {country}?", expected=capital.replace("-", " "))
    for country, capital in (pair.split() for pair in CAPITALS.split(","))
]
ANSWERS = {case.input: case.expected for case in CASES}


class ServerError(Exception):
    """Like the error of an HTTP client; evaljournal recognizes it by its `status_code`."""

    status_code = 503


def random_number(question: str, seed: str) -> float:
    """Return a number from 0 to 1 that depends only on the question and the seed."""
    return hashlib.sha256(f"{seed} {question}".encode()).digest()[0] / 255


calls: Counter[str] = Counter()
"""Calls of each question in this process, so that a retry can succeed."""


async def simulated_model(question: str) -> str:
    """Answer a question like a model behind an API."""
    calls[question] += 1
    await trio.sleep(0.1 + 0.3 * random_number(question, f"latency {calls[question]}"))
    number = random_number(question, f"trouble {calls[question]}")
    if number < RATE_LIMITED:
        raise RateLimited(retry_after=0.5)
    if number < RATE_LIMITED + UNAVAILABLE:
        raise ServerError("503 Service Unavailable")
    answer = ANSWERS[question]
    return answer if random_number(question, "knows") > WRONG else answer[::-1].title()


@evaluation(cases=CASES, slots=8, timeout=10)
async def capitals(question: str) -> str:
    """Call the model and note the usage."""
    answer = await simulated_model(question)
    note(tokens=len(question.split()) + len(answer.split()), cost=0.0001)
    return answer


@capitals.score
def exact(output: str, expected: str) -> bool:
    """Pass if the answer is exactly the capital."""
    return output == expected


@capitals.score
def closeness(output: str, expected: str) -> float:
    """Return the similarity of the answer and the capital, from 0 to 1."""
    return SequenceMatcher(None, output, expected).ratio()
