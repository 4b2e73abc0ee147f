# pyright: basic
"""Fork server: a process that has imported what CPU ranks need, and forks a worker for each run.

The imports take longer than most runs. client.py starts it as `python -m tilelink.runtime.cpu.fork_server SOCKET`, with
TRITON_INTERPRET=1. It ends if its caller ends, if its caller closes the other end of the socket, or if there has been
no request for a while.
"""

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import torch
import triton

from tilelink.runtime.cpu import interpreter, worker
from tilelink.runtime.cpu.processes.child import flush_output
from tilelink.runtime.cpu.processes.threads import fork, single_thread
from tilelink.runtime.cpu.request import LOST, NEW, NUMBER, Pipes

IDLE_S = 600.0
LARGE_PAGE = 1 << 21
COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1, which older ones refuse."""


@triton.jit
def _nothing(at):
    pass


def main(number: int) -> int:
    """Serve the requests on a socket. Return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for workers, and for the caller, who ends them
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the caller ignores it, its children inherit that
    with socket.socket(fileno=number) as requests, single_thread():
        requests.set_inheritable(False)
        requests.settimeout(IDLE_S)
        _nothing[(1,)](torch.zeros(1))  # Triton imports more when the first kernel runs
        interpreter.prepare()
        gc.collect()
        gc.freeze()  # imported objects stay, and workers share their pages
        use_large_pages()
        Server(requests).serve()
    return 0


def use_large_pages() -> None:
    """Move the own memory of this process to large pages, where there are any: a fork copies an entry for each page."""
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, rights, _, _, file = line.split(maxsplit=5)[:5]
            begin, end = (int(number, 16) for number in place.split("-"))
            begin, end = -(-begin // LARGE_PAGE) * LARGE_PAGE, end // LARGE_PAGE * LARGE_PAGE
            if rights == "rw-p" and file == "0" and begin < end:
                advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), COLLAPSE)


class Server:
    """Serves a caller's requests. workers: those whose status has not been requested yet."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self.workers: set[int] = set()

    def serve(self) -> None:
        """Serve requests until the caller is gone."""
        with contextlib.suppress(ConnectionError):  # the caller ended before it received its reply
            while self._serve():
                pass

    def _serve(self) -> bool:
        """Serve a request, or wait for a while if there is none. Return True if another one may come."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._requests, NUMBER.size, len(Pipes._fields))
        except TimeoutError:
            return bool(self.workers)
        if not message:
            return False
        (request,) = NUMBER.unpack(message)
        reply = self._fork(Pipes(*descriptors)) if request == NEW else self._status(request)
        self._requests.sendall(NUMBER.pack(reply))
        return True

    def _fork(self, pipes: Pipes) -> int:
        """Fork a worker, in which this does not return. Return its process."""
        fork_server = os.getpid()
        process = fork()
        if process:
            self.workers.add(process)
            for one in pipes:
                os.close(one)
            return process
        status = 1
        try:
            self._requests.close()
            status = worker.main(pipes, fork_server)
        except BaseException:
            traceback.print_exc()
        finally:
            flush_output()
            os._exit(status)

    def _status(self, process: int) -> int:
        if process not in self.workers:
            return LOST
        _, status = os.waitpid(process, 0)
        self.workers.discard(process)
        return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
