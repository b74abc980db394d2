"""Programs that some tests need and pip cannot install.

Without one, a test is skipped. With EVALJOURNAL_REQUIRE_PROGRAMS=1 (set in CI) it fails.
"""

import os
import shutil
from pathlib import Path
from typing import Final, NoReturn

import pytest

REQUIRE_PROGRAMS: Final = "EVALJOURNAL_REQUIRE_PROGRAMS"
STAND_INS: Final = Path(__file__).parent / "stand_ins"
"""A directory of programs that stand in for others, such as docker."""
needs_stand_ins: Final = pytest.mark.skipif(os.name != "posix", reason="the stand-ins are shell scripts")


def find_program(*names: str, package: str) -> str:
    """Return the path of the first of these programs; without any, skip the test, or fail it if programs are required."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        skip_or_fail(f"no {' or '.join(names)} on the PATH; install one with `apt-get install {package}`")
    return path


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test that needs what is not installed, or fail it if programs are required."""
    if os.environ.get(REQUIRE_PROGRAMS) == "1":
        pytest.fail(reason)
    pytest.skip(reason)
