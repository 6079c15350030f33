//! Which addresses a destination may have.
//!
//! The name of a destination is resolved once, every address of the answer is checked, and the
//! connection is opened to a checked address. So a name server cannot give another address between
//! the check and the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpStream, lookup_host};

use crate::error::SendError;

/// Connects to the host, after checking its addresses.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    allow_private: bool,
) -> Result<TcpStream, SendError> {
    let mut problem = String::new();
    for address in resolve(host, port, allow_private).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => problem = error.to_string(),
        }
    }
    Err(SendError::unavailable(format!("could not connect to {host} port {port}: {problem}")))
}

/// Returns the addresses of the host.
///
/// # Errors
/// The name has no address, or one of its addresses is not public.
pub(crate) async fn resolve(
    host: &str,
    port: u16,
    allow_private: bool,
) -> Result<Vec<SocketAddr>, SendError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> = lookup_host((bare, port))
        .await
        .map_err(|error| SendError::unavailable(format!("could not resolve {host}: {error}")))?
        .collect();
    if found.is_empty() {
        return Err(SendError::unavailable(format!("{host} has no address")));
    }
    match found.iter().find(|address| !allow_private && !is_public(address.ip())) {
        None => Ok(found),
        Some(private) => Err(SendError::unavailable(format!(
            "{host} has the address {}, which is not public; set allow_private = true for this \
             destination if the receiver is in your own network",
            private.ip()
        ))),
    }
}

/// Returns whether hosts of the internet can have this address.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        // Shared address space of carriers, benchmarks, and assignments of protocols.
        || (a, b & 0xc0) == (100, 64)
        || (a, b & 0xfe) == (198, 18)
        || (a, b, c) == (192, 0, 0);
    !special
}

/// Only 2000::/3 is assigned to hosts. Some of its blocks contain addresses of IPv4.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // Mapped addresses and NAT64.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            embedded(high, low)
        }
        // 6to4.
        [0x2002, high, low, ..] => embedded(high, low),
        // Teredo and other protocols, documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.7",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8"]
        {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }
}
