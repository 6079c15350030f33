//! The TCP port of a cluster, kept from other clusters also while the server is down.
//!
//! A server that is stopped or crashed leaves its port free. If another cluster took the port, the
//! server could not start again, and its clients would reach a server with another password.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Result, bail};

/// Number of ports to try if each of them belongs to another cluster.
const TRIES: usize = 100;

/// A port on 127.0.0.1 that no other value has, in any process of this network namespace.
pub struct Port {
    number: u16,
    /// Socket whose name says that the port is taken. The kernel removes the name of an abstract
    /// socket with the process, and scopes names and ports alike by network namespace.
    _reservation: UnixListener,
}

impl Port {
    /// Reserves a port on which no process listens at this moment.
    ///
    /// # Errors
    ///
    /// Returns an error if no such port is found.
    pub fn reserve() -> Result<Self> {
        for _ in 0..TRIES {
            let number = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            if let Some(port) = Self::try_reserve(number)? {
                return Ok(port);
            }
        }
        bail!("no free port found on 127.0.0.1 after {TRIES} attempts")
    }

    /// Returns none if another value has the port.
    fn try_reserve(number: u16) -> Result<Option<Self>> {
        let name = SocketAddr::from_abstract_name(format!("pgmill-cluster-port-{number}"))?;
        match UnixListener::bind_addr(&name) {
            Ok(reservation) => Ok(Some(Self { number, _reservation: reservation })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_one_owner_until_it_is_dropped() {
        let port = Port::reserve().unwrap();
        let number = port.number();
        assert!(Port::try_reserve(number).unwrap().is_none());
        drop(port);
        assert!(Port::try_reserve(number).unwrap().is_some());
    }
}
