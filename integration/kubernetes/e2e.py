#!/usr/bin/env python3
"""The chart in a real Kubernetes: what is installed, and what clients see while it is changed and broken.

    e2e.py             every scenario, on a cluster that `cluster.sh up` has started
    e2e.py NAME...     some of them; `install` must have been before the others, `traefik` and `envoy` before those that follow them
    e2e.py --list      their names

It prints a line for each thing that it has seen and the time of each scenario, and fails at the first that is not as it should be.
"""

import subprocess
import sys
import time

from kit import CLUSTER, Wrong, run, seen
from scenarios import basics, changes, gateways, nodes, tracing

SCENARIOS = {
    "install": basics.install,
    "helm-test": basics.helm_test,
    "network": basics.network,
    "upgrade": changes.upgrade,
    "deletion": changes.deletion,
    "crash": changes.crash,
    "scale": changes.scale,
    "etcd": changes.etcd,
    "frozen-node": nodes.frozen,
    "cut-node": nodes.cut_off,
    # It leaves all pods on one node; the update that follows spreads them again.
    "drain": changes.drain,
    "tracing": tracing.tracing,
    # Two streams of three minutes begin here, and go on beside what follows.
    "traefik": gateways.traefik,
    "envoy": gateways.envoy,
    "security": basics.no_token,
    "definitions": basics.definitions,
    "model": basics.model,
    "long-streams": gateways.long_streams,
    "router-stall": gateways.router_stall,
    "router-death": gateways.router_death,
    "uninstall": basics.uninstall,
}


def play(name):
    began = time.monotonic()
    try:
        SCENARIOS[name]()
    except (Wrong, OSError, subprocess.TimeoutExpired) as wrong:
        events = run(CLUSTER, "kubectl", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", check=False).stdout
        sys.exit(f"e2e: {name} FAILED: {wrong}\n" + "\n".join(events.splitlines()[-40:]))
    return time.monotonic() - began


def main():
    names = sys.argv[1:] or list(SCENARIOS)
    if names == ["--list"]:
        print("\n".join(SCENARIOS))
        return
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        sys.exit(f"e2e: there is no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    times = {}
    for name in names:
        times[name] = play(name)
        seen(f"-- {name}: {times[name]:.0f} s")
    seen(f"{len(names)} scenarios passed in {sum(times.values()):.0f} s: " + ", ".join(f"{name} {took:.0f}" for name, took in times.items()))


if __name__ == "__main__":
    main()
