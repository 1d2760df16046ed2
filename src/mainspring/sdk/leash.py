"""Holds a program on a leash: when the runner dies, however it dies, the program and all it started die with it.

Run as a script in a session of its own, `python -I -S leash.py PROGRAM ARG...`, with the reading end of a pipe as
standard input, whose writing end only the runner holds. It starts the program, ends as the program ends, and kills the
whole process group when the pipe closes first. Without it a killed runner would leave its programs working, beside the
run's next attempt. It imports nothing that is not in every Python, and starts in some ten milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import sys

CANNOT_START = 127


def main(argv: list[str]) -> int:
    """Run `argv` to its end and return what the runner should see of it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # meant for the program, and sent to the group we are in
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    program = os.fork()
    if program == 0:
        _become(argv)
    while True:
        ready, _, _ = select.select([0, read], [], [])
        ended, status = os.waitpid(program, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if 0 in ready and not os.read(0, 1):
            os.killpg(0, signal.SIGKILL)
        if read in ready:
            os.read(read, 512)


def _become(argv: list[str]) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for number in (
            signal.SIGTERM,
            signal.SIGCHLD,
            signal.SIGPIPE,
        ):  # what Python or we changed is not inherited
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.execvp(argv[0], argv)  # noqa: S606 - starting a program is its task
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_START)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code < 0:  # ended by a signal: say so as a shell does
        code = 128 - code
    os._exit(code)
