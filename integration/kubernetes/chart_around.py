"""Values that must be taken, and what becomes of the objects around the pods."""

import json
import re

import yaml

import chart
from chart import CHART, ROLES, ROOT, TRY, Rendered
from chart_case import Case, program, with_


def reach(made, role):
    """Who may reach a role's ports, as pairs; `*` is everybody."""
    pairs = set()
    for rule in made.named("NetworkPolicy", role)["spec"]["ingress"]:
        peers = ["*"]
        if "from" in rule:
            labels = [one.get("podSelector", one.get("namespaceSelector"))["matchLabels"] for one in rule["from"]]
            peers = [label.get("app.kubernetes.io/component", label.get("kubernetes.io/metadata.name")) for label in labels]
        pairs |= {(port["port"], peer) for port in rule["ports"] for peer in peers}
    return pairs


class Around(Case):
    """Policies, scalers, monitors, routes, names."""

    def test_who_may_reach_what(self):
        made = self.takes(TRY)
        self.assertEqual(reach(made, "decode"), {("http", "test"), ("http", "router"), ("control", "router"), ("data", "prefill")})
        self.assertEqual(reach(made, "prefill"), {("http", "test"), ("http", "router"), ("control", "router")})
        self.assertEqual(reach(made, "router"), {("http", "*")})
        self.assertEqual(reach(made, "etcd"), {("client", role) for role in ROLES})
        self.assertEqual(reach(made, "test"), set())

    def test_clients_and_prometheus_are_named(self):
        space = lambda name: {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
        made = self.takes(with_({"networkPolicy": {"clientsFrom": [space("apps")], "metricsFrom": [space("monitoring")]}}))
        self.assertEqual(reach(made, "router"), {("http", "test"), ("http", "router"), ("http", "apps"), ("http", "monitoring")})
        self.assertIn(("http", "monitoring"), reach(made, "decode"))
        self.assertNotIn(("data", "monitoring"), reach(made, "decode"))

    def test_what_pods_reach_may_be_limited_too(self):
        extra = {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 2379}]}
        made = self.takes(with_({"networkPolicy": {"egress": {"enabled": True, "extra": [extra]}}}))
        policy = made.named("NetworkPolicy", "prefill")["spec"]
        self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"])
        self.assertIn(extra, policy["egress"])
        self.assertEqual(made.named("NetworkPolicy", "etcd")["spec"]["egress"], [])

    def test_no_policies_where_none_are_wanted(self):
        self.assertEqual(self.takes(with_({"networkPolicy": {"enabled": False}})).kinds("NetworkPolicy"), [])

    def test_what_is_scaled_has_no_replicas(self):
        made = self.takes("production.yaml")
        for role in ROLES:
            self.assertNotIn("replicas", made.named("Deployment", role)["spec"])
        scaler = made.named("HorizontalPodAutoscaler", "router")["spec"]
        self.assertEqual(scaler["scaleTargetRef"]["name"], "inn-innkeeper-router")
        self.assertEqual((scaler["minReplicas"], scaler["maxReplicas"]), (3, 12))
        for role, metric in (("prefill", "innkeeper_queued_requests"), ("decode", "innkeeper_rooms")):
            scaled = made.named("ScaledObject", role)["spec"]
            self.assertEqual(scaled["scaleTargetRef"]["name"], f"inn-innkeeper-{role}")
            (trigger,) = scaled["triggers"]
            self.assertEqual(trigger["type"], "prometheus")
            self.assertIn(metric, trigger["metadata"]["query"])
            self.assertIn('namespace="lodging"', trigger["metadata"]["query"])
            self.assertIsInstance(trigger["metadata"]["threshold"], str)

    def test_queries_name_metrics_that_exist(self):
        known = set(re.findall(r"`([a-z_:]+)[`{]", (ROOT / "docs/metrics.md").read_text()))
        for scaled in self.takes("production.yaml").kinds("ScaledObject"):
            query = scaled["spec"]["triggers"][0]["metadata"]["query"]
            names = set(re.findall(r"[a-z]+(?:_[a-z]+)+(?=\{)", query))
            self.assertTrue(names)
            self.assertLessEqual(names, known)

    def test_a_query_of_ones_own(self):
        made = self.takes(with_({"keda": {"prometheusAddress": "http://p:9090"}, "decode": {"keda": {"enabled": True, "query": "up", "threshold": 0.5}}}))
        metadata = made.named("ScaledObject", "decode")["spec"]["triggers"][0]["metadata"]
        self.assertEqual((metadata["query"], metadata["threshold"]), ("up", "0.5"))
        self.assertIn("replicas", made.named("Deployment", "prefill")["spec"])

    def test_monitoring_selects_what_is_there(self):
        made = self.takes("production.yaml")
        services = made.named("Service")["metadata"]["labels"]
        monitor = made.named("ServiceMonitor", "router")["spec"]
        self.assertLessEqual(monitor["selector"]["matchLabels"].items(), services.items())
        pods = made.named("PodMonitor", "workers")["spec"]["selector"]
        self.assertLessEqual(pods["matchLabels"].items(), made.pod("decode")["metadata"]["labels"].items())
        self.assertEqual(pods["matchExpressions"][0]["values"], ["prefill", "decode"])

    def test_alerts_and_dashboard_come_whole(self):
        made = self.takes("production.yaml")
        alerts = yaml.safe_load((CHART / "files/alerts.yaml").read_text())
        self.assertEqual(made.named("PrometheusRule")["spec"], alerts)
        self.assertTrue(alerts["groups"])
        dashboard = json.loads(made.named("ConfigMap", "dashboard")["data"]["innkeeper.json"])
        self.assertEqual(dashboard, json.loads((CHART / "files/dashboard.json").read_text()))
        self.assertEqual(made.named("ConfigMap", "dashboard")["metadata"]["labels"]["grafana_dashboard"], "1")

    def test_routes_and_ingress(self):
        parents = [{"name": "gw", "namespace": "infra"}]
        made = self.takes(with_({"gateway": {"httpRoute": {"enabled": True, "parentRefs": parents, "hostnames": ["llm.example"]}, "grpcRoute": {"enabled": True, "parentRefs": parents}},
                                 "ingress": {"enabled": True, "className": "nginx", "hosts": ["llm.example"]}}))
        (rule,) = made.named("HTTPRoute")["spec"]["rules"]
        self.assertEqual(rule["timeouts"], {"request": "0s", "backendRequest": "0s"})
        ports = {port["name"]: port["port"] for port in made.named("Service")["spec"]["ports"]}
        self.assertEqual(rule["backendRefs"], [{"name": "inn-innkeeper", "port": ports["http"]}])
        (rule,) = made.named("GRPCRoute")["spec"]["rules"]
        self.assertEqual(rule["backendRefs"], [{"name": "inn-innkeeper", "port": ports["grpc"]}])
        (rule,) = made.named("Ingress")["spec"]["rules"]
        self.assertEqual(rule["host"], "llm.example")

    def test_routers_may_be_spoken_to_over_http2(self):
        route = {"enabled": True, "parentRefs": [{"name": "gw"}], "h2c": True}
        made = self.takes(with_({"gateway": {"httpRoute": route}}))
        (port,) = [port for port in made.named("Service")["spec"]["ports"] if port["appProtocol"] == "kubernetes.io/h2c"]
        (rule,) = made.named("HTTPRoute")["spec"]["rules"]
        self.assertEqual(rule["backendRefs"], [{"name": "inn-innkeeper", "port": port["port"]}])

    def test_a_pool_holds_the_routers_and_no_workers(self):
        picker = {"name": "picker", "port": {"number": 9002}, "failureMode": "FailOpen"}
        made = self.takes(with_({"gateway": {"inferencePool": {"enabled": True, "endpointPickerRef": picker},
                                             "httpRoute": {"enabled": True, "parentRefs": [{"name": "gw"}]}}}))
        pool = made.named("InferencePool")
        self.assertEqual(pool["apiVersion"], "inference.networking.k8s.io/v1")
        # All that the definition knows.
        self.assertEqual(set(pool["spec"]), {"selector", "targetPorts", "appProtocol", "endpointPickerRef"})
        self.assertEqual(pool["spec"]["endpointPickerRef"], picker)
        self.assertEqual(pool["spec"]["appProtocol"], "http")
        selected = pool["spec"]["selector"]["matchLabels"].items()
        self.assertLessEqual(selected, made.pod("router")["metadata"]["labels"].items())
        self.assertFalse(selected <= made.pod("decode")["metadata"]["labels"].items())
        (target,) = pool["spec"]["targetPorts"]
        self.assertIn(target["number"], [port["containerPort"] for port in made.container("router")["ports"]])
        (rule,) = made.named("HTTPRoute")["spec"]["rules"]
        self.assertEqual(rule["backendRefs"], [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "inn-innkeeper"}])
        self.assertFalse(self.takes(TRY).has("InferencePool"))

    def test_every_router_may_have_an_address_of_its_own(self):
        """What the example of Envoy asks for."""
        values = yaml.safe_load((ROOT / "deploy/gateway/envoy-values.yaml").read_text())
        service = self.takes(with_(values)).named("Service", "routers")["spec"]
        self.assertEqual(service["clusterIP"], "None")
        self.assertEqual(service["selector"]["app.kubernetes.io/component"], "router")
        envoy = yaml.safe_load((ROOT / "deploy/gateway/envoy.yaml").read_text())["static_resources"]
        for cluster in envoy["clusters"]:
            ((one,),) = [locality["lb_endpoints"] for locality in cluster["load_assignment"]["endpoints"]]
            place = one["endpoint"]["address"]["socket_address"]
            self.assertEqual(place, {"address": "innkeeper-routers", "port_value": service["ports"][0]["port"]})
        ((listener,),) = [one["filter_chains"] for one in envoy["listeners"]]
        ((manager,),) = [listener["filters"]]
        (host,) = manager["typed_config"]["route_config"]["virtual_hosts"]
        generating = [route["route"] for route in host["routes"] if route["match"].get("prefix")]
        self.assertEqual([route["timeout"] for route in generating], ["0s", "0s"])
        self.assertTrue(all("retry_policy" not in route for route in generating))

    def test_more_objects_are_templates(self):
        made = self.takes(with_({"extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-one"}},
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}-two'}\n"]}))
        self.assertIn(("ConfigMap", "inn-one"), made)
        self.assertIn(("ConfigMap", "inn-two"), made)

    def test_names_of_ones_own(self):
        names = {name for _, name in Rendered(with_({"fullnameOverride": "hotel"}))}
        self.assertTrue(all(name.startswith("hotel") for name in names), names)
        long = Rendered(with_({"fullnameOverride": "a" * 60}))
        self.assertTrue(all(len(name) <= 63 for _, name in long))

    def test_an_etcd_that_keeps_its_data(self):
        made = self.takes(with_({"etcd": {"tryOut": {"persistence": {"enabled": True, "size": "2Gi", "storageClassName": "fast"}}}}))
        (claim,) = made.named("StatefulSet", "etcd")["spec"]["volumeClaimTemplates"]
        self.assertEqual((claim["spec"]["storageClassName"], claim["spec"]["resources"]["requests"]["storage"]), ("fast", "2Gi"))

    def test_accounts_of_others(self):
        made = self.takes(with_({"serviceAccount": {"create": False, "name": "guest"}}))
        self.assertEqual(made.kinds("ServiceAccount"), [])
        self.assertEqual(made.pod("router")["spec"]["serviceAccountName"], "guest")

    def test_budgets_by_what_must_be_there(self):
        made = self.takes(with_({"decode": {"podDisruptionBudget": {"minAvailable": "50%"}}, "router": {"podDisruptionBudget": {"enabled": False}}}))
        spec = made.named("PodDisruptionBudget", "decode")["spec"]
        self.assertEqual(spec["minAvailable"], "50%")
        self.assertNotIn("maxUnavailable", spec)
        self.assertFalse(made.has("PodDisruptionBudget", "router"))

    def test_the_test_pod_asks_the_service(self):
        made = self.takes(with_({"router": {"service": {"port": 80}}}))
        args = made[("Pod", "inn-innkeeper-test")]["spec"]["containers"][0]["args"]
        self.assertIn("--router=http://inn-innkeeper:80", args)
        done = program(*args[:1], "--help")
        for flag in args[1:]:
            self.assertIn(flag.split("=")[0], done.stdout)

    def test_notes_name_the_first_request(self):
        done = chart.helm("install", "inn", str(CHART), "--dry-run=client", "--namespace", "lodging", values=("try-model.yaml",))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("service/inn-innkeeper 8080:8080", done.stdout)
        self.assertIn('"model": "SmolLM2-135M-Instruct.Q4_1"', done.stdout)
        self.assertIn("etcd of one member", done.stdout)
