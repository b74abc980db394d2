"""Run one benchmark by its name: `python -m benchmarks policy --quick`.

Each module of this package with a `main(argv)` is a benchmark; `main` returns an exit code.
"""

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """Hand the rest of the command line to the benchmark that was named."""
    here = [str(Path(__file__).parent)]
    names = sorted(m.name for m in pkgutil.iter_modules(here) if not m.ispkg and not m.name.startswith("_"))
    if not argv or argv[0] not in names:
        print(f"usage: python -m benchmarks {{{','.join(names)}}} [options]", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"benchmarks.{argv[0]}").main(argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
