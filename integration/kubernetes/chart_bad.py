"""Values that must be refused, with words that help."""

import chart
from chart import CHART, TRY, refusal
from chart_case import Case, with_

# Values that must be refused, and what is said.
BAD = {
    "no decision at all": ({}, ["there is no etcd: name yours", "there is no model: set model.file"]),
    "two etcds": (with_({"etcd": {"endpoints": ["http://e:2379"]}}), "both set: name your own etcd"),
    "http and https": ({"engine": {"kind": "mock"}, "etcd": {"endpoints": ["http://a:1", "https://b:1"], "tls": {"existingSecret": "s"}}}, "mixes http and https"),
    "https without a CA": ({"engine": {"kind": "mock"}, "etcd": {"endpoints": ["https://b:1"]}}, "name a Secret that holds the CA"),
    "certificates for http": ({"engine": {"kind": "mock"}, "etcd": {"endpoints": ["http://b:1"], "tls": {"existingSecret": "s"}}}, "the certificates would not be used"),
    "half of a client certificate": ({"engine": {"kind": "mock"}, "etcd": {"endpoints": ["https://b:1"], "tls": {"existingSecret": "s", "keyKey": ""}}}, "belong together"),
    "an endpoint without a scheme": (with_({"etcd": {"endpoints": ["etcd:2379"]}}), "/etcd/endpoints/0"),
    "two models": (with_({"engine": {"kind": "embedded"}, "model": {"file": "a.gguf", "huggingFace": "o/n", "volume": {"existingClaim": "m"}}}), "name one model"),
    "a model in no volume": (with_({"engine": {"kind": "embedded"}, "model": {"file": "a.gguf"}}), "no volume holds it"),
    "two volumes": (with_({"model": {"volume": {"existingClaim": "m", "source": {"emptyDir": {}}}}}), "one volume holds the model"),
    "a model that is no GGUF": (with_({"model": {"file": "model.safetensors"}}), "/model/file"),
    "a model by an absolute path": (with_({"model": {"file": "/models/a.gguf"}}), "/model/file"),
    "a grace that is too short": (with_({"router": {"terminationGracePeriodSeconds": 30}}), "must be at least preStopSeconds + drainTimeoutSeconds + 10 = 10 + 60 + 10 = 80"),
    "a worker's grace that is too short": (with_({"decode": {"drainTimeoutSeconds": 300, "terminationGracePeriodSeconds": 300}}), "decode.terminationGracePeriodSeconds = 300 is too short"),
    "a typing error": (with_({"router": {"replica": 3}}), "'replica' not allowed"),
    "a typing error above": (with_({"rooter": {}}), "'rooter' not allowed"),
    "a text for a number": (with_({"decode": {"replicas": "three"}}), "/decode/replicas"),
    "no routers": (with_({"router": {"replicas": 0}}), "/router/replicas"),
    "a setting that is none": (with_({"settings": {"progress-ttl": 5000}}), "'progress-ttl' not allowed"),
    "a setting that the chart decides": (with_({"settings": {"etcd": "http://e:1"}}), "'etcd' not allowed"),
    "a negative setting": (with_({"prefill": {"settings": {"permits": -1}}}), "/prefill/settings/permits"),
    "KEDA without Prometheus": (with_({"prefill": {"keda": {"enabled": True}}}), "keda.prometheusAddress is empty"),
    "KEDA upside down": (with_({"keda": {"prometheusAddress": "http://p"}, "decode": {"keda": {"enabled": True, "minReplicas": 9, "maxReplicas": 2}}}), "decode.keda.minReplicas = 9 is more than"),
    "KEDA to nothing": (with_({"decode": {"keda": {"minReplicas": 0}}}), "/decode/keda/minReplicas"),
    "scaling upside down": (with_({"router": {"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 2}}}), "is more than maxReplicas"),
    "scaling by nothing": (with_({"router": {"autoscaling": {"enabled": True, "targetCPUUtilizationPercentage": None}}}), "nothing to scale by"),
    "a Prometheus that is kept out": (with_({"metrics": {"podMonitor": {"enabled": True}}}), "Prometheus could not reach the workers"),
    "a Prometheus that is kept from routers": (with_({"metrics": {"serviceMonitor": {"enabled": True}}, "networkPolicy": {"clientsFrom": [{"podSelector": {}}]}}), "name it in metricsFrom"),
    "a route without a gateway": (with_({"gateway": {"httpRoute": {"enabled": True}}}), "routes nothing"),
    "a gRPC route without a gateway": (with_({"gateway": {"grpcRoute": {"enabled": True}}}), "gateway.grpcRoute.parentRefs is empty"),
    "a pool without a picker": (with_({"gateway": {"inferencePool": {"enabled": True}}}), "names no endpoint picker"),
    "an ingress without a host": (with_({"ingress": {"enabled": True}}), "name a host"),
    "an unknown engine": (with_({"engine": {"kind": "llama.cpp"}}), "/engine/kind"),
    "a digest that is none": (with_({"image": {"digest": "sha256:abc"}}), "/image/digest"),
    "a revision that is no label": (with_({"revision": "a b"}), "/revision"),
    "a collector that is no URL": (with_({"telemetry": {"otlp": {"endpoint": "otel:4317"}}}), "/telemetry/otlp/endpoint"),
    "a ratio above one": (with_({"telemetry": {"otlp": {"ratio": 2}}}), "/telemetry/otlp/ratio"),
    "an unknown probe": (with_({"prefill": {"probes": {"protocol": "tcp"}}}), "/prefill/probes/protocol"),
    "a size without a unit that exists": (with_({"recorder": {"sizeLimit": "1 GB"}}), "/recorder/sizeLimit"),
    "API keys of workers, which no client reaches": (with_({"decode": {"apiKeys": {"existingSecret": "k"}}}), "'apiKeys' not allowed"),
    "keys in the values themselves": (with_({"router": {"apiKeys": {"keys": ["a sha256:00"]}}}), "'keys' not allowed"),
    "a certificate that the chart decides": (with_({"settings": {"tls-cert": "/tls.crt"}}), "'tls-cert' not allowed"),
}


class Bad(Case):
    """Values that must be refused with words that help."""

    def test_each_is_refused_with_what_would_be_right(self):
        for name, (values, expected) in BAD.items():
            with self.subTest(name):
                said = refusal(values)
                for words in [expected] if isinstance(expected, str) else expected:
                    self.assertIn(words, said)

    def test_an_old_kubernetes_is_refused(self):
        done = chart.helm("template", "inn", str(CHART), "--kube-version", "1.29.0", values=(TRY,))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("kubeVersion", done.stderr)
