//! The configuration file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Deserialize;

use crate::duration::HumanDuration;
use crate::startup::profile::Profile;

/// Settings in the configuration file, under the same keys as the flags.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    pub(super) database_url: Option<String>,
    pub(super) database_url_file: Option<PathBuf>,
    pub(super) task_url: Option<String>,
    pub(super) task_url_file: Option<PathBuf>,
    pub(super) readers: Option<u32>,
    pub(super) queues: Option<Vec<String>>,
    pub(super) heartbeat_interval: Option<HumanDuration>,
    pub(super) orphan_timeout: Option<HumanDuration>,
    pub(super) poll_interval: Option<HumanDuration>,
    pub(super) shutdown_timeout: Option<HumanDuration>,
    pub(super) exit_when_idle: Option<HumanDuration>,
    pub(super) allow_superuser: Option<bool>,
    pub(super) no_scheduler: Option<bool>,
    pub(super) fatal_sqlstates: Option<Vec<String>>,
    pub(super) http: Option<SocketAddr>,
    pub(super) fleet_metrics_interval: Option<HumanDuration>,
    pub(super) console: Option<SocketAddr>,
    pub(super) console_read_only: Option<bool>,
    pub(super) console_token_file: Option<PathBuf>,
    pub(super) console_tls_cert: Option<PathBuf>,
    pub(super) console_tls_key: Option<PathBuf>,
    pub(super) console_behind_proxy: Option<bool>,
    pub(super) console_base_path: Option<String>,
    pub(super) console_allow_host: Option<Vec<String>>,
    pub(super) log_format: Option<LogFormat>,
    pub(super) log: Option<String>,
    #[serde(default)]
    pub(super) run_as: BTreeMap<String, Profile>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Readable text.
    Text,
    /// One JSON object per line.
    Json,
}
