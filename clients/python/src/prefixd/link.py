"""The socket: bytes and descriptors between a client and the daemon, never blocking.

What would block says so, and the shells (client.py, aio.py) wait.  Received descriptors are
close-on-exec.  An OSError means that the connection is of no use any more.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import List, Optional, Tuple, Union

MAX_FDS = 40
_CHUNK = 64 * 1024
_INT = struct.Struct("=i")
_ROOM = socket.CMSG_SPACE(MAX_FDS * _INT.size)
_CLOEXEC = socket.MSG_CMSG_CLOEXEC


class Link:
    """One connection after another to the same path."""

    def __init__(self) -> None:
        self._socket: Optional[socket.socket] = None

    def fileno(self) -> int:
        return self._socket.fileno() if self._socket else -1

    def connect(self, path: str) -> bool:
        """False: the daemon's queue is full, try again; a unix socket offers no event to wait for."""
        self.close(False)
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            s.setblocking(False)
            s.connect(path)
        except BlockingIOError:
            s.close()
            return False
        except BaseException:
            s.close()
            raise
        self._socket = s
        return True

    def send(self, data: Union[bytes, memoryview]) -> int:
        """Bytes that the kernel took; 0: none now."""
        if self._socket is None:
            raise ConnectionResetError("there is no connection")
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0

    def receive(self) -> Optional[Tuple[bytes, List[int], bool]]:
        """Bytes, descriptors that came with them, and whether some were lost; None: nothing now.

        No bytes at all: the daemon closed the connection.
        """
        if self._socket is None:
            raise ConnectionResetError("there is no connection")
        try:
            # Not recv_fds(): it ignores its flags, and a descriptor would leak into a child by exec.
            data, ancillary, flags, _ = self._socket.recvmsg(_CHUNK, _ROOM, _CLOEXEC)
        except BlockingIOError:
            return None
        fds: List[int] = []
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                n = len(raw) // _INT.size
                fds.extend(fd for (fd,) in _INT.iter_unpack(raw[: n * _INT.size]))
        return data, fds, bool(flags & socket.MSG_CTRUNC)

    def end(self) -> None:
        """Ends the connection, for whoever waits for it and for copies that a fork made too."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it ended already

    def close(self, end: bool) -> None:
        """Closes it here; `end`: also for copies of the connection that a fork made."""
        if self._socket is not None:
            if end:
                self.end()
            self._socket.close()
            self._socket = None


def default_path() -> str:
    """Where a daemon without options listens: a user's own one only on a machine that has none of its own."""
    path = os.environ.get("PREFIXD_SOCKET")
    if path:
        return path
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() == 0 or os.path.exists("/run/prefixd") or not runtime:
        return "/run/prefixd/prefixd.sock"
    return f"{runtime}/prefixd.sock"
