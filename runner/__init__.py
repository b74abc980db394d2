"""Acts: make an evaluation happen, and record every step of it."""

from runner.case import Case
from runner.dataset import Dataset
from runner.errors import UsageError
from runner.evaluation import Evaluation, evaluation
from runner.failure import Fatal, RateLimited
from runner.notes import note
from runner.retry import Retry
from runner.score import Score

__all__ = [
    "Case",
    "Dataset",
    "Evaluation",
    "Fatal",
    "RateLimited",
    "Retry",
    "Score",
    "UsageError",
    "evaluation",
    "note",
]
