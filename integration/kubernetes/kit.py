"""The test cluster as its scenarios see it: asked, waited for, and loaded."""

import contextlib
import json
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
CHART = REPOSITORY / "helm/innkeeper"
CLUSTER = str(HERE / "cluster.sh")
RUN = pathlib.Path("/run/innkeeper-k8s")
SPACE, RELEASE = "innkeeper", "innkeeper"
MODELLED = "modelled"
ROLES = ("router", "prefill", "decode")
CLIENTS = 4

# The same everywhere: images that were imported, never pulled, and little of the machine.
IMAGES = ["image.registry=localhost", "image.pullPolicy=Never", "etcd.tryOut.image.registry=localhost",
          "etcd.tryOut.image.repository=etcd", "etcd.tryOut.image.tag=debian", "etcd.tryOut.image.pullPolicy=Never"]
QUICK = ["settings.mock-decode-us-per-token=10000", "router.drainTimeoutSeconds=30", "prefill.drainTimeoutSeconds=30",
         "decode.drainTimeoutSeconds=30"]


class Wrong(Exception):
    """Something is not as it should be."""


def seen(text):
    print(f"e2e: {text}", flush=True)


def run(*args, check=True, text_in=None, limit=900):
    done = subprocess.run([str(arg) for arg in args], capture_output=True, text=True, input=text_in, timeout=limit)
    if check and done.returncode != 0:
        raise Wrong(f"{' '.join(str(arg) for arg in args)}\n{done.stdout}{done.stderr}")
    return done


def kubectl(*args, **options):
    return run(CLUSTER, "kubectl", *args, **options).stdout


def helm(*args, **options):
    return run(CLUSTER, "helm", *args, **options).stdout


def objects(kind, space=SPACE, **labels):
    selector = ",".join(f"app.kubernetes.io/{key}={value}" for key, value in labels.items())
    return json.loads(kubectl("get", kind, "--namespace", space, "--selector", selector, "--output", "json"))["items"]


def pods(role, space=SPACE, ready=True):
    """The role's pods that serve, or all that are there."""
    found = objects("pods", space, component=role, instance=RELEASE)
    is_ready = lambda pod: any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))
    return [pod for pod in found if not ready or (is_ready(pod) and "deletionTimestamp" not in pod["metadata"])]


def until(what, condition, limit=180):
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Wrong(f"{what}: not within {limit} s\n" + kubectl("get", "pods", "--all-namespaces", "--output", "wide"))
        time.sleep(0.25)


def rolled_out(space=SPACE):
    for role in ROLES:
        kubectl("rollout", "status", f"deployment/{RELEASE}-{role}", "--namespace", space, "--timeout=300s")


def sets(values):
    return [word for value in values for word in ("--set", value)]


def service(space=SPACE):
    address = kubectl("get", "service", RELEASE, "--namespace", space, "--output", "jsonpath={.spec.clusterIP}")
    return f"http://{address}:8080"


def completion(space, model, limit):
    """Asks until the first answer comes, from a node's network."""
    ask = ["curl", "-s", "-f", "-m", "30", f"{service(space)}/v1/completions", "-H", "content-type: application/json", "-d",
           json.dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0})]
    return json.loads(until("a first completion", lambda: run(CLUSTER, "on", "node1", *ask, check=False).stdout, limit))


# === Load ===


@contextlib.contextmanager
def load(what, forgiven=0, base=None):
    """Clients that ask all the time; none of their requests may fail, or be answered otherwise than before."""
    command = [CLUSTER, "on", "node1", sys.executable, str(HERE / "load.py"), base or service(), "mock", str(CLIENTS)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        # So that there is load, and an answer to compare with, before anything happens.
        time.sleep(5)
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        time.sleep(3)
        out, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    report = json.loads(out)
    failed = report["failed"]
    seen(f"{what}: {took:.0f} s, {report['sent']} requests, {len(failed)} failed, the slowest took {report['slowest_s']} s")
    for one in failed[:10]:
        seen(f"    {one}")
    if len(failed) > forgiven or report["sent"] < 20:
        raise Wrong(f"{what}: {len(failed)} of {report['sent']} requests failed, at most {forgiven} may")
    hung = [one for one in failed if one["after_s"] > 20]
    if hung:
        raise Wrong(f"{what}: {len(hung)} requests waited for more than 20 s before they failed")
