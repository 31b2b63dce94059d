"""A toy server without HTTP: as a client of one, and whole audits of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench.audit.cells import Plan
from specbench.audit.certificate import Audit
from specbench.audit.course import Bounds, Course
from specbench.audit.probes import ServerProbe
from specbench.backends.engines.dialects import DIALECTS, Dialect
from specbench.jobs.audit import judged
from tests.support.faulty_server import NAME, Server

PROMPTS = 32


@dataclass
class Direct:
    """What an audit needs of a client."""

    server: Server
    url: str = "http://toy"
    root: str = "http://toy"
    dialect: Dialect = DIALECTS["vllm"]

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        status, found = self.server.handle("POST", path, json.loads(json.dumps(body)))
        return status, json.loads(json.dumps(found))


def probe(server: Server) -> ServerProbe:
    client: Any = Direct(server)
    return ServerProbe(client, NAME)


def course(fault: str | None = None, noise: float = 0.0, share: float = 1.0, **more: Any) -> Course:
    """An audit of a toy server against one without a draft. more: `bounds`, and arguments of the audited server."""
    bounds = more.pop("bounds", Bounds())
    baseline = probe(Server(speculative=False, noise=noise, seed=more.get("seed", 0)))
    audited = probe(Server(fault=fault, noise=noise, **more))
    texts = [
        "".join(f"w{(i * 37 + j * 11 + j * j * i) % 190:03d} " for j in range(20 + i % 13)) for i in range(PROMPTS)
    ]
    chat = [({"role": "user", "content": text},) for text in texts]
    ids = [baseline.render(messages, text) for messages, text in zip(chat, texts, strict=True)]
    return Course(baseline, audited, Plan(ids, 4, 300, 4, share, chat), bounds)


def audited(what: Course) -> Audit:
    """The whole audit."""
    return judged(what, list(what.trials()), "", "", {}, {}, 0.0, 2.0)
