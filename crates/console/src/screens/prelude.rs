//! Names that most screens use: routes, requests, errors, identifiers, layout and formats.

pub(super) use std::collections::{BTreeMap, HashMap, HashSet};
pub(super) use std::time::Duration;

pub(super) use askama::Template;
pub(super) use axum::Router;
pub(super) use axum::extract::{Path, Query};
pub(super) use axum::routing::{get, post};
pub(super) use jiff::Timestamp;
pub(super) use jiff::tz::TimeZone;
pub(super) use queue::{Outcome, QueueError, RunId, State, TaskId};
pub(super) use serde::{Deserialize, Serialize};
pub(super) use serde_json::Value;
pub(super) use tokio_postgres::Transaction;

pub(super) use crate::error::{HandlerResult, HttpError};
pub(super) use crate::escape::Markup;
pub(super) use crate::filter;
pub(super) use crate::http::app::App;
pub(super) use crate::http::download::{FileList, FileRows, download};
pub(super) use crate::http::request::{FormRequest, RequestContext};
pub(super) use crate::page::format::{self, ByValue};
pub(super) use crate::page::graph::GraphData;
pub(super) use crate::page::highlight;
pub(super) use crate::page::layout::{Layout, render};
pub(super) use crate::page::read_request::ReadRequest;
