"""The routers behind two gateways: Traefik as the controller of a Gateway API, and Envoy as a plain proxy."""

import json
import time

from kit import CHART, CLUSTER, HERE, RELEASE, REPOSITORY, SPACE, Wrong, built, helm, kubectl, load, provide, run, seen, sets, until
from scenarios.basics import defined
from scenarios.streams import Gate, Long, grpc, leaving, once, stalled, unbuffered

EXAMPLES = REPOSITORY / "deploy/gateway"
# Beside the example's: the class, and a port that no Gateway has.
INGRESS = ["ingress.className=traefik", r"ingress.annotations.traefik\.ingress\.kubernetes\.io/router\.entrypoints=ingress"]
# Gates that stand, and their streams of three minutes.
gates, long = {}, {}


def upgrade(*files, values=()):
    """The release with more values; its pods stay as they are."""
    helm("upgrade", RELEASE, CHART, "--namespace", SPACE, "--reset-then-reuse-values", "--wait", "--timeout", "5m",
         *(word for path in files for word in ("--values", path)), *sets(values))


def address(name, space):
    return kubectl("get", "service", name, "--namespace", space, "--output", "jsonpath={.spec.clusterIP}")


def stands(gate):
    """Waits for its first answer, and begins the long stream."""
    models = ["curl", "-sf", "-m", "5", f"{gate.http}/v1/models"]
    until(f"{gate.name} to route", lambda: run(CLUSTER, "on", gate.node, *models, check=False).returncode == 0, 90)
    gates[gate.name] = gate
    long[gate.name] = Long(gate)
    return gate


def checked(gate):
    unbuffered(gate)
    grpc(gate)
    leaving(gate)
    with load(f"through {gate.name}", base=gate.http):
        time.sleep(10)


def ingress(models):
    """The Ingress routes its host, and no other."""
    ask = lambda name: run(CLUSTER, "on", "node1", "curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", "-H", f"Host: {name}", models, check=False).stdout
    until("the Ingress to route", lambda: ask("llm.example") == "200", 60)
    if ask("other.example") != "404":
        raise Wrong(f"the Ingress answers for another host: {ask('other.example')}")
    seen("Traefik: the Ingress answers for its host, and for no other")


def traefik():
    """HTTPRoute, GRPCRoute and Ingress, as the examples have them."""
    defined("gateway-api")
    provide("localhost/traefik:3", built() / "traefik")
    kubectl("apply", "--filename", HERE / "traefik.yaml")
    kubectl("apply", "--namespace", SPACE, "--filename", "-", text_in=(EXAMPLES / "gateway-api.yaml").read_text().replace("CLASS", "traefik"))
    upgrade(EXAMPLES / "gateway-values.yaml", EXAMPLES / "ingress.yaml", values=INGRESS)
    kubectl("rollout", "status", "deployment/traefik", "--namespace", "gateway", "--timeout=120s")
    kubectl("wait", "--for=condition=Programmed", "gateway/innkeeper", "--namespace", SPACE, "--timeout=60s")
    route = json.loads(kubectl("get", "httproute", RELEASE, "--namespace", SPACE, "--output", "json"))
    if route["spec"]["rules"][0]["timeouts"] != {"request": "0s", "backendRequest": "0s"}:
        raise Wrong(f"the HTTPRoute ends requests: {route['spec']}")
    host = address("traefik", "gateway")
    ingress(f"http://{host}:7000/v1/models")
    checked(stands(Gate("Traefik", f"http://{host}:8000", f"{host}:9000")))


def envoy():
    """The example's configuration, with an address for each router."""
    provide("localhost/envoy:1", built() / "envoy")
    upgrade(EXAMPLES / "envoy-values.yaml")
    made = kubectl("create", "configmap", "envoy", "--namespace", SPACE, f"--from-file={EXAMPLES / 'envoy.yaml'}", "--dry-run=client", "--output", "yaml")
    kubectl("apply", "--filename", "-", text_in=made)
    kubectl("apply", "--namespace", SPACE, "--filename", HERE / "envoy.yaml")
    kubectl("rollout", "status", "deployment/envoy", "--namespace", SPACE, "--timeout=120s")
    host = address("envoy", SPACE)
    checked(stands(Gate("Envoy", f"http://{host}:8000", f"{host}:8000")))


def long_streams():
    """The streams of three minutes that began when their gateway stood; all else went on beside them."""
    texts = {one.ends() for one in long.values()}
    if len(long) < 2 or len(texts) != 1:
        raise Wrong(f"{len(long)} long streams ended with {len(texts)} different texts")


def router_stall():
    # Envoy first: it asks routers by itself.
    stalled([gates[name] for name in ("Envoy", "Traefik")])


def router_death():
    """Last, since it breaks what runs through them."""
    for gate in gates.values():
        once(gate)
    kubectl("delete", "--filename", HERE / "traefik.yaml", "--wait=false")
    kubectl("delete", "--namespace", SPACE, "--filename", HERE / "envoy.yaml", "--wait=false")
