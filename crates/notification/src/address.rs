//! Resolves the host of a destination, refuses private addresses, and connects.
//!
//! The name of a destination is resolved once, every address of the answer is checked, and the
//! connection is opened to a checked address. So a name server cannot give another address between
//! the check and the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::error::SendError;

/// Time limit for connecting to the addresses of a host, of the ten seconds of a message.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);

/// Connects to the host, after checking its addresses.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    allow_private: bool,
) -> Result<TcpStream, SendError> {
    let addresses = resolve(host, port, allow_private).await?;
    connect_to(&addresses).await.map_err(|problem| {
        SendError::unavailable(format!("could not connect to {host} port {port}: {problem}"))
    })
}

/// Connects to the first of these addresses that answers. Returns the error of the last one.
async fn connect_to(addresses: &[SocketAddr]) -> Result<TcpStream, String> {
    let limit = time_limit(addresses);
    let mut problem = String::new();
    for address in addresses {
        match timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => problem = error.to_string(),
            Err(_) => problem = format!("no answer within {} ms", limit.as_millis()),
        }
    }
    Err(problem)
}

/// Returns the time limit of each of these addresses, so that silent ones leave time for the others.
pub(crate) fn time_limit(addresses: &[SocketAddr]) -> Duration {
    CONNECT_TIMEOUT / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1)
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
pub(crate) mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// An address whose server drops packets: its queue of connections, which has one place, is full.
    pub(crate) struct SilentAddress {
        listener: TcpListener,
        _queued: Vec<TcpStream>,
    }

    impl SilentAddress {
        pub(crate) async fn new() -> Self {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let listener = socket.listen(1).unwrap();
            let address = listener.local_addr().unwrap();
            // Linux queues one connection more than the backlog.
            let queued = [TcpStream::connect(address).await, TcpStream::connect(address).await];
            Self { listener, _queued: queued.into_iter().map(Result::unwrap).collect() }
        }

        pub(crate) fn address(&self) -> SocketAddr {
            self.listener.local_addr().unwrap()
        }
    }

    #[tokio::test]
    async fn an_address_that_is_silent_or_refuses_leaves_time_for_the_others() {
        let silent = SilentAddress::new().await;
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let open = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = open.local_addr().map(|address| (address, open)).unwrap();
        let addresses = [silent.address(), closed, open.0];
        // Without a limit per address, the operating system tries the first one for two minutes.
        let connected = timeout(10 * CONNECT_TIMEOUT, connect_to(&addresses)).await.unwrap();
        assert_eq!(connected.unwrap().peer_addr().unwrap(), open.0);
        let problem = connect_to(&[closed, silent.address()]).await.unwrap_err();
        assert_eq!(problem, "no answer within 3000 ms");
    }

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
