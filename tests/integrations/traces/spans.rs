//! The spans that a receiver of OTLP got, decoded with the published message types.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::harness::eventually;
use crate::harness::receiver::Receiver;

/// The trace and the span of a caller.
pub(crate) const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub(crate) const CALLER: &str = "b7ad6b7169203331";

/// Returns the option of a task whose caller records the trace, as further arguments.
pub(crate) fn traced() -> String {
    format!(r#", options => '{{"traceparent": "00-{TRACE}-{CALLER}-01"}}'"#)
}

/// A span, with its ids as hexadecimal digits.
#[derive(Clone, Debug)]
pub(crate) struct Exported {
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    /// As in the protocol: 1 internal, 3 client, 4 producer, 5 consumer.
    pub(crate) kind: i32,
    /// Nanoseconds.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Values as texts.
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) resource: BTreeMap<String, String>,
    /// Ids of the linked spans, which are in the same trace.
    pub(crate) links: Vec<String>,
    pub(crate) failed: bool,
    pub(crate) flags: u32,
}

impl Exported {
    /// Returns the value of an attribute; empty if the span does not have it.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }
}

/// Returns the spans that have arrived.
pub(crate) fn exported(receiver: &Receiver) -> Vec<Exported> {
    let mut spans = Vec::new();
    for request in receiver.received() {
        assert_eq!(request.path, "/v1/traces");
        assert!(
            request.headers.contains("content-type: application/x-protobuf"),
            "{}",
            request.headers
        );
        let decoded = ExportTraceServiceRequest::decode(&request.content[..]).unwrap();
        for of_resource in decoded.resource_spans {
            let resource = texts(&of_resource.resource.unwrap().attributes);
            for span in of_resource.scope_spans.into_iter().flat_map(|it| it.spans) {
                spans.push(read(span, resource.clone()));
            }
        }
    }
    spans
}

/// Waits until spans with these names have arrived, and returns all spans by start. A name is listed
/// once for each of its spans.
pub(crate) async fn until_exported(receiver: &Receiver, names: &[&str]) -> Vec<Exported> {
    let mut names = names.to_vec();
    names.sort_unstable();
    let mut spans = Vec::new();
    eventually(&format!("spans {names:?} arrive"), async || {
        spans = exported(receiver);
        let mut arrived: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
        arrived.sort_unstable();
        assert!(arrived.len() <= names.len(), "{arrived:?} instead of {names:?}");
        arrived == names
    })
    .await;
    spans.sort_by_key(|span| span.start);
    spans
}

fn read(span: Span, resource: BTreeMap<String, String>) -> Exported {
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    let trace = hex(&span.trace_id);
    let links = span.links.iter().map(|link| {
        assert_eq!(hex(&link.trace_id), trace);
        hex(&link.span_id)
    });
    Exported {
        links: links.collect(),
        trace,
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        name: span.name,
        kind: span.kind,
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        attributes: texts(&span.attributes),
        resource,
        failed: span.status.is_some_and(|status| status.code == 2),
        flags: span.flags,
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text =
        |attribute: &KeyValue| match attribute.value.as_ref().unwrap().value.as_ref().unwrap() {
            any_value::Value::StringValue(text) => text.clone(),
            any_value::Value::BoolValue(value) => value.to_string(),
            any_value::Value::IntValue(number) => number.to_string(),
            other => panic!("unexpected {other:?}"),
        };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
