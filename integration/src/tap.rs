//! What a reader of the network sees: every byte that reaches or leaves a node of a cluster that is apart.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::cluster::Cluster;
use crate::python::interpreter;

/// Writes the packets of a TCP port to a file, unbuffered, until its input ends.
const READER: &str = "
import select, socket, struct, sys
every = socket.ntohs(3)
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, every)
tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
port, out = int(sys.argv[1]), open(sys.argv[2], 'wb', 0)
print('listening', flush=True)
while True:
    ready, _, _ = select.select([tap, sys.stdin], [], [])
    if sys.stdin in ready:
        break
    packet = tap.recv(1 << 17)
    ip = packet[14:]
    if len(ip) < 40 or packet[12:14] != b'\\x08\\x00' or ip[9] != 6:
        continue
    tcp = ip[(ip[0] & 15) * 4:]
    if len(tcp) >= 20 and port in struct.unpack('!HH', tcp[:4]):
        out.write(tcp[(tcp[12] >> 4) * 4:])
";

/// A reader of the network. Dropping it ends it.
#[derive(Debug)]
pub struct Tap {
    child: Child,
    file: PathBuf,
}

impl Cluster {
    /// Reads what passes at the data port of a node, from now on.
    #[must_use]
    pub fn tap_data(&self, name: &str) -> Tap {
        let net = self.net.as_ref();
        let net = net.unwrap_or_else(|| panic!("this cluster is not apart: nobody can listen between its nodes"));
        let file = self.dir().join(format!("{name}-tap"));
        let python = interpreter();
        let mut words = net.launcher(name).into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg(python).args(["-c", READER]);
        command.arg(crate::apart::DATA.to_string()).arg(&file);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("nobody listens: {error}"));
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            // It says one line, or ends.
            drop(BufReader::new(out).read_line(&mut said));
        }
        let tap = Tap { child, file };
        assert_eq!(said.trim(), "listening", "the reader of the network came to nothing");
        tap
    }
}

impl Tap {
    /// All that was carried until now, in both directions.
    #[must_use]
    pub fn seen(&self) -> Vec<u8> {
        std::fs::read(&self.file).unwrap_or_default()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // Fails only if it is gone.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
