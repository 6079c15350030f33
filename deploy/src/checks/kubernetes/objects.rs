//! Checks the consistency of the objects of one fleet, with each other and with the worker. No
//! schema of Kubernetes covers this.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::documents::{at, list, text};

/// Seconds that Kubernetes waits longer than the worker's shutdown timeout.
const BEYOND_SHUTDOWN_TIMEOUT: f64 = 60.0;

type Labels<'a> = BTreeMap<&'a str, &'a str>;

/// Returns all inconsistencies of these objects.
pub(crate) fn errors(objects: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    for object in objects {
        let mut report = |what: &str| {
            found.push(format!(
                "{}/{}: {what}",
                text(object, "kind"),
                text(object, "metadata.name")
            ));
        };
        match text(object, "kind") {
            "Deployment" => {
                pod(object, objects, &mut report);
                worker(object, &mut report);
            }
            "Job" => pod(object, objects, &mut report),
            "Service" => service(object, objects, &mut report),
            "ServiceMonitor" => service_monitor(object, objects, &mut report),
            "PodDisruptionBudget" => {
                check_pod_selector(object, "spec.selector.matchLabels", objects, &mut report);
            }
            "NetworkPolicy" => network_policy(object, objects, &mut report),
            "ScaledObject" => scaled_object(object, objects, &mut report),
            "ServiceAccount" if at(object, "automountServiceAccountToken") != false => {
                report("mounts its token");
            }
            _ => {}
        }
    }
    found
}

/// Returns the object of this kind and name.
fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    objects.iter().find(|it| text(it, "kind") == kind && text(it, "metadata.name") == name)
}

fn labels<'a>(object: &'a Value, path: &str) -> Labels<'a> {
    let map = at(object, path).as_object().into_iter().flatten();
    map.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())).collect()
}

fn within(part: &Labels<'_>, whole: &Labels<'_>) -> bool {
    !part.is_empty() && part.iter().all(|(key, value)| whole.get(key) == Some(value))
}

fn templates(objects: &[Value]) -> impl Iterator<Item = &Value> {
    objects.iter().filter(|it| ["Deployment", "Job"].contains(&text(it, "kind")))
}

/// Returns the pods that the labels select.
fn selected<'a>(labels_: &Labels<'_>, objects: &'a [Value]) -> Vec<&'a Value> {
    let fits = |it: &&Value| within(labels_, &labels(it, "spec.template.metadata.labels"));
    templates(objects).filter(fits).collect()
}

fn has_port(template: &Value, name: &str) -> bool {
    let containers = list(template, "spec.template.spec.containers").iter();
    containers.flat_map(|it| list(it, "ports")).any(|port| text(port, "name") == name)
}

fn pod(object: &Value, objects: &[Value], report: &mut impl FnMut(&str)) {
    let spec = at(object, "spec.template.spec");
    let selector = labels(object, "spec.selector.matchLabels");
    if text(object, "kind") == "Deployment"
        && !within(&selector, &labels(object, "spec.template.metadata.labels"))
    {
        report("the selector does not match the object's own pods");
    }
    if at(spec, "automountServiceAccountToken") != false {
        report("the pods get a token");
    }
    let account = text(spec, "serviceAccountName");
    if !account.is_empty() && named(objects, "ServiceAccount", account).is_none() {
        report(&format!("service account {account} is not defined"));
    }
    for (path, wanted) in [
        ("securityContext.runAsNonRoot", Value::from(true)),
        ("securityContext.seccompProfile.type", Value::from("RuntimeDefault")),
    ] {
        if *at(spec, path) != wanted {
            report(&format!("{path} must be {wanted}"));
        }
    }
    for container in list(spec, "containers") {
        files(spec, container, report);
        for (path, wanted) in [
            ("securityContext.allowPrivilegeEscalation", Value::from(false)),
            ("securityContext.readOnlyRootFilesystem", Value::from(true)),
            ("securityContext.capabilities.drop", Value::from(vec!["ALL"])),
        ] {
            if *at(container, path) != wanted {
                report(&format!("{path} must be {wanted}"));
            }
        }
        for path in
            ["resources.requests.cpu", "resources.requests.memory", "resources.limits.memory"]
        {
            if at(container, path).is_null() {
                report(&format!("{path} is missing"));
            }
        }
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let port = text(container, &format!("{probe}.httpGet.port"));
            if !port.is_empty() && !has_port(object, port) {
                report(&format!("{probe} uses port {port}, which the container does not have"));
            }
        }
        if let Some(error) = image(text(container, "image")) {
            report(&error);
        }
    }
}

/// Checks that files named by variables are mounted, and that mounts refer to volumes.
fn files(spec: &Value, container: &Value, report: &mut impl FnMut(&str)) {
    let mounts = list(container, "volumeMounts");
    for mount in mounts {
        let name = text(mount, "name");
        if !list(spec, "volumes").iter().any(|volume| text(volume, "name") == name) {
            report(&format!("volume {name} is not defined"));
        }
    }
    for variable in list(container, "env").iter().filter(|it| text(it, "name").ends_with("_FILE")) {
        let file = text(variable, "value");
        if !mounts.iter().any(|mount| Path::new(file).starts_with(text(mount, "mountPath"))) {
            report(&format!("nothing is mounted at the location of {file}"));
        }
    }
}

/// Returns what is wrong with an image name: it needs a version, and pgmill's image needs the
/// current version.
pub(crate) fn image(name: &str) -> Option<String> {
    let (repository, tag) = name.rsplit_once(':').unwrap_or((name, ""));
    if tag.is_empty() || tag == "latest" || tag.contains('/') {
        return Some(format!("image {name} has no version"));
    }
    let ours = repository.rsplit('/').next() == Some("pgmill");
    let version = env!("CARGO_PKG_VERSION");
    (ours && tag != version).then(|| format!("image {name} does not have version {version}"))
}

fn variable<'a>(object: &'a Value, name: &str) -> &'a str {
    let containers = list(object, "spec.template.spec.containers").iter();
    let mut found = containers.flat_map(|it| list(it, "env")).filter(|it| text(it, "name") == name);
    found.next_back().map_or("", |it| text(it, "value"))
}

fn worker(object: &Value, report: &mut impl FnMut(&str)) {
    let shutdown_timeout = seconds(variable(object, "PGMILL_SHUTDOWN_TIMEOUT"));
    let patience = at(object, "spec.template.spec.terminationGracePeriodSeconds").as_f64();
    match (shutdown_timeout, patience) {
        (Some(shutdown_timeout), Some(patience))
            if patience >= shutdown_timeout + BEYOND_SHUTDOWN_TIMEOUT => {}
        _ => report(&format!(
            "waits {patience:?} s, but the worker takes {shutdown_timeout:?} s to stop"
        )),
    }
    let address = variable(object, "PGMILL_HTTP");
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u64>().ok());
    for container in list(object, "spec.template.spec.containers") {
        let declared = list(container, "ports").iter().find(|port| text(port, "name") == "http");
        if declared.and_then(|it| at(it, "containerPort").as_u64()) != port || port.is_none() {
            report(&format!("port http differs from that of PGMILL_HTTP {address}"));
        }
        let pages = ["startupProbe", "livenessProbe", "readinessProbe"]
            .map(|probe| text(container, &format!("{probe}.httpGet.path")));
        if pages != ["/livez", "/livez", "/readyz"] {
            report(&format!("probes use {pages:?}: a database outage must not cause restarts"));
        }
    }
    for name in ["DATABASE_URL", "PGMILL_TASK_URL"] {
        if !variable(object, name).is_empty() {
            report(&format!("{name} is stored in plain text"));
        }
    }
}

/// Parses a duration in the format of the worker's flags: 90s, 2m, 1h.
pub(crate) fn seconds(span: &str) -> Option<f64> {
    let unit = span.find(|c: char| !c.is_ascii_digit()).map(|at| span.split_at(at));
    let (number, unit) = unit?;
    let factor = match unit.trim() {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * factor)
}

fn service(object: &Value, objects: &[Value], report: &mut impl FnMut(&str)) {
    let pods = selected(&labels(object, "spec.selector"), objects);
    if pods.is_empty() {
        report("the selector matches no pod");
    }
    for port in list(object, "spec.ports") {
        let target = text(port, "targetPort");
        if !pods.iter().all(|pod| has_port(pod, target)) {
            report(&format!("the pods have no port {target}"));
        }
    }
}

fn service_monitor(object: &Value, objects: &[Value], report: &mut impl FnMut(&str)) {
    let selector = labels(object, "spec.selector.matchLabels");
    let service = objects.iter().find(|it| {
        text(it, "kind") == "Service" && within(&selector, &labels(it, "metadata.labels"))
    });
    let Some(service) = service else { return report("the selector matches no service") };
    for endpoint in list(object, "spec.endpoints") {
        let port = text(endpoint, "port");
        if !list(service, "spec.ports").iter().any(|it| text(it, "name") == port) {
            report(&format!("the service has no port {port}"));
        }
        let span = |path| seconds(text(endpoint, path)).unwrap_or(0.0);
        if span("scrapeTimeout") > span("interval") {
            report("the timeout exceeds the interval, which Prometheus rejects");
        }
    }
}

fn check_pod_selector(
    object: &Value,
    path: &str,
    objects: &[Value],
    report: &mut impl FnMut(&str),
) {
    if selected(&labels(object, path), objects).is_empty() {
        report("the selector matches no pod");
    }
}

fn network_policy(object: &Value, objects: &[Value], report: &mut impl FnMut(&str)) {
    let pods = selected(&labels(object, "spec.podSelector.matchLabels"), objects);
    if pods.len() != templates(objects).count() {
        report("does not apply to all pods");
    }
    for port in list(object, "spec.ingress").iter().flat_map(|rule| list(rule, "ports")) {
        let name = text(port, "port");
        if !pods.iter().any(|pod| has_port(pod, name)) {
            report(&format!("opens port {name}, which no pod has"));
        }
    }
}

fn scaled_object(object: &Value, objects: &[Value], report: &mut impl FnMut(&str)) {
    let target = text(object, "spec.scaleTargetRef.name");
    let Some(deployment) = named(objects, "Deployment", target) else {
        return report(&format!("deployment {target} is not defined"));
    };
    if !at(deployment, "spec.replicas").is_null() {
        report("the deployment sets replicas itself: each apply would undo the scaling");
    }
    let number = |path| at(object, path).as_i64().unwrap_or(-1);
    let (min, max) = (number("spec.minReplicaCount"), number("spec.maxReplicaCount"));
    let fallback = number("spec.fallback.replicas");
    if !(1 <= min && min <= fallback && fallback <= max) {
        report(&format!(
            "inconsistent replicas: minimum {min}, fallback {fallback}, maximum {max}"
        ));
    }
    for trigger in list(object, "spec.triggers") {
        let (target, readers) =
            (text(trigger, "metadata.targetQueryValue"), variable(deployment, "PGMILL_READERS"));
        if target != readers {
            report(&format!(
                "scales to one worker per {target} tasks, but a worker has {readers} readers"
            ));
        }
        let name = text(trigger, "authenticationRef.name");
        if named(objects, "TriggerAuthentication", name).is_none() {
            report(&format!("trigger authentication {name} is not defined"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_are_parsed_like_the_workers_flags() {
        assert_eq!(["90s", "2m", "1h"].map(seconds), [Some(90.0), Some(120.0), Some(3600.0)]);
        assert_eq!(["", "90", "2 weeks"].map(seconds), [None; 3]);
    }

    #[test]
    fn inconsistencies_are_found() {
        let labels = json!({ "app": "mill" });
        let service = json!({
            "kind": "Service", "metadata": { "name": "s", "labels": labels },
            "spec": { "selector": labels, "ports": [{ "name": "http", "targetPort": "http" }] },
        });
        let monitor = |port: &str| {
            json!({
                "kind": "ServiceMonitor", "metadata": { "name": "m" },
                "spec": { "selector": { "matchLabels": labels }, "endpoints": [{ "port": port }] },
            })
        };
        let job = |port: &str| {
            let container = json!({ "image": "a:1", "ports": [{ "name": port }] });
            json!({
                "kind": "Job", "metadata": { "name": "j" },
                "spec": { "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } } },
            })
        };
        let found = |objects: &[Value]| {
            let all = errors(objects);
            all.into_iter().filter(|it| !it.starts_with("Job")).collect::<Vec<_>>()
        };
        assert_eq!(found(&[service.clone(), monitor("http"), job("http")]), [""; 0]);
        assert_eq!(
            found(&[service.clone(), job("web")]),
            ["Service/s: the pods have no port http"]
        );
        assert_eq!(
            found(std::slice::from_ref(&service)),
            ["Service/s: the selector matches no pod"]
        );
        assert_eq!(
            found(&[monitor("http")]),
            ["ServiceMonitor/m: the selector matches no service"]
        );
        let wrong = [service, monitor("web"), job("http")];
        assert_eq!(found(&wrong), ["ServiceMonitor/m: the service has no port web"]);
    }

    #[test]
    fn an_image_has_a_version() {
        assert_eq!(image("prom/prometheus:v3.5.0"), None);
        assert_eq!(image(concat!("a.b:5000/c/pgmill:", env!("CARGO_PKG_VERSION"))), None);
        for wrong in ["pgmill", "pgmill:latest", "a.b:5000/pgmill", "pgmill:9.9.9"] {
            assert!(image(wrong).is_some(), "{wrong}");
        }
    }
}
