//! What a router does for a request whose room is lost after its first token, by route.

use std::fmt;
use std::str::FromStr;

use innkeeper_room::ledger::router::OnFailure;

/// The policy of each route. `migrate` and `fail` are for all routes; `chat=fail` or `completions=fail` for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnFailureRoutes {
    /// Chats.
    pub chat: OnFailure,
    /// Completions, and what comes over gRPC as a prompt.
    pub completions: OnFailure,
}

/// What the policy's text should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no policy: write migrate or fail, for one route as chat=fail or completions=migrate, with commas between"
)]
pub struct NoPolicy(String);

impl FromStr for OnFailureRoutes {
    type Err = NoPolicy;

    fn from_str(text: &str) -> Result<Self, NoPolicy> {
        let mut routes = Self::default();
        for part in text.split(',').map(str::trim) {
            let (route, policy) = part
                .split_once('=')
                .map_or(("", part), |(route, policy)| (route.trim(), policy.trim()));
            let policy = match policy {
                "migrate" => OnFailure::Migrate,
                "fail" => OnFailure::Fail,
                _ => return Err(NoPolicy(part.to_owned())),
            };
            match route {
                "" => (routes.chat, routes.completions) = (policy, policy),
                "chat" => routes.chat = policy,
                "completions" => routes.completions = policy,
                _ => return Err(NoPolicy(part.to_owned())),
            }
        }
        Ok(routes)
    }
}

impl fmt::Display for OnFailureRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chat={},completions={}", self.chat.label(), self.completions.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_for_all_routes_or_for_one() {
        let both = |chat, completions| Ok(OnFailureRoutes { chat, completions });
        assert_eq!("fail".parse(), both(OnFailure::Fail, OnFailure::Fail));
        assert_eq!("chat=fail".parse(), both(OnFailure::Fail, OnFailure::Migrate));
        assert_eq!(
            "fail, completions=migrate".parse(),
            both(OnFailure::Fail, OnFailure::Migrate)
        );
        let all: OnFailureRoutes = "completions=fail".parse().unwrap();
        assert_eq!(all.to_string().parse(), Ok(all), "what is shown can be read");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for wrong in ["retry", "chat=retry", "embeddings=fail", ""] {
            let error = wrong.parse::<OnFailureRoutes>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{wrong}`")), "{error}");
        }
    }
}
