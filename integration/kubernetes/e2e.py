#!/usr/bin/env python3
"""The chart in a real Kubernetes: what is installed, and what clients see while it is changed and broken.

    e2e.py             every scenario, on a cluster that `cluster.sh up` has started
    e2e.py NAME...     some of them; `install` must have been before the others
    e2e.py --list      their names

It prints a line for each thing that it has seen, and fails at the first that is not as it should be.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from kit import (CHART, CLIENTS, CLUSTER, HERE, IMAGES, MODELLED, QUICK, RELEASE, REPOSITORY, ROLES, RUN, SPACE, Wrong, completion, helm, kubectl,
                 load, pods, rolled_out, run, seen, sets, until)


def images():
    """Puts the images on the nodes: the product, the same under another tag, etcd, and what tries connections."""
    archives = sorted((REPOSITORY / "target/image").glob("innkeeper-*.tar"))
    if len(archives) != 1:
        raise Wrong(f"there is not one image in target/image, but {archives}: `make image` writes it")
    product = archives[0]
    tag = product.stem.removeprefix("innkeeper-")
    builder = REPOSITORY / "deploy/image.py"
    etcd = run("sh", "-c", "command -v etcd").stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        run(builder, "rootfs", f"{folder}/etcd", etcd)
        run(builder, "archive", "localhost/etcd:debian", f"{folder}/etcd", f"{folder}/etcd.tar", "/usr/bin/etcd")
        run(builder, "archive", "localhost/reach:1", built() / "reach.root", f"{folder}/reach.tar", "/reach")
        run(CLUSTER, "load", product, f"{folder}/etcd.tar", f"{folder}/reach.tar")
    for socket in RUN.glob("node*/containerd.sock"):
        run("ctr", "-a", socket, "-n", "k8s.io", "images", "tag", "--force", f"localhost/innkeeper:{tag}", "localhost/innkeeper:next")
    seen(f"images: innkeeper:{tag}, {product.stat().st_size / 1e6:.1f} MB")
    return tag


def space(name):
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")


def install():
    images()
    space(SPACE)
    began = time.monotonic()
    helm("install", RELEASE, CHART, "--namespace", SPACE, "--wait", "--timeout", "5m", "--values", CHART / "examples/try-mock.yaml",
         *sets(IMAGES + QUICK))
    answer = completion(SPACE, "mock", 60)
    seen(f"install: {time.monotonic() - began:.0f} s from nothing to the first completion ({answer['usage']['completion_tokens']} tokens)")
    for role in ROLES:
        if len(pods(role)) != 2:
            raise Wrong(f"there are {len(pods(role))} {role} pods that are ready")


def helm_test():
    said = helm("test", RELEASE, "--namespace", SPACE, "--logs", "--timeout", "3m")
    for words in ("tokens, through prefill and decode", "stuck rooms: none, at 6 nodes"):
        if words not in said:
            raise Wrong(f"helm test does not say {words!r}:\n{said}")
    seen("helm test: " + "; ".join(line for line in said.splitlines() if line.startswith(("completion", "stuck"))))


def no_token():
    """No pod has a token of Kubernetes, and each is what the level *restricted* takes: the namespace enforces it."""
    found = json.loads(kubectl("get", "pods", "--namespace", SPACE, "--output", "json"))["items"]
    for pod in found:
        volumes = [volume for volume in pod["spec"]["volumes"] if "projected" in volume]
        mounts = [mount for container in pod["spec"]["containers"] for mount in container.get("volumeMounts", [])
                  if mount["mountPath"].startswith("/var/run/secrets/kubernetes.io")]
        if volumes or mounts:
            raise Wrong(f"{pod['metadata']['name']} has a token")
    # That it is enforced: another pod is refused.
    bad = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "careless", "namespace": SPACE},
           "spec": {"containers": [{"name": "careless", "image": "localhost/reach:1"}]}}
    refused = run(CLUSTER, "kubectl", "create", "--filename", "-", text_in=json.dumps(bad), check=False)
    if refused.returncode == 0 or "violates PodSecurity" not in refused.stderr:
        raise Wrong(f"a careless pod was not refused: {refused.stderr}")
    seen(f"security: {len(found)} pods run under the level restricted, none has a token; a careless pod is refused")


def address(role):
    return pods(role)[0]["status"]["podIP"]


def reach(name, where, labels, targets):
    """What a pod with these labels can reach: each target, and what was said of it. It tries for some seconds: a pod that has just
    come is let through once its address is known everywhere."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": where, "labels": labels},
           "spec": {"restartPolicy": "Never", "automountServiceAccountToken": False, "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{"name": "reach", "image": "localhost/reach:1", "imagePullPolicy": "Never", "args": ["8", *targets.values()],
                                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}]}}
    kubectl("create", "--filename", "-", text_in=json.dumps(pod))
    phase = lambda: kubectl("get", "pod", name, "--namespace", where, "--output", "jsonpath={.status.phase}")
    ended = until(f"the pod {name}", lambda: phase() if phase() in ("Succeeded", "Failed") else "", 90)
    log = lambda: kubectl("logs", name, "--namespace", where).splitlines()
    if ended == "Failed":
        raise Wrong(f"the pod {name} failed: {log()}\n" + kubectl("get", "pod", name, "--namespace", where, "--output", "jsonpath={.status}"))
    # The log may come a moment later than the end.
    lines = until(f"the log of {name}", lambda: log() if len(log()) == len(targets) else [], 30)
    said = dict(line.split(" ", 1) for line in lines)
    kubectl("delete", "pod", name, "--namespace", where, "--now")
    return {what: said.get(target, "nothing was said") for what, target in targets.items()}


def network():
    targets = {f"{role} {port}": f"{address(role)}:{number}" for role, ports in
               {"router": {"http": 8080, "control": 7100}, "prefill": {"http": 8080, "control": 7100},
                "decode": {"http": 8080, "control": 7100, "data": 7200}}.items() for port, number in ports.items()}
    targets["etcd client"] = f"{address('etcd')}:2379"
    own = lambda role: {"app.kubernetes.io/name": "innkeeper", "app.kubernetes.io/instance": RELEASE, "app.kubernetes.io/component": role}
    if not kubectl("get", "namespace", "strangers", "--ignore-not-found"):
        kubectl("create", "namespace", "strangers")
    allowed = {
        "a stranger": ("strangers", {}, {"router http"}),
        "a neighbour": (SPACE, {}, {"router http"}),
        "a router": (SPACE, own("router"), {"router http", "prefill http", "prefill control", "decode http", "decode control", "etcd client"}),
        "a prefill worker": (SPACE, own("prefill"), {"router http", "decode data", "etcd client"}),
        "a decode worker": (SPACE, own("decode"), {"router http", "etcd client"}),
        "the test": (SPACE, own("test"), {"router http", "prefill http", "decode http"}),
    }
    for who, (where, labels, expected) in allowed.items():
        name = who.replace("a ", "").replace("the ", "").replace(" ", "-") + "-reach"
        said = reach(name, where, labels, targets)
        reached = {what for what, word in said.items() if word == "open"}
        if reached != expected:
            raise Wrong(f"{who} reaches {reached - expected or 'nothing'} that it should not, and not {expected - reached or 'nothing'} that it should: {said}")
        seen(f"network: {who} reaches {', '.join(sorted(expected))}, and none of {len(targets) - len(expected)} others")


def revisions():
    return {pod["metadata"]["labels"]["innkeeper/revision"] for role in ROLES for pod in pods(role, ready=False)}


def upgrade():
    before = revisions()
    with load("upgrade to another image"):
        helm("upgrade", RELEASE, CHART, "--namespace", SPACE, "--wait", "--timeout", "10m", "--values", CHART / "examples/try-mock.yaml",
             *sets([*IMAGES, *QUICK, "image.tag=next"]))
        rolled_out()
        until("the old pods to go", lambda: not revisions() & before)
    with load("rollback"):
        helm("rollback", RELEASE, "1", "--namespace", SPACE, "--wait", "--timeout", "10m")
        rolled_out()
        until("the pods of the other image to go", lambda: revisions() == before)


def replaced(role, name):
    gone = lambda: all(pod["metadata"]["name"] != name for pod in pods(role, ready=False))
    until(f"the pod {name} to go", gone)
    until(f"two {role} pods", lambda: len(pods(role)) == 2)


def deletion():
    for role in ROLES:
        with load(f"a {role} pod is deleted"):
            name = pods(role)[0]["metadata"]["name"]
            kubectl("delete", "pod", name, "--namespace", SPACE, "--wait=false")
            replaced(role, name)
    for role in ("prefill", "decode"):
        with load(f"a {role} pod is deleted without grace"):
            name = pods(role)[0]["metadata"]["name"]
            kubectl("delete", "pod", name, "--namespace", SPACE, "--grace-period=0", "--force", "--wait=false")
            replaced(role, name)
    # Its clients' connections end with it, and those that come until the Service knows.
    with load("a router pod is deleted without grace", forgiven=8 * CLIENTS):
        name = pods("router")[0]["metadata"]["name"]
        kubectl("delete", "pod", name, "--namespace", SPACE, "--grace-period=0", "--force", "--wait=false")
        replaced("router", name)


def crash():
    """A container's process is killed, without a word to anybody."""
    for role, forgiven in (("prefill", 0), ("decode", 0), ("router", 8 * CLIENTS)):
        # A router's clients lose their connections with it, and some are sent to it until the Service knows.
        with load(f"a {role}'s process is killed", forgiven=forgiven):
            pod = pods(role)[0]
            (status,) = pod["status"]["containerStatuses"]
            container = status["containerID"].removeprefix("containerd://")
            run("ctr", "-a", RUN / pod["spec"]["nodeName"] / "containerd.sock", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container)
            again = lambda: [one for one in pods(role) if one["metadata"]["name"] == pod["metadata"]["name"]
                             and one["status"]["containerStatuses"][0]["restartCount"] > status["restartCount"]]
            until(f"the {role} to be there again", again)


def drain():
    with load("node2 is drained, with all that runs on it"):
        kubectl("drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
        for role in ROLES:
            until(f"two {role} pods", lambda role=role: len(pods(role)) == 2)
    kubectl("uncordon", "node2")


def etcd():
    with load("the etcd of the release is deleted, and comes back empty"):
        kubectl("delete", "pod", f"{RELEASE}-etcd-0", "--namespace", SPACE)
        until("etcd", lambda: pods("etcd"))
    until("two routers", lambda: len(pods("router")) == 2)


def model():
    """The embedded engine, out of a volume."""
    cache = pathlib.Path(os.environ.get("INNKEEPER_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "innkeeper")
    folder = cache / "smollm2"
    if not (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").is_file():
        # The program fetches it when it first needs it.
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target")
        run(target / "release/innkeeper", "generate", "--monolithic", "--max-tokens=1", "Hello")
    space(MODELLED)
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "models"},
              "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"], "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
                       "claimRef": {"namespace": MODELLED, "name": "models"}, "hostPath": {"path": str(folder)}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models", "namespace": MODELLED},
             "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": "models", "resources": {"requests": {"storage": "1Gi"}}}}
    kubectl("create", "--filename", "-", text_in=json.dumps({"apiVersion": "v1", "kind": "List", "items": [volume, claim]}))
    began = time.monotonic()
    # Two processors compute for three pods here.
    helm("install", RELEASE, CHART, "--namespace", MODELLED, "--wait", "--timeout", "10m", "--values", CHART / "examples/try-model.yaml",
         *sets([*IMAGES, "settings.progress-ttl-ms=20000"]))
    answer = completion(MODELLED, "SmolLM2-135M-Instruct.Q4_1", 120)
    text = answer["choices"][0]["text"]
    seen(f"model: {time.monotonic() - began:.0f} s from nothing to the first completion: {text!r}")
    if "Paris" not in text:
        raise Wrong(f"the model does not know the capital of France: {text!r}")
    said = helm("test", RELEASE, "--namespace", MODELLED, "--logs", "--timeout", "3m")
    if "stuck rooms: none, at 3 nodes" not in said:
        raise Wrong(said)
    helm("uninstall", RELEASE, "--namespace", MODELLED, "--wait")
    kubectl("delete", "namespace", MODELLED)
    kubectl("delete", "persistentvolume", "models")


def built():
    return pathlib.Path(run(HERE / "build.sh", "path").stdout.strip())


def definitions():
    """What the chart makes of kinds of others is what their definitions take: the API server is asked."""
    found = sorted(path for path in (built() / "definitions").rglob("*.yaml") if "\nkind: CustomResourceDefinition" in path.read_text())
    for path in found:
        run(CLUSTER, "kubectl", "apply", "--server-side", "--filename", path)
    names = "httproutes.gateway.networking.k8s.io,grpcroutes.gateway.networking.k8s.io,scaledobjects.keda.sh,prometheusrules.monitoring.coreos.com"
    for name in names.split(","):
        kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")
    routes = ["gateway.httpRoute.enabled=true", "gateway.httpRoute.parentRefs[0].name=innkeeper", "gateway.grpcRoute.enabled=true",
              "gateway.grpcRoute.parentRefs[0].name=innkeeper", "ingress.enabled=true", "ingress.hosts[0]=llm.example"]
    # Of another name: what runs is not to be changed, not even for show.
    made = helm("template", "another", CHART, "--no-hooks", "--namespace", SPACE, "--values", CHART / "examples/production.yaml", *sets(routes))
    said = kubectl("apply", "--dry-run=server", "--validate=strict", "--namespace", SPACE, "--filename", "-", text_in=made)
    kinds = {line.split("/")[0] for line in said.splitlines()}
    for kind in ("servicemonitor.monitoring.coreos.com", "podmonitor.monitoring.coreos.com", "prometheusrule.monitoring.coreos.com", "scaledobject.keda.sh",
                 "httproute.gateway.networking.k8s.io", "grpcroute.gateway.networking.k8s.io", "ingress.networking.k8s.io", "horizontalpodautoscaler.autoscaling"):
        if kind not in kinds:
            raise Wrong(f"there is no {kind} among {kinds}")
    seen(f"definitions: the API server takes all {len(said.splitlines())} objects of the production example, {len(kinds)} kinds, routes included")


def gateway():
    """Through a real gateway: streams and whole answers over HTTP, and a stream that outlasts what gateways end by themselves."""
    builder = REPOSITORY / "deploy/image.py"
    with tempfile.TemporaryDirectory() as folder:
        run(builder, "rootfs", f"{folder}/traefik", built() / "traefik")
        run(builder, "archive", "localhost/traefik:3", f"{folder}/traefik", f"{folder}/traefik.tar", "/usr/bin/traefik")
        run(CLUSTER, "load", f"{folder}/traefik.tar")
    kubectl("apply", "--filename", HERE / "traefik.yaml")
    example = (REPOSITORY / "deploy/gateway/gateway-api.yaml").read_text().replace("CLASS", "traefik")
    kubectl("apply", "--namespace", SPACE, "--filename", "-", text_in=example)
    helm("upgrade", RELEASE, CHART, "--namespace", SPACE, "--reuse-values", "--wait", "--timeout", "5m",
         "--values", REPOSITORY / "deploy/gateway/gateway-values.yaml")
    kubectl("rollout", "status", "deployment/traefik", "--namespace", "gateway", "--timeout=120s")
    kubectl("wait", "--for=condition=Programmed", "gateway/innkeeper", "--namespace", SPACE, "--timeout=60s")
    address = kubectl("get", "service", "traefik", "--namespace", "gateway", "--output", "jsonpath={.spec.clusterIP}")
    base = f"http://{address}:8000"
    until("the route", lambda: run(CLUSTER, "on", "node1", "curl", "-sf", "-m", "5", f"{base}/v1/models", check=False).returncode == 0, 60)
    with load("through the gateway", base=base):
        time.sleep(5)
    # 10 ms a token: half a minute.
    body = json.dumps({"model": "mock", "prompt": "A long stay", "max_tokens": 3000, "stream": True})
    began = time.monotonic()
    said = run(CLUSTER, "on", "node1", "curl", "-sN", "-m", "120", f"{base}/v1/completions", "-H", "content-type: application/json", "-d", body).stdout
    if not said.rstrip().endswith("data: [DONE]") or "error" in said:
        raise Wrong(f"a long stream does not come through whole: {said[-300:]}")
    seen(f"gateway: a stream of {time.monotonic() - began:.0f} s comes through whole")
    # gRPC's health service, which the GRPCRoute carries too, as HTTP/2 without TLS: an empty message is five zero bytes.
    ask = ["sh", "-c", f"printf '\\000\\000\\000\\000\\000' | curl -s -m 10 --http2-prior-knowledge -H 'content-type: application/grpc' -H 'te: trailers' "
           f"--data-binary @- -o /dev/null -D - http://{address}:9000/grpc.health.v1.Health/Check"]
    through = lambda said: "HTTP/2 200" in said and "application/grpc" in said
    until("gRPC through the gateway", lambda: through(run(CLUSTER, "on", "node1", *ask, check=False).stdout), 60)
    seen("gateway: gRPC comes through")
    kubectl("delete", "--filename", HERE / "traefik.yaml", "--wait=false")


def uninstall():
    helm("uninstall", RELEASE, "--namespace", SPACE, "--wait", "--timeout", "5m")
    kinds = "all,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,persistentvolumeclaims"
    left = lambda: kubectl("get", kinds, "--namespace", SPACE, "--selector", f"app.kubernetes.io/instance={RELEASE}", "--output", "name").split()
    # The pod of `helm test` is a hook's: it stays for whoever wants its log.
    until("everything to go", lambda: set(left()) <= {f"pod/{RELEASE}-test"})
    seen("uninstall: nothing is left but the pod of helm test")


SCENARIOS = {
    "install": install, "helm-test": helm_test, "security": no_token, "network": network, "upgrade": upgrade, "deletion": deletion, "crash": crash,
    "etcd": etcd, "drain": drain, "definitions": definitions, "gateway": gateway, "model": model, "uninstall": uninstall,
}


def main():
    names = sys.argv[1:] or list(SCENARIOS)
    if names == ["--list"]:
        print("\n".join(SCENARIOS))
        return
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        sys.exit(f"e2e: there is no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    began = time.monotonic()
    for name in names:
        try:
            SCENARIOS[name]()
        except (Wrong, subprocess.TimeoutExpired) as wrong:
            events = run(CLUSTER, "kubectl", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", check=False).stdout
            sys.exit(f"e2e: {name} FAILED: {wrong}\n" + "\n".join(events.splitlines()[-40:]))
    seen(f"{len(names)} scenarios passed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
