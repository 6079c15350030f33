"""Checks the objects of deploy/kubernetes and of the chart: against the schemas of Kubernetes and of the operators,
with each other, and with what the worker needs. The chart's default values have to produce deploy/kubernetes/base.

kubectl renders the kustomizations. Helm is a Go library here, which its Python package loads.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import helm_python as helm
import jsonschema
import kubernetes_validate
import yaml

DEPLOY = Path(__file__).resolve().parent.parent
CHART = str(DEPLOY / "helm/pgmill")
# Kinds of operators, for which Kubernetes has no schema.
OPERATORS = {
    "PrometheusRule": "prometheus-rule",
    "ScaledObject": "scaled-object",
    "ServiceMonitor": "service-monitor",
    "TriggerAuthentication": "trigger-authentication",
}
# Fields that only one way of installation sets.
MARKS = re.compile(r"app\.kubernetes\.io/(instance|version|managed-by)|helm\.sh/.*|imagePullPolicy")
# Fleets with the alert rules.
WITH_RULES = ["kubernetes/production", "helm/values/production.yaml"]
# Seconds that a worker may need after its shutdown timeout.
BEYOND_SHUTDOWN_TIMEOUT = 60


def printed(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr.strip():
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def render(chart, values):
    rendered = chart.render(values, name="pgmill", namespace="pgmill")
    texts = [text for name, text in sorted(rendered.items()) if not name.endswith(".txt")]
    return [it for text in texts for it in yaml.safe_load_all(text) if it]


def at(value, path):
    for key in path.split("."):
        value = (value or {}).get(key)
    return value


def seconds(span):
    """The seconds of a duration such as 90s, 2m or 1h."""
    found = re.fullmatch(r"(\d+)([smh])", str(span))
    return found and int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def validate(it):
    schema = OPERATORS.get(it["kind"])
    if schema is None:
        kubernetes_validate.validate(it, kubernetes_validate.latest_version(), strict=True)
    else:
        jsonschema.validate(it, json.loads((DEPLOY / f"check/schemas/{schema}.json").read_text()))


class Fleet:
    """The objects of one fleet."""

    def __init__(self, objects):
        self.objects = objects

    def named(self, kind, name):
        found = [it for it in self.objects if it["kind"] == kind and it["metadata"]["name"] == name]
        return found[0] if found else None

    def selected(self, selector, labels="spec.template.metadata.labels"):
        """The objects, by default those with pods, that have all labels of a selector."""
        fits = [it for it in self.objects if (selector or {}).items() <= (at(it, labels) or {}).items()]
        return fits if selector else []

    def errors(self, it):
        """What is wrong with an object, besides its schema."""
        spec = it.get("spec", {})
        match it["kind"]:
            case "Deployment":
                if it not in self.selected(at(spec, "selector.matchLabels")):
                    yield "the selector does not match its own pods"
                yield from self.pod(it)
                yield from worker(it)
            case "Job":
                yield from self.pod(it)
            case "Service":
                pods = self.selected(spec["selector"])
                if not pods:
                    yield "the selector matches no pod"
                for port in spec["ports"]:
                    if any(port["targetPort"] not in ports(pod) for pod in pods):
                        yield f"the pods have no port {port['targetPort']}"
            case "ServiceMonitor":
                services = self.selected(at(spec, "selector.matchLabels"), "metadata.labels")
                services = [service for service in services if service["kind"] == "Service"]
                names = {port["name"] for service in services for port in service["spec"]["ports"]}
                if not services or any(end["port"] not in names for end in spec["endpoints"]):
                    yield "no service has these labels and ports"
            case "PodDisruptionBudget" if not self.selected(at(spec, "selector.matchLabels")):
                yield "the selector matches no pod"
            case "NetworkPolicy":
                pods = self.selected(at(spec, "podSelector.matchLabels"))
                names = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
                if not any(names <= ports(pod).keys() for pod in pods):
                    yield "no pod has these labels and ports"
            case "ScaledObject":
                yield from self.scaled(spec)

    def pod(self, it):
        """The Pod Security Standard "restricted", no token of the API, and files that exist."""
        pod = it["spec"]["template"]["spec"]
        if pod.get("automountServiceAccountToken") is not False:
            yield "the pods get a token"
        account = pod.get("serviceAccountName")
        if account and not self.named("ServiceAccount", account):
            yield f"there is no service account {account}"
        if not (at(pod, "securityContext.runAsNonRoot") and at(pod, "securityContext.seccompProfile.type")):
            yield "the pods may run as root, or without a seccomp profile"
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            allowed = container["securityContext"]
            if allowed.get("allowPrivilegeEscalation") is not False or at(allowed, "capabilities.drop") != ["ALL"]:
                yield "the container has privileges"
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
            for name in set(mounts.values()) - volumes:
                yield f"there is no volume {name}"
            for name, value in variables(it).items():
                if name.endswith("_FILE") and str(Path(value).parent) not in mounts:
                    yield f"nothing is mounted at the place of {name}"

    def scaled(self, spec):
        deployment = self.named("Deployment", spec["scaleTargetRef"]["name"])
        if deployment is None:
            yield "there is no such deployment"
            return
        if "replicas" in deployment["spec"]:
            yield "the deployment sets replicas, too"
        if not 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]:
            yield "minimum, fallback and maximum are not in this order"
        for trigger in spec["triggers"]:
            if trigger["metadata"]["targetQueryValue"] != variables(deployment)["PGMILL_READERS"]:
                yield "tasks per worker differ from PGMILL_READERS"
            if not self.named("TriggerAuthentication", trigger["authenticationRef"]["name"]):
                yield "there is no such authentication"


def containers(it):
    return it["spec"]["template"]["spec"]["containers"]


def ports(it):
    named = [port for container in containers(it) for port in container.get("ports", [])]
    return {port["name"]: port["containerPort"] for port in named}


def variables(it):
    return {var["name"]: var.get("value", "") for container in containers(it) for var in container.get("env", [])}


def worker(it):
    """What the worker of a deployment needs."""
    values = variables(it)
    patience = it["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
    if patience < seconds(values["PGMILL_SHUTDOWN_TIMEOUT"]) + BEYOND_SHUTDOWN_TIMEOUT:
        yield "terminationGracePeriodSeconds is too short for PGMILL_SHUTDOWN_TIMEOUT"
    if values["PGMILL_HTTP"].split(":")[-1] != str(ports(it).get("http")):
        yield "port http is not that of PGMILL_HTTP"
    for container in containers(it):
        pages = [container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "liveness", "readiness")]
        if pages != ["/livez", "/livez", "/readyz"]:
            yield "an outage of the database would restart the fleet"


def without_marks(value):
    if isinstance(value, dict):
        kept = {key: without_marks(it) for key, it in value.items() if not MARKS.fullmatch(key)}
        return {key: it for key, it in kept.items() if it != {}}
    if isinstance(value, list):
        return [without_marks(it) for it in value]
    return seconds(value) or value


def differences(place, chart, base):
    if isinstance(chart, list) and isinstance(base, list):
        chart, base = dict(enumerate(chart)), dict(enumerate(base))
    if isinstance(chart, dict) and isinstance(base, dict):
        for key in chart.keys() | base.keys():
            yield from differences(f"{place}.{key}", chart.get(key), base.get(key))
    elif chart != base:
        yield f"{place}: {chart} in the chart, {base} in deploy/kubernetes"


def main():
    helm.lint(CHART)
    kubernetes = str(DEPLOY / "kubernetes")
    overlays = ["base", "development", "production"]
    fleets = {f"kubernetes/{it}": printed("kubectl", "kustomize", f"{kubernetes}/{it}") for it in overlays}
    fleets["kubernetes/production"] += printed(f"{kubernetes}/monitoring/rules")
    errors = []
    with helm.Chart.load(CHART) as chart:
        fleets["helm/pgmill"] = render(chart, {})
        for values in sorted((DEPLOY / "helm/values").glob("*.yaml")):
            fleets[f"helm/values/{values.name}"] = render(chart, yaml.safe_load(values.read_text()))
        try:
            render(chart, {"worker": {"reders": 3}})
            errors.append("the chart accepts a misspelt value")
        except helm.HelmValuesError:
            pass
    for name, objects in fleets.items():
        print(f"{name}: {len(objects)} objects")
        for it in objects:
            found = list(Fleet(objects).errors(it))
            try:
                validate(it)
            except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
                found.append(error.message)
            errors += [f"{name}: {it['kind']}/{it['metadata']['name']}: {error}" for error in found]
    in_chart, in_base = (
        {f"{it['kind']}/{it['metadata']['name']}": without_marks(it) for it in fleets[name]}
        for name in ("helm/pgmill", "kubernetes/base")
    )
    errors += differences("", in_chart, in_base)
    rules, in_chart = (Fleet(fleets[name]).named("PrometheusRule", "pgmill")["spec"] for name in WITH_RULES)
    errors += differences("PrometheusRule", in_chart, rules)
    sys.exit("\n".join(errors) or None)


if __name__ == "__main__":
    main()
