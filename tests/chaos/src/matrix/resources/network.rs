//! A network namespace for one worker, with a link to the server and rules that impair the link.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::scratch::{name, run};

/// Impairment of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Impairment {
    /// No packet passes.
    Cut,
    /// Packets from the server are dropped.
    OneWay,
    /// Every connection is reset on both sides, and new connections are impossible.
    Reset,
    /// New connections are refused; existing ones stay open.
    Refuse,
    /// A tenth of the packets is dropped in both directions.
    Loss,
    /// 1 Mbit/s in each direction.
    Slow,
}

const CHAINS: &str = "add table inet chaos
add chain inet chaos in { type filter hook input priority 0 ; policy accept ; }
add chain inet chaos out { type filter hook output priority 0 ; policy accept ; }";

/// A network namespace. Dropping the value removes it, together with the link.
pub(crate) struct Network {
    name: String,
    /// Host side of the link.
    link: String,
    server: Ipv4Addr,
}

impl Network {
    /// Creates the namespace and the link.
    ///
    /// # Errors
    /// Returns an error if `ip` is missing or not permitted.
    pub(crate) fn new() -> Result<Self> {
        let (name, n) = name();
        run("ip", &["netns", "add", &name])?;
        // Each namespace takes four addresses from the range for benchmarks (RFC 2544), at an
        // offset that concurrent runs are unlikely to use.
        let place = (std::process::id() % 128 * 256 + n % 256) * 4;
        let address = |host: u32| Ipv4Addr::from_bits(0xC612_0000 + place + host);
        let (server, own) = (address(1), address(2));
        // An interface name has at most 15 characters.
        let link = format!("pgmc{place}");
        let network = Self { name, link, server };
        let Self { name, link, .. } = &network;
        run("ip", &["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name])?;
        run("ip", &["addr", "add", &format!("{server}/30"), "dev", link])?;
        run("ip", &["link", "set", link, "up"])?;
        network.inside(&["ip", "addr", "add", &format!("{own}/30"), "dev", "eth0"])?;
        network.inside(&["ip", "link", "set", "eth0", "up"])?;
        network.inside(&["ip", "link", "set", "lo", "up"])?;
        network.nft(CHAINS).context("nft failed")?;
        network.nft("delete table inet chaos")?;
        Ok(network)
    }

    /// Returns the server's address as seen from the namespace.
    pub(crate) fn server(&self) -> Ipv4Addr {
        self.server
    }

    /// Returns the command prefix that runs a program inside the namespace.
    pub(crate) fn entrance(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Impairs the link.
    pub(crate) fn impair(&self, how: Impairment) -> Result<()> {
        const LOSS: &str = "numgen random mod 10 == 0 drop";
        const RESET: &str = "meta l4proto tcp reject with tcp reset";
        const REFUSE: &str = "tcp flags & (syn | ack) == syn reject with tcp reset";
        let (incoming, outgoing) = match how {
            Impairment::Cut => ("drop", "drop"),
            Impairment::OneWay => ("drop", "accept"),
            Impairment::Reset => (RESET, RESET),
            Impairment::Refuse => ("accept", REFUSE),
            Impairment::Loss => (LOSS, LOSS),
            Impairment::Slow => return self.slow(),
        };
        // Set all rules in one transaction, so that no packet passes while only half of them exist.
        self.nft(&format!(
            "{CHAINS}\nadd rule inet chaos in {incoming}\nadd rule inet chaos out {outgoing}"
        ))
    }

    fn slow(&self) -> Result<()> {
        const RATE: [&str; 6] = ["rate", "1mbit", "burst", "3000", "latency", "400ms"];
        let own = [&["qdisc", "add", "dev", &self.link, "root", "tbf"], &RATE[..]].concat();
        run("tc", &own)?;
        let inside = [&["tc", "qdisc", "add", "dev", "eth0", "root", "tbf"], &RATE[..]].concat();
        self.inside(&inside)
    }

    /// Restores the link.
    pub(crate) fn heal(&self) -> Result<()> {
        self.nft("add table inet chaos\ndelete table inet chaos")?;
        // An error means that no bandwidth limit is set.
        let _ = run("tc", &["qdisc", "del", "dev", &self.link, "root"]);
        let _ = self.inside(&["tc", "qdisc", "del", "dev", "eth0", "root"]);
        Ok(())
    }

    fn nft(&self, rules: &str) -> Result<()> {
        self.inside(&["nft", rules])
    }

    fn inside(&self, command: &[&str]) -> Result<()> {
        let entrance = self.entrance();
        run(entrance[0], &[&entrance[1..], command].concat()).map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Err(error) = run("ip", &["netns", "del", &self.name]) {
            eprintln!("chaos: {error:#}");
        }
        // The kernel removes the namespace's end of the link together with the namespace, but this
        // end only after a delay.
        let _ = run("ip", &["link", "del", &self.link]);
    }
}
