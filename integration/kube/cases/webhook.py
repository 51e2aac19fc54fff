"""The admission webhook: pods in HAMi's, ACK's and egpu's older words run by claims."""

import json
import os
import re
import subprocess
import time

from api import ApiError, until
from case import ClaimCase
from cluster import EXAMPLES, MANIFESTS
from objects import DEFAULT, PODS, SLEEP, TEMPLATES, container, request
from part import Part

MANIFEST, SETTINGS = f"{MANIFESTS}/optional/webhook.yaml", "/run/node/webhook.toml"
CONFIGURATION, SECRET, NOTES = "egpu-webhook", "egpu-webhook-certificate", "webhook.egpu.io/notes"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DEPLOYMENTS = f"/apis/apps/v1/{DEFAULT}/deployments"
LIFETIME_S = 4
MANAGED = f"{TEMPLATES}?labelSelector=app.kubernetes.io/managed-by%3Degpu-webhook"
HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}


class Webhook(ClaimCase):
    """By its manifest, but for the Deployment: the program runs where the Service's address is."""

    @classmethod
    def setUpClass(cls):
        cluster, program = cls.cluster, f"{cls.cluster.binaries}/egpu-webhook"
        if not cluster.plugin or not os.path.exists(program):
            cls.skipTest(cls, "there is no egpu-webhook among the binaries")
        with open(MANIFEST, encoding="utf-8") as file:
            parts = file.read().split("\n---\n")
        [deployment] = [part for part in parts if "kind: Deployment" in part]
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=deployment)
        cls.manifest = "\n---\n".join(part for part in parts if part != deployment)
        cluster.apply(cls.manifest)
        address = cluster.api.get("/api/v1/namespaces/egpu/services/egpu-webhook")["spec"]["clusterIP"]
        subprocess.run(["busybox", "ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
        with open(SETTINGS, "w", encoding="utf-8") as file:
            file.write(f'template_lifetime = "{LIFETIME_S}s"\n')
        token = cluster.kubectl("create", "token", "egpu-webhook", "--namespace", "egpu", "--duration=24h")
        kubeconfig = cluster.authority.token_kubeconfig("webhook", token.strip())
        command = [program, "--config", SETTINGS, "--listen", f"{address}:443", "--kubeconfig", kubeconfig,
                   "--own-certificate", "egpu/egpu-webhook-certificate", "--webhook-configuration", CONFIGURATION]
        cluster.parts["webhook"] = Part("webhook", command, f"{cluster.logs}/webhook.log",
                                        lambda: "pods are read" in cluster.log("webhook").rpartition("kube-test: ")[2])
        cluster.part("webhook").start()
        cluster.kubectl("label", "namespace", "default", "egpu.io/webhook=enabled")

    @classmethod
    def tearDownClass(cls):
        cluster = cls.cluster
        if "webhook" not in cluster.parts:
            return
        cluster.kubectl("label", "namespace", "default", "egpu.io/webhook-")
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=cls.manifest)
        cluster.parts.pop("webhook").stop()

    def setUp(self):
        super().setUp()
        until("the API server to ask the webhook", lambda: self.tried(limits=HAMI)["spec"].get("resourceClaims"))

    def body(self, name, limits=None, metadata=None, **spec):
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **spec}
        spec.setdefault("containers", [container(resources={"limits": limits or {}})])
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **(metadata or {})}, "spec": spec}

    def tried(self, namespace="default", **asked):
        """The pod as it would be."""
        return self.cluster.api.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", self.body("tried", **asked))

    def made(self, name, limits=None, **asked):
        self.cluster.api.create(PODS, self.body(name, limits, **asked))
        return self.cluster.wait_running(name)

    def templates(self):
        return [one["metadata"]["name"] for one in self.cluster.api.items(MANAGED)]

    def share(self, pod):
        """MiB and percent of the pod's first card."""
        card = self.grants(pod)["gpu-0"]["cards"][0]
        return card["memory_limit_bytes"] >> 20, card.get("compute_percent")

    def test_examples_have_their_quota_inside(self):
        for name, mebibytes in (("webhook-hami", 3000), ("webhook-ack", 3072)):
            self.cluster.kubectl("apply", "-f", f"{EXAMPLES}/{name}.yaml")
            pod = self.cluster.wait_ended(name)
            self.assertEqual(pod["status"]["phase"], "Succeeded", self.cluster.kubectl("describe", "pod", name))
            self.assertEqual(pod["spec"]["runtimeClassName"], "egpu")
            self.assertIn(f"/ {mebibytes}MiB", self.logs(name))

    def test_hami(self):
        self.made("hami", HAMI)
        self.assertEqual(self.share("hami"), (3000, 30))
        self.assertIn("out of memory", self.inside("hami", "/bin/sh", "-c", "rm-client alloc 3001M 2>&1; true"))
        limits = {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "25", "nvidia.com/priority": "0"}
        self.made("percentage", limits)
        self.assertEqual(self.share("percentage"), (8192, None))
        self.assertEqual(self.inside("percentage", "rm-client", "smi").count("/ 8192MiB"), 2)

    def test_hamis_choice_of_cards(self):
        uuid = self.cards()["gpu-2"]["attributes"]["uuid"]["string"]
        self.made("by-uuid", HAMI, metadata={"annotations": {"nvidia.com/use-gpuuuid": uuid}})
        self.assertEqual(self.results_of("by-uuid")["gpu-0"]["device"], "gpu-2")
        self.made("by-type", HAMI, metadata={"annotations": {"nvidia.com/use-gputype": "A100,NVIDIA-Tesla V100"}})
        for name, annotation in (("other-type", "use-gputype"), ("not-this-type", "nouse-gputype")):
            model = "H100" if annotation == "use-gputype" else "v100"
            annotations = {"annotations": {f"nvidia.com/{annotation}": model}}
            self.cluster.api.create(PODS, self.body(name, HAMI, metadata=annotations))
        self.is_held_back("other-type", "not-this-type")
        why = self.cluster.kubectl_egpu("why", "other-type")[1]
        self.assertIn("not chosen by", why)

    def test_what_has_no_effect_is_told(self):
        annotations = {"hami.io/gpu-scheduler-policy": "spread", "hami.io/node-scheduler-policy": "spread"}
        told = self.tried(limits=HAMI, metadata={"annotations": annotations})["metadata"]["annotations"]
        self.assertIn("hami.io/gpu-scheduler-policy has no effect", told[NOTES])
        self.assertEqual(told["egpu.io/node-placement"], "spread")

    def test_two_containers_have_a_share_each(self):
        both = [container("main", resources={"limits": HAMI}),
                container("side", resources={"limits": {**HAMI, "nvidia.com/gpumem": "2000"}}), container("none")]
        self.made("both", containers=both)
        for name, limit in (("main", 3000), ("side", 2000)):
            self.assertIn(f"/ {limit}MiB", self.inside("both", "rm-client", "smi", of=name))
        self.assertEqual(len(self.grants("both")), 2)

    def test_annotations(self):
        annotations = {"egpu.io/memory": "4GiB", "egpu.io/compute": "25%"}
        first = container("first", command=["rm-client", "smi"])
        self.made("annotated", metadata={"annotations": annotations}, initContainers=[first])
        self.assertEqual(self.share("annotated"), (4096, 25))
        self.assertEqual(len(self.cluster.grants()), 1)
        for text in (self.inside("annotated", "rm-client", "smi"), self.logs("annotated", "first")):
            self.assertIn("/ 4096MiB", text)

    def test_odd_amounts_share_a_template_too(self):
        for name in ("odd", "odd-again"):
            self.made(name, metadata={"annotations": {"egpu.io/memory": "3000000000B", "egpu.io/oom": "kill"}})
        named = {self.cluster.pod(name)["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] for name in ("odd", "odd-again")}
        self.assertEqual(len(named), 1)

    def test_annotations_that_a_claim_cannot_say(self):
        annotations = {"egpu.io/devices": "3", "egpu.io/memory": "2GiB"}
        pod = self.made("of-its-node", metadata={"annotations": annotations})
        self.assertIn("for its node alone: a claim chooses cards by their UUIDs", pod["metadata"]["annotations"][NOTES])
        [grant] = self.cluster.grants()
        self.assertEqual((grant.get("claim"), grant["cards"][0]["memory_limit_bytes"]), (None, 2 << 30))

    def test_pods_of_others_are_left_alone(self):
        self.cluster.apply("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: other}\nhandler: other\n")
        self.addCleanup(self.cluster.kubectl, "delete", "runtimeclass", "other")
        self.cluster.kubectl("create", "namespace", "unlabelled")
        self.addCleanup(self.cluster.kubectl, "delete", "namespace", "unlabelled", "--wait=true")
        until("its service account", lambda: self.cluster.api.get("/api/v1/namespaces/unlabelled/serviceaccounts/default"))
        others = [{"runtimeClassName": "other"}, {"schedulerName": "hami-scheduler"}, {"namespace": "unlabelled"}]
        for other in others:
            spec = until("the pod", lambda other=other: self.tried(limits=HAMI, **other))["spec"]
            self.assertNotIn("resourceClaims", spec, other)
            self.assertEqual(spec["containers"][0]["resources"]["limits"].keys(), HAMI.keys())
        self.assertNotIn("resourceClaims", self.tried(limits={"nvidia.com/gpu": "1"})["spec"], "a whole card alone")

    def test_a_dry_run_makes_nothing(self):
        until("earlier templates to be gone", lambda: not self.templates())
        tried = self.tried(limits={**HAMI, "nvidia.com/gpumem": "1234"})
        name = tried["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
        self.assertTrue(self.is_gone(f"{TEMPLATES}/{name}"))
        self.assertEqual(self.templates(), [])

    def test_what_is_malformed_is_refused_with_the_reason(self):
        for limits, reason in (({"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "101"}, "gpucores: 101; 0 to 100 percent"),
                               ({"aliyun.com/gpu-mem": "3", "nvidia.com/gpumem": "1"}, "use one of them")):
            with self.assertRaisesRegex(ApiError, reason):
                self.tried(limits=limits)
        with self.assertRaisesRegex(ApiError, "egpu.io/memory"):
            self.tried(metadata={"annotations": {"egpu.io/memroy": "1GiB"}})

    def test_replicas_share_a_template_that_goes_when_nobody_names_it(self):
        labels = {"app": "replicas"}
        pod = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [
            container(resources={"limits": {**HAMI, "nvidia.com/gpucores": "10"}})]}}
        self.cluster.api.create(DEPLOYMENTS, {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "replicas"},
            "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": pod}})
        until("three replicas to run", lambda: len(self.pods("Running")) == 3)
        named = {self.cluster.pod(name)["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] for name in self.pods("Running")}
        self.assertEqual(len(named), 1)
        [template] = named
        # Longer than it would live if it were not named.
        time.sleep(LIFETIME_S * 2)
        self.assertIn(template, self.templates())
        self.cluster.kubectl("delete", "deployment", "replicas", "--wait=true")
        until("the template to be gone", lambda: template not in self.templates())

    def test_templates_of_others_are_not_its_own(self):
        self.template("users", request(memory="1Gi"))
        delete = ["delete", "resourceclaimtemplate", "users", "--as=system:serviceaccount:egpu:egpu-webhook"]
        with self.assertRaisesRegex(RuntimeError, "managed-by=egpu-webhook only"):
            self.cluster.kubectl(*delete)
        self.cluster.kubectl(*delete[:-1])

    def test_its_certificate_stays_when_its_manifest_is_applied_again(self):
        def read():
            [webhook] = self.cluster.api.get(f"{CONFIGURATIONS}/{CONFIGURATION}")["webhooks"]
            secret = self.cluster.api.get(f"/api/v1/namespaces/egpu/secrets/{SECRET}")
            return secret["data"], webhook["clientConfig"]["caBundle"]
        before = read()
        self.assertEqual(before[0]["ca.crt"], before[1])
        self.cluster.apply(self.manifest)
        self.assertEqual(read(), before)

    def test_its_rights_end_at_its_certificate(self):
        own = "--as=system:serviceaccount:egpu:egpu-webhook"
        patch = ["patch", "mutatingwebhookconfiguration", CONFIGURATION, "--type=json", own, "-p"]
        [first] = self.cluster.api.get(f"{CONFIGURATIONS}/{CONFIGURATION}")["webhooks"]
        self.assertTrue(first["clientConfig"]["caBundle"])
        changes = {"failurePolicy": "Fail", "timeoutSeconds": 30, "namespaceSelector": {}, "matchConditions": [],
                   "objectSelector": {"matchLabels": {"a": "b"}}, "reinvocationPolicy": "IfNeeded", "matchPolicy": "Exact",
                   "sideEffects": "None", "rules": [], "clientConfig/service/namespace": "default",
                   "clientConfig/service/path": "/other", "admissionReviewVersions": ["v1", "v2"], "name": "x.egpu.io"}
        changes = {f"/webhooks/0/{field}": value for field, value in changes.items()}
        for path, value in {**changes, "/metadata/labels": {"a": "b"}, "/webhooks/-": {**first, "name": "x.egpu.io"}}.items():
            with self.assertRaisesRegex(RuntimeError, "the caBundle of its configuration and nothing else"):
                self.cluster.kubectl(*patch, json.dumps([{"op": "add", "path": path, "value": value}]))
        for verb, what, answer in (("create", "secrets", "no"), ("list", "secrets", "no"), ("get", "secrets/other", "no"),
                                   ("delete", f"secrets/{SECRET}", "no"), ("update", f"secrets/{SECRET}", "yes"),
                                   ("patch", "mutatingwebhookconfigurations/other", "no")):
            may = self.cluster.kubectl("auth", "can-i", verb, what, own, "--namespace", "egpu", check=False)
            self.assertEqual(may.splitlines()[-1], answer, (verb, what))

    def test_its_death_stops_no_other_pod(self):
        self.made("before", HAMI)
        webhook = self.cluster.part("webhook")
        webhook.kill()
        self.pod("ordinary", keep=True, command=SLEEP)
        self.claiming("claims", request(memory="1Gi"))
        for name in ("ordinary", "claims"):
            self.cluster.wait_running(name)
        self.cluster.api.create(PODS, self.body("late", HAMI))
        self.is_held_back("late")
        self.assertTrue(re.search("Insufficient nvidia.com/gpu", " ".join(self.cluster.events("late"))), "no node has them")
        self.assertEqual(self.share("before"), (3000, 30))
        webhook.start()
        self.cluster.delete_pod("late")
        self.made("late", HAMI)
