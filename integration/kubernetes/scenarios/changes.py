"""What clients see while the release is changed, and while single parts of it are broken."""

from kit import CHART, CLIENTS, RELEASE, ROLES, SPACE, helm, killed, kubectl, load, pods, rolled_out, until


def revisions():
    return {pod["metadata"]["labels"]["innkeeper/revision"] for role in ROLES for pod in pods(role, ready=False)}


def upgrade():
    before = revisions()
    with load("upgrade to another image"):
        helm("upgrade", RELEASE, CHART, "--namespace", SPACE, "--wait", "--timeout", "10m", "--reset-then-reuse-values", "--set", "image.tag=next")
        rolled_out()
        until("the old pods to go", lambda: not revisions() & before)
    with load("rollback"):
        # To the revision before, whichever that is.
        helm("rollback", RELEASE, "--namespace", SPACE, "--wait", "--timeout", "10m")
        rolled_out()
        until("the pods of the other image to go", lambda: revisions() == before)


def scale():
    """Each role to one pod and back, and to three and back."""
    for role in ROLES:
        with load(f"the {role}s are scaled from two to one, to three, and to two"):
            for replicas in (1, 3, 2):
                kubectl("scale", f"deployment/{RELEASE}-{role}", "--namespace", SPACE, f"--replicas={replicas}")
                until(f"{replicas} {role} pods", lambda: len(pods(role)) == len(pods(role, ready=False)) == replicas)


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
            until(f"the {role} to be there again", killed(pods(role)[0]))


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
