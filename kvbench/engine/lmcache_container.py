"""LMCache's server in a container beside its engine's, both of the profile's image: what the two share.

Blocks are handed over through CUDA's IPC or POSIX shared memory. Either needs one IPC namespace and one `/dev/shm`
for both: the server's container lends its own to the engine's, so that still nothing can stay in the host's.
"""

from __future__ import annotations

from pathlib import Path

from kvbench.engine.base import Rendered
from kvbench.engine.container_remains import Container
from kvbench.engine.containers import LENDS_IPC, Bind, Setting, in_container
from kvbench.engine.lmcache import BESIDE
from kvbench.spec.profile import Profile

__all__ = ["ipc_of", "server_container", "server_in_container"]


def server_container(engine: Container) -> Container:
    """The server's, by the same runtime as its engine's."""
    return engine._replace(name=f"{engine.name}-{BESIDE}")


def ipc_of(server: Container) -> str:
    """What the engine's container is told, to share the namespace of its server's, which must be there already."""
    return f"container:{server.name}"


def server_in_container(
    profile: Profile, rendered: Rendered, container: Container, *, lease_id: str, home: Path, disk_root: Path | None
) -> Rendered:
    """`rendered`, a start of the server, in a container that sees its launch's directory and its file tier."""
    binds = () if disk_root is None else (Bind(disk_root, disk_root, read_only=False),)
    setting = Setting(container, lease_id, home, binds, needs_hub=False, ipc=LENDS_IPC)
    return in_container(profile, rendered, setting)
