//! The TCP port of a cluster, kept from other clusters also while the server is down.
//!
//! A server that is stopped or crashed leaves its port free. If another cluster took the port, the
//! server could not start again, and its clients would reach a server with another password.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::{fs, io};

use anyhow::{Result, bail};
use rand::RngExt;

/// Number of ports to try if each of them is taken.
const TRIES: usize = 100;

/// The range from which the kernel chooses ports for outgoing connections and for listeners that name
/// no port, as two numbers. Both belong to the range.
const KERNEL_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Lowest port to reserve: services with an assigned port rarely have a higher one.
const LOWEST: u16 = 10_000;
/// Number of ports that must be there to choose from.
const CHOICE: usize = 2_000;

/// A port on 127.0.0.1 that no other value has, in any process of this network namespace.
pub struct Port {
    number: u16,
    /// Socket whose name says that the port is taken. The kernel removes the name of an abstract
    /// socket with the process, and scopes names and ports alike by network namespace.
    _reservation: UnixListener,
}

impl Port {
    /// Reserves a port on which no process listens at this moment. The kernel gives the port to no
    /// process that leaves the choice to the kernel, also while the server of the port is down.
    ///
    /// # Errors
    ///
    /// Returns an error if no such port is found.
    pub fn reserve() -> Result<Self> {
        let kernel = fs::read_to_string(KERNEL_RANGE)?;
        let choice = outside_of_kernel_range(&kernel);
        for _ in 0..TRIES {
            let number = rand::rng().random_range(choice.clone());
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_err() {
                continue;
            }
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

/// Returns the ports below the kernel's range, or else those above it, or else all ports.
fn outside_of_kernel_range(kernel: &str) -> Range<u16> {
    let bounds: Vec<u16> = kernel.split_whitespace().flat_map(str::parse).collect();
    let [low, high] = bounds[..] else { return LOWEST..u16::MAX };
    let outside = [LOWEST..low, high.saturating_add(1)..u16::MAX];
    outside.into_iter().find(|range| range.len() >= CHOICE).unwrap_or(LOWEST..u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_does_not_choose_a_reserved_port() {
        let kernel = fs::read_to_string(KERNEL_RANGE).unwrap();
        let bounds: Vec<u16> = kernel.split_whitespace().map(|it| it.parse().unwrap()).collect();
        let number = Port::reserve().unwrap().number();
        assert!(number < bounds[0] || number > bounds[1], "{number} is in {bounds:?}");
        assert_eq!(outside_of_kernel_range("32768\t60999\n"), LOWEST..32_768);
        assert_eq!(outside_of_kernel_range("1024 60999"), 61_000..u16::MAX);
        assert_eq!(outside_of_kernel_range("1024 65535"), LOWEST..u16::MAX);
    }

    #[test]
    fn a_port_has_one_owner_until_it_is_dropped() {
        let port = Port::reserve().unwrap();
        let number = port.number();
        assert!(Port::try_reserve(number).unwrap().is_none());
        drop(port);
        assert!(Port::try_reserve(number).unwrap().is_some());
    }
}
