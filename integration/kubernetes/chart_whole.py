"""The chart as a whole: lint, schema, documents, upgrades."""

import copy
import pathlib
import re
import subprocess
import sys

import yaml

import chart
from chart import CHART, ROLES, ROOT, TRY, Rendered
from chart_case import EXAMPLES, Case, meta, program

FORMER = pathlib.Path(__file__).resolve().parent / "former"


class Whole(Case):
    """The chart as a whole: lint, schema, documents, upgrades."""

    def test_lint_finds_nothing(self):
        for example in EXAMPLES:
            done = chart.helm("lint", "--strict", str(CHART), values=(example,))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertNotRegex(done.stdout, r"\[(WARNING|ERROR)\]")

    def test_the_schema_is_closed(self):
        passed_on = {"map", "kubernetes"}
        open_objects = []

        def walk(node, path):
            if isinstance(node, list):
                for number, one in enumerate(node):
                    walk(one, [*path, str(number)])
            if not isinstance(node, dict):
                return
            if node.get("type") == "object" or "properties" in node:
                closed = node.get("additionalProperties") is False or (path[:1] == ["$defs"] and path[1] in passed_on)
                of_kubernetes = path[-1:] and path[-1] in ("requests", "limits", "items", "global")
                if not closed and not of_kubernetes:
                    open_objects.append("/".join(path))
            for key, value in node.items():
                walk(value, [*path, key])

        walk(chart.schema(), [])
        self.assertEqual(open_objects, [])

    def test_every_value_is_in_the_schema_and_every_property_has_a_default(self):
        schema, values = chart.schema(), yaml.safe_load((CHART / "values.yaml").read_text())

        def resolve(node):
            return schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node

        def walk(node, value, path):
            node = resolve(node)
            if "properties" not in node or path[-1:] in (["settings"], ["resources"]):
                return
            self.assertEqual(set(node["properties"]) - {"global"}, set(value), ".".join(path))
            for key, one in value.items():
                walk(node["properties"][key], one, [*path, key])

        walk(schema, values, [])

    def test_settings_are_the_programs_own(self):
        done = program("node", "router", "--help")
        flags = set(re.findall(r"^\s+--([a-z0-9-]+) <", done.stdout, re.M))
        decided = {"name", "http", "control", "data", "advertise-host", "config", "revision", "drain-timeout-ms", "etcd", "etcd-user",
                   "etcd-password", "etcd-ca", "etcd-cert", "etcd-key", "otlp", "otlp-protocol", "otlp-headers", "otlp-ca", "trace-ratio", "log",
                   "log-format", "engine", "engine-url", "engine-cmd", "engine-restart", "engine-kv-lease", "served-model-name", "model", "recorder-dir", "jaeger-url", "admin-key", "api-keys-file", "api-keys", "tls-cert",
                   "tls-key", "node-cert", "node-key", "node-ca", "limits-file"}
        self.assertGreater(len(flags), 40, done.stderr)
        self.assertEqual(set(chart.schema()["$defs"]["settings"]["properties"]), flags - decided)

    def test_what_is_generated_is_fresh(self):
        done = subprocess.run([sys.executable, str(ROOT / "helm/generate.py"), "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        print(done.stdout, end="")

    def test_the_image_has_the_version_of_the_program(self):
        self.assertIn(f"innkeeper {meta()['appVersion']}", program("--version").stdout)

    def test_compose_sets_what_the_program_reads(self):
        compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
        flags = set(re.findall(r"--([a-z0-9-]+)", program("node", "decode", "--help").stdout))
        nodes = {name: one for name, one in compose["services"].items() if one.get("command", [""])[0] == "node"}
        self.assertEqual({one["command"][1] for one in nodes.values()}, set(ROLES))
        for name, one in nodes.items():
            self.assertEqual(one["environment"]["INNKEEPER_ADVERTISE_HOST"], name)
            for variable in one["environment"]:
                self.assertIn(variable.removeprefix("INNKEEPER_").lower().replace("_", "-"), flags)
            limit = int(one["stop_grace_period"].removesuffix("s"))
            self.assertGreaterEqual(limit, 30 + 10, "the drain and what comes after it")
        files = re.findall(r"\./(observability/[^:]+):", (ROOT / "deploy/compose.yaml").read_text())
        self.assertEqual(len(files), 2)
        if (ROOT / "deploy/observability").is_dir():
            for file in files:
                self.assertTrue((ROOT / "deploy" / file).is_file(), file)

    def test_a_former_version_can_be_upgraded(self):
        versions = sorted(FORMER.iterdir())
        self.assertTrue(versions)
        for version in versions:
            for file in version.glob("*.yaml"):
                with self.subTest(f"{version.name} {file.name}"):
                    old = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(file.read_text()) if one}
                    self.assertGreater(len(old), 10)
                    self.assertEqual(chart.breaks(old, Rendered(file.name)), [])

    def test_an_upgrade_that_cannot_be_done_is_seen(self):
        old = Rendered(TRY)
        for kind, part, change, expected in (
            ("Deployment", "decode", lambda one: one["spec"]["selector"]["matchLabels"].update(x="1"), "changes spec.selector"),
            ("StatefulSet", "etcd", lambda one: one["spec"].update(serviceName="other"), "changes spec.serviceName"),
            ("Deployment", "router", lambda one: one["spec"]["template"]["metadata"]["labels"].pop("app.kubernetes.io/component"), "no longer selects"),
            ("PodDisruptionBudget", "router", lambda one: one.update(apiVersion="policy/v1beta1"), "changes from policy/v1 to"),
        ):
            new = copy.deepcopy(dict(old))
            change(new[(kind, f"inn-innkeeper-{part}")])
            (found,) = chart.breaks(old, new)
            self.assertIn(expected, found)
        new = copy.deepcopy(dict(old))
        del new[("Service", "inn-innkeeper")]
        self.assertEqual(chart.breaks(old, new), ["('Service', 'inn-innkeeper') is gone"])

    def test_a_field_that_kubernetes_does_not_know_is_seen(self):
        pod = Rendered(TRY).named("Deployment", "router")
        pod["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
        with self.assertRaisesRegex(AssertionError, "livenesProbe"):
            chart.valid(pod)
