"""The test cluster as its scenarios see it: asked, waited for, and loaded."""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
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
         "decode.drainTimeoutSeconds=30",
         # Room for a stream of three minutes.
         "settings.context=32768"]


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


def process(pod):
    """The id of its process, as the machine knows it."""
    (status,) = pod["status"]["containerStatuses"]
    tasks = run("ctr", "-a", RUN / pod["spec"]["nodeName"] / "containerd.sock", "-n", "k8s.io", "tasks", "ls").stdout
    (found,) = [line.split()[1] for line in tasks.splitlines() if line.startswith(status["containerID"].removeprefix("containerd://"))]
    return int(found)


def killed(pod):
    """Ends its process without a word to anybody. What it returns says whether the pod is there again."""
    (status,) = pod["status"]["containerStatuses"]
    name, role = pod["metadata"]["name"], pod["metadata"]["labels"]["app.kubernetes.io/component"]
    container = status["containerID"].removeprefix("containerd://")
    run("ctr", "-a", RUN / pod["spec"]["nodeName"] / "containerd.sock", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container)
    return lambda: [one for one in pods(role) if one["metadata"]["name"] == name
                    and one["status"]["containerStatuses"][0]["restartCount"] > status["restartCount"]]


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


# === Images ===


def built():
    """Where what the cluster is made of lies."""
    return pathlib.Path(run(HERE / "build.sh", "path").stdout.strip())


def image(name, program, folder):
    """An archive of one program with the libraries that it is linked with."""
    builder, program = REPOSITORY / "deploy/image.py", pathlib.Path(program)
    root = pathlib.Path(folder) / program.name
    run(builder, "rootfs", root, program)
    out = pathlib.Path(folder) / f"{program.name}.tar"
    run(builder, "archive", name, root, out, f"/usr/bin/{program.name}")
    return out


def provide(name, program):
    """The program as an image on every node. Its archive is kept beside what the cluster is made of."""
    program = pathlib.Path(program)
    kept = built() / "images" / f"{program.name}.tar"
    if not kept.is_file() or kept.stat().st_mtime < program.stat().st_mtime:
        kept.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            image(name, program, folder).rename(kept)
    run(CLUSTER, "load", kept)


# === Load ===


@contextlib.contextmanager
def load(what, forgiven=0, base=None, node="node1", settle=3):
    """Clients in a node's network that ask all the time; no more than `forgiven` of their requests may fail, none may hang, and none
    be answered otherwise than before. What it yields holds the report afterwards."""
    command = [CLUSTER, "on", node, sys.executable, str(HERE / "load.py"), base or service(), "mock", str(CLIENTS)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    report = {}
    try:
        # So that there is load, and an answer to compare with, before anything happens.
        time.sleep(settle)
        began = time.monotonic()
        yield report
        took = time.monotonic() - began
        time.sleep(2)
        out, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    report |= json.loads(out)
    failed = report["failed"]
    seen(f"{what}: {took:.0f} s, {report['sent']} requests, {len(failed)} failed, the slowest took {report['slowest_s']} s")
    for one in failed[:10]:
        seen(f"    {one}")
    if len(failed) > forgiven or report["sent"] < 20:
        raise Wrong(f"{what}: {len(failed)} of {report['sent']} requests failed, at most {forgiven} may")
    hung = [one for one in failed if one["after_s"] > 20]
    if hung:
        raise Wrong(f"{what}: {len(hung)} requests waited for more than 20 s before they failed")
    if other := [one for one in failed if "another answer" in one["why"]]:
        raise Wrong(f"{what}: {len(other)} wrong answers")
