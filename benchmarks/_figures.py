"""What every benchmark prints: the machine it ran on, and each figure beside the one that is required."""

import os
import platform
import resource
import sys
from pathlib import Path

import attrs


def machine() -> str:
    """Name the machine that the figures were taken on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{model}, {os.cpu_count()} cores{load}, {platform.system()} {platform.release()}, Python {sys.version.split()[0]}"


def peak_of_memory() -> float:
    """Tell the most memory that this process has had, in MB; the system's own figure begins with that of the parent."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@attrs.define
class Figures:
    """The figures of one run, and whether they reach what is required."""

    missed: int = 0

    def show(self, what: str, value: float, *, least: float | None = None, most: float | None = None, unit: str = "") -> None:
        """Print a figure; count it as missed if it is under `least` or over `most`."""
        bound = f"≥ {least:,g}" if least is not None else f"≤ {most:,g}" if most is not None else ""
        held = (least is None or value >= least) and (most is None or value <= most)
        self.missed += not held
        verdict = "" if not bound else "ok" if held else "MISSED"
        print(f"  {what:<66} {value:>12,.3g} {unit:<10} {bound:<10} {verdict}")
