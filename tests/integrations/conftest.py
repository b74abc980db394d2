"""Fixtures of the tests of integrations: those of the tests of views and commands."""

from tests.replay.conftest import run
from tests.runner_cli.conftest import own_variables

__all__ = ["own_variables", "run"]
