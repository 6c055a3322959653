use super::command::{commands, run, run_all};
use super::{Net, pass};

/// Bytes that a slow link keeps on the way, each direction: two packets' worth, so that what is slow is seen at once.
const DRIP_QUEUE: u32 = 6_000;

/// The link between two nodes. What is done to it stays until [`Link::heal`].
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    net: &'a Net,
    ends: [usize; 2],
}

impl<'a> Link<'a> {
    pub(super) fn new(net: &'a Net, ends: [usize; 2]) -> Self {
        Self { net, ends }
    }

    fn ways(self) -> [(usize, usize); 2] {
        let [one, other] = self.ends;
        [(one, other), (other, one)]
    }

    /// Connections break at both ends, and new ones are refused at once.
    pub fn cut(self) {
        for (own, peer) in self.ways() {
            let there = format!("{}/32", self.net.address_of(peer));
            must(run(&self.net.ip(own, &["route", "replace", "unreachable", &there])));
        }
        for (own, peer) in self.ways() {
            self.reset(own, peer);
        }
    }

    /// Breaks the connections that a node has to its peer, at its own end.
    fn reset(self, own: usize, peer: usize) {
        let there = self.net.address_of(peer).to_string();
        let mut within = self.net.launcher(&self.net.names[own]);
        within.extend(["ss", "-K", "-t", "dst", &there].map(str::to_owned));
        let command: Vec<&str> = within.iter().map(String::as_str).collect();
        // It complains of sockets that went meanwhile.
        drop(run(&command));
        let mut left = self.net.launcher(&self.net.names[own]);
        left.extend(["ss", "-Htn", "state", "established", "dst", &there].map(str::to_owned));
        let command: Vec<&str> = left.iter().map(String::as_str).collect();
        let left = must(commands(&command));
        assert!(
            left.trim().is_empty(),
            "this kernel does not end connections (INET_DIAG_DESTROY): {left}"
        );
    }

    /// Packets vanish, both ways.
    pub fn black_hole(self) {
        for (own, peer) in self.ways() {
            must(self.forget(own, peer));
        }
    }

    /// Packets to this end vanish; those from it arrive.
    pub fn black_hole_toward(self, name: &str) {
        let end = self.net.index(name);
        let [one, other] = self.ends;
        assert!(self.ends.contains(&end), "{name} is no end of this link");
        must(self.forget(if one == end { other } else { one }, end));
    }

    fn forget(self, own: usize, peer: usize) -> Result<(), String> {
        run(&[
            "tc",
            "-n",
            &self.net.hub,
            "filter",
            "del",
            "dev",
            &Net::port(own, peer),
            "ingress",
            "pref",
            "1",
        ])
    }

    /// Both ways carry so many bytes in a second.
    pub fn drip(self, bytes_per_second: u32) {
        for (own, peer) in self.ways() {
            let line = format!(
                "qdisc replace dev {} root tbf rate {bytes_per_second}bps burst 2k limit {DRIP_QUEUE}",
                Net::port(own, peer)
            );
            must(run_all(&["tc", "-n", &self.net.hub, "-batch", "-"], [line]));
        }
    }

    /// As it was at the start.
    pub fn heal(self) {
        for (own, peer) in self.ways() {
            let port = Net::port(own, peer);
            // Either is there only after the fault that it takes back.
            drop(run(&["tc", "-n", &self.net.hub, "qdisc", "del", "dev", &port, "root"]));
            drop(self.forget(own, peer));
            must(run_all(&["tc", "-n", &self.net.hub, "-batch", "-"], [pass(own, peer)]));
            must(run_all(
                &self.net.ip(own, &["-batch", "-"]),
                [self.net.route(own, peer)],
            ));
        }
    }
}

fn must<T>(done: Result<T, String>) -> T {
    done.unwrap_or_else(|why| panic!("the network of this test: {why}"))
}
