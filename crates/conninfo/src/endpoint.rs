//! The hosts of a connection. Combines the comma-separated lists `host`, `hostaddr` and `port` into
//! one list.

use crate::error::ConnectError;
use crate::parse::environment::SOCKET_DIRECTORIES;
use crate::parse::settings::Settings;
use crate::secret::Secret;
use std::fmt;
use std::net::IpAddr;

/// One server to try.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// A host name, an address as text, or a socket directory; `None` if only `hostaddr` is given.
    pub(crate) host: Option<String>,
    /// The address to connect to instead of resolving `host`.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) password: Option<Secret>,
}

/// Address of a server, as the client knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// Host name, IP address or path of the Unix socket.
    pub address: String,
    /// TCP port; `None` for a Unix socket.
    pub port: Option<u16>,
}

const DEFAULT_PORT: u16 = 5432;

impl Endpoint {
    /// Returns the socket directory, if the endpoint is a Unix socket.
    pub(crate) fn socket_directory(&self) -> Option<&str> {
        let host = self.host.as_deref().filter(|host| host.starts_with('/'))?;
        self.address.is_none().then_some(host)
    }

    pub(crate) fn server_address(&self) -> ServerAddress {
        if let Some(directory) = self.socket_directory() {
            let address = format!("{directory}/.s.PGSQL.{}", self.port);
            return ServerAddress { address, port: None };
        }
        ServerAddress { address: self.name().unwrap_or_default(), port: Some(self.port) }
    }

    /// Returns the host, or else its address.
    pub(crate) fn name(&self) -> Option<String> {
        self.host.clone().or_else(|| self.address.map(|address| address.to_string()))
    }

    /// Returns the names under which a password file may list this host.
    pub(crate) fn passfile_names(&self) -> Vec<String> {
        let Some(name) = self.name() else { return Vec::new() };
        let local = SOCKET_DIRECTORIES.contains(&name.as_str());
        if local { vec!["localhost".to_owned(), name] } else { vec![name] }
    }
}

impl fmt::Display for Endpoint {
    /// Formats the server as libpq does in its messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.address) {
            (Some(_), None) if self.socket_directory().is_some() => {
                write!(f, "socket \"{}\"", self.server_address().address)
            }
            (Some(host), None) => write!(f, "\"{host}\", port {}", self.port),
            (Some(host), Some(address)) if *host != address.to_string() => {
                write!(f, "\"{host}\" ({address}), port {}", self.port)
            }
            (_, Some(address)) => write!(f, "\"{address}\", port {}", self.port),
            (None, None) => write!(f, "port {}", self.port),
        }
    }
}

/// Combines the lists, without passwords. The length of `hostaddr` decides the number of hosts, or
/// the length of `host` if there is no `hostaddr`. A single port applies to all hosts. An empty
/// host is the default host.
pub(crate) fn endpoints<'a>(
    settings: &'a Settings,
    default_host: &str,
) -> Result<Vec<Endpoint>, ConnectError> {
    let list =
        |keyword| settings.filled(keyword).map(|value: &str| value.split(',').collect::<Vec<_>>());
    let addresses = list("hostaddr").unwrap_or_default();
    let hosts = list("host").unwrap_or_default();
    let ports = list("port").unwrap_or_else(|| vec![""]);
    let count = if addresses.is_empty() { hosts.len().max(1) } else { addresses.len() };
    if !hosts.is_empty() && hosts.len() != count {
        return Err(ConnectError::usage(format!(
            "could not match {} host names to {count} hostaddr values",
            hosts.len()
        )));
    }
    if ports.len() != 1 && ports.len() != count {
        return Err(ConnectError::usage(format!(
            "could not match {} port numbers to {count} hosts",
            ports.len()
        )));
    }
    (0..count)
        .map(|index| {
            let given = |list: &[&'a str]| list.get(index).filter(|one| !one.is_empty()).copied();
            let address = given(&addresses).map(|text| address(settings, text)).transpose()?;
            let host = match (given(&hosts), address) {
                (Some(host), _) => Some(host.to_owned()),
                (None, Some(_)) => None,
                (None, None) => Some(default_host.to_owned()),
            };
            refuse_abstract_socket(host.as_deref())?;
            let port = port(settings, ports.get(index).unwrap_or(&ports[0]))?;
            Ok(Endpoint { host, address, port, password: None })
        })
        .collect()
}

fn refuse_abstract_socket(host: Option<&str>) -> Result<(), ConnectError> {
    if host.is_some_and(|host| host.starts_with('@')) {
        return Err(ConnectError::usage("sockets in the abstract namespace are not supported"));
    }
    Ok(())
}

fn address(settings: &Settings, text: &str) -> Result<IpAddr, ConnectError> {
    text.parse().map_err(|_| settings.invalid("hostaddr", "must be a numeric IP address"))
}

/// Parses a port. The error does not repeat the text, because in a URI with a badly encoded
/// password the text may be a part of the password.
fn port(settings: &Settings, text: &str) -> Result<u16, ConnectError> {
    if text.is_empty() {
        return Ok(DEFAULT_PORT);
    }
    match text.trim_ascii().parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(settings.invalid("port", "must be an integer from 1 to 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::environment::Environment;

    fn shown(text: &str) -> Result<String, String> {
        let settings = Settings::collect(Some(text), &Environment::default()).unwrap();
        let endpoints = endpoints(&settings, "/sock").map_err(|error| error.to_string())?;
        Ok(endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "))
    }

    #[test]
    fn lists_of_equal_length_are_combined() {
        let ok = |text: &str| shown(text).unwrap();
        assert_eq!(ok("host=a,b port=1"), "\"a\", port 1 | \"b\", port 1");
        assert_eq!(ok("host=a,,b port=1,,3").matches("/sock/.s.PGSQL.5432").count(), 1);
        assert_eq!(ok("hostaddr=127.0.0.1"), "\"127.0.0.1\", port 5432");
        assert_eq!(ok("host=x hostaddr=::1 port=' 7 '"), "\"x\" (::1), port 7");
        assert_eq!(ok("port=7"), "socket \"/sock/.s.PGSQL.7\"");
    }

    #[test]
    fn the_address_is_the_name_before_the_number() {
        let of = |text: &str| {
            let settings = Settings::collect(Some(text), &Environment::default()).unwrap();
            let ServerAddress { address, port } =
                endpoints(&settings, "/sock").unwrap()[0].server_address();
            (address, port)
        };
        assert_eq!(of("host=db hostaddr=10.0.0.1 port=7"), ("db".to_owned(), Some(7)));
        assert_eq!(of("hostaddr=::1"), ("::1".to_owned(), Some(5432)));
        assert_eq!(of("port=7"), ("/sock/.s.PGSQL.7".to_owned(), None));
    }

    #[test]
    fn lists_of_different_length_are_refused() {
        let refused = |text: &str| shown(text).unwrap_err();
        assert!(refused("host=a,b hostaddr=::1").contains("2 host names to 1 hostaddr"));
        assert!(refused("host=a port=1,2").contains("2 port numbers to 1 hosts"));
        assert!(refused("port=0").contains("65535"));
        assert!(refused("port=70000").contains("65535"));
        assert!(refused("hostaddr=localhost").contains("numeric"));
        assert!(refused("host=@x").contains("abstract"));
    }
}
