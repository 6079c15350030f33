//! Opens the traces and their exporter, from the settings `--otlp-…` and `--traces-…`.

use anyhow::ensure;
use cli::Failure;
use notification::{Endpoint, HttpSettings};
use queue::WorkerId;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::startup::settings::Settings;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::exporter::{Exporter, MAX_WAITING};
use crate::telemetry::traces::{Tracer, Traces};

/// Path of the receiver of traces, which follows the endpoint.
const PATH: &str = "/v1/traces";

/// Returns the traces of this worker, and their exporter if `--otlp-endpoint` is set. `end`: cancelled
/// when all readers have finished.
///
/// # Errors
/// A setting is invalid, or a file cannot be read: [`Failure`].
pub(crate) fn open(
    settings: &Settings,
    worker: WorkerId,
    metrics: &Metrics,
    end: CancellationToken,
) -> anyhow::Result<(Traces, Option<Exporter>)> {
    let Some(endpoint) = settings.otlp_endpoint.as_deref().filter(|url| !url.is_empty()) else {
        return Ok((Traces::new(None, settings.trace_comments), None));
    };
    let http = HttpSettings {
        url: Some(format!("{}{PATH}", endpoint.trim_end_matches('/'))),
        headers_file: settings.otlp_headers_file.clone(),
        ca_file: settings.otlp_ca_file.clone(),
        // The operator of the worker chooses the receiver, which is usually on the same machine.
        allow_private: true,
        ..HttpSettings::default()
    };
    let endpoint = Endpoint::open(http, "application/x-protobuf").map_err(|error| {
        let hint =
            "Set the address of a receiver of OTLP over HTTP, such as http://127.0.0.1:4318.";
        Failure::usage(format!("otlp_endpoint: {error}")).hint(hint)
    })?;
    let (sender, spans) = mpsc::channel(MAX_WAITING);
    let counts = metrics.spans.clone();
    let tracer = Tracer {
        sampler: settings.traces_sampler,
        ratio: settings.traces_sampler_arg,
        statements: settings.trace_statements,
        worker,
        spans: sender,
        counts: counts.clone(),
    };
    let resource = resource(settings, worker)?;
    let exporter = Exporter { endpoint, resource, spans, counts, end };
    Ok((Traces::new(Some(tracer), settings.trace_comments), Some(exporter)))
}

fn resource(settings: &Settings, worker: WorkerId) -> anyhow::Result<Vec<(String, String)>> {
    let mut resource = vec![
        ("service.name".to_owned(), settings.otlp_service_name.clone()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id".to_owned(), worker.to_string()),
    ];
    for text in settings.otlp_resource_attributes.iter().filter(|text| !text.is_empty()) {
        let (key, value) = text.split_once('=').unwrap_or_default();
        ensure!(
            !key.is_empty(),
            Failure::usage(format!(
                "otlp_resource_attributes: \"{text}\" is not an attribute such as service.namespace=etl"
            ))
        );
        if key != "service.name" {
            resource.retain(|(present, _)| present != key);
            resource.push((key.to_owned(), value.to_owned()));
        }
    }
    Ok(resource)
}
