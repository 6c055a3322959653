//! etcd, reached as the nodes reach it, and the dates of the certificates that it is reached with.

use std::collections::BTreeSet;
use std::path::Path;

use innkeeper_leases::keys::Key;
use innkeeper_node::config::StoreConfig;
use serde_json::Value;
use x509_cert::Certificate;
use x509_cert::der::DecodePem;
use x509_cert::time::Time;

use super::asked::Cluster;
use super::report::Report;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// A certificate that ends sooner is to be replaced.
const SOON_DAYS: u64 = 30;

/// etcd answers, and its members are the nodes that the router lists.
///
/// # Errors
/// The flags cannot work for anybody.
pub(super) async fn etcd(config: &StoreConfig, cluster: &Cluster, report: &mut Report) -> anyhow::Result<()> {
    let names = config.endpoints.join(",");
    let store = innkeeper_node::store::open(config, || unreachable!("endpoints are given"))?;
    let keys = match store.keys().await {
        Ok(keys) => keys,
        Err(error) => {
            report.fail(
                "etcd",
                names,
                format!("{error}"),
                "check that it runs, its address, --etcd-user, and the TLS files; rooms go on meanwhile, without leases",
            );
            return Ok(());
        }
    };
    let members: BTreeSet<String> = keys
        .iter()
        .filter_map(|(key, _)| match Key::parse(key.as_bytes()) {
            Some(Key::Member(incarnation)) => Some(incarnation.to_string()),
            Some(Key::Door(..)) | None => None,
        })
        .collect();
    registered(&names, &members, keys.len(), cluster, report);
    Ok(())
}

/// Those that are registered against those that the router lists.
pub(super) fn registered(names: &str, members: &BTreeSet<String>, keys: usize, cluster: &Cluster, report: &mut Report) {
    let missing = |row: &Value| !members.contains(row["incarnation"].as_str().unwrap_or_default());
    let absent: Vec<String> = cluster
        .nodes
        .iter()
        .filter(|node| missing(&node.row))
        .map(super::asked::Node::name)
        .collect();
    if absent.is_empty() || cluster.away.is_some() {
        let members = members.len();
        report.ok(
            "etcd",
            names,
            format!("answers; {members} nodes are registered, {keys} keys in all"),
        );
        return;
    }
    report.warn(
        "etcd",
        names,
        format!(
            "answers, but these nodes are not registered in it: {}",
            absent.join(", ")
        ),
        "they do not reach it, or use another etcd than this one: see innkeeper_degraded and --etcd of each",
    );
}

/// The certificates in the files that the flags name.
pub(super) fn certificates(config: &StoreConfig, now_ms: u64, report: &mut Report) {
    let client = config
        .client
        .iter()
        .map(|(certificate, _)| ("--etcd-cert", certificate));
    for (flag, path) in config.ca.iter().map(|ca| ("--etcd-ca", ca)).chain(client) {
        let name = format!("{flag} {}", path.display());
        match read(path) {
            Ok(chain) => chain.iter().for_each(|dates| judge(&name, dates, now_ms, report)),
            Err(why) => report.fail(
                "certificate",
                name,
                why,
                "name a PEM file with the certificate, which this user may read",
            ),
        }
    }
}

/// From when until when a certificate is good, in unix milliseconds, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Dates {
    pub(super) subject: String,
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
}

/// All certificates of a file, whatever else is in it, such as their text or a key.
pub(super) fn read(path: &Path) -> Result<Vec<Dates>, String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
    let blocks = text.split(BEGIN).skip(1).map(|rest| {
        let body = rest.split(END).next().unwrap_or_default();
        let pem = format!("{BEGIN}{body}{END}\n");
        let certificate = Certificate::from_pem(pem).map_err(|error| format!("holds what is no certificate: {error}"));
        certificate.map(|certificate| Dates::of(&certificate))
    });
    let chain: Vec<Dates> = blocks.collect::<Result<_, _>>()?;
    if chain.is_empty() {
        return Err("holds no certificate".to_owned());
    }
    Ok(chain)
}

impl Dates {
    fn of(certificate: &Certificate) -> Self {
        let millis = |time: Time| u64::try_from(time.to_unix_duration().as_millis()).unwrap_or(u64::MAX);
        let own = certificate.tbs_certificate();
        Self {
            subject: own.subject().to_string(),
            from_ms: millis(own.validity().not_before),
            to_ms: millis(own.validity().not_after),
        }
    }
}

/// One certificate's dates, by this machine's clock.
pub(super) fn judge(name: &str, dates: &Dates, now_ms: u64, report: &mut Report) {
    let subject = format!("{name} ({})", dates.subject);
    let days = |ms: u64| ms / DAY_MS;
    if dates.to_ms <= now_ms {
        let ago = days(now_ms - dates.to_ms);
        report.fail(
            "certificate",
            subject,
            format!("expired {ago} days ago"),
            "replace it, and restart the nodes that use it",
        );
    } else if dates.from_ms > now_ms {
        report.fail(
            "certificate",
            subject,
            format!("is not good yet: it begins in {} days", days(dates.from_ms - now_ms)),
            "check this machine's clock, or use the certificate that is good now",
        );
    } else if dates.to_ms - now_ms < SOON_DAYS * DAY_MS {
        report.warn(
            "certificate",
            subject,
            format!("expires in {} days", days(dates.to_ms - now_ms)),
            "replace it before that, and restart the nodes that use it",
        );
    } else {
        report.ok(
            "certificate",
            subject,
            format!("is good for {} days", days(dates.to_ms - now_ms)),
        );
    }
}
