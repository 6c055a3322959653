"""What holds for every release, and what the tests of the chart share."""

import copy
import os
import subprocess
import tempfile
import unittest

import yaml

import chart
from chart import CHART, ROLES, TRY, Rendered

# The `innkeeper` that reads what the chart writes.
PROGRAM = os.environ["INNKEEPER_PROGRAM"]
EXAMPLES = ("try-mock.yaml", "try-model.yaml", "production.yaml", "vllm-gpu.yaml")


def meta():
    return yaml.safe_load((CHART / "Chart.yaml").read_text())


def with_(*changes):
    """TRY with these maps laid over it."""

    def lay(under, over):
        for key, value in over.items():
            if isinstance(value, dict) and isinstance(under.get(key), dict):
                lay(under[key], value)
            else:
                under[key] = value

    values = copy.deepcopy(TRY)
    for change in changes:
        lay(values, copy.deepcopy(change))
    return values


def program(*args):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, env={"COLUMNS": "200"}, timeout=60)


class Case(unittest.TestCase):
    maxDiff = None

    def sound(self, rendered):
        """What holds for every release, whatever its values."""
        self.restricted(rendered)
        for role in ROLES:
            self.readable(rendered.toml(role))
            selector = rendered.named("Deployment", role)["spec"]["selector"]["matchLabels"]
            self.assertEqual(selector["app.kubernetes.io/component"], role)
            self.assertLessEqual(selector.items(), rendered.pod(role)["metadata"]["labels"].items())
            spec = rendered.pod(role)["spec"]
            for container in (*spec["containers"], *spec.get("initContainers", [])):
                mounted = {mount["name"] for mount in container["volumeMounts"]}
                self.assertLessEqual(mounted, {volume["name"] for volume in spec["volumes"]}, role)
        # A policy or budget that selects no pod protects nothing.
        pods = [pod["metadata"]["labels"] for pod in rendered.pods().values()]
        for kind, path in (("NetworkPolicy", ("spec", "podSelector")), ("PodDisruptionBudget", ("spec", "selector"))):
            for one in rendered.kinds(kind):
                labels = chart.at(one, (*path, "matchLabels"))
                self.assertTrue(any(labels.items() <= pod.items() for pod in pods), one["metadata"]["name"])
        return rendered

    def restricted(self, rendered):
        """What the Pod Security level *restricted* asks of a pod, and no token in any."""
        pods = rendered.pods()
        self.assertGreaterEqual(len(pods), 4)
        for name, pod in pods.items():
            spec = pod["spec"]
            self.assertIs(spec["automountServiceAccountToken"], False, name)
            self.assertIs(spec["enableServiceLinks"], False, name)
            self.assertIs(spec["securityContext"]["runAsNonRoot"], True, name)
            self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"}, name)
            for container in (*spec["containers"], *spec.get("initContainers", [])):
                security = container["securityContext"]
                self.assertIs(security["allowPrivilegeEscalation"], False, name)
                self.assertIs(security["readOnlyRootFilesystem"], True, name)
                self.assertEqual(security["capabilities"], {"drop": ["ALL"]}, name)
                self.assertIn("limits", container["resources"], name)

    def readable(self, toml):
        """Whether the program itself takes the file: it must come as far as the one thing that is wrong on purpose."""
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(toml)
            file.flush()
            done = program("node", "decode", f"--config={file.name}", "--name=")
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn("--name", done.stderr, f"{toml}\n{done.stderr}")

    def takes(self, *values):
        return self.sound(Rendered(*values))
