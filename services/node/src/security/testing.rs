//! Certificates for tests, made by `openssl`. Panics when it cannot do its work: it is a test's surroundings.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::NODE_NAME;

const CURVE: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// A CA in a folder of its own.
#[derive(Clone, Debug)]
pub struct Pki {
    dir: PathBuf,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// PEM file of the certificate.
    pub certificate: PathBuf,
    /// PEM file of its key.
    pub key: PathBuf,
}

impl Pki {
    /// A fresh CA in `dir`, which is made.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let pki = Self { dir: dir.to_owned() };
        pki.openssl(&format!(
            "req -x509 {CURVE} -keyout ca.key -out ca.pem -subj /CN=test-ca -days 2"
        ));
        pki
    }

    /// The CA's own certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// A certificate with these names, such as `DNS:localhost,IP:127.0.0.1`. One of `-1` days has expired.
    #[must_use]
    pub fn issue(&self, file: &str, names: &str, days: i32) -> Issued {
        let extensions = format!("subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n");
        let written = std::fs::write(self.dir.join(format!("{file}.ext")), extensions);
        written.unwrap_or_else(|error| panic!("{file}: {error}"));
        self.openssl(&format!(
            "req {CURVE} -keyout {file}.key -out {file}.csr -subj /CN={file}"
        ));
        self.openssl(&format!(
            "x509 -req -in {file}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {file}.pem -days {days} -extfile {file}.ext"
        ));
        Issued {
            certificate: self.dir.join(format!("{file}.pem")),
            key: self.dir.join(format!("{file}.key")),
        }
    }

    /// A certificate of a node.
    #[must_use]
    pub fn node(&self, file: &str) -> Issued {
        self.issue(file, &format!("DNS:{NODE_NAME}"), 2)
    }

    fn openssl(&self, arguments: &str) {
        let command = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(&self.dir)
            .output();
        let output =
            command.unwrap_or_else(|error| panic!("`openssl` is not on PATH ({error}): apt-get install openssl"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments}: {said}");
    }
}

impl Issued {
    /// What both files hold.
    #[must_use]
    pub fn read(&self) -> (Vec<u8>, Vec<u8>) {
        let read = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (read(&self.certificate), read(&self.key))
    }
}
