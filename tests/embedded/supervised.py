"""Run by test_supervisor as a process of its own: a supervisor over a real PostgreSQL and two small programs.

Says one JSON object a line on stdout: {"pids": …} whenever a process was replaced, {"said": …} for the terminal.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mainspring.embedded import EmbeddedPostgres
from mainspring.embedded.supervisor import CannotStart, Program, Supervisor

FAITHFUL = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nwhile True: signal.pause()"
)
STUBBORN = "import os, pathlib, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); pathlib.Path(os.environ['READY']).touch()\nwhile True: signal.pause()"
BROKEN = "raise RuntimeError('cannot work like this')"
NOISY = "import os, signal, sys; print('quiet talk', 'level=info'); print('{\"level\": \"error\", \"event\": \"it broke\", \"n\": 1}', os.environ.get('FIRST', 'again'))"


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def program(name: str, code: str, **more: object) -> Program:
    return Program(
        name=name, argv=(sys.executable, "-u", "-c", code), env=dict(os.environ), grace_seconds=1.0, **more
    )


def main(state: Path, kind: str) -> int:
    database = EmbeddedPostgres(state, durable=False)
    logs = state / "logs"
    supervisor = Supervisor(
        database=database,
        logs=logs,
        tell=lambda line: say(said=line),
        changed=lambda: say(pids=supervisor.pids()),
    )
    with supervisor.signals():
        try:
            database.start()
            logs.mkdir(exist_ok=True)
            if kind == "broken":
                supervisor.start(program("broken", BROKEN, is_ready=lambda: False))
            elif kind == "noisy":
                supervisor.start(program("noisy", NOISY, only_first={"FIRST": "first"}, essential=False))
            elif kind == "stubborn":
                os.environ["READY"] = str(state / "ready")
                supervisor.start(program("stubborn", STUBBORN, is_ready=(state / "ready").exists))
            else:
                supervisor.start(program("one", FAITHFUL))
                supervisor.start(program("other", FAITHFUL))
            if supervisor.wait_ready(timeout_seconds=20):
                say(pids=supervisor.pids())
                supervisor.watch()
        except CannotStart as error:
            say(failed=str(error))
            return 1
        finally:
            supervisor.stop()
            say(stopped=True, left=supervisor.pids())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
