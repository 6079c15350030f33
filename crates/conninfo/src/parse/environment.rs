//! The process environment as a value, so that all later steps are pure functions.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The sources of defaults for connection strings: environment variables, the name of the OS user,
/// and the socket directories.
///
/// The caller builds it once. Tests build their own with [`Environment::from_variables`].
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    not_utf8: Vec<String>,
    os_user: Option<String>,
    socket_directories: Vec<PathBuf>,
}

/// Directories in which distributions and PostgreSQL's own build put the server's socket.
pub(crate) const SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// The directory of `pg_service.conf` that is compiled into libpq on Debian and Ubuntu.
const SYSTEM_SERVICE_DIRECTORY: &str = "/etc/postgresql-common";

impl Environment {
    /// Reads the environment of this process. No other code of this crate does.
    pub fn from_process() -> Self {
        let mut environment = Self {
            os_user: whoami::username().ok(),
            socket_directories: SOCKET_DIRECTORIES.map(PathBuf::from).to_vec(),
            ..Self::default()
        };
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str().filter(|name| wanted(name)) else { continue };
            match value.into_string() {
                Ok(value) => drop(environment.variables.insert(name.to_owned(), value)),
                Err(_) => environment.not_utf8.push(name.to_owned()),
            }
        }
        environment
    }

    /// Builds an environment that has exactly these variables (`PG*` and `HOME`), and `os_user` as
    /// the name of the user. It has no socket directories, so the default host is `localhost`.
    pub fn from_variables<N, V>(
        variables: impl IntoIterator<Item = (N, V)>,
        os_user: Option<&str>,
    ) -> Self
    where
        N: Into<String>,
        V: Into<String>,
    {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self {
            variables: variables.collect(),
            os_user: os_user.map(str::to_owned),
            ..Self::default()
        }
    }

    /// Returns the value of a variable. A variable that is set but empty is `Some("")`, as for
    /// libpq.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns the variables that were ignored because they are not valid UTF-8.
    pub(crate) fn not_utf8(&self) -> &[String] {
        &self.not_utf8
    }

    pub(crate) fn os_user(&self) -> Option<&str> {
        self.os_user.as_deref()
    }

    /// Returns a path below the user's home directory.
    pub(crate) fn below_home(&self, path: &str) -> Option<PathBuf> {
        let home = self.variable("HOME").filter(|home| !home.is_empty())?;
        Some(PathBuf::from(home).join(path))
    }

    /// Returns the path of the system-wide service file.
    pub(crate) fn system_service_file(&self) -> PathBuf {
        PathBuf::from(self.variable("PGSYSCONFDIR").unwrap_or(SYSTEM_SERVICE_DIRECTORY))
            .join("pg_service.conf")
    }

    /// Returns the default host: the first socket directory that exists, or else `localhost`.
    pub(crate) fn default_host(&self) -> String {
        self.socket_directories
            .iter()
            .find(|directory| directory.is_dir())
            .map_or_else(|| "localhost".to_owned(), |directory| directory.display().to_string())
    }
}

fn wanted(name: &str) -> bool {
    name.starts_with("PG") || name == "HOME"
}

impl fmt::Debug for Environment {
    /// Shows the names of the variables but not their values, because PGPASSWORD and PGOPTIONS are
    /// among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("variables", &self.variables.keys().collect::<Vec<_>>())
            .field("os_user", &self.os_user)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_values() {
        let environment = Environment::from_variables([("PGPASSWORD", "hunter2")], None);
        let shown = format!("{environment:?}");
        assert!(shown.contains("PGPASSWORD") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn without_socket_directories_the_default_host_is_localhost() {
        assert_eq!(Environment::default().default_host(), "localhost");
    }
}
