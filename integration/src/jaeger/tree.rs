use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// All spans of one trace.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// In the order of their beginning.
    pub spans: Vec<Span>,
}

/// One span.
#[derive(Clone, Debug, Default)]
pub struct Span {
    /// Its id.
    pub id: String,
    /// Its parent's; empty without one.
    pub parent: String,
    /// `service.name` of its process.
    pub service: String,
    /// `service.instance.id` of its process.
    pub instance: String,
    /// All that is said of its process, as text.
    pub resource: BTreeMap<String, String>,
    /// Its name.
    pub name: String,
    /// Nanoseconds since 1970.
    pub start: u64,
    /// Nanoseconds since 1970.
    pub end: u64,
    /// Its attributes, as text.
    pub attributes: BTreeMap<String, String>,
    /// Its events: name and attributes.
    pub events: Vec<(String, BTreeMap<String, String>)>,
    /// Spans that it points at.
    pub links: Vec<String>,
    /// The status's message, if the status is ERROR.
    pub error: Option<String>,
}

impl Span {
    /// An attribute; empty if it has none of this name.
    #[must_use]
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    /// The first event of this name.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        let found = self.events.iter().find(|(of, _)| of == name);
        found.map(|(_, attributes)| attributes)
    }

    /// How long it took.
    #[must_use]
    pub fn took(&self) -> Duration {
        Duration::from_nanos(self.end.saturating_sub(self.start))
    }

    /// How much later than another span it ended.
    #[must_use]
    pub fn outlives(&self, other: &Self) -> Duration {
        Duration::from_nanos(self.end.saturating_sub(other.end))
    }
}

impl Trace {
    /// All spans of this name, in the order of their beginning.
    #[must_use]
    pub fn named(&self, name: &str) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.name == name).collect()
    }

    /// The only span of this name; panics if there is another number of them.
    #[must_use]
    pub fn one(&self, name: &str) -> &Span {
        match self.named(name).as_slice() {
            [span] => span,
            other => panic!("{} spans are called `{name}`:\n{self}", other.len()),
        }
    }

    /// The children of a span, in the order of their beginning.
    #[must_use]
    pub fn below(&self, parent: &Span) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.parent == parent.id).collect()
    }

    /// The children of a span by name.
    #[must_use]
    pub fn names_below(&self, parent: &Span) -> Vec<&str> {
        self.below(parent).iter().map(|span| span.name.as_str()).collect()
    }

    /// The parent of a span, if it is in the trace.
    #[must_use]
    pub fn parent(&self, of: &Span) -> Option<&Span> {
        self.spans.iter().find(|span| span.id == of.parent)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, span: &Span, depth: usize) -> fmt::Result {
        let took = span.took().as_secs_f64() * 1e3;
        let indent = "  ".repeat(depth);
        write!(f, "{indent}{} [{}] {took:.1} ms", span.name, span.service)?;
        for name in SHOWN {
            if let Some(value) = span.attributes.get(*name) {
                write!(f, " {}={value}", name.trim_start_matches("innkeeper."))?;
            }
        }
        if let Some(error) = &span.error {
            write!(f, " ERROR({error})")?;
        }
        writeln!(f)?;
        for (name, attributes) in &span.events {
            let shown = attributes
                .iter()
                .map(|(key, value)| format!(" {}={value}", key.trim_start_matches("innkeeper.")));
            writeln!(f, "{indent}  · {name}{}", shown.collect::<String>())?;
        }
        self.below(span)
            .into_iter()
            .try_for_each(|child| self.write(f, child, depth + 1))
    }
}

/// Attributes that are shown with a span.
const SHOWN: &[&str] = &[
    "http.response.status_code",
    "gen_ai.usage.output_tokens",
    "innkeeper.attempt",
    "innkeeper.room",
    "innkeeper.end",
    "innkeeper.epoch",
    "innkeeper.bytes",
    "innkeeper.pages",
    "innkeeper.bytes_per_second",
    "innkeeper.tokens",
    "innkeeper.verdict",
    "innkeeper.blame",
];

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roots = self.spans.iter().filter(|span| self.parent(span).is_none());
        roots.into_iter().try_for_each(|root| self.write(f, root, 0))
    }
}
