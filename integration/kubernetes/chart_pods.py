"""Values that must be taken, and what becomes of the pods."""

import pathlib
import re
import subprocess
import tempfile

import yaml

import chart
from chart import CHART, ROLES, ROOT, TRY, Rendered
from chart_case import EXAMPLES, Case, meta, with_


class Pods(Case):
    """Pods: where they listen, what they are told, how they start and end."""

    def test_trying_out_needs_two_decisions(self):
        made = self.takes(TRY)
        self.assertEqual({one["metadata"]["labels"]["app.kubernetes.io/component"] for one in made.kinds("Deployment")}, set(ROLES))
        self.assertIn('etcd = ["http://inn-innkeeper-etcd:2379"]', made.toml("router"))
        for role in ROLES:
            self.assertEqual(made.container(role)["args"], ["node", role])
            self.assertEqual(made.named("Deployment", role)["spec"]["replicas"], 2)
            self.assertEqual(made.named("PodDisruptionBudget", role)["spec"]["maxUnavailable"], 1)
            self.assertTrue(made.pod(role)["spec"]["topologySpreadConstraints"])
        self.assertEqual(made.kinds("Secret"), [], "the chart makes no secret")
        for kind in ("HTTPRoute", "GRPCRoute", "Ingress", "ServiceMonitor", "PodMonitor", "PrometheusRule",
                     "HorizontalPodAutoscaler", "ScaledObject", "PersistentVolumeClaim"):
            self.assertEqual(made.kinds(kind), [], kind)

    def test_every_example_is_taken(self):
        for example in EXAMPLES:
            with self.subTest(example):
                self.takes(example)
        ingress = yaml.safe_load((ROOT / "deploy/gateway/ingress.yaml").read_text())
        routes = yaml.safe_load((ROOT / "deploy/gateway/gateway-values.yaml").read_text())
        self.assertTrue(self.takes("try-mock.yaml", routes).has("GRPCRoute"))
        self.assertTrue(self.takes("try-mock.yaml", ingress).has("Ingress"))

    def test_ports_are_where_the_policies_and_probes_look(self):
        made = self.takes(TRY)
        ports = lambda role: {port["name"]: port["containerPort"] for port in made.container(role)["ports"]}
        self.assertEqual(ports("router"), {"http": 8080, "control": 7100})
        self.assertEqual(ports("decode"), {"http": 8080, "control": 7100, "data": 7200})
        for role in ROLES:
            for variable, port in (("INNKEEPER_HTTP", "http"), ("INNKEEPER_CONTROL", "control"), ("INNKEEPER_DATA", "data")):
                self.assertEqual(made.env(role).get(variable), f"0.0.0.0:{ports(role)[port]}" if port in ports(role) else None)

    def test_readiness_is_progress_and_startup_waits_for_the_model(self):
        made = self.takes(with_({"prefill": {"startupBudgetSeconds": 601}}))
        prefill = made.container("prefill")
        self.assertEqual(prefill["readinessProbe"]["grpc"], {"port": 7100, "service": "readiness"})
        self.assertEqual(prefill["livenessProbe"]["grpc"], {"port": 7100, "service": "liveness"})
        startup = prefill["startupProbe"]
        self.assertGreaterEqual(startup["failureThreshold"] * startup["periodSeconds"], 601)
        self.assertEqual(made.container("router")["readinessProbe"]["httpGet"], {"path": "/ready", "port": "http"})
        self.assertEqual(made.container("router")["livenessProbe"]["httpGet"], {"path": "/health", "port": "http"})

    def test_probes_speak_the_other_protocol(self):
        made = self.takes(with_({"router": {"probes": {"protocol": "grpc"}}, "decode": {"probes": {"protocol": "http"}}}))
        self.assertEqual(made.container("router")["readinessProbe"]["grpc"]["service"], "readiness")
        self.assertEqual(made.container("decode")["readinessProbe"]["httpGet"]["path"], "/ready")

    def test_a_router_may_stay_in_the_service_without_workers(self):
        made = self.takes(with_({"router": {"readinessNeedsWorkers": False}}))
        self.assertEqual(made.container("router")["readinessProbe"]["httpGet"]["path"], "/health")

    def test_grace_follows_from_the_drain(self):
        made = self.takes(with_({"router": {"preStopSeconds": 7, "drainTimeoutSeconds": 100}}))
        self.assertEqual(made.pod("router")["spec"]["terminationGracePeriodSeconds"], 117)
        self.assertEqual(made.container("router")["lifecycle"], {"preStop": {"sleep": {"seconds": 7}}})
        self.assertIn("drain-timeout-ms = 100000", made.toml("router"))
        self.assertNotIn("lifecycle", made.container("decode"))

    def test_a_longer_grace_is_kept(self):
        made = self.takes(with_({"decode": {"drainTimeoutSeconds": 20, "terminationGracePeriodSeconds": 30}}))
        self.assertEqual(made.pod("decode")["spec"]["terminationGracePeriodSeconds"], 30)

    def test_an_etcd_outside_with_certificates_and_a_user(self):
        made = self.takes("production.yaml")
        for role in ROLES:
            toml = made.toml(role)
            self.assertIn('etcd = ["https://etcd-0.etcd:2379","https://etcd-1.etcd:2379","https://etcd-2.etcd:2379"]', toml)
            self.assertIn('etcd-ca = "/etc/innkeeper/etcd/ca.crt"', toml)
            self.assertIn('etcd-cert = "/etc/innkeeper/etcd/tls.crt"', toml)
            env = made.env(role)
            self.assertEqual(env["INNKEEPER_ETCD_PASSWORD"], {"secretKeyRef": {"name": "innkeeper-etcd-user", "key": "password"}})
        self.assertFalse(made.has("StatefulSet", "etcd"))
        self.assertFalse(made.has("NetworkPolicy", "etcd"))

    def test_an_etcd_that_asks_for_no_client_certificate(self):
        made = self.takes({"engine": {"kind": "mock"}, "etcd": {"endpoints": ["https://etcd:2379"],
                          "tls": {"existingSecret": "ca", "certKey": "", "keyKey": ""}}})
        self.assertIn("etcd-ca", made.toml("prefill"))
        self.assertNotIn("etcd-cert", made.toml("prefill"))

    def test_a_model_out_of_a_volume(self):
        made = self.takes("try-model.yaml")
        self.assertIn('model = "/models/SmolLM2-135M-Instruct.Q4_1.gguf"', made.toml("decode"))
        self.assertIn({"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}, made.pod("decode")["spec"]["volumes"])
        self.assertIn({"name": "models", "mountPath": "/models", "readOnly": True}, made.container("decode")["volumeMounts"])

    def test_a_model_out_of_another_kind_of_volume(self):
        made = self.takes(with_({"engine": {"kind": "embedded"}, "model": {"file": "a/b.gguf",
                          "volume": {"source": {"nfs": {"server": "nas", "path": "/models"}}, "subPath": "llm"}}}))
        self.assertIn({"name": "models", "nfs": {"server": "nas", "path": "/models"}}, made.pod("router")["spec"]["volumes"])
        self.assertEqual(made.container("router")["volumeMounts"][-1]["subPath"], "llm")

    def test_a_model_from_hugging_face_into_one_cache(self):
        made = self.takes(with_({"engine": {"kind": "embedded"}, "model": {"huggingFace": "org/Model-GGUF", "cache": {"existingClaim": "fetched"}}}))
        self.assertIn('model = "org/Model-GGUF"', made.toml("prefill"))
        self.assertIn({"name": "cache", "persistentVolumeClaim": {"claimName": "fetched"}}, made.pod("prefill")["spec"]["volumes"])
        self.assertEqual(made.env("prefill")["INNKEEPER_CACHE"], "/var/cache/innkeeper")

    def test_a_revision_follows_image_engine_and_model(self):
        revision = lambda made, role: made.env(role)["INNKEEPER_REVISION"]
        one = Rendered(TRY)
        self.assertEqual(revision(one, "prefill"), revision(one, "decode"))
        self.assertEqual(one.pod("decode")["metadata"]["labels"]["innkeeper/revision"], revision(one, "decode"))
        for change in ({"image": {"tag": "0.2.0"}}, {"image": {"digest": "sha256:" + "a" * 64}},
                       {"engine": {"kind": "embedded"}, "model": {"huggingFace": "org/name"}}):
            self.assertNotEqual(revision(self.takes(with_(change)), "decode"), revision(one, "decode"), change)
        same = self.takes(with_({"decode": {"settings": {"permits": 9}}, "prefill": {"replicas": 5}}))
        self.assertEqual(revision(same, "decode"), revision(one, "decode"), "a setting pairs old and new")
        self.assertEqual(revision(self.takes(with_({"revision": "blue"})), "router"), "blue")

    def test_settings_of_one_role_go_over_those_of_all(self):
        made = self.takes(with_({"settings": {"progress-ttl-ms": 8000, "permits": 100, "on-failure": "chat=fail"},
                                 "decode": {"settings": {"permits": 64}}}))
        self.assertIn("permits = 100\n", made.toml("prefill"))
        self.assertIn("permits = 64\n", made.toml("decode"))
        self.assertIn('on-failure = "chat=fail"', made.toml("router"))
        self.assertIn("progress-ttl-ms = 8000\n", made.toml("decode"))

    def test_large_numbers_stay_numbers(self):
        made = self.takes(with_({"settings": {"transfer-floor-bytes-per-second": 40_000_000, "request-timeout-ms": 86_400_000}}))
        self.assertIn("transfer-floor-bytes-per-second = 40000000\n", made.toml("router"))
        self.assertIn("request-timeout-ms = 86400000\n", made.toml("router"))

    def test_pods_start_again_for_their_own_settings_alone(self):
        checksum = lambda made, role: made.pod(role)["metadata"]["annotations"]["checksum/config"]
        one, two = Rendered(TRY), self.takes(with_({"decode": {"settings": {"permits": 64}}}))
        self.assertNotEqual(checksum(one, "decode"), checksum(two, "decode"))
        self.assertEqual(checksum(one, "prefill"), checksum(two, "prefill"))

    def test_pods_do_not_start_again_for_the_charts_version(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["cp", "-r", str(CHART), folder], check=True)
            meta = pathlib.Path(folder) / "innkeeper/Chart.yaml"
            meta.write_text(re.sub(r"^version: .*$", "version: 9.9.9", meta.read_text(), flags=re.M))
            newer = Rendered(TRY, chart=meta.parent)
        one = Rendered(TRY)
        for role in ROLES:
            self.assertEqual(one.pod(role), newer.pod(role), role)

    def test_gpus_and_shared_memory(self):
        made = self.takes(with_({"decode": {"gpu": {"count": 2, "resourceName": "amd.com/gpu"}, "sharedMemory": {"enabled": True, "sizeLimit": "8Gi"}}}))
        self.assertEqual(made.container("decode")["resources"]["limits"], {"memory": "4Gi", "amd.com/gpu": "2"})
        self.assertIn({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}, made.pod("decode")["spec"]["volumes"])
        self.assertNotIn("amd.com/gpu", made.container("prefill")["resources"]["limits"])

    def test_where_pods_run(self):
        values = {"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "gpu", "operator": "Exists"}], "priorityClassName": "high",
                  "schedulerName": "gang", "runtimeClassName": "kata", "topologySpreadConstraints": [], "affinity": {"nodeAffinity": {
                      "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}}
        spec = self.takes(with_({"prefill": values})).pod("prefill")["spec"]
        for key in ("nodeSelector", "tolerations", "priorityClassName", "schedulerName", "runtimeClassName", "affinity"):
            self.assertEqual(spec[key], values[key])
        self.assertNotIn("topologySpreadConstraints", spec)

    def test_spreading_knows_the_release(self):
        (constraint,) = self.takes("production.yaml").pod("router")["spec"]["topologySpreadConstraints"]
        self.assertEqual(constraint["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"], chart.RELEASE)

    def test_what_is_added_to_pods(self):
        values = {"podAnnotations": {"a": "1"}, "podLabels": {"b": "2"}, "extraEnv": [{"name": "TZ", "value": "UTC"}],
                  "extraVolumes": [{"name": "more", "emptyDir": {}}], "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}]}
        made = self.takes(with_({"router": values, "commonLabels": {"team": "llm"}}))
        pod = made.pod("router")
        self.assertEqual((pod["metadata"]["annotations"]["a"], pod["metadata"]["labels"]["b"]), ("1", "2"))
        self.assertEqual(made.env("router")["TZ"], "UTC")
        for one in made.values():
            self.assertEqual(one["metadata"]["labels"]["team"], "llm", one["metadata"]["name"])

    def test_who_may_evict_and_where_traces_are_shown(self):
        self.assertNotIn("INNKEEPER_ADMIN_KEY", self.takes(TRY).env("router"))
        made = self.takes(with_({"router": {"adminKey": {"existingSecret": "operators"}},
                                 "telemetry": {"jaegerUrl": "https://jaeger.example"}}))
        self.assertEqual(made.env("router")["INNKEEPER_ADMIN_KEY"]["secretKeyRef"], {"name": "operators", "key": "admin-key"})
        self.assertNotIn("INNKEEPER_ADMIN_KEY", made.env("decode"))
        self.assertIn('jaeger-url = "https://jaeger.example"', made.toml("router"))

    def test_keys_and_certificates_are_mounted_where_they_are_read(self):
        self.assertNotIn("api-keys-file", self.takes(TRY).toml("router"))
        made = self.takes(with_({"router": {"apiKeys": {"existingSecret": "keys"}, "tls": {"existingSecret": "web"}},
                                 "nodeTls": {"existingSecret": "nodes"}, "test": {"apiKey": {"existingSecret": "probe"}}}))
        secrets = {"router": {"api-keys": "keys", "tls": "web", "node-tls": "nodes"}, "prefill": {"node-tls": "nodes"}, "decode": {"node-tls": "nodes"}}
        for role, expected in secrets.items():
            volumes = made.pod(role)["spec"]["volumes"]
            self.assertEqual({one["name"]: one["secret"]["secretName"] for one in volumes if "secret" in one}, expected, role)
            mounts = {one["name"]: one["mountPath"] for one in made.container(role)["volumeMounts"]}
            files = dict(re.findall(r'^([a-z-]+) = "(/etc/innkeeper/[^"]+)"$', made.toml(role), re.M))
            for flag, volume in {"api-keys-file": "api-keys", "tls-cert": "tls", "tls-key": "tls", "node-cert": "node-tls", "node-key": "node-tls", "node-ca": "node-tls"}.items():
                # Whole volumes: a file that is mounted alone is never read again.
                self.assertEqual(files.get(flag, "/none").rsplit("/", 1)[0], mounts.get(volume, ""), (role, flag))
            self.assertTrue(all("subPath" not in one for one in made.container(role)["volumeMounts"] if one["name"] in expected))
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                http = made.container(role)[probe]["httpGet"]
                self.assertEqual(http.get("scheme", "HTTP"), "HTTPS" if role == "router" else "HTTP", "the kubelet shows no node's certificate")
        ports = {port["name"]: port["appProtocol"] for port in made.named("Service", "")["spec"]["ports"]}
        self.assertEqual(ports, {"http": "https", "grpc": "https"})

    def test_traces_with_headers_from_a_secret(self):
        made = self.takes(with_({"telemetry": {"otlp": {"endpoint": "http://otel:4318", "protocol": "http", "ratio": 0.25, "headers": {"existingSecret": "tenant"}}}}))
        self.assertIn('otlp = "http://otel:4318"', made.toml("decode"))
        self.assertIn("trace-ratio = 0.25", made.toml("decode"))
        self.assertEqual(made.env("decode")["INNKEEPER_OTLP_HEADERS"]["secretKeyRef"], {"name": "tenant", "key": "headers"})

    def test_every_pod_runs_the_same_image(self):
        digest = "sha256:" + "b" * 64
        made = self.takes(with_({"image": {"registry": "r.example:5000", "repository": "llm/innkeeper", "tag": "1", "digest": digest, "pullSecrets": [{"name": "pull"}]}}))
        pods = {name: pod for name, pod in made.pods().items() if not name.endswith("-etcd")}
        for name, pod in pods.items():
            self.assertEqual(pod["spec"]["containers"][0]["image"], f"r.example:5000/llm/innkeeper@{digest}", name)
            self.assertEqual(pod["spec"]["imagePullSecrets"], [{"name": "pull"}], name)
        self.assertEqual(Rendered(TRY).container("router")["image"], f"innkeeper:{meta()['appVersion']}")

    def test_a_cluster_of_ipv6(self):
        made = self.takes(with_({"listenAddress": "::"}))
        self.assertEqual(made.env("decode")["INNKEEPER_DATA"], "[::]:7200")
        self.assertIn("--listen-client-urls=http://[::]:2379", made.named("StatefulSet", "etcd")["spec"]["template"]["spec"]["containers"][0]["args"])
