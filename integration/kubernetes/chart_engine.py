"""Engines that others make, in a container beside each worker."""

import json
import re

import yaml

import chart
from chart import CHART, ROLES, TRY, Rendered, refusal
from chart_around import reach
from chart_case import Case, with_

WORKERS = ("prefill", "decode")
VLLM = {"engine": {"kind": "vllm"}, "model": {"folder": "org/Tiny", "volume": {"existingClaim": "models"}}}


def vllm(*changes):
    return with_(VLLM, *changes)


def both(change):
    return {"prefill": change, "decode": change}


def arg(container, name):
    """The value of an argument that is given once."""
    (value,) = [one.split("=", 1)[1] for one in container["args"] if one.startswith(f"--{name}=")]
    return value


def transfer(made, role):
    return json.loads(arg(made.engine(role), "kv-transfer-config"))


def told(made, role):
    """What of its engine a node is told."""
    found = re.findall(r"^(engine[a-z-]*|model|served-model-name) = (.*)$", made.toml(role), re.M)
    return {key: json.loads(value) for key, value in found}


# Values that must be refused, and what is said.
BAD = {
    "no model": (vllm({"model": {"folder": ""}}), "model.folder is empty: name the folder"),
    "a model in no volume": (vllm({"model": {"volume": {"existingClaim": ""}}}), "no volume holds its model"),
    "a GGUF file": (vllm({"model": {"file": "a.gguf"}}), "with vllm set model.folder"),
    "a repository that engines would fetch": (vllm({"model": {"huggingFace": "org/name"}}), "with vllm set model.folder"),
    "a folder for an engine of our own": (with_({"model": {"folder": "tiny"}}), "model.folder is set, and engine.kind is mock"),
    "a name for an engine of our own": (with_({"model": {"servedName": "tiny"}}), "model.servedName is set, and engine.kind is mock"),
    "an absolute path": (vllm({"model": {"folder": "/models/tiny"}}), "/model/folder"),
    "a path out of the volume": (vllm({"model": {"folder": "tiny/../../etc"}}), "/model/folder"),
    "another port among arguments": (vllm({"decode": {"engine": {"args": ["--port", "9"]}}}), "decode.engine.args has --port: the chart decides it"),
    "another connector": (vllm({"prefill": {"engine": {"args": ['--kv-transfer-config={"kv_role":"kv_both"}']}}}), "prefill.engine.args has --kv-transfer-config"),
    "a part of another connector": (vllm({"prefill": {"engine": {"args": ["--kv_transfer_config.kv_role=kv_both"]}}}), "prefill.engine.args has --kv_transfer_config:"),
    "a key that no worker shows": (vllm({"decode": {"engine": {"env": [{"name": "VLLM_API_KEY", "value": "k"}]}}}), "decode.engine.env has VLLM_API_KEY"),
    "ports that no policy knows": (vllm({"prefill": {"engine": {"env": [{"name": "UCX_TCP_PORT_RANGE", "value": "1-9"}]}}}), "prefill.engine.env has UCX_TCP_PORT_RANGE"),
    "several engines in one": (vllm({"decode": {"engine": {"args": ["-dp=2"]}}}), "decode.engine.args has -dp"),
    "a second lease": (vllm({"engine": {"kvConnectorExtraConfig": {"kv_lease_duration": 6}}}), "set engine.kvLeaseSeconds, which workers are told too"),
    "no lease": (vllm({"engine": {"kvLeaseSeconds": 0}}), "/engine/kvLeaseSeconds"),
    "a lease that is none": (vllm({"engine": {"kvLeaseSeconds": 3601}}), "/engine/kvLeaseSeconds"),
    "an engine that its worker should start": (vllm({"engine": {"restart": "child"}}), "/engine/restart"),
    "an image of no version": (vllm({"decode": {"engine": {"image": {"tag": ""}}}}), "decode.engine.image has neither tag nor digest"),
    "the worker's port": (vllm({"prefill": {"engine": {"port": 8080}}}), "prefill.engine.port = 8080 is taken: it is the worker's 8080"),
    "the side channel's port": (vllm({"prefill": {"engine": {"port": 5600}}}), "it is engine.kvPorts.sideChannel"),
    "a side channel at the worker's port": (vllm({"engine": {"kvPorts": {"sideChannel": 7100}}}), "engine.kvPorts.sideChannel = 7100 is taken"),
    "ports for KV over others": (vllm({"engine": {"kvPorts": {"first": 5000, "last": 9000}}}), ["hold engine.kvPorts.sideChannel = 5600", "hold prefill.engine.port = 8000", "hold the worker's 7200 = 7200"]),
    "ports upside down": (vllm({"engine": {"kvPorts": {"first": 5800}}}), "engine.kvPorts.first = 5800 is more than last = 5799"),
    "a port that takes root": (vllm({"decode": {"engine": {"port": 80}}}), "/decode/engine/port"),
    "a grace without time for the engine": (vllm({"decode": {"terminationGracePeriodSeconds": 70}}), "preStopSeconds + drainTimeoutSeconds + 20 = 0 + 60 + 20 = 80"),
    "an engine beside routers": (vllm({"router": {"engine": {"port": 9}}}), "'engine' not allowed"),
    "a typing error": (vllm({"prefill": {"engine": {"arg": []}}}), "'arg' not allowed"),
    "what the chart tells workers": (vllm({"settings": {"engine-kv-lease": 6}}), "'engine-kv-lease' not allowed"),
}


class Engine(Case):
    """An engine of others beside each worker."""

    def test_there_is_none_without_a_word(self):
        for example in ("try-mock.yaml", "try-model.yaml", "production.yaml"):
            made = Rendered(example)
            for role in ROLES:
                self.assertNotIn("initContainers", made.pod(role)["spec"], example)
                self.assertEqual(set(told(made, role)) - {"engine", "model"}, set(), example)

    def test_nothing_changes_for_engines_of_our_own(self):
        """Their revision is that of the chart before: an upgrade restarts no pod and splits no fleet."""
        for file in (CHART.parents[1] / "integration/kubernetes/former/0.1.0").glob("*.yaml"):
            (former,) = set(re.findall(r'innkeeper/revision: "([^"]+)"', file.read_text()))
            self.assertEqual(Rendered(file.name).env("decode")["INNKEEPER_REVISION"], former)

    def test_worker_engine_and_router_mean_the_same_model(self):
        made = self.takes(vllm({"decode": {"engine": {"port": 8100}}}))
        for role, port in (("prefill", 8000), ("decode", 8100)):
            engine = made.engine(role)
            self.assertEqual(engine["args"][0], "/models/org/Tiny")
            self.assertEqual((arg(engine, "served-model-name"), arg(engine, "host"), arg(engine, "port")), ("Tiny", "127.0.0.1", str(port)))
            self.assertEqual(told(made, role), {"engine": "vllm", "engine-url": [f"http://127.0.0.1:{port}"], "engine-restart": "probe",
                                                "engine-kv-lease": 30, "served-model-name": "Tiny"})
        self.assertEqual(told(made, "router"), {"engine": "vllm", "model": "/models/org/Tiny", "served-model-name": "Tiny"})
        models = {"name": "models", "mountPath": "/models", "readOnly": True}
        for container in (made.engine("prefill"), made.engine("decode"), made.container("router")):
            self.assertIn(models, container["volumeMounts"])
        named = self.takes(vllm({"model": {"servedName": "org/tiny:1"}}))
        names = {arg(named.engine(role), "served-model-name") for role in WORKERS} | {told(named, role)["served-model-name"] for role in ROLES}
        self.assertEqual(names, {"org/tiny:1"})

    def test_a_lease_is_one_number(self):
        for seconds in (30, 6):
            made = self.takes(vllm({"engine": {"kvLeaseSeconds": seconds}}))
            for role in WORKERS:
                lease = transfer(made, role)["kv_connector_extra_config"]["kv_lease_duration"]
                self.assertEqual((lease, told(made, role)["engine-kv-lease"]), (seconds, seconds))

    def test_kv_goes_from_prefill_to_decode_and_nobody_computes_it_in_silence(self):
        made = self.takes(vllm({"engine": {"kvConnectorExtraConfig": {"enable_cross_layers_blocks": "True"}}}))
        for role, side in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
            self.assertEqual(transfer(made, role), {
                "kv_connector": "NixlConnector", "kv_role": side, "kv_load_failure_policy": "fail",
                "kv_connector_extra_config": {"backends": ["UCX"], "kv_lease_duration": 30, "enable_cross_layers_blocks": "True"}})

    def test_the_worker_starts_after_its_engine_and_ends_before_it(self):
        made = self.takes(vllm({"decode": {"preStopSeconds": 5, "drainTimeoutSeconds": 100, "engine": {"startupBudgetSeconds": 601}}}))
        engine, spec = made.engine("decode"), made.pod("decode")["spec"]
        # Without it a container before others must be over before they start.
        self.assertEqual(engine["restartPolicy"], "Always")
        startup = engine["startupProbe"]
        self.assertGreaterEqual(startup["failureThreshold"] * startup["periodSeconds"], 601)
        self.assertNotIn("lifecycle", engine, "it would begin with the worker's drain")
        self.assertEqual(spec["terminationGracePeriodSeconds"], 5 + 100 + 10 + 10)
        self.assertEqual(made.pod("router")["spec"]["terminationGracePeriodSeconds"], 10 + 60 + 10)
        for role in ROLES:
            self.assertGreater(made.named("Deployment", role)["spec"]["progressDeadlineSeconds"], 601 + 900)

    def test_its_worker_says_when_it_is_to_be_ended(self):
        made = self.takes(vllm())
        ports = {port["name"]: port["containerPort"] for port in made.container("prefill")["ports"]}
        for role in WORKERS:
            probe = made.engine(role)["livenessProbe"]
            # A name would be one of the engine's own ports.
            self.assertEqual(probe["httpGet"], {"path": "/engine/livez", "port": ports["http"]})
            # A stopped process heeds no SIGTERM, and the pod's grace is as long as a drain.
            self.assertLessEqual(probe["terminationGracePeriodSeconds"], 5)
            self.assertGreaterEqual(probe["periodSeconds"] * probe["failureThreshold"], 20, "a worker that starts again says nothing meanwhile")
        certified = self.takes(vllm({"nodeTls": {"existingSecret": "nodes"}}))
        self.assertEqual(certified.engine("decode")["livenessProbe"]["httpGet"], probe["httpGet"], "workers' HTTP has no TLS")
        nobody = self.takes(vllm({"engine": {"restart": "none"}}))
        for role in WORKERS:
            self.assertNotIn("livenessProbe", nobody.engine(role))
            self.assertEqual(told(nobody, role)["engine-restart"], "none")

    def test_it_is_asked_from_within(self):
        made = self.takes(vllm({"prefill": {"engine": {"port": 8123}}, "decode": {"engine": {"probes": {"command": ["/ask", "it"]}}}}))
        for probe in ("startupProbe", "readinessProbe"):
            # The kubelet would ask the pod's address, where it does not listen.
            self.assertEqual(set(made.engine("prefill")[probe]) & {"httpGet", "tcpSocket", "grpc"}, set())
            program = made.engine("prefill")[probe]["exec"]["command"]
            self.assertIn("'127.0.0.1', 8123", program[2])
            compile(program[2], "probe", "exec")
            self.assertEqual(made.engine("decode")[probe]["exec"]["command"], ["/ask", "it"])

    def test_who_may_reach_what(self):
        made = self.takes(vllm())
        alone = Rendered(TRY)
        new = lambda role: reach(made, role) - reach(alone, role)
        self.assertEqual(new("prefill"), {(5600, "decode"), (5700, "decode")})
        self.assertEqual(new("decode"), {(5700, "prefill")})
        self.assertEqual(new("router"), set())
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            rules = made.named("NetworkPolicy", role)["spec"]["ingress"]
            ranges = [port for rule in rules for port in rule["ports"] if "endPort" in port]
            self.assertEqual(ranges, [{"port": 5700, "endPort": 5799, "protocol": "TCP"}])
            env = made.env(role, made.engine(role))
            self.assertEqual((env["VLLM_NIXL_SIDE_CHANNEL_PORT"], env["UCX_TCP_PORT_RANGE"]), ("5600", "5700-5799"))
            self.assertEqual(env["VLLM_NIXL_SIDE_CHANNEL_HOST"], {"fieldRef": {"fieldPath": "status.podIP"}})
            self.assertTrue(all(port["port"] not in (8000, "engine") for rule in rules for port in rule["ports"]), other)
        moved = self.takes(vllm({"engine": {"kvPorts": {"sideChannel": 6000, "first": 6100, "last": 6199}}}))
        self.assertEqual(reach(moved, "prefill") - reach(alone, "prefill"), {(6000, "decode"), (6100, "decode")})
        self.assertEqual(moved.env("decode", moved.engine("decode"))["UCX_TCP_PORT_RANGE"], "6100-6199")

    def test_a_revision_is_image_and_arguments_of_both_engines(self):
        one = Rendered(vllm())
        revision = lambda made, role: made.env(role)["INNKEEPER_REVISION"]
        self.assertEqual(revision(one, "prefill"), revision(one, "decode"))
        for role in WORKERS:
            for change in ({"image": {"tag": "v0.33.0"}}, {"image": {"digest": "sha256:" + "b" * 64}}, {"args": ["--max-model-len=4096"]},
                           {"command": ["vllm-next", "serve"]}, {"env": [{"name": "VLLM_KV_CACHE_LAYOUT", "value": "NHD"}]}):
                other = self.takes(vllm({role: {"engine": change}}))
                self.assertNotEqual(revision(other, "decode"), revision(one, "decode"), (role, change))
                self.assertEqual(revision(other, "prefill"), revision(other, "decode"))
        for change in ({"engine": {"kvLeaseSeconds": 6}}, {"model": {"folder": "org/Other"}}):
            self.assertNotEqual(revision(Rendered(vllm(change)), "decode"), revision(one, "decode"), change)
        same = Rendered(vllm(both({"replicas": 5, "engine": {"resources": {"limits": {"memory": "9Gi"}}}})))
        self.assertEqual(revision(same, "decode"), revision(one, "decode"), "memory pairs old and new")

    def test_gpus_are_the_engines(self):
        made = self.takes("vllm-gpu.yaml")
        for role in WORKERS:
            self.assertEqual(made.engine(role)["resources"]["limits"]["nvidia.com/gpu"], "1")
            self.assertNotIn("nvidia.com/gpu", made.container(role)["resources"]["limits"])
        for name, transports in (("nvidia.com/gpu", "tcp,cuda_copy"), ("amd.com/gpu", "tcp,rocm_copy"), ("gpu.example/x", "tcp")):
            made = self.takes(vllm(both({"gpu": {"count": 2, "resourceName": name}})))
            self.assertEqual(made.env("decode", made.engine("decode"))["UCX_TLS"], transports)
        made = self.takes(vllm())
        self.assertEqual(made.env("prefill", made.engine("prefill"))["UCX_TLS"], "tcp")

    def test_shared_memory_is_its_own_and_swept(self):
        made = self.takes(vllm({"prefill": {"sharedMemory": {"sizeLimit": "8Gi"}}, "decode": {"sharedMemory": {"enabled": True}}}))
        self.assertIn({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}, made.pod("prefill")["spec"]["volumes"])
        for role in WORKERS:
            self.assertIn({"name": "shm", "mountPath": "/dev/shm"}, made.engine(role)["volumeMounts"])
            self.assertNotIn("shm", [mount["name"] for mount in made.container(role)["volumeMounts"]])
            shell, flag, script, *command = made.engine(role)["command"]
            self.assertEqual((shell, flag, command), ("/bin/sh", "-c", ["vllm", "serve"]))
            self.assertIn("rm -rf /dev/shm/*", script)
            # The engine is the process that signals reach.
            self.assertTrue(script.endswith('exec "$0" "$@"'), script)

    def test_an_image_that_needs_to_be_root(self):
        made = self.takes(vllm())
        for role in WORKERS:
            self.assertEqual(made.engine(role)["securityContext"], made.container(role)["securityContext"])
            # The user has no home in the image, and may write nowhere but here.
            mounts = {mount["mountPath"] for mount in made.engine(role)["volumeMounts"]}
            self.assertLessEqual({made.env(role, made.engine(role))["HOME"], "/tmp"}, mounts)
        root = {"runAsNonRoot": False, "runAsUser": 0, "readOnlyRootFilesystem": False}
        made = Rendered(vllm({"decode": {"engine": {"securityContext": root}}}))
        self.assertEqual(made.engine("decode")["securityContext"], {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **root})
        for container in (made.container("decode"), made.engine("prefill")):
            self.assertIs(container["securityContext"]["readOnlyRootFilesystem"], True)

    def test_what_is_added_to_engines(self):
        env = [{"name": "UCX_TLS", "value": "all"}, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}]
        engine = {"env": env, "args": ["--max-num-seqs=8"], "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
                  "image": {"registry": "r.example:5000", "repository": "a/vllm", "tag": "1", "pullPolicy": "Always"}}
        made = self.takes(vllm({"prefill": {"engine": engine, "extraVolumes": [{"name": "more", "emptyDir": {}}]}}))
        container = made.engine("prefill")
        found = made.env("prefill", container)
        self.assertEqual((found["UCX_TLS"], found["HF_TOKEN"]["secretKeyRef"]["name"]), ("all", "hf"))
        self.assertEqual(found["HF_HUB_OFFLINE"], "1")
        self.assertEqual((container["image"], container["imagePullPolicy"]), ("r.example:5000/a/vllm:1", "Always"))
        self.assertEqual(container["args"][-1], "--max-num-seqs=8")
        self.assertIn({"name": "more", "mountPath": "/more"}, container["volumeMounts"])
        self.assertNotIn("HF_TOKEN", made.env("decode", made.engine("decode")))

    def test_the_example_has_places_for_all_rooms(self):
        made = self.takes("vllm-gpu.yaml")
        for role in WORKERS:
            (permits,) = re.findall(r"^permits = (\d+)$", made.toml(role), re.M)
            self.assertGreaterEqual(int(arg(made.engine(role), "max-num-seqs")), int(permits))
        self.assertEqual(made.engine("prefill")["image"], made.engine("decode")["image"])

    def test_each_contradiction_is_refused_with_what_would_be_right(self):
        for name, (values, expected) in BAD.items():
            with self.subTest(name):
                said = refusal(values)
                for words in [expected] if isinstance(expected, str) else expected:
                    self.assertIn(words, said)

    def test_notes_name_the_model(self):
        done = chart.helm("install", "inn", str(CHART), "--dry-run=client", "--namespace", "lodging", values=("vllm-gpu.yaml",))
        self.assertEqual(done.returncode, 0, done.stderr)
        served = yaml.safe_load((CHART / "examples/vllm-gpu.yaml").read_text())["model"]["servedName"]
        self.assertIn(f'"model": "{served}"', done.stdout)
