"""A first evaluation, without a key and without a network: a pretended model answers sixty questions about capitals.

Like a real one it takes its time, is sometimes busy (429), sometimes ill (503), and sometimes wrong. Run it, press Ctrl-C in
the middle, and go on:

    evaljournal run examples/quickstart.py
    evaljournal resume
"""

import hashlib
from collections import Counter
from difflib import SequenceMatcher

import trio

from runner import Case, RateLimited, evaluation, note

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
BUSY, ILL, IGNORANT = 0.05, 0.07, 0.12
"""How likely it is that a call meets a 429, or a 503; and that the model does not know the answer."""

CASES = [
    Case(name=country.lower(), input=f"What is the capital of {country}?", expected=capital.replace("-", " "))
    for country, capital in (pair.split() for pair in CAPITALS.split(","))
]
ANSWERS = {case.input: case.expected for case in CASES}


class ServerError(Exception):
    """What an HTTP client would raise; evaljournal knows it by its `status_code`."""

    status_code = 503


def dice(question: str, throw: str) -> float:
    """Draw a number from 0 to 1 that is the same for the same question and throw, whatever else happens."""
    return hashlib.sha256(f"{throw} {question}".encode()).digest()[0] / 255


asked: Counter[str] = Counter()
"""How many times each question was asked in this process: what is busy now has time later."""


async def pretended_model(question: str) -> str:
    """Answer a question the way a model behind an API does."""
    asked[question] += 1
    await trio.sleep(0.1 + 0.3 * dice(question, f"latency {asked[question]}"))
    trouble = dice(question, f"trouble {asked[question]}")
    if trouble < BUSY:
        raise RateLimited(retry_after=0.5)
    if trouble < BUSY + ILL:
        raise ServerError("503 Service Unavailable")
    answer = ANSWERS[question]
    return answer if dice(question, "knows") > IGNORANT else answer[::-1].title()


@evaluation(cases=CASES, slots=8, timeout=10)
async def capitals(question: str) -> str:
    """Ask the model, and note what the call has used."""
    answer = await pretended_model(question)
    note(tokens=len(question.split()) + len(answer.split()), cost=0.0001)
    return answer


@capitals.score
def exact(output: str, case: Case[str, str]) -> bool:
    """Pass if the answer is the capital, to the letter."""
    return output == case.expected


@capitals.score
def closeness(output: str, case: Case[str, str]) -> float:
    """Say how much of the answer is right: 1 for every letter in its place."""
    return SequenceMatcher(None, output, case.expected).ratio()
