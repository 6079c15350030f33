//! `target_session_attrs`: the requested kind of server.

use crate::error::ConnectError;
use crate::parse::settings::Settings;

/// The requested kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetSessionAttrs {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    /// A standby in the first pass over all hosts, and any server in the second pass.
    PreferStandby,
}

impl TargetSessionAttrs {
    pub(crate) fn resolve(settings: &Settings) -> Result<Self, ConnectError> {
        settings.choice(
            "target_session_attrs",
            &[
                ("any", Self::Any),
                ("read-write", Self::ReadWrite),
                ("read-only", Self::ReadOnly),
                ("primary", Self::Primary),
                ("standby", Self::Standby),
                ("prefer-standby", Self::PreferStandby),
            ],
        )
    }

    /// Returns the kinds of servers to accept, one for each pass over the hosts.
    pub(crate) fn passes(self) -> &'static [Self] {
        match self {
            Self::Any => &[Self::Any],
            Self::ReadWrite => &[Self::ReadWrite],
            Self::ReadOnly => &[Self::ReadOnly],
            Self::Primary => &[Self::Primary],
            Self::Standby => &[Self::Standby],
            Self::PreferStandby => &[Self::Standby, Self::Any],
        }
    }
}
