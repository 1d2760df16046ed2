"""The API against its own description: what is generated from it is answered as it says, and never by a defect.

The requests come from a thread of their own, so the server has one too, with its own event loop and pool.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, settings

from mainspring import wiring
from mainspring.config import Settings
from mainspring.server.app import create_app
from mainspring.server.main import Server
from tests.server.conftest import BOARD, RULE, people

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning"),
]

EXAMPLES = 3
# the last ends the process, the others wait
LEFT_OUT = (
    "/api/v1/runner/claim",
    "/api/v1/events/stream",
    "/api/v1/channels/{channel}/live",
    "/api/v1/dev/faults",
)


@dataclass(slots=True)
class Listening:
    """A server in a thread, with something on its board."""

    database_url: str
    url: str = ""
    token: str = ""

    def run(self, started: threading.Event, stop: threading.Event) -> None:
        """Serve until told to stop."""
        asyncio.run(self._serve(started, stop))

    async def _serve(self, started: threading.Event, stop: threading.Event) -> None:
        services = await wiring.build(Settings(database_url=self.database_url))
        _, actors, tokens = await people(services)
        operator = actors["operator"]
        from mainspring.boards.model import BoardState

        states = [
            BoardState(name=one["name"], terminal=one.get("terminal", False)) for one in BOARD["states"]
        ]
        await services.boards.create_board(
            operator, key="OPS", name="Operations", states=states, reflect=BOARD["reflect"]
        )
        await services.agents.create(operator, handle="echo")
        await services.rules.create(operator, RULE)
        await services.start()
        server = Server(
            uvicorn.Config(create_app(services), log_config=None, lifespan="off", access_log=False)
        )
        sock = socket.create_server(("127.0.0.1", 0))
        self.url, self.token = f"http://127.0.0.1:{sock.getsockname()[1]}", tokens["operator"]
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        await server.listening.wait()
        started.set()
        await asyncio.to_thread(stop.wait)
        server.should_exit = True
        await serving
        await services.stop()


@pytest.fixture(scope="module")
def listening(database) -> Iterator[Listening]:
    """A server that real requests reach."""
    server = Listening(database.url)
    started, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.run, args=(started, stop))
    thread.start()
    assert started.wait(60)
    yield server
    stop.set()
    thread.join(60)


api = schemathesis.openapi.from_dict(create_app(SimpleNamespace()).openapi()).exclude(path=list(LEFT_OUT))


@api.parametrize()
# the same requests each time: now and then a made-up fault is lost on its way into a query, and what is sent is no fault at all
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation_answers_as_described(case, listening):
    # what a value means is checked by the rooms: a name that nobody has is no fault of its form
    case.call_and_validate(
        listening.url,
        headers={"Authorization": f"Bearer {listening.token}"},
        excluded_checks=[schemathesis.specs.openapi.checks.positive_data_acceptance],
    )


def test_the_description_says_where_the_token_goes(app):
    description = app.openapi()
    assert description["openapi"].startswith("3.1")
    assert description["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert "security" in description["paths"]["/api/v1/cards"]["post"]
    assert "security" not in description["paths"]["/livez"]["get"]
    names = [
        operation["operationId"] for path in description["paths"].values() for operation in path.values()
    ]
    assert len(names) == len(set(names))
