"""The trace of one request over all pods, in a Jaeger of the cluster, past policies that let nothing else out."""

import json
import os
import tempfile

from inside import Connection, Stream, dial, finished, of_pod
from kit import CHART, HERE, RELEASE, REPOSITORY, SPACE, Wrong, helm, kubectl, load, pods, provide, rolled_out, run, seen, until

JAEGER = "http://jaeger.tracing:4317"
# Each span, and where it hangs.
PARENTS = {"request": "POST /v1/completions", "attempt": "request", "room": "attempt", "prefill room": "room", "decode room": "room"}
SERVICES = {"innkeeper-router", "innkeeper-prefill", "innkeeper-decode"}
# Only this collector, and only this port.
EXTRA = [{"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tracing"}}}], "ports": [{"port": 4317}]}]


def attributes(of):
    return {one["key"]: next(iter(one["value"].values())) for one in of.get("attributes", [])}


def spans(told):
    """Of Jaeger's answer: name, service, instance, id and parent of each span."""
    # Answers of gRPC's gateway come in an envelope.
    told = told.get("result", told)
    found = []
    for resource in told["resourceSpans"]:
        of = attributes(resource["resource"])
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                found.append({"name": span["name"], "service": of["service.name"], "instance": of.get("service.instance.id"),
                              "id": span["spanId"], "parent": span.get("parentSpanId", "")})
    return found


def look(base, trace):
    connection = Connection("node1", base, 10)
    try:
        connection.request("GET", f"/api/v3/traces/{trace}?raw_traces=true")
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    return spans(json.loads(text)) if response.status == 200 else []


def whole(found):
    """Whether every span that is wanted is there and hangs where it should; what is wrong is said."""
    by_id, wrong = {one["id"]: one for one in found}, []
    for name, parent in PARENTS.items():
        mine = [one for one in found if one["name"] == name]
        if len(mine) != 1:
            wrong.append(f"{len(mine)} spans {name!r}")
        elif by_id.get(mine[0]["parent"], {}).get("name") != parent:
            wrong.append(f"{name!r} hangs at {by_id.get(mine[0]['parent'], {}).get('name')!r} and not at {parent!r}")
    if {one["service"] for one in found} != SERVICES:
        wrong.append(f"services {sorted({one['service'] for one in found})}")
    return wrong


def limited():
    """What pods reach is limited: the collector's port, and not the one beside it. Tried from the place of a worker that has been
    there for a while: what a pod reaches in its first second is up to whoever enforces policies."""
    jaeger = kubectl("get", "pods", "--namespace", "tracing", "--selector", "app=jaeger", "--output", "jsonpath={.items[0].status.podIP}")
    worker = of_pod(pods("decode")[0])
    dial(worker, (jaeger, 4317)).close()
    try:
        dial(worker, (jaeger, 16686), 3).close()
    except OSError:
        seen("tracing: with networkPolicy.egress a decode worker reaches the collector, and not the port beside it")
        return
    raise Wrong("with networkPolicy.egress a decode worker reaches more than the collector")


def tracing():
    provide("localhost/jaeger:1.76", run(REPOSITORY / "deploy/jaeger.sh", "path").stdout.strip())
    kubectl("apply", "--filename", HERE / "jaeger.yaml")
    kubectl("rollout", "status", "deployment/jaeger", "--namespace", "tracing", "--timeout=120s")
    with load("upgrade: spans to a Jaeger, and policies for what pods reach"):
        with tempfile.TemporaryDirectory() as folder:
            values = {"telemetry": {"otlp": {"endpoint": JAEGER}}, "networkPolicy": {"egress": {"enabled": True, "extra": EXTRA}}}
            with open(f"{folder}/values.yaml", "w", encoding="utf-8") as file:
                json.dump(values, file)
            helm("upgrade", RELEASE, CHART, "--namespace", SPACE, "--reset-then-reuse-values", "--wait", "--timeout", "10m", "--values", file.name)
        rolled_out()
    limited()
    trace = os.urandom(16).hex()
    service = kubectl("get", "service", RELEASE, "--namespace", SPACE, "--output", "jsonpath={.spec.clusterIP}")
    one = Stream("node1", f"http://{service}:8080", 40, headers={"traceparent": f"00-{trace}-{os.urandom(8).hex()}-01"})
    one.start()
    finished([one], 60)
    if one.error:
        raise Wrong(one.error)
    query = kubectl("get", "service", "jaeger", "--namespace", "tracing", "--output", "jsonpath={.spec.clusterIP}")
    base = f"http://{query}:16686"
    last = []

    def there():
        last[:] = look(base, trace)
        return last if not whole(last) else None

    try:
        found = until("the trace", there, 60)
    except Wrong as wrong:
        raise Wrong(f"trace {trace}: {whole(last)}: {last}") from wrong
    instances = {one["instance"] for one in found}
    seen(f"tracing: one request is one trace of {len(found)} spans, of {len(instances)} pods, through policies: "
         + "; ".join(f"{role.removeprefix('innkeeper-')}: {', '.join(span['name'] for span in found if span['service'] == role)}" for role in sorted(SERVICES)))
