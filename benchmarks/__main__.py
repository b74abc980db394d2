"""Run a benchmark by its name: `python -m benchmarks journal`."""

import pkgutil
import sys
from importlib import import_module

import benchmarks


def main() -> int:
    """Find the benchmark and run it; exit 1 if a required figure was not reached."""
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_"))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print(f"usage: python -m benchmarks {{{','.join(names)}}} [options]", file=sys.stderr)
        return 2
    result = import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
    assert isinstance(result, int)
    return result


sys.exit(main())
