//! Findings: one line each, and what to do about it.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Ok,
    /// It works, but not as it should.
    Warn,
    /// Something does not work.
    Fail,
}

impl Level {
    const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// How bad it is.
    pub(crate) level: Level,
    /// What was looked at: `router`, `node`, `clock`, `version`, `engine`, `rooms`, `data`, `pair`, `etcd`, `certificate`, `probe`.
    pub(crate) check: &'static str,
    /// Whose: a node's name, a pair, a file.
    pub(crate) subject: String,
    /// What was found.
    pub(crate) found: String,
    /// What to do; `None` if nothing is.
    #[serde(rename = "do")]
    pub(crate) advice: Option<String>,
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    router: String,
    pub(crate) findings: Vec<Finding>,
    /// What this look cannot know, in a sentence each.
    pub(crate) limits: Vec<String>,
    /// The number of findings that are warnings.
    warnings: usize,
    /// The number of findings that have failed; the exit status is 1 if there is one.
    failures: usize,
}

impl Report {
    pub(crate) fn new(router: String) -> Self {
        Self {
            router,
            findings: vec![],
            limits: vec![],
            warnings: 0,
            failures: 0,
        }
    }

    pub(crate) fn ok(&mut self, check: &'static str, subject: impl Into<String>, found: impl Into<String>) {
        self.push(Level::Ok, check, subject.into(), found.into(), None);
    }

    pub(crate) fn warn(
        &mut self,
        check: &'static str,
        subject: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.push(Level::Warn, check, subject.into(), found.into(), Some(advice.into()));
    }

    pub(crate) fn fail(
        &mut self,
        check: &'static str,
        subject: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.push(Level::Fail, check, subject.into(), found.into(), Some(advice.into()));
    }

    fn push(&mut self, level: Level, check: &'static str, subject: String, found: String, advice: Option<String>) {
        match level {
            Level::Ok => {}
            Level::Warn => self.warnings += 1,
            Level::Fail => self.failures += 1,
        }
        self.findings.push(Finding {
            level,
            check,
            subject,
            found,
            advice,
        });
    }

    pub(crate) const fn failed(&self) -> bool {
        self.failures > 0
    }

    /// One line per finding.
    pub(crate) fn text(&self) -> String {
        let lines = self.findings.iter().map(|finding| {
            let advice = finding
                .advice
                .as_ref()
                .map_or_else(String::new, |advice| format!(" → {advice}"));
            format!(
                "{:<4}  {:<11}  {}: {}{advice}\n",
                finding.level.label(),
                finding.check,
                finding.subject,
                finding.found
            )
        });
        let limits = self.limits.iter().map(|limit| format!("note  {limit}\n"));
        let ok = self.findings.len() - self.warnings - self.failures;
        let sum = format!("{ok} ok, {} warn, {} FAIL\n", self.warnings, self.failures);
        lines.chain(limits).chain([sum]).collect()
    }
}
