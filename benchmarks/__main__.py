"""Run a benchmark: `python -m benchmarks journal`; `python -m benchmarks --help` lists them."""

import ast
import os
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import benchmarks
from evaljournal.runner.concurrency.key_policy import RAISE_VARIABLE


def main() -> int:
    """Run the benchmark named on the command line; return 1 if a required figure is missed, 2 for a usage error."""
    modules = pkgutil.iter_modules(benchmarks.__path__)
    names = sorted(module.name for module in modules if not module.ispkg and not module.name.startswith("_"))
    if len(sys.argv) > 1 and sys.argv[1] in names:
        os.environ[RAISE_VARIABLE] = "1"
        result = import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
        assert isinstance(result, int)
        return result
    is_help = sys.argv[1:] in (["--help"], ["-h"])
    lines = ["usage: python -m benchmarks NAME [--help] [options]", "", *(f"  {name:<10} {_summary(name)}" for name in names)]
    print("\n".join(lines), file=sys.stdout if is_help else sys.stderr)
    return 0 if is_help else 2


def _summary(name: str) -> str:
    """Return the first line of a benchmark's docstring."""
    source = Path(benchmarks.__path__[0], f"{name}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


sys.exit(main())
