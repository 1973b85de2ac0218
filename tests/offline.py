"""Runs a command where there is no network but the loopback, and says how often something wanted to leave.

As a script: offline.py COUNT-FILE COMMAND...
"""

from __future__ import annotations

import fcntl
import socket
import struct
import subprocess
import sys
from pathlib import Path

SET_FLAGS, UP = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP


def wants_to_leave() -> int:
    """Connections and packets that the kernel had no route for, in this network namespace."""
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Ip: ")
    )
    count = int(dict(zip(names, values, strict=True))["OutNoRoutes"])
    for line in Path("/proc/net/snmp6").read_text().splitlines() if Path("/proc/net/snmp6").exists() else ():
        count += int(line.split()[1]) if line.startswith("Ip6OutNoRoutes") else 0
    return count


if __name__ == "__main__":
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh", b"lo", UP))
    code = subprocess.run(sys.argv[2:], check=False).returncode
    Path(sys.argv[1]).write_text(str(wants_to_leave()))
    sys.exit(code)
