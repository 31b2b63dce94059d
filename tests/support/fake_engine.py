"""The server of vLLM in tests: started with its command line, it answers every request with a recorded stream.

`--fault WORD` is handed through to it: what goes wrong, from its second completion on or from the start. A file in the
folder FAKE_ENGINES gets the command line and the process ids of every one that is started.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

STREAMS = Path(__file__).parents[1] / "backends" / "streams"
WORDS = sys.argv[1:]
OPTIONS = dict(pairwise(WORDS))
FAULT = OPTIONS.get("--fault", "")
DRAFTS = "--speculative-config" in OPTIONS or FAULT == "baseline drafts"


class Handler(BaseHTTPRequestHandler):
    answered = 0

    def do_GET(self) -> None:
        model = {"data": [{"id": OPTIONS["--served-model-name"], "owned_by": "vllm"}]}
        counters = (STREAMS / "vllm-draft.metrics_after.txt").read_bytes() if DRAFTS else b""
        known = {"/health": b"", "/v1/models": json.dumps(model).encode(), "/metrics": counters}
        found = known.get(self.path)
        self.send(200 if found is not None and FAULT != "never ready" else 503, "text/plain", found or b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Handler.answered += 1
        if FAULT == "dies" and Handler.answered > 1:
            print("error: out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        if FAULT == "hangs" and Handler.answered > 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)  # the signal takes a moment
        if FAULT == "refuses" and Handler.answered > 1:
            self.send(400, "application/json", b'{"error": {"message": "min_p is not supported"}}')
            return
        name = "vllm-draft" if DRAFTS and FAULT != "no draft" else "vllm-plain"
        self.send(200, "text/event-stream", (STREAMS / f"{name}.completion.sse").read_bytes())

    def send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    if FAULT == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])  # as its engine core
    place = Path(os.environ["FAKE_ENGINES"]) / f"{time.time_ns()}.json"
    place.write_text(json.dumps({"words": WORDS, "ids": [os.getpid(), child.pid]}))
    if FAULT == "no start":
        sys.exit("ValueError: no such model\nRuntimeError: failed. See root cause above.\nWARNING: as `OSError: …`")
    ThreadingHTTPServer(("127.0.0.1", int(OPTIONS["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
