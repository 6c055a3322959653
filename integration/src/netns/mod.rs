//! A network of the test's own: each node in a network namespace with an address of its own, and between each two of them
//! a link that can be cut, black-holed, slowed and healed, each way for itself, without touching any other.
//!
//! ```text
//!   node a            hub             node b          each link is two veth pairs; the hub passes packets from one
//!   to<b> ───── h<a>x<b>  h<b>x<a> ───── to<a>        to the other by a filter of its own for each direction
//! ```
//!
//! The test itself is the node [`TEST`]. Neighbours are fixed, so that a black hole swallows instead of answering that
//! nobody is there. Everything goes when the [`Net`] is dropped, also after a failed test; what a killed test program left
//! is swept up by the next one.

mod command;
mod link;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use command::{commands, run, run_all};
pub use link::Link;

/// The test's own name in a [`Net`].
pub const TEST: &str = "test";
/// 198.18.0.0/15 is for measuring networks: nobody is there. One /24 per network.
const NETWORKS: u32 = 512;

/// The network. Dropping it takes everything down.
#[derive(Debug)]
pub struct Net {
    /// Of 198.18.0.0/15.
    number: u32,
    /// The test is the last one.
    names: Vec<String>,
    namespaces: Vec<String>,
    hub: String,
}

impl Net {
    /// A network with these nodes, all links healthy.
    ///
    /// # Errors
    /// Why this machine cannot have one; the test is to be skipped, loudly.
    pub fn start(names: &[String]) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root: run the tests as root".to_owned());
        }
        sweep()?;
        let mut why = String::new();
        // Another program may have the number.
        for _ in 0..4 {
            let net = Self::plan(names);
            match net.build() {
                Ok(()) => return Ok(net),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn plan(names: &[String]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let own = std::process::id();
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = own.wrapping_mul(17).wrapping_add(next) % NETWORKS;
        let namespace = |name: &str| format!("{PREFIX}{own}-{next}-{name}");
        Self {
            number,
            namespaces: names.iter().map(|name| namespace(name)).collect(),
            names: names
                .iter()
                .map(String::as_str)
                .chain([TEST])
                .map(str::to_owned)
                .collect(),
            hub: namespace("hub"),
        }
    }

    /// A node's address.
    #[must_use]
    pub fn address(&self, name: &str) -> IpAddr {
        self.address_of(self.index(name))
    }

    /// What to put before a command so that it runs as this node.
    #[must_use]
    pub fn launcher(&self, name: &str) -> Vec<String> {
        let namespace = self.namespace(self.index(name));
        namespace.map_or_else(Vec::new, |namespace| {
            ["ip", "netns", "exec", namespace].map(str::to_owned).to_vec()
        })
    }

    /// The link between two nodes.
    #[must_use]
    pub fn link(&self, one: &str, other: &str) -> Link<'_> {
        Link::new(self, [self.index(one), self.index(other)])
    }

    fn index(&self, name: &str) -> usize {
        self.names
            .iter()
            .position(|known| known == name)
            .unwrap_or_else(|| panic!("no node `{name}` in this network, only {:?}", self.names))
    }

    fn address_of(&self, index: usize) -> IpAddr {
        let [high, low] = u16::try_from(self.number).unwrap_or(0).to_be_bytes();
        IpAddr::from(Ipv4Addr::new(
            198,
            18 + high,
            low,
            u8::try_from(index + 1).unwrap_or(255),
        ))
    }

    /// `None` is where the test itself runs.
    fn namespace(&self, index: usize) -> Option<&str> {
        self.namespaces.get(index).map(String::as_str)
    }

    /// A node's end of a link. The test's are in the machine's own namespace, where names are everybody's.
    fn device(&self, own: usize, peer: usize) -> String {
        match self.namespace(own) {
            Some(_) => format!("to{peer}"),
            None => format!("ik{}t{peer}", self.number),
        }
    }

    /// The hub's end of a link.
    fn port(own: usize, peer: usize) -> String {
        format!("h{own}x{peer}")
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let count = self.names.len();
        (0..count).flat_map(move |own| (0..count).filter(move |peer| *peer != own).map(move |peer| (own, peer)))
    }

    fn build(&self) -> Result<(), String> {
        for namespace in self.namespaces.iter().chain([&self.hub]) {
            run(&["ip", "netns", "add", namespace])?;
        }
        let here = std::process::id().to_string();
        let wires = self.pairs().map(|(own, peer)| {
            format!(
                "link add name {} type veth peer name {} address {} netns {}",
                Self::port(own, peer),
                self.device(own, peer),
                mac(own, peer),
                self.namespace(own).unwrap_or(&here)
            )
        });
        let ups = self
            .pairs()
            .map(|(own, peer)| format!("link set {} up", Self::port(own, peer)));
        run_all(&["ip", "-n", &self.hub, "-batch", "-"], wires.chain(ups))?;
        let passes = self.pairs().flat_map(|(own, peer)| {
            let port = Self::port(own, peer);
            [format!("qdisc add dev {port} clsact"), pass(own, peer)]
        });
        run_all(&["tc", "-n", &self.hub, "-batch", "-"], passes)?;
        (0..self.names.len()).try_for_each(|own| self.build_node(own))
    }

    fn build_node(&self, own: usize) -> Result<(), String> {
        let address = self.address_of(own);
        let mut lines = match self.namespace(own) {
            Some(_) => vec!["link set lo up".to_owned(), format!("addr add {address}/32 dev lo")],
            None => vec![format!("addr add {address}/32 dev {}", self.device(own, 0))],
        };
        for (_, peer) in self.pairs().filter(|(node, _)| *node == own) {
            let (device, there) = (self.device(own, peer), self.address_of(peer));
            lines.push(format!("link set {device} up"));
            lines.push(self.route(own, peer));
            let mac = mac(peer, own);
            lines.push(format!("neigh replace {there} lladdr {mac} nud permanent dev {device}"));
        }
        run_all(&self.ip(own, &["-batch", "-"]), lines)
    }

    fn route(&self, own: usize, peer: usize) -> String {
        let (device, here, there) = (self.device(own, peer), self.address_of(own), self.address_of(peer));
        format!("route replace {there}/32 dev {device} src {here}")
    }

    /// `ip` as this node.
    fn ip<'a>(&'a self, node: usize, args: &[&'a str]) -> Vec<&'a str> {
        let own: &[&str] = match self.namespace(node) {
            Some(namespace) => &["ip", "-n", namespace],
            None => &["ip"],
        };
        own.iter().chain(args).copied().collect()
    }
}

impl Drop for Net {
    /// The links go with the hub.
    fn drop(&mut self) {
        for namespace in [&self.hub].into_iter().chain(&self.namespaces) {
            if let Err(error) = run(&["ip", "netns", "del", namespace]) {
                tracing::debug!(%error, "a namespace was not there");
            }
        }
    }
}

/// All namespaces of these tests, with the id of the test program behind it.
const PREFIX: &str = "innkeeper-test-";

/// Takes down what test programs left that are gone.
fn sweep() -> Result<(), String> {
    for line in commands(&["ip", "netns", "list"])?.lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !std::path::Path::new("/proc").join(pid).exists()) {
            run(&["ip", "netns", "del", name])?;
        }
    }
    Ok(())
}

/// Of the node's end of the link.
fn mac(own: usize, peer: usize) -> String {
    format!("02:00:00:00:{own:02x}:{peer:02x}")
}

/// The hub's filter that passes a node's packets on to its peer.
fn pass(own: usize, peer: usize) -> String {
    format!(
        "filter add dev {} ingress pref 1 protocol all u32 match u32 0 0 action mirred egress redirect dev {}",
        Net::port(own, peer),
        Net::port(peer, own)
    )
}
