//! What makes a trace whole: every span has its parent, belongs to the service that did the work, and lies within its
//! parent's time.

use std::time::Duration;

use innkeeper_integration::{Span, Trace};

/// The caller's own span, which is not in Jaeger.
pub(crate) const CALLER: &str = "00f067aa0ba902b7";
/// A worker's part may outlive its room on the router, by the wait for blame and what its processor is late; a request the
/// last byte of its answer.
const LATE: Duration = Duration::from_secs(2);

/// Which spans there are to be: rooms, and parts of rooms on workers that live to tell.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    rooms: usize,
    prefill: usize,
    decode: usize,
}

impl Expected {
    pub(crate) const fn rooms(rooms: usize, prefill: usize, decode: usize) -> Self {
        Self { rooms, prefill, decode }
    }

    /// Whether all has arrived.
    pub(crate) fn is_there(&self, trace: &Trace) -> Result<(), String> {
        let counts = [
            ("POST /v1/completions", 1),
            ("request", 1),
            ("room", self.rooms),
            ("prefill room", self.prefill),
            ("decode room", self.decode),
        ];
        for (name, count) in counts {
            let found = trace.named(name).len();
            if found != count {
                return Err(format!("{found} spans of {count} are called `{name}`"));
            }
        }
        let orphan = trace
            .spans
            .iter()
            .find(|span| span.parent != CALLER && trace.parent(span).is_none() && !self.may_be_left(span));
        orphan.map_or(Ok(()), |orphan| Err(format!("no parent yet: {orphan:?}")))
    }

    /// What a decode worker had sent of a part before it was killed: the part's own span went with it.
    fn may_be_left(&self, span: &Span) -> bool {
        self.decode < self.rooms && DECODE.contains(&span.service.as_str()) && span.name != "decode room"
    }
}

/// Panics, with the tree, if it is not whole.
pub(crate) fn check(trace: &Trace, expected: &Expected) {
    expected.is_there(trace).unwrap_or_else(|why| panic!("{why}:\n{trace}"));
    assert_eq!(trace.one("POST /v1/completions").parent, CALLER, "{trace}");
    for span in &trace.spans {
        let Some((services, parents)) = place(&span.name) else {
            panic!("`{}` is no span of ours:\n{trace}", span.name)
        };
        assert!(
            services.contains(&span.service.as_str()),
            "{} is of {}:\n{trace}",
            span.name,
            span.service
        );
        if let Some(parent) = trace.parent(span) {
            assert!(
                parents.contains(&parent.name.as_str()),
                "{} is below {}:\n{trace}",
                span.name,
                parent.name
            );
            nests(trace, span, parent);
        }
    }
    for part in trace.named("prefill room") {
        assert!(trace.names_below(part).contains(&"queue"), "{trace}");
    }
    if trace.one("request").error.is_none() {
        let done: Vec<_> = trace
            .named("room")
            .into_iter()
            .filter(|room| room.error.is_none())
            .collect();
        let [done] = done.as_slice() else {
            panic!("one room is done:\n{trace}")
        };
        has_all_steps(trace, done);
    }
}

/// A room that was done went through everything, on both workers.
fn has_all_steps(trace: &Trace, room: &Span) {
    for (part, steps) in [
        ("prefill room", ["queue", "handshake", "prefill", "transfer"].as_slice()),
        ("decode room", ["queue", "receive", "decode"].as_slice()),
    ] {
        let parts: Vec<_> = trace.below(room).into_iter().filter(|span| span.name == part).collect();
        let [part] = parts.as_slice() else {
            panic!("one {part}:\n{trace}")
        };
        let names = trace.names_below(part);
        for step in steps {
            assert!(names.contains(step), "no `{step}` below {}:\n{trace}", part.name);
        }
    }
    let request = trace.names_below(trace.one("request"));
    assert!(request.contains(&"admission") && request.contains(&"stream"), "{trace}");
}

fn nests(trace: &Trace, span: &Span, parent: &Span) {
    assert!(
        span.start >= parent.start,
        "{} begins before its parent:\n{trace}",
        span.name
    );
    assert!(span.end >= span.start, "{} ends before it begins:\n{trace}", span.name);
    let may_outlive = if span.service != parent.service || span.name == "request" {
        LATE
    } else {
        Duration::ZERO
    };
    let outlives = span.outlives(parent);
    assert!(
        outlives <= may_outlive,
        "{} outlives its parent by {outlives:?}:\n{trace}",
        span.name
    );
}

const ROUTER: &[&str] = &["innkeeper-router"];
const PREFILL: &[&str] = &["innkeeper-prefill"];
const DECODE: &[&str] = &["innkeeper-decode"];

/// The services that make a span, and below which spans it may be.
fn place(name: &str) -> Option<(&'static [&'static str], &'static [&'static str])> {
    Some(match name {
        "POST /v1/completions" => (ROUTER, &[]),
        "request" => (ROUTER, &["POST /v1/completions"]),
        "admission" | "attempt" | "stream" => (ROUTER, &["request"]),
        "room" => (ROUTER, &["attempt"]),
        "prefill room" => (PREFILL, &["room"]),
        "decode room" => (DECODE, &["room"]),
        "queue" | "handshake" => (
            &["innkeeper-prefill", "innkeeper-decode"],
            &["prefill room", "decode room"],
        ),
        "prefill" | "transfer" => (PREFILL, &["prefill room"]),
        "receive" | "decode" => (DECODE, &["decode room"]),
        _ => return None,
    })
}
