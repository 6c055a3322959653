//! Engines that run next to their workers and move the KV themselves.

use std::str::FromStr;

use innkeeper_remote::hook::Hook;
use innkeeper_remote::http::Target;
use innkeeper_room::Millis;

use super::engine::{EngineArgs, EngineKind};
use super::{ConfigError, flag, wrong};

/// vLLM's own default, in seconds.
const KV_LEASE: u32 = 30;
/// Longer would be no lease.
const LONGEST_LEASE: u32 = 3600;

/// Where they are, and what is to be known of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// One per worker: those of prefill workers first. None on a router.
    pub urls: Vec<Target>,
    /// What starts the engine, if the worker does: a shell's command line.
    pub command: Option<String>,
    /// Who starts it anew.
    pub restart: Hook,
    /// How long prefill's engines keep KV that nobody reads.
    pub kv_lease: Millis,
}

impl RemoteConfig {
    /// What the arguments say; `None` for the engines that are part of the worker.
    pub(super) fn resolve(args: &EngineArgs, kind: EngineKind) -> Result<Option<Self>, ConfigError> {
        if kind != EngineKind::Vllm {
            return no_remote(args).map(|()| None);
        }
        let urls = args.engine_url.iter().map(|url| {
            Target::from_str(url)
                .map_err(|_| wrong("engine-url", url, "http://host:port, of an engine next to its worker"))
        });
        let restart = args.engine_restart.as_deref();
        let command = args.engine_cmd.clone();
        let right = if command.is_some() {
            "child, or left out: this worker starts the engine (--engine-cmd)"
        } else {
            "probe, none, or exec: and a command (child goes with --engine-cmd)"
        };
        let restart = match (restart.map(str::parse), &command) {
            (None, Some(_)) => Hook::Child,
            (None, None) => Hook::None,
            (Some(Ok(hook)), _) if (hook == Hook::Child) == command.is_some() => hook,
            (Some(_), _) => return Err(wrong("engine-restart", restart.unwrap_or_default(), right)),
        };
        let kv_lease = args.engine_kv_lease.unwrap_or(KV_LEASE);
        if !(1..=LONGEST_LEASE).contains(&kv_lease) {
            return Err(wrong(
                "engine-kv-lease",
                kv_lease,
                "1 to 3600 seconds, as prefill's engine has it",
            ));
        }
        Ok(Some(Self {
            urls: urls.collect::<Result<_, _>>()?,
            command,
            restart,
            kv_lease: Millis(u64::from(kv_lease) * 1000),
        }))
    }

    /// That of one worker of several.
    #[must_use]
    pub fn of(&self, nth: usize) -> Self {
        Self {
            urls: self.urls.get(nth).cloned().into_iter().collect(),
            ..self.clone()
        }
    }

    /// The arguments that give exactly this configuration.
    pub(super) fn to_args(&self) -> Vec<String> {
        let mut args = vec![flag("engine-kv-lease", self.kv_lease.0 / 1000)];
        args.extend(self.command.iter().map(|command| flag("engine-cmd", command)));
        args.extend(self.urls.iter().map(|url| flag("engine-url", format!("http://{url}"))));
        args.push(flag("engine-restart", &self.restart));
        args
    }
}

/// What makes no sense for an engine that is part of the worker is refused by name.
fn no_remote(args: &EngineArgs) -> Result<(), ConfigError> {
    let given = [
        ("engine-url", args.engine_url.first().cloned()),
        ("engine-cmd", args.engine_cmd.clone()),
        ("engine-restart", args.engine_restart.clone()),
        ("engine-kv-lease", args.engine_kv_lease.map(|lease| lease.to_string())),
    ];
    match given
        .into_iter()
        .find_map(|(name, value)| value.map(|value| (name, value)))
    {
        Some((name, value)) => Err(wrong(name, value, "left out: it is for --engine vllm")),
        None => Ok(()),
    }
}
