//! Ids of traces and spans.
//!
//! Attempts of one task run on different workers, which know nothing of each other. So the ids that
//! several of them have to name are derived from the task: the trace id of a task whose caller has no
//! trace, and the ids of the spans of its attempts.

use std::fmt::Write;

use queue::{TaskId, Traceparent};
use sha2::{Digest, Sha256};

/// Id of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(pub(crate) [u8; 16]);

/// Id of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanId(pub(crate) [u8; 8]);

/// The id of the caller's span, and whether the caller reports it. Otherwise the worker reports the
/// enqueue itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    pub(crate) span: SpanId,
    pub(crate) of_caller: bool,
}

impl TraceId {
    /// Returns the trace id of the caller.
    pub(crate) fn of_caller(caller: &Traceparent) -> Self {
        Self(bytes(caller.trace_id()))
    }

    /// Returns the trace id of a task whose caller has no trace. `database`: bytes that identify the
    /// queue's database.
    pub(crate) fn of_task(database: [u8; 12], task: TaskId) -> Self {
        Self(prefix(&[b"trace", &database, &task.0.to_be_bytes()]))
    }

    /// Returns 32 hexadecimal digits.
    pub(crate) fn hex(self) -> String {
        hex(&self.0)
    }
}

impl SpanId {
    /// Returns the id of the caller's span.
    pub(crate) fn of_caller(caller: &Traceparent) -> Self {
        Self(bytes(caller.parent_id()))
    }

    /// Returns the id of the span that stands for the enqueue of a task whose caller has no trace.
    pub(crate) fn of_enqueue(trace: TraceId, task: TaskId) -> Self {
        Self(prefix(&[b"send", &trace.0, &task.0.to_be_bytes()]))
    }

    /// Returns the id of the span of a recorded attempt.
    pub(crate) fn of_attempt(trace: TraceId, task: TaskId, attempt: u32) -> Self {
        Self(prefix(&[b"attempt", &trace.0, &task.0.to_be_bytes(), &attempt.to_be_bytes()]))
    }

    /// Returns a new id.
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }
}

/// Returns the trace context of a recorded span.
pub(crate) fn traceparent(trace: TraceId, span: SpanId) -> Option<Traceparent> {
    format!("00-{}-{}-01", hex(&trace.0), hex(&span.0)).parse().ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Parses hexadecimal digits, which a [`Traceparent`] has checked.
fn bytes<const N: usize>(text: &str) -> [u8; N] {
    std::array::from_fn(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap_or_default())
}

fn prefix<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    let digest = hash.finalize();
    std::array::from_fn(|n| digest[n])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers of different versions must derive the same ids.
    #[test]
    fn derived_ids_do_not_change() {
        let trace = TraceId::of_task([7; 12], TaskId(42));
        assert_eq!(trace.hex(), "9b77c35d844e0d730ccae06ab810e934");
        let span = SpanId::of_attempt(trace, TaskId(42), 2);
        assert_eq!(hex(&span.0), "9afe51bbe0d50859");
        assert_ne!(span, SpanId::of_attempt(trace, TaskId(42), 3));
        assert_ne!(trace, TraceId::of_task([8; 12], TaskId(42)));
    }

    #[test]
    fn the_ids_of_the_caller_are_kept() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let caller: Traceparent = text.parse().unwrap();
        let (trace, span) = (TraceId::of_caller(&caller), SpanId::of_caller(&caller));
        assert_eq!(traceparent(trace, span).unwrap().as_str(), text);
    }
}
