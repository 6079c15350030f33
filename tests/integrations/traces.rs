//! Traces: the trace context of a task's caller, and the spans that workers export.

pub(crate) mod comments;
pub(crate) mod export;
pub(crate) mod receiver_errors;
pub(crate) mod spans;
pub(crate) mod traceparent;
pub(crate) mod web_request;
