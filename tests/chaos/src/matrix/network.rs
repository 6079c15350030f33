//! A network namespace for one worker, with a link to the server and rules that impair it.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::scratch::{name, run};

/// How the link is spoiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Impairment {
    /// Nothing passes.
    Cut,
    /// What the server sends is dropped.
    OneWay,
    /// Every connection is reset, from both sides, and none can be made.
    Reset,
    /// No connection can be made; those that are there stay.
    Refuse,
    /// A tenth of the packets is dropped, in both directions.
    Loss,
    /// 1 Mbit/s in each direction.
    Slow,
}

const CHAINS: &str = "add table inet chaos
add chain inet chaos in { type filter hook input priority 0 ; policy accept ; }
add chain inet chaos out { type filter hook output priority 0 ; policy accept ; }";

/// Removed with the value, and the link with it.
pub(crate) struct Network {
    name: String,
    /// This side of the link, outside of the namespace.
    link: String,
    server: Ipv4Addr,
}

impl Network {
    /// Makes one.
    ///
    /// # Errors
    /// No `ip`, or not the right to.
    pub(crate) fn new() -> Result<Self> {
        let (name, n) = name();
        run("ip", &["netns", "add", &name])?;
        // From the range for tests of networks, four addresses each, at a place that other runs of
        // this moment hardly have.
        let place = (std::process::id() % 128 * 256 + n % 256) * 4;
        let address = |host: u32| Ipv4Addr::from_bits(0xC612_0000 + place + host);
        let (server, own) = (address(1), address(2));
        // Sixteen bytes are the most that a link's name may have, with its end.
        let link = format!("pgmc{place}");
        let network = Self { name, link, server };
        let Self { name, link, .. } = &network;
        run("ip", &["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name])?;
        run("ip", &["addr", "add", &format!("{server}/30"), "dev", link])?;
        run("ip", &["link", "set", link, "up"])?;
        network.inside(&["ip", "addr", "add", &format!("{own}/30"), "dev", "eth0"])?;
        network.inside(&["ip", "link", "set", "eth0", "up"])?;
        network.inside(&["ip", "link", "set", "lo", "up"])?;
        network.nft(CHAINS).context("no nft")?;
        network.nft("delete table inet chaos")?;
        Ok(network)
    }

    /// The server's address, as the namespace sees it.
    pub(crate) fn server(&self) -> Ipv4Addr {
        self.server
    }

    /// What a command line has to begin with to be run inside.
    pub(crate) fn entrance(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Spoils the link.
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
        // One transaction: no packet meets half of the rules.
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

    /// Makes it whole again.
    pub(crate) fn heal(&self) -> Result<()> {
        self.nft("add table inet chaos\ndelete table inet chaos")?;
        // An error means that nothing slows it down.
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
        // The other end went with the namespace; this one goes with it, some moments later.
        let _ = run("ip", &["link", "del", &self.link]);
    }
}
