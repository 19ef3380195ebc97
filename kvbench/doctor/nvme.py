"""What an NVMe device says of its own wear: its SMART log, asked for through the kernel; root only.

The log's layout is that of the NVMe base specification, log page 02h.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from ctypes import addressof, create_string_buffer

from kvbench.doctor.host import Endurance

__all__ = ["parse_smart", "read_endurance"]

ADMIN_COMMAND = 0xC0484E41
"""NVME_IOCTL_ADMIN_CMD of linux/nvme_ioctl.h: a structure of 72 bytes, read and written."""

GET_LOG_PAGE = 0x02
SMART_LOG = 0x02
LOG_BYTES = 512
ALL_NAMESPACES = 0xFFFFFFFF
UNIT_BYTES = 512_000
"""Data units are thousands of 512 bytes."""


def read_endurance(device: str) -> Endurance | None:
    """Of a block device by name (`nvme0n1`); None for other kinds, and where it may not be asked."""
    match = re.fullmatch(r"(nvme\d+)n\d+", device)
    if match is None:
        return None
    log = create_string_buffer(LOG_BYTES)
    pages = (LOG_BYTES // 4 - 1) << 16
    # opcode, flags, reserved, namespace, cdw2, cdw3, metadata, data, lengths, cdw10 to cdw15, timeout, result
    command = bytearray(
        struct.pack(
            "<BBHIIIQQIIIIIIIIII",
            *(GET_LOG_PAGE, 0, 0, ALL_NAMESPACES, 0, 0, 0, addressof(log), 0, LOG_BYTES),
            *(SMART_LOG | pages, 0, 0, 0, 0, 0, 0, 0),
        )
    )
    try:
        handle = os.open(f"/dev/{match[1]}", os.O_RDONLY)
    except OSError:
        return None
    try:
        if fcntl.ioctl(handle, ADMIN_COMMAND, command) != 0:
            return None
    except OSError:
        return None
    finally:
        os.close(handle)
    return parse_smart(device, log.raw)


def parse_smart(device: str, log: bytes) -> Endurance | None:
    """None for a log that is too short or all zeros."""
    if len(log) < 64 or not any(log[:64]):
        return None
    return Endurance(
        device=device,
        used=log[5] / 100,
        spare=log[3] / 100,
        # Bits 0 spare below threshold, 2 reliability degraded, 3 read-only.
        critical=bool(log[0] & 0b1101),
        written=int.from_bytes(log[48:64], "little") * UNIT_BYTES,
    )
