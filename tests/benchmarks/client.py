"""What the client of servers costs: its delay per piece, its share of a core, and the streams that it keeps up with.

    python -m tests.benchmarks.client --save results/benchmarks/client.md

A stub in another process streams pieces at a fixed pace, each with the time of its sending by the clock of the machine,
over so many connections at once. It cannot be slower than it is, so the pace that it keeps is in the table as well. Two
minutes; nothing else may run.
"""

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from specbench.backends.engines.client import Client
from specbench.backends.engines.dialects import Answer
from specbench.backends.engines.server import sent_at
from tests.benchmarks import harness
from tests.benchmarks.harness import Row, Sheet, numbers, say

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DIGITS = 20  # of a time in a piece


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("--streams", type=numbers, default=[1, 16, 64, 200], help="at once (1,16,64,200)")
    options.add_argument("--pace", type=numbers, default=[10, 25, 50], help="pieces a second of a stream (10,25,50)")
    options.add_argument("--pieces", type=int, default=200, help="of an answer (200)")
    bench = harness.begin("client", "The overhead of the client, against a stub server", options.parse_args())
    ours, theirs = multiprocessing.Pipe()
    stub = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, bench.args.pieces), daemon=True)
    stub.start()
    client = Client(f"http://127.0.0.1:{ours.recv()}")
    try:
        pairs = [(streams, pace) for streams in bench.args.streams for pace in bench.args.pace]
        rows = [measured(client, streams, pace, bench.args.pieces) for streams, pace in pairs]
    finally:
        stub.terminate()
    bench.publish([Sheet("Streams at once and their pace", rows, [
        "delay: from the stub's sending to the time that the client writes down for a piece",
        "cores: processor time of the client ÷ seconds, without that of the stub, which shares the processor",
        "kept: pieces a second that arrived ÷ those that the pace asks for",
    ])])  # fmt: skip


def measured(client: Client, streams: int, pace: int, pieces: int) -> Row:
    """The row of so many streams at a pace."""
    say(f"{streams} streams of {pace} pieces a second")
    request = {"model": "stub", "prompt": str(pace), "max_tokens": pieces}
    started: dict[int, float] = {}

    def ask(number: int) -> Answer:
        started[number] = time.monotonic()
        return client.complete(request)

    began, busy = time.monotonic(), time.process_time()
    answers = [one.answer for one in sent_at([0.0] * streams, ask, streams)]
    seconds, busy = time.monotonic() - began, time.process_time() - busy
    late = [1000 * delay for number, answer in enumerate(answers) for delay in delays(answer, started[number])]
    points = statistics.quantiles(late, n=100)
    return {
        "streams": streams, "pace": pace, "pieces/s": streams * pieces / seconds,
        "kept": pieces / pace / max(answer.arrived[-1] - answer.arrived[0] + 1 / pace for answer in answers),
        "delay ms, median": points[49], "delay ms, p99": points[98], "cores": busy / seconds,
        "µs per piece": 1e6 * busy / (streams * pieces),
    }  # fmt: skip


def delays(answer: Answer, started: float) -> Sequence[float]:
    """Seconds from the sending of each piece to its arrival by the client."""
    sent = [int(answer.text[place : place + DIGITS]) / 1e9 for place in range(0, len(answer.text), DIGITS)]
    return [started + arrived - at for arrived, at in zip(answer.arrived, sent, strict=True)]


def serve(port: Connection, pieces: int) -> None:
    """Stream answers until the process is ended; the pace is the prompt of a request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-le"))
        pace = int(json.loads(await reader.readexactly(size))["prompt"])
        writer.write(HEAD)
        due = time.monotonic()
        for number in range(pieces):
            await asyncio.sleep(max(due + number / pace - time.monotonic(), 0.0))
            writer.write(event([{"index": 0, "text": f"{time.monotonic_ns():0{DIGITS}d}"}]))
        writer.write(event([{"index": 0, "text": "", "finish_reason": "length"}]))
        writer.write(event([], usage={"prompt_tokens": 1, "completion_tokens": pieces}) + b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    async def listen() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(listen())


def event(choices: Sequence[Any], **more: Any) -> bytes:
    return f"data: {json.dumps({'object': 'text_completion', 'choices': choices, **more})}\n\n".encode()


if __name__ == "__main__":
    main()
