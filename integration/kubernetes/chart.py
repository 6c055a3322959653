"""The chart as tests see it: rendered by the real Helm, and held against Kubernetes' own schemas."""

import functools
import json
import os
import pathlib
import subprocess
import tempfile

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/innkeeper"
RELEASE, NAMESPACE = "inn", "lodging"
ROLES = ("router", "prefill", "decode")
# The oldest that the chart takes, that of the test cluster, and the newest that there are schemas for.
KUBERNETES = ("1.30", "1.34", "1.37")
# Kinds of others, which Kubernetes' schemas do not know.
FOREIGN = ("monitoring.coreos.com/", "keda.sh/", "gateway.networking.k8s.io/", "inference.networking.k8s.io/")
# What stands in for the decisions that the chart asks for.
TRY = {"engine": {"kind": "mock"}, "etcd": {"tryOut": {"enabled": True}}}


@functools.cache
def tool(name):
    folder = subprocess.run([ROOT / "deploy/helm.sh", "path"], capture_output=True, text=True, check=True).stdout.strip()
    path = pathlib.Path(folder) / name
    if not path.is_file():
        raise RuntimeError(f"there is no {name} at {path}: `deploy/setup.sh test` (or `deploy/helm.sh get`) brings it")
    return str(path)


def helm(*args, values=()):
    """Runs Helm. `values` are dictionaries or files; the result is its status, output and errors."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, one in enumerate(values):
            if isinstance(one, dict):
                path = pathlib.Path(folder) / f"{number}.yaml"
                path.write_text(yaml.safe_dump(one))
            else:
                path = CHART / "examples" / one
            files += ["--values", str(path)]
        # Nobody's cluster and nobody's plugins take part.
        env = {"PATH": os.environ["PATH"], "HOME": folder, "KUBECONFIG": "/dev/null"}
        return subprocess.run([tool("helm"), *args, *files], capture_output=True, text=True, env=env, timeout=120)


def refusal(*values):
    """What Helm says of values that it must not take."""
    done = helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, values=values)
    assert done.returncode != 0, f"these values were taken: {values}"
    return done.stderr


class Rendered(dict):
    """The objects of a release, by kind and name. Every one is what Kubernetes takes, and nothing is there twice."""

    def __init__(self, *values, chart=CHART, extra=()):
        super().__init__()
        args = ("template", RELEASE, str(chart), "--namespace", NAMESPACE, "--kube-version", "1.34.0", *extra)
        done = helm(*args, values=values)
        assert done.returncode == 0, f"{values}\n{done.stderr}"
        self.text = done.stdout
        for one in yaml.load_all(done.stdout, Loader=Strict):
            if one is None:
                continue
            key = (one["kind"], one["metadata"]["name"])
            assert key not in self, f"{key} is there twice"
            self[key] = one
            valid(one)

    def named(self, kind, part=""):
        """The object of this kind whose name ends in `part`; without one the release's own name."""
        return self[(kind, f"{RELEASE}-innkeeper" + (f"-{part}" if part else ""))]

    def has(self, kind, part=""):
        return (kind, f"{RELEASE}-innkeeper" + (f"-{part}" if part else "")) in self

    def kinds(self, kind):
        return [one for (its, _), one in self.items() if its == kind]

    def pod(self, role):
        return self.named("Deployment", role)["spec"]["template"]

    def container(self, role):
        (container,) = self.pod(role)["spec"]["containers"]
        return container

    def engine(self, role):
        """The container of the engine beside a worker: one that starts before it and ends after it."""
        (container,) = self.pod(role)["spec"]["initContainers"]
        return container

    def env(self, role, container=None):
        env = (container or self.container(role))["env"]
        assert len({one["name"] for one in env}) == len(env), f"a variable is there twice: {env}"
        return {one["name"]: one.get("value", one.get("valueFrom")) for one in env}

    def toml(self, role):
        return self.named("ConfigMap", role)["data"]["innkeeper.toml"]

    def pods(self):
        """Every pod that can come of it, by the name of what makes it: a description of its labels and its spec."""
        found = {}
        for (kind, name), one in self.items():
            if kind in ("Deployment", "StatefulSet"):
                found[name] = one["spec"]["template"]
            elif kind == "Pod":
                found[name] = one
        return found


class Strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML in which a key may not come twice in a map: Kubernetes' own reader refuses that too."""


def _map(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    twice = {key for key in keys if keys.count(key) > 1}
    assert not twice, f"line {node.start_mark.line}: {twice} twice"
    return loader.construct_mapping(node, deep=True)


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _map)


# What was looked at before: most objects are the same under most values.
SEEN = set()


def valid(one):
    """Whether Kubernetes' schemas take the object, with no field that they do not know."""
    text = json.dumps(one, sort_keys=True)
    if one["apiVersion"].startswith(FOREIGN) or text in SEEN:
        return
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            what = f"{one['kind']} {one['metadata']['name']}"
            raise AssertionError(f"{what}, Kubernetes {version}, {list(error.path)}: {error.message}") from None
    SEEN.add(text)


# What Kubernetes lets nobody change, as paths; of a StatefulSet all but these may not.
IMMUTABLE = {
    "Deployment": [("spec", "selector")],
    "Service": [("spec", "clusterIP")],
    "PersistentVolumeClaim": [("spec", "accessModes"), ("spec", "storageClassName")],
}
MUTABLE_OF_A_SET = {
    "replicas", "template", "updateStrategy", "minReadySeconds", "ordinals", "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
}


def at(one, path):
    for key in path:
        one = (one or {}).get(key)
    return one


def breaks(old, new):
    """What an upgrade from one set of objects to another could not do, or would take away."""
    found = []
    for key, before in old.items():
        after = new.get(key)
        if after is None:
            found.append(f"{key} is gone")
            continue
        kind = key[0]
        if before["apiVersion"] != after["apiVersion"]:
            found.append(f"{key} changes from {before['apiVersion']} to {after['apiVersion']}")
        for path in IMMUTABLE.get(kind, []):
            if at(before, path) != at(after, path):
                found.append(f"{key} changes {'.'.join(path)}")
        if kind == "StatefulSet":
            names = (set(before["spec"]) | set(after["spec"])) - MUTABLE_OF_A_SET
            found += [f"{key} changes spec.{name}" for name in sorted(names)
                      if before["spec"].get(name) != after["spec"].get(name)]
        selected = at(before, ("spec", "selector", "matchLabels"))
        if kind in ("Deployment", "StatefulSet") and selected:
            labels = at(after, ("spec", "template", "metadata", "labels")) or {}
            lost = {name: value for name, value in selected.items() if labels.get(name) != value}
            if lost:
                found.append(f"{key} no longer selects its pods: {lost}")
    return found


def schema():
    return json.loads((CHART / "values.schema.json").read_text())
