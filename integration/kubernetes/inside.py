"""HTTP from within a node's network, where pods and Services have addresses: what nodes say of themselves, and streams of clients
with the time at which each piece came."""

import ctypes
import http.client
import json
import os
import socket
import threading
import time
import urllib.parse
import uuid

from kit import Wrong, pods, process

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
# A connection within one machine; what takes longer is not answered.
CONNECT_S = 5
MODEL = "mock"


def of_node(name):
    """A node's network namespace."""
    return f"/run/netns/ik8s-{name.replace('node', 'n')}"


def of_pod(pod):
    """A pod's network namespace."""
    return f"/proc/{process(pod)}/ns/net"


def dial(path, place, limit=CONNECT_S):
    """A TCP connection that begins in a network namespace. A namespace is a thread's, and a socket keeps that in which it was made,
    so the thread ends and the socket stays."""
    made = []

    def within():
        try:
            with open(path, "rb") as namespace:
                if LIBC.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            made.append(socket.create_connection(place, timeout=limit))
            made[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as wrong:
            made.append(wrong)

    thread = threading.Thread(target=within)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


class Connection(http.client.HTTPConnection):
    """`limit`: how long it waits for the next bytes."""

    def __init__(self, node, base, limit=CONNECT_S):
        place = urllib.parse.urlparse(base)
        super().__init__(place.hostname, place.port, timeout=limit)
        self.node = node

    def connect(self):
        self.sock = dial(of_node(self.node), (self.host, self.port))
        self.sock.settimeout(self.timeout)


# === What nodes say ===


def place(pod):
    return f"http://{pod['status']['podIP']}:8080"


class Nodes:
    """The nodes of a release, each asked from its own machine: policies let only routers in from elsewhere."""

    def __init__(self, only=None, ready=True):
        self.pods = [pod for role in ("router", "prefill", "decode") for pod in pods(role, ready=ready)
                     if only is None or pod["spec"]["nodeName"] == only]
        self.connections = {pod["metadata"]["name"]: Connection(pod["spec"]["nodeName"], place(pod)) for pod in self.pods}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.connections.values():
            connection.close()

    def of(self, role):
        return [pod["metadata"]["name"] for pod in self.pods if pod["metadata"]["labels"]["app.kubernetes.io/component"] == role]

    def get(self, name, path):
        connection = self.connections[name]
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        if response.status != 200:
            raise Wrong(f"{name} answers {path} with {response.status}: {text}")
        return text

    def rooms(self):
        """The parts of rooms that live now, as pairs of node and room."""
        return {(name, row["room"]) for name in self.connections for row in json.loads(self.get(name, "/innkeeper/v1/rooms"))}

    def counted(self, metric, names=None):
        """Samples of a counter, by node: label text to value."""
        found = {}
        for name in names or self.connections:
            lines = [line for line in self.get(name, "/metrics").splitlines() if line.startswith((metric + "{", metric + " "))]
            found[name] = {line[len(metric):].rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
        return found

    def ended(self, names):
        """Parts that are over, newest first, of all these nodes."""
        return [row for name in names for row in json.loads(self.get(name, "/innkeeper/v1/ended?limit=1000"))]


# === A client's stream ===


class Stream(threading.Thread):
    """A completion as a stream, or, for `whole`, as one answer: text and times, in seconds since it was asked for."""

    def __init__(self, node, base, tokens, prompt="A guest asks for a room.", limit=60, whole=False, headers=None):
        super().__init__(daemon=True)
        self.rid = f"guest-{uuid.uuid4().hex[:12]}"
        self.connection = Connection(node, base, limit)
        self.body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": not whole}
        self.headers = {"content-type": "application/json", "x-request-id": self.rid} | (headers or {})
        self.began, self.times, self.text = time.monotonic(), [], ""
        self.error, self.done, self.took = None, False, 0.0
        self.left = False

    def run(self):
        try:
            self.ask()
        except (OSError, ValueError, KeyError, AttributeError, http.client.HTTPException) as wrong:
            # Whoever has left sees no end.
            self.error = None if self.left else f"{type(wrong).__name__}: {wrong}"
        self.took = time.monotonic() - self.began
        if not self.left:
            self.connection.close()

    def ask(self):
        self.connection.request("POST", "/v1/completions", json.dumps(self.body), self.headers)
        response = self.connection.getresponse()
        if response.status != 200:
            raise ValueError(f"{response.status}: {response.read().decode()}")
        if not self.body["stream"]:
            self.text = json.loads(response.read())["choices"][0]["text"]
            self.done = True
            return
        for line in response:
            self.line(line)
            if self.done:
                return
        raise ValueError("the stream broke off without its end")

    def line(self, line):
        if not line.startswith(b"data: "):
            return
        data = line[6:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            raise ValueError(f"within the stream: {event['error']}")
        self.times.append(time.monotonic() - self.began)
        self.text += event["choices"][0]["text"] if event["choices"] else ""

    def leave(self):
        """Closes the connection under the reader's hands, as a client does that is ended."""
        self.left = True
        # `close` alone would wait for the reader: the socket is told first.
        self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def gap(self):
        """The longest time between two pieces, the first included."""
        return max((after - before for before, after in zip([0.0, *self.times], self.times)), default=0.0)


def streams(count, node, base, tokens, **options):
    made = [Stream(node, base, tokens, **options) for _ in range(count)]
    for one in made:
        one.start()
    return made


def finished(made, limit):
    """Waits for their ends."""
    end = time.monotonic() + limit
    for one in made:
        one.join(max(0.0, end - time.monotonic()))
        if one.is_alive():
            raise Wrong(f"{one.rid}: no end after {limit} s; {len(one.times)} pieces came")
    return made
