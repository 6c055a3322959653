"""What every gateway must let through: streams token by token and for minutes, the news that a client has left, and each request
once. A gateway is a name and the addresses of its two ports in a node's network."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass

import inside
from inside import Nodes, finished, streams
from kit import CLIENTS, CLUSTER, HERE, REPOSITORY, Wrong, built, killed, load, pods, process, seen, until

# A token every ten milliseconds: three seconds, and more than three minutes.
SHORT, LONG = 300, 17_500
LONG_S = 180
# What is promised is 250 ms after the router sees it; looking takes part of the rest, and the gateway's own way of noticing.
LEFT_WITHIN = 1.0


@dataclass
class Gate:
    name: str
    http: str
    grpc: str
    node: str = "node1"


def unbuffered(gate):
    """The first token comes long before the last, and so do all between them."""
    (one,) = finished(streams(1, gate.node, gate.http, SHORT), 60)
    if one.error:
        raise Wrong(f"{gate.name}: {one.error}")
    first, last, moments = one.times[0], one.times[-1], len({round(at, 2) for at in one.times})
    if first > last / 3 or moments < SHORT / 4 or one.gap() > 1:
        raise Wrong(f"{gate.name}: a stream comes in lumps: first after {first:.2f} s, last after {last:.2f} s, {moments} moments, gap {one.gap():.2f} s")
    seen(f"{gate.name}: of a stream of {last:.2f} s the first token comes after {first:.2f} s, the rest at {moments} moments, "
         f"at most {one.gap():.2f} s apart")


class Long:
    """A stream of three minutes that runs beside everything else."""

    def __init__(self, gate):
        self.gate = gate
        (self.stream,) = streams(1, gate.node, gate.http, LONG, prompt="A long stay")

    def ends(self):
        finished([self.stream], 400)
        one = self.stream
        if one.error or one.took < LONG_S or len(one.text.encode()) == 0:
            raise Wrong(f"{self.gate.name}: a stream of {one.took:.0f} s does not come through whole: {one.error}, {len(one.times)} pieces")
        seen(f"{self.gate.name}: a stream of {one.took:.0f} s comes through whole, {len(one.times)} pieces, at most {one.gap():.2f} s apart")
        return one.text


def gone(nodes, rooms, what):
    """Seconds until no node has any of these rooms."""
    began = time.monotonic()
    while nodes.rooms() & rooms:
        if time.monotonic() - began > 30:
            raise Wrong(f"{what}: after 30 s nodes still have {nodes.rooms() & rooms}")
        time.sleep(0.01)
    return time.monotonic() - began


def began(nodes, before, count, what):
    """Waits until `count` new rooms live at the routers and at the decode workers: their streams run."""
    def new():
        now = nodes.rooms() - before
        at = lambda role: len({room for name, room in now if name in nodes.of(role)})
        return now if at("router") >= count and at("decode") >= count else None

    return until(f"{what}: {count} rooms", new, 30)


def leaving(gate):
    """A client that leaves is seen to leave by every node that has a part of its room."""
    with Nodes() as nodes:
        for what, whole in (("streams", False), ("requests without a stream", True)):
            before = nodes.rooms()
            clients = streams(4, gate.node, gate.http, SHORT * 10, whole=whole)
            rooms = began(nodes, before, 4, gate.name)
            for one in clients:
                one.leave()
            took = gone(nodes, rooms, gate.name)
            if took > LEFT_WITHIN:
                raise Wrong(f"{gate.name}: the rooms of clients that left lived for {took:.2f} s")
            seen(f"{gate.name}: clients leave 4 {what}: {took:.2f} s later no node has any of their {len(rooms)} parts of rooms")


# === gRPC ===


def call(gate, tokens, *more, **options):
    """`Generate` by the stock client, in a process of its own."""
    command = [CLUSTER, "on", gate.node, str(built() / "client/bin/python"), str(HERE / "grpc_client.py"),
               str(REPOSITORY / "proto/proto/inference.proto"), gate.grpc, inside.MODEL, "A guest asks for a room.", str(tokens), *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def grpc(gate):
    """`Generate` streams through the gateway with the text that HTTP has, and a call that is cancelled is over everywhere."""
    def whole():
        out, _ = call(gate, SHORT).communicate(timeout=120)
        said = json.loads(out)
        # The route may need a moment; nothing else may.
        return None if (said["error"] or "").startswith(("UNAVAILABLE", "UNIMPLEMENTED")) else said

    said = until(f"gRPC through {gate.name}", whole, 60)
    (other,) = finished(streams(1, gate.node, gate.http, SHORT), 60)
    if said["error"] or said["usage"] != SHORT or said["text"] != other.text:
        raise Wrong(f"{gate.name}: Generate says {said['error']}, {said['usage']} tokens, the text of HTTP: {said['text'] == other.text}")
    first, last = said["times"][0], said["times"][-1]
    if first > last / 3:
        raise Wrong(f"{gate.name}: Generate comes in lumps: first after {first} s, last after {last} s")
    seen(f"{gate.name}: gRPC Generate: {said['usage']} tokens in {len(said['times'])} messages, the first after {first:.2f} s, "
         f"the last after {last:.2f} s, the text is that of HTTP")
    with Nodes() as nodes:
        before = nodes.rooms()
        process = call(gate, SHORT * 10, "20")
        if process.stdout.readline().strip() != "cancels":
            raise Wrong(f"{gate.name}: a call did not run: {process.communicate()[0]}")
        rooms = began(nodes, before, 1, gate.name)
        process.stdin.write("\n")
        process.stdin.flush()
        took = gone(nodes, rooms, gate.name)
        out, _ = process.communicate(timeout=30)
    if took > LEFT_WITHIN or not json.loads(out)["error"].startswith("CANCELLED"):
        raise Wrong(f"{gate.name}: a call that was cancelled lived for {took:.2f} s: {out}")
    seen(f"{gate.name}: gRPC Generate is cancelled: {took:.2f} s later no node has any of its room")


# === A router stalls, or dies ===


def quick(gate):
    """Whether eight requests, one after the other, are each answered within a second: none of them is given to the silent router."""
    for _ in range(8):
        (one,) = streams(1, gate.node, gate.http, 4, limit=1)
        one.join(5)
        if not one.done or one.took > 1:
            return False
    return True


def stalled(gates):
    """A router's process stops while streams run through it: the gateways leave it out, and who waits there is answered when it goes on."""
    held = [one for gate in gates for one in streams(4, gate.node, gate.http, SHORT * 2)]
    until("streams", lambda: all(len(one.times) > 10 for one in held), 30)
    pid, since = process(pods("router")[0]), time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        after = {}
        for gate in gates:
            # The Service's readiness takes two probes of two seconds; longer than this, and liveness would end the process.
            until(f"{gate.name} to leave a silent router out", lambda gate=gate: quick(gate), 15)
            after[gate.name] = time.monotonic() - since
    finally:
        os.kill(pid, signal.SIGCONT)
    finished(held, 60)
    wrong, late = [one.error for one in held if one.error], [one for one in held if one.gap() > 1]
    seen(f"a router's process stops for {max(after.values()):.0f} s: "
         + ", ".join(f"{name} has answered eight requests in a row after {took:.1f} s" for name, took in after.items())
         + f"; of {len(held)} streams {len(late)} wait, {len(wrong)} fail")
    if wrong or not late or len({one.text for one in held}) != 1:
        raise Wrong(f"a router stalled: {wrong}, {len(late)} streams waited, {len({one.text for one in held})} different texts")
    until("two routers", lambda: len(pods("router")) == 2)


def answered(nodes, names):
    """Requests that these routers have answered, whatever the outcome."""
    return {name: sum(samples.values()) for name, samples in nodes.counted("innkeeper_requests_total", names).items()}


def once(gate):
    """A router is killed under load: who had a request there is told, and no request is given to a router twice. Prefill workers
    live on and remember every room that began, with the client's id of its request."""
    with Nodes() as nodes:
        victim, other = pods("router")
        names = [one["metadata"]["name"] for one in (victim, other)]
        before = answered(nodes, names)
        with load(f"{gate.name}: a router's process is killed", forgiven=8 * CLIENTS, base=gate.http, node=gate.node) as report:
            last = answered(nodes, names)
            back = killed(victim)
            until("the router to be there again", back)
        after = answered(nodes, names[1:])
        rows = nodes.ended(nodes.of("prefill"))
    ids, failed = set(report["ids"]), {one["id"] for one in report["failed"]}
    requests = {}
    for row in rows:
        if row["rid"] in ids:
            requests.setdefault(row["rid"], set()).add(row["request"])
    twice = {rid: keys for rid, keys in requests.items() if len(keys) > 1}
    unseen = ids - failed - set(requests)
    counted = after[names[1]] - before[names[1]]
    seen(f"{gate.name}: {len(ids)} requests, {len(failed)} failed; workers had rooms of {len(requests)}, of {len(twice)} from more than one router request; "
         f"the router that lived on counted {counted:.0f}, the other at least {last[names[0]] - before[names[0]]:.0f}")
    if twice or unseen:
        raise Wrong(f"{gate.name}: given to routers twice: {twice}; answered, and no worker knows of it: {unseen}")
    if counted > len(ids):
        raise Wrong(f"{gate.name}: one router counted {counted} requests, of {len(ids)} that were sent")
