"""A router as its page at /ui sees it: the same files under the same headers, and data of a test's own making.

    python fake_router.py --rooms 10000 --port 8081        for people
    with FakeRouter(...) as router: ...                    for tests

What it answers is in `router.nodes`, `.rooms`, `.ended` and `.explain`: a test changes them as it likes. `router.away()` is a
router that is gone, `router.hung()` one that takes connections and never answers.
"""

import argparse
import json
import random
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "services/router/src/front/ui"
PHASES = ["queued", "bootstrapping", "waiting_for_input", "transferring", "decoding"]
OWES = dict(zip(PHASES, ["nobody", "decode", "prefill", "decode", "decode"]))
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def policy():
    """The Content-Security-Policy of the real router: read from its source, so that both are always the same."""
    text = (FILES / "mod.rs").read_text()
    found = re.search(r'const POLICY: &str = "(.*?)";', text, re.S)
    return re.sub(r"\\\n\s*", "", found.group(1))


def hex16(number):
    return f"{number:016x}"


def node(role, name, incarnation, **more):
    row = {"role": role, "name": name, "pid": 7, "incarnation": incarnation, "state": "serving", "http": "127.0.0.1:1", "control": "", "data": ""}
    if role != "router":
        row |= {"rooms": 0, "free_pages": 4096, "engine_owes_ms": 0, "breaker": "closed", "avoided_peers": []}
    return row | more


def cluster(prefill=2, decode=2):
    nodes = [node("router", "router-0", hex16(1))]
    nodes += [node("prefill", f"prefill-{n}", hex16(0x1000 + n)) for n in range(prefill)]
    nodes += [node("decode", f"decode-{n}", hex16(0x2000 + n)) for n in range(decode)]
    return nodes


def room(number, prefill, decode, phase="decoding", used=0.2, **more):
    """One row of /innkeeper/v1/rooms; `used` is the share of its budget."""
    budget = {"queued": 30_000, "bootstrapping": 5_500}.get(phase, 5_500)
    row = {
        "room": hex16(0x5000_0000_0000_0000 + number),
        "request": 1_923_334_297_318_105_410 + number,
        "attempt": 1,
        "phase": phase,
        "epoch": 1,
        "age_ms": 1000 + number % 50_000,
        "phase_age_ms": 500 + number % 9000,
        "deadline_ms": round(budget * (1 - used)),
        "budget_ms": budget,
        "prefill": prefill,
        "decode": decode,
        "owner": hex16(1),
        "owes": OWES[phase],
        "leased": True,
    }
    return row | more


def many_rooms(nodes, number, seed=1):
    """So many rooms over all pairs, most of them calm."""
    rng = random.Random(seed)
    prefill = [node["incarnation"] for node in nodes if node["role"] == "prefill"]
    decode = [node["incarnation"] for node in nodes if node["role"] == "decode"]
    weights = [10, 2, 8, 15, 65]
    return [
        room(n, rng.choice(prefill), rng.choice(decode), rng.choices(PHASES, weights)[0], used=rng.random() ** 4, leased=rng.random() > 0.02)
        for n in range(number)
    ]


def move(rooms, seed):
    """A second later: every tenth room is in its next phase, and those at the end are replaced by new ones."""
    rng = random.Random(seed)
    moved = []
    for row in rooms:
        row = dict(row)
        if rng.random() < 0.1:
            at = PHASES.index(row["phase"]) + 1
            if at == len(PHASES):
                row = room(rng.randrange(1 << 48), row["prefill"], row["decode"], "queued", 0)
            else:
                row |= {"phase": PHASES[at], "owes": OWES[PHASES[at]], "phase_age_ms": 0}
        row["age_ms"] += 1000
        row["deadline_ms"] = round(row["budget_ms"] * (1 - rng.random() ** 4))
        moved.append(row)
    return moved


def ended_room(number, nodes, verdict="transfer_stalled", blame="decode", now=None, **more):
    """One row of /innkeeper/v1/ended."""
    now = now or time.time() * 1000
    prefill = next(node for node in nodes if node["role"] == "prefill")
    decode = next(node for node in nodes if node["role"] == "decode")
    done = verdict == "done"
    headline = "The request had all that it asked for after 7.0 s."
    if not done:
        why = f"The decode worker {decode['name']} verified no byte for 5.5 s, 7.0 s after the room began ({verdict})"
        headline = f"{why}; look at decode worker {decode['name']}."
    row = {
        "room": hex16(0x6000_0000_0000_0000 + number),
        "request": hex16(0x77_0000 + number),
        "rid": f"client-{number}",
        "attempt": 1,
        "prefill": prefill["incarnation"],
        "prefill_name": prefill["name"],
        "decode": decode["incarnation"],
        "decode_name": decode["name"],
        "verdict": verdict,
        "blame": "nobody" if done else blame,
        "blame_node": decode["incarnation"] if blame == "decode" and not done else None,
        "blame_name": decode["name"] if blame == "decode" and not done else None,
        "refused": False,
        "phase": "decoding" if done else "transferring",
        "canary": False,
        "began_ms": round(now - 9000 - 1000 * number),
        "ended_ms": round(now - 2000 - 1000 * number),
        "trace_id": f"{0xabc0 + number:032x}",
        "headline": headline,
    }
    return row | more


def explanation(row):
    """/innkeeper/v1/explain/{room} of a row of `ended`; the prefill worker's clock is 3 ms late."""
    began = row["began_ms"]

    def phase(name, start, end, skew=0):
        return {"phase": name, "from_ms": began + start + skew, "to_ms": None if end is None else began + end + skew}

    def entry(at, what, detail=None, skew=0):
        return {"at_ms": began + at + skew, "what": what, "detail": detail}

    router = [phase("queued", 0, 40), phase("bootstrapping", 40, 90), phase("waiting_for_input", 90, 800), phase("transferring", 800, 7000)]
    prefill = [phase("queued", 5, 50, 3), phase("bootstrapping", 50, 85, 3), phase("waiting_for_input", 85, 790, 3), phase("transferring", 790, 6900, 3)]
    parts = [
        {
            "role": "router", "name": "router-0", "incarnation": hex16(1), "answered": True, "phases": router,
            "entries": [entry(0, "room begun", "attempt 1"), entry(3, "lease granted"), entry(6500, "progress timer fired", "nothing verified for 5.5 s"), entry(7000, "verdict", row["verdict"])],
        },
        {
            "role": "prefill", "name": row["prefill_name"], "incarnation": row["prefill"], "answered": True, "phases": prefill,
            "entries": [entry(86, "turn taken", skew=3), entry(790, "last slab sealed", "409600 bytes", skew=3), entry(6900, "aborted", skew=3)],
        },
        {"role": "decode", "name": row["decode_name"], "incarnation": row["decode"], "answered": False, "why": "no answer within 250 ms", "phases": [], "entries": []},
    ]
    story = sorted(({"role": part["role"], "name": part["name"], "after_ms": item["at_ms"] - began} | item for part in parts for item in part["entries"]), key=lambda item: item["at_ms"])
    return {
        "room": row["room"], "live": False, "rid": row["rid"], "attempt": row["attempt"], "verdict": row["verdict"], "blame": row["blame"],
        "blame_node": row["blame_node"], "blame_name": row["blame_name"], "headline": row["headline"],
        "owed": f"decode worker {row['decode_name']}", "owed_role": "decode", "owes_what": "to verify the bytes that arrived, and to commit",
        "since_ms": began + 1500, "began_ms": began, "ended_ms": row["ended_ms"], "next_room": hex16(0x51),
        "evidence": [f"{row['prefill_name']} waited for {row['decode_name']} since 5.5 s; 131072 bytes were sent and not verified", f"{row['decode_name']} did not answer when it was asked"],
        "did": ["told both workers to end their parts", "revoked the lease", "opened the next attempt on another pair"],
        "client": "saw nothing of it: the next attempt answered", "trace_id": row["trace_id"], "parts": parts, "story": story,
    }


class FakeRouter:
    """On a free port of 127.0.0.1, from `with` to its end."""

    def __init__(self, port=0, key="open sesame", jaeger="http://127.0.0.1:16686"):
        self.nodes, self.rooms, self.ended = cluster(), [], []
        self.explain = {}
        self.jaeger, self.key = jaeger, key
        self.evicted, self.asked = [], []
        self.keeps_ended = True
        # Nobody looks without the key.
        self.locked = False
        self.port = port
        self.hangs = threading.Event()
        self.server = None
        self.csp = policy()

    def __enter__(self):
        self._serve()
        return self

    def __exit__(self, *_):
        self.away()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def _serve(self):
        router = self

        class Handler(_Handler):
            fake = router

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def away(self):
        """Nobody listens, and connections that stand are broken."""
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def back(self):
        self.hangs.clear()
        if not self.server:
            self._serve()

    def hung(self):
        """It takes connections and does not answer."""
        self.hangs.set()

    def evict(self, number):
        """A room that lives is over, and explained."""
        for row in [row for row in self.rooms if row["room"] == number]:
            self.rooms.remove(row)
            over = ended_room(0, self.nodes, "lease_revoked", "nobody") | {"room": row["room"], "headline": "An operator evicted the room."}
            self.ended.insert(0, over)
            return True
        return False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake = None
    timeout = 30

    def do_GET(self):
        fake = self.fake
        if fake.server is None:
            # It is gone; a connection that was kept is not a way to it.
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        while fake.hangs.is_set() and fake.server is not None:
            time.sleep(0.05)
        path = self.path.split("?")[0]
        fake.asked.append(path)
        if path in ("/ui", "/ui/"):
            path = "/ui/index.html"
        if path == "/ui/config.json":
            self.json({"jaeger_url": fake.jaeger, "version": "0.0.0-fake"})
        elif path.startswith("/ui/"):
            self.file(FILES / path.removeprefix("/ui/"))
        elif path.startswith("/innkeeper/") and fake.locked and self.headers.get("authorization") != f"Bearer {fake.key}":
            self.error(401, "invalid_api_key", "no API key was shown")
        elif path == "/innkeeper/v1/nodes":
            self.json(fake.nodes)
        elif path == "/innkeeper/v1/rooms":
            self.json(fake.rooms)
        elif path == "/innkeeper/v1/ended" and fake.keeps_ended:
            self.json(fake.ended[:200])
        elif path.startswith("/innkeeper/v1/explain/"):
            self.explained(path.rsplit("/", 1)[1])
        else:
            self.error(404, "unknown_path", f"there is no {path}")

    def do_POST(self):
        fake = self.fake
        self.rfile.read(int(self.headers.get("content-length", 0)))
        found = re.fullmatch(r"/innkeeper/v1/rooms/([0-9a-f]{16})/evict", self.path)
        if not found:
            self.error(404, "unknown_path", f"there is no {self.path}")
        elif self.headers.get("authorization") != f"Bearer {fake.key}":
            self.error(403, "wrong_key", "the admin key is not right")
        elif not fake.evict(found.group(1)):
            self.error(404, "unknown_room", "no such room")
        else:
            fake.evicted.append(found.group(1))
            self.json({"room": found.group(1), "status": "evicted"})

    def explained(self, room):
        fake = self.fake
        own = fake.explain.get(room)
        row = next((row for row in fake.ended if row["room"] == room), None)
        if own is not None or row is not None:
            self.json(own if own is not None else explanation(row))
        else:
            self.error(404, "unknown_room", "no such room")

    def file(self, path):
        if path.parent != FILES or path.suffix not in TYPES or not path.is_file():
            self.error(404, "unknown_path", "there is no such file")
            return
        kind = TYPES[path.suffix] + ("" if path.suffix == ".svg" else "; charset=utf-8")
        headers = {"content-type": kind, "cache-control": "no-cache", "content-security-policy": self.fake.csp, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
        self.answer(200, path.read_bytes(), headers)

    def json(self, value, status=200):
        body = json.dumps(value, separators=(",", ":")).encode()
        self.answer(status, body, {"content-type": "application/json"})

    def error(self, status, code, message):
        self.json({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}, status)

    def answer(self, status, body, headers):
        try:
            self.send_response(status)
            for name, value in (headers | {"content-length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            # The page left.
            self.close_connection = True

    def log_message(self, *_):
        pass


def main():
    arguments = argparse.ArgumentParser(description="A made-up router with the page at /ui")
    arguments.add_argument("--rooms", type=int, default=60)
    arguments.add_argument("--prefill", type=int, default=2)
    arguments.add_argument("--decode", type=int, default=3)
    arguments.add_argument("--port", type=int, default=8081)
    given = arguments.parse_args()
    with FakeRouter(given.port) as router:
        router.nodes = cluster(given.prefill, given.decode)
        router.rooms = many_rooms(router.nodes, given.rooms)
        router.ended = [ended_room(n, router.nodes, ["done", "transfer_stalled", "decode_lost"][n % 3]) for n in range(200)]
        print(f"{router.url}/ui with {given.rooms} rooms; the admin key is `{router.key}`", flush=True)
        for second in range(1 << 30):
            time.sleep(1)
            router.rooms = move(router.rooms, second)


if __name__ == "__main__":
    main()
