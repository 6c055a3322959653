"""A whole node that stops or is cut off while rooms are in flight, and comes back. Kubernetes notices after its own grace of many
seconds; what is promised is a progress TTL and one second."""

import json
import time

from inside import Nodes, place, streams
from kit import CLUSTER, ROLES, SPACE, Wrong, kubectl, load, pods, run, seen, until
from scenarios.basics import helm_test

# The default; a silent fault is over one second later.
TTL = 5.0
BOUND = TTL + 1
# What nodes must never have seen: bytes or words that are not theirs.
FOREIGN = ("kv_corrupt", "protocol_error", "internal_error")
# Eight seconds each: they run when the node stops, and those that are carried on end before Kubernetes notices anything.
TOKENS = 800


def condition(node):
    """Whether Kubernetes takes the node for ready."""
    return kubectl("get", "node", node, "--output", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")


def at(node, role):
    return [pod for pod in pods(role) if pod["spec"]["nodeName"] == node]


def spread():
    """A pod of each role on each node, as it is after an installation: pods that were moved meanwhile are made again."""
    for role in ROLES:
        where = lambda role=role: {pod["spec"]["nodeName"] for pod in pods(role)}
        for _ in range(4):
            if len(where()) == 2:
                break
            name = pods(role)[0]["metadata"]["name"]
            kubectl("delete", "pod", name, "--namespace", SPACE)
            until(f"two {role} pods", lambda role=role: len(pods(role)) == len(pods(role, ready=False)) == 2)
        else:
            raise Wrong(f"all {role} pods are on one node: {where()}")


def answers(prompts, node, base):
    """What each prompt's answer is, while nothing is wrong."""
    made = {prompt: streams(1, node, base, TOKENS, prompt=prompt)[0] for prompt in prompts}
    for one in made.values():
        one.join(60)
        if one.error or not one.done:
            raise Wrong(f"before anything is wrong: {one.error}")
    return {prompt: one.text for prompt, one in made.items()}


def owners(nodes):
    """Live parts at these nodes: how many, by their router."""
    counts = {}
    for name in nodes.connections:
        for row in json.loads(nodes.get(name, "/innkeeper/v1/rooms")):
            counts[row["owner"]] = counts.get(row["owner"], 0) + 1
    return counts


def incarnation(nodes, name):
    return json.loads(nodes.get(name, "/innkeeper/v1/node"))["incarnation"]


def orphaned(here, gone, began):
    """Seconds from `began` until no node here has a part of a room whose router is the one that is gone."""
    while owners(here).get(gone):
        if time.monotonic() - began > 60:
            raise Wrong(f"a minute later nodes have rooms of the router that is gone: {owners(here)}")
        time.sleep(0.05)
    return time.monotonic() - began


def struck(what, victim, strike, heal):
    """What the clients of the router that lives see, and what its node still has of the other's rooms."""
    living = "node1" if victim == "node2" else "node2"
    spread()
    (mine,), (theirs,) = at(living, "router"), at(victim, "router")
    prompts = [f"Guest {number} stays for long." for number in range(4)]
    expected = answers(prompts, living, place(mine))
    with Nodes() as all_nodes:
        lost = incarnation(all_nodes, theirs["metadata"]["name"])
    with Nodes(only=living) as here:
        # Through the router that lives, to workers of both nodes; and through the one that goes.
        kept = [one for prompt in prompts for one in streams(2, living, place(mine), TOKENS, prompt=prompt)]
        doomed = [one for prompt in prompts for one in streams(1, living, place(theirs), TOKENS, prompt=prompt, limit=90)]
        until("rooms in flight", lambda: all(len(one.times) > 20 for one in (*kept, *doomed)) and owners(here).get(lost), 30)
        strike()
        began = time.monotonic()
        orphans = orphaned(here, lost, began)
        for one in kept:
            one.join(60)
        still = condition(victim)
        noticed = until("Kubernetes to notice", lambda: condition(victim) != "True" and time.monotonic() - began, 90)
        # Those who ask the router that lives are served all the time.
        with load(f"{what}: while it is gone, through the other router", base=place(mine), node=living):
            time.sleep(3)
    heal()
    judged(what, kept, expected, orphans, still, noticed)
    returned(what, doomed, expected)
    healed(what, victim, living)


def judged(what, kept, expected, orphans, still, noticed):
    wrong = [f"{one.body['prompt']}: {one.error or 'another text'}" for one in kept if one.error or one.text != expected[one.body["prompt"]]]
    gaps = sorted((one.gap() for one in kept), reverse=True)
    held = sum(gap > 0.5 for gap in gaps)
    seen(f"{what}: of {len(kept)} streams through the other router {held} were held up, for {gaps[0]:.1f} s at most, {len(wrong)} failed; "
         f"rooms of its own router were over after {orphans:.1f} s; Kubernetes noticed after {noticed:.0f} s")
    if wrong or gaps[0] > BOUND or orphans > BOUND:
        raise Wrong(f"{what}: {wrong}; promised within {BOUND} s")
    if not held:
        raise Wrong(f"{what}: no stream was held up, so nothing of them was on that node: {gaps}")
    if still != "True":
        raise Wrong(f"{what}: when all streams had ended Kubernetes had noticed already ({still}), so it is not known who was first")


def returned(what, doomed, expected):
    """Clients of the router that was gone: an error or the whole answer, and nobody else's."""
    for one in doomed:
        one.join(120)
    said = [one.error or "answered" for one in doomed]
    if wrong := [one.text for one in doomed if not expected[one.body["prompt"]].startswith(one.text)]:
        raise Wrong(f"{what}: the router that came back sent what belongs to nobody: {wrong}")
    if any(one.is_alive() for one in doomed):
        raise Wrong(f"{what}: clients of the router that came back hang: {said}")
    seen(f"{what}: its router's own {len(doomed)} clients, once it had come back: " + "; ".join(sorted(set(said))))


def healed(what, victim, living):
    """The node is there again, its workers get rooms, and nothing foreign has arrived anywhere."""
    until(f"{victim} to be ready", lambda: condition(victim) == "True", 120)
    for role in ROLES:
        until(f"two {role} pods", lambda role=role: len(pods(role)) == len(pods(role, ready=False)) == 2)
    with Nodes() as nodes:
        back = [pod["metadata"]["name"] for role in ("prefill", "decode") for pod in at(victim, role)]
        rooms = lambda: {name: sum(samples.values()) for name, samples in nodes.counted("innkeeper_rooms_ended_total", back).items()}
        before = rooms()
        with load(f"{what}: after it has come back", node=living):
            until("its workers to get rooms", lambda: all(after > before[name] for name, after in rooms().items()), 120)
        ended = nodes.counted("innkeeper_rooms_ended_total")
    foreign = {f"{name}{label}": count for name, samples in ended.items() for label, count in samples.items()
               if any(f'reason="{reason}"' in label for reason in FOREIGN) and count}
    if foreign:
        raise Wrong(f"{what}: {foreign}")
    helm_test()


def frozen():
    """Every process of a node stops: its kernel still takes connections, and nobody answers."""
    etcd_on = pods("etcd")[0]["spec"]["nodeName"]
    victim = "node1" if etcd_on == "node2" else "node2"
    try:
        struck(f"{victim} stops", victim, lambda: run(CLUSTER, "freeze", victim), lambda: run(CLUSTER, "thaw", victim))
    finally:
        run(CLUSTER, "thaw", victim)


def cut_off():
    """A node loses its network, and with it the other loses the etcd of the release; all processes go on on both sides."""
    victim = pods("etcd")[0]["spec"]["nodeName"]
    try:
        struck(f"{victim} is cut off, with etcd", victim, lambda: run(CLUSTER, "cut", victim), lambda: run(CLUSTER, "join", victim))
    finally:
        run(CLUSTER, "join", victim)
