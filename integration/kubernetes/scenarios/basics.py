"""What is installed, who may do what, and what is left at the end."""

import json
import os
import pathlib
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from kit import (CHART, CLUSTER, IMAGES, MODELLED, QUICK, RELEASE, REPOSITORY, ROLES, RUN, SPACE, Wrong, built, completion, helm, kubectl, pods, provide,
                 run, seen, sets, until)


def images():
    """Puts the images on the nodes: the product, the same under another tag, etcd, and what tries connections."""
    archives = sorted((REPOSITORY / "target/image").glob("innkeeper-*.tar"))
    if len(archives) != 1:
        raise Wrong(f"there is not one image in target/image, but {archives}: `make image` writes it")
    product = archives[0]
    tag = product.stem.removeprefix("innkeeper-")
    provide("localhost/etcd:debian", run("sh", "-c", "command -v etcd").stdout.strip())
    with tempfile.TemporaryDirectory() as folder:
        reach = f"{folder}/reach.tar"
        run(REPOSITORY / "deploy/image.py", "archive", "localhost/reach:1", built() / "reach.root", reach, "/reach")
        run(CLUSTER, "load", product, reach)
    for socket in RUN.glob("node*/containerd.sock"):
        run("ctr", "-a", socket, "-n", "k8s.io", "images", "tag", "--force", f"localhost/innkeeper:{tag}", "localhost/innkeeper:next")
    seen(f"images: innkeeper:{tag}, {product.stat().st_size / 1e6:.1f} MB")


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


# === Who reaches whom ===


def trier(name, where, labels, targets):
    """A pod with these labels that tries all targets. It tries for some seconds: a pod that has just come is let through once its
    address is known everywhere."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "reach", "image": "localhost/reach:1", "imagePullPolicy": "Never", "args": ["8", *targets.values()], "securityContext": security}
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": where, "labels": labels}, "spec": spec}


def reach(name, where, labels, targets):
    """What a pod with these labels can reach: each target, and what was said of it."""
    kubectl("create", "--filename", "-", text_in=json.dumps(trier(name, where, labels, targets)))
    phase = lambda: kubectl("get", "pod", name, "--namespace", where, "--output", "jsonpath={.status.phase}")
    ended = until(f"the pod {name}", lambda: phase() if phase() in ("Succeeded", "Failed") else "", 90)
    log = lambda: kubectl("logs", name, "--namespace", where).splitlines()
    if ended == "Failed":
        raise Wrong(f"the pod {name} failed: {log()}\n" + kubectl("get", "pod", name, "--namespace", where, "--output", "jsonpath={.status}"))
    # The log may come a moment later than the end.
    lines = until(f"the log of {name}", lambda: log() if len(log()) == len(targets) else [], 30)
    said = dict(line.split(" ", 1) for line in lines)
    kubectl("delete", "pod", name, "--namespace", where, "--now")
    return {what for what, target in targets.items() if said.get(target) == "open"}


def own(role):
    return {"app.kubernetes.io/name": "innkeeper", "app.kubernetes.io/instance": RELEASE, "app.kubernetes.io/component": role}


PORTS = {"router": {"http": 8080, "control": 7100}, "prefill": {"http": 8080, "control": 7100},
         "decode": {"http": 8080, "control": 7100, "data": 7200}, "etcd": {"client": 2379}}
ALLOWED = {
    "a stranger": ("strangers", {}, {"router http"}),
    "a neighbour": (SPACE, {}, {"router http"}),
    "a router": (SPACE, own("router"), {"router http", "prefill http", "prefill control", "decode http", "decode control", "etcd client"}),
    "a prefill worker": (SPACE, own("prefill"), {"router http", "decode data", "etcd client"}),
    "a decode worker": (SPACE, own("decode"), {"router http", "etcd client"}),
    "the test": (SPACE, own("test"), {"router http", "prefill http", "decode http"}),
}


def network():
    address = {role: pods(role)[0]["status"]["podIP"] for role in PORTS}
    targets = {f"{role} {port}": f"{address[role]}:{number}" for role, ports in PORTS.items() for port, number in ports.items()}
    if not kubectl("get", "namespace", "strangers", "--ignore-not-found"):
        kubectl("create", "namespace", "strangers")
    name = lambda who: who.replace("a ", "").replace("the ", "").replace(" ", "-") + "-reach"
    with ThreadPoolExecutor() as pool:
        told = {who: pool.submit(reach, name(who), where, labels, targets) for who, (where, labels, _) in ALLOWED.items()}
    for who, (_, _, expected) in ALLOWED.items():
        reached = told[who].result()
        if reached != expected:
            raise Wrong(f"{who} reaches {reached - expected or 'nothing'} that it should not, and not {expected - reached or 'nothing'} that it should")
        seen(f"network: {who} reaches {', '.join(sorted(expected))}, and none of {len(targets) - len(expected)} others")
    kubectl("delete", "namespace", "strangers", "--wait=false")


def defined(folder="."):
    """The kinds of others, so that the API server knows them: all of them, or those of one folder."""
    folder = built() / "definitions" / folder
    found = sorted(path for path in folder.rglob("*.yaml") if "\nkind: CustomResourceDefinition" in path.read_text())
    kubectl("apply", "--server-side", *(word for path in found for word in ("--filename", path)))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


def definitions():
    """What the chart makes of kinds of others is what their definitions take: the API server is asked."""
    defined()
    routes = ["gateway.httpRoute.enabled=true", "gateway.httpRoute.parentRefs[0].name=innkeeper", "gateway.grpcRoute.enabled=true",
              "gateway.grpcRoute.parentRefs[0].name=innkeeper", "ingress.enabled=true", "ingress.hosts[0]=llm.example", "gateway.inferencePool.enabled=true",
              "gateway.inferencePool.endpointPickerRef.name=picker", "gateway.inferencePool.endpointPickerRef.port.number=9002"]
    # Of another name: what runs is not to be changed, not even for show.
    made = helm("template", "another", CHART, "--no-hooks", "--namespace", SPACE, "--values", CHART / "examples/production.yaml", *sets(routes))
    said = kubectl("apply", "--dry-run=server", "--validate=strict", "--namespace", SPACE, "--filename", "-", text_in=made)
    kinds = {line.split("/")[0] for line in said.splitlines()}
    for kind in ("servicemonitor.monitoring.coreos.com", "podmonitor.monitoring.coreos.com", "prometheusrule.monitoring.coreos.com", "scaledobject.keda.sh",
                 "httproute.gateway.networking.k8s.io", "grpcroute.gateway.networking.k8s.io", "inferencepool.inference.networking.k8s.io",
                 "ingress.networking.k8s.io", "horizontalpodautoscaler.autoscaling"):
        if kind not in kinds:
            raise Wrong(f"there is no {kind} among {kinds}")
    seen(f"definitions: the API server takes all {len(said.splitlines())} objects of the production example, {len(kinds)} kinds, routes included")


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
    kubectl("delete", "namespace", MODELLED, "--wait=false")
    kubectl("delete", "persistentvolume", "models", "--wait=false")


def uninstall():
    helm("uninstall", RELEASE, "--namespace", SPACE, "--wait", "--timeout", "5m")
    kinds = "all,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,persistentvolumeclaims"
    left = lambda: kubectl("get", kinds, "--namespace", SPACE, "--selector", f"app.kubernetes.io/instance={RELEASE}", "--output", "name").split()
    # The pod of `helm test` is a hook's: it stays for whoever wants its log.
    until("everything to go", lambda: set(left()) <= {f"pod/{RELEASE}-test"})
    seen("uninstall: nothing is left but the pod of helm test")
