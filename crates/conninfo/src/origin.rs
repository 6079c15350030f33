//! The source of a connection setting.

use std::fmt;

/// The source of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The connection string.
    ConnectionString,
    /// The service file.
    ServiceFile,
    /// This environment variable.
    Variable(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionString => f.write_str("from the connection string"),
            Self::ServiceFile => f.write_str("from the service file"),
            Self::Variable(name) => write!(f, "from {name}"),
        }
    }
}
