"""What a trial costs: Python calls, which are the same in every measurement, and CPU time in ratio to an older checkout.

The calls are those of a run of 900 trials minus those of one of 300, per trial, for each kind of task and with one feature
switched on at a time: those in the thread of the loop, which makes all decisions, and beside them those in all threads, among
them the one that reads cases. `--against` compares the CPU time with another checkout, such as version 1: both are measured in
turn, in processes of their own, and the ratio is that of the medians. So is that of whole processes: `run` with one case.
Chat trials are compared with a later checkout, whose chat has the same interface: `--chat-against`.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks._figures import Figures, machine
from benchmarks._server import serving

ROOT: Final = Path(__file__).parent.parent
PROBE: Final = ROOT / "benchmarks" / "_calls_probe.py"
KINDS: Final = {
    "trio": 95,
    "asyncio": None,
    "plain function": None,
    "timeout": None,
    "key": None,
    "step": None,
    "budget": None,
    "limit": None,
    "plain scorer": None,
    "async scorer": None,
    "chat": 380,
}
"""Kind of a trial → its maximum number of Python calls, if there is one."""
COMPARED: Final = {"trio": 0.8, "asyncio": 0.8, "plain function": 0.9}
"""Kind of a trial → its maximum CPU time in ratio to version 1."""
COMPARED_SCORERS: Final = {"plain scorer": 0.6, "async scorer": 1.2}
"""The same for what a scorer adds to the trial of a task on trio."""
MAX_CHAT: Final = 0.8
"""Maximum CPU time of a chat trial in ratio to cf6867d8."""
MAX_START_UP: Final = 1.0
"""Maximum CPU time of `run` with one case, and of `resume` of that run, in ratio to version 1."""
_ONE_CASE: Final = """
@evaluation(cases=[Case(name="a", input=1)])
def one(number):
    return number
"""


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks calls", description=__doc__)
    parser.add_argument("--kind", action="append", choices=KINDS, help="one kind of trial (repeatable; default: all)")
    parser.add_argument("--against", type=Path, metavar="DIRECTORY", help="also compare the CPU time with this checkout")
    parser.add_argument(
        "--chat-against", type=Path, metavar="DIRECTORY", help="compare that of a chat trial with this checkout"
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of the CPU time of each (default: 5)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    print("\nPython calls per trial")
    with serving() as server:
        for kind in options.kind or KINDS:
            figures.show(kind, measure(kind, "calls", ROOT, server.root), maximum=KINDS[kind])
            figures.show(f"{kind}, all threads", measure(kind, "all-calls", ROOT, server.root))
    if options.against is not None:
        print(f"\nCPU per trial, ratio to {options.against}")
        _compare(figures, options.against.resolve(), options.rounds)
        print(f"\nCPU of a process, ratio to {options.against}")
        _compare_start_up(figures, options.against.resolve(), max(options.rounds, 7))
    if options.chat_against is not None:
        print(f"\nCPU per chat trial, ratio to {options.chat_against}")
        _compare_chat(figures, options.chat_against.resolve(), options.rounds)
    return 1 if figures.missed else 0


def _compare_chat(figures: Figures, other: Path, rounds: int) -> None:
    """Compare chat calls to a server in another process, whose CPU time does not count."""
    with serving() as server:
        pairs = [[measure("chat", "cpu", tree, server.root) for tree in (ROOT, other)] for _ in range(rounds)]
    ours, theirs = map(statistics.median, zip(*pairs, strict=True))
    figures.show(f"chat, {ours * 1e6:.0f} µs", ours / theirs, maximum=MAX_CHAT)


def _compare(figures: Figures, other: Path, rounds: int) -> None:
    seconds: dict[tuple[str, Path], list[float]] = {}
    for _ in range(rounds):
        for kind in (*COMPARED, *COMPARED_SCORERS):
            for tree in (ROOT, other):
                seconds.setdefault((kind, tree), []).append(measure(kind, "cpu", tree))
    ours, theirs = ({kind: statistics.median(seconds[kind, tree]) for kind, _ in seconds} for tree in (ROOT, other))
    for kind, maximum in COMPARED.items():
        figures.show(f"{kind}, {ours[kind] * 1e6:.0f} µs", ours[kind] / theirs[kind], maximum=maximum)
    for kind, maximum in COMPARED_SCORERS.items():
        added, their_added = ours[kind] - ours["trio"], theirs[kind] - theirs["trio"]
        figures.show(f"{kind}, {added * 1e6:.0f} µs more", added / their_added, maximum=maximum)


def _compare_start_up(figures: Figures, other: Path, rounds: int) -> None:
    """Compare `run` with one case, which is mostly imports, and `resume` of the finished run."""
    seconds: dict[tuple[str, Path], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(rounds + 1):
            for tree in (ROOT, other):
                for command in ("run", "resume"):
                    cpu = _process_cpu(tree, Path(directory, f"{number}-{tree.name}"), command)
                    if number:  # The first process compiles the modules.
                        seconds.setdefault((command, tree), []).append(cpu)
    for command in ("run", "resume"):
        ours, theirs = (statistics.median(seconds[command, tree]) for tree in (ROOT, other))
        figures.show(f"{command}, {ours:.2f} s", ours / theirs, maximum=MAX_START_UP)


def _process_cpu(tree: Path, directory: Path, command: str) -> float:
    """Return the CPU seconds of a command in a process with the packages of a checkout."""
    package, module = ("evaljournal", "evaljournal.__main__") if (tree / "evaljournal").is_dir() else ("runner", "runner.cli")
    directory.mkdir(exist_ok=True)
    (directory / "e.py").write_text(f"from {package} import Case, evaluation\n{_ONE_CASE}")
    start = f"from {module} import main; main()"
    if package == "runner":
        start = f"import sys; sys.modules['evaljournal'] = None; {start}"  # Not the installed one.
    arguments = [command, *(["e.py"] if command == "run" else []), "--plain"]
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", start, *arguments], cwd=directory, env=environment(tree), check=True, capture_output=True
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime - children.ru_utime - children.ru_stime


def environment(tree: Path) -> dict[str, str]:
    """Return the variables of a process with the packages of a checkout."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("EVALJOURNAL_")}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # Every process would compile the modules again.
    return variables | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "TQDM_DISABLE": "1"}


def measure(kind: str, unit: str, tree: Path, url: str = "") -> float:
    """Return the Python calls or the CPU seconds of a trial, measured in a process with the packages of a checkout."""
    # Not as a script, whose directory would be on the path: it has modules with names of the standard library.
    start = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    if not (tree / "evaljournal").is_dir():
        start = f"import sys; sys.modules['evaljournal'] = None; {start}"  # Not the installed one.
    command = [sys.executable, "-c", start, str(PROBE), kind, unit, url]
    result = subprocess.run(command, cwd=tree, env=environment(tree), check=False, capture_output=True, text=True)  # noqa: S603  # our own program
    if result.returncode:
        raise SystemExit(f"{kind} in {tree}:\n{result.stderr}")
    return float(result.stdout.split()[-1])
