"""A Ray cluster in its own process, on the loopback address only: `python -m benchmarks._ray_cluster` prints its address.

It has one node with four CPUs. A line `add` adds a node with two CPUs and the resource `extra`, `remove` ends the last one
immediately. Usage statistics are off, and it needs no token unless RAY_AUTH_MODE requires one.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

ROOT: Final = Path(__file__).parent.parent
ENVIRONMENT: Final = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Listen on the loopback address, as on those systems; also for drivers.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}
_CLUSTER: Final = {
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_register_timeout_seconds": "60",
}


@attrs.frozen
class RayCluster:
    """A running cluster."""

    process: subprocess.Popen[str]
    address: str
    """HOST:PORT."""

    def send_command(self, line: str) -> None:
        """Add or remove a node, and wait until that is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextmanager
def ray_cluster(variables: Mapping[str, str] | None = None) -> Iterator[RayCluster]:
    """Run a cluster."""
    directory = tempfile.mkdtemp(prefix="ej-ray-")  # A short path: it has sockets.
    Path(directory, "ray").mkdir()
    environment = {**os.environ, **ENVIRONMENT, **_CLUSTER, **(variables or {}), "RAY_TMPDIR": directory}
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks._ray_cluster"]
    try:
        with (
            Path(directory, "log.txt").open("w") as log,
            subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=log, env=environment, text=True) as process,  # noqa: S603  # our own program
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                address = process.stdout.readline().strip()
                assert address.startswith("127.0.0.1:"), Path(directory, "log.txt").read_text()
                yield RayCluster(process, address)
            finally:
                process.stdin.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _main() -> None:
    from ray._private.node import Node  # noqa: PLC0415  # others import this module without Ray
    from ray.cluster_utils import Cluster  # noqa: PLC0415  # the same

    Node.start_api_server = lambda *_, **__: None  # type: ignore[method-assign]  # It takes seconds, and is not used.
    stdout = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    options: dict[str, Any] = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "include_log_monitor": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args={**options, "num_cpus": 4, "no_monitor": True})
    nodes: list[Any] = []
    stdout.write(f"{cluster.address}\n")
    for line in sys.stdin:
        if line == "add\n":
            nodes.append(cluster.add_node(**options, num_cpus=2, resources={"extra": 2}))
        else:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        stdout.write("done\n")
    cluster.shutdown()


if __name__ == "__main__":
    _main()
