"""Output of the benchmarks: the machine, and each figure with its required value."""

import os
import platform
import resource
import sys
from pathlib import Path

import attrs


def machine() -> str:
    """Return the processor, the load, the system and the Python version."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{model}, {os.cpu_count()} cores{load}, {platform.system()} {platform.release()}, Python {sys.version.split()[0]}"


def peak_memory() -> float:
    """Return the peak memory of this process in MB (`getrusage` would include the parent's)."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@attrs.define
class Figures:
    """Prints figures and counts those that miss their required value."""

    missed: int = 0

    def show(
        self, name: str, value: float, *, minimum: float | None = None, maximum: float | None = None, unit: str = ""
    ) -> None:
        """Print a figure; count it as missed if it is under `minimum` or over `maximum`."""
        bound = f"≥ {minimum:,g}" if minimum is not None else f"≤ {maximum:,g}" if maximum is not None else ""
        is_met = (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
        self.missed += not is_met
        verdict = "" if not bound else "ok" if is_met else "MISSED"
        print(f"  {name:<66} {value:>12,.3g} {unit:<10} {bound:<10} {verdict}")
