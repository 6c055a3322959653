//! The Jinja dialect of chat templates: what the reference implementation (Python's `transformers`) has beyond plain
//! Jinja, and what keeps a template from hanging a router.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::TextError;
use super::calendar::strftime;

/// Steps that one conversation may take: a template takes some hundred for a message, and this many in well under a second.
const FUEL: u64 = 5_000_000;
/// Under this name the environment has the template. Without an ending nothing is escaped.
const NAME: &str = "chat";
/// Bytes that a template may write of its own, beyond what messages allow.
const BASE_BYTES: usize = 1 << 20;
/// Bytes that it may write for each message, beside the content.
const MESSAGE_BYTES: usize = 16 << 10;

/// A compiled template.
pub(super) struct Jinja {
    environment: Environment<'static>,
}

/// Why nothing was rendered.
pub(super) enum Failed {
    /// The template refused these messages, or they do not suit it.
    Messages(String),
    /// The template does not end, or writes without end.
    Template(String),
}

impl Jinja {
    /// # Errors
    /// [`TextError::Template`] for what is no template.
    pub(super) fn new(source: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        // As the reference implementation renders: block tags take their line end and indentation with them.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment
            .add_template_owned(NAME, without_generation(source))
            .map_err(|error| TextError::Template(format!("{error:#}")))?;
        Ok(Self { environment })
    }

    /// What the template makes of these values, of which `messages` are so many.
    pub(super) fn render(&self, values: &Value, messages: usize, content_bytes: usize) -> Result<String, Failed> {
        let limit = BASE_BYTES + content_bytes + messages * MESSAGE_BYTES;
        let mut page = Page {
            text: Vec::new(),
            limit,
            full: false,
        };
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render_captured_to(values, &mut page).map(drop));
        match rendered {
            Ok(()) => String::from_utf8(page.text).map_err(|error| Failed::Template(error.to_string())),
            Err(_) if page.full => Err(Failed::Template(format!(
                "it wrote more than {limit} bytes for {messages} messages"
            ))),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(Failed::Template(format!(
                "it took more than {FUEL} steps for {messages} messages"
            ))),
            Err(error) => Err(Failed::Messages(format!("{error:#}"))),
        }
    }
}

/// Takes so many bytes and no more.
struct Page {
    text: Vec<u8>,
    limit: usize,
    full: bool,
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            self.full = true;
            return Err(io::Error::other("the page is full"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `{% generation %}` marks what a model is trained on and writes nothing.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.find("{%").map(|at| rest.split_at(at)) {
        let Some(end) = tag.find("%}") else { break };
        let (tag, after) = tag.split_at(end + 2);
        out.push_str(before);
        match tag[2..end].trim_matches(|letter: char| matches!(letter, '-' | '+') || letter.is_whitespace()) {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn strftime_now(format: &str) -> Result<String, Error> {
    // A clock before 1970 is no reason to refuse a chat.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_secs());
    strftime(format, now).map_err(|error| Error::new(ErrorKind::InvalidOperation, error))
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let broken = |error: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}"));
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut json = Vec::new();
    let written = match indent {
        // More than this nobody means.
        Some(indent) => {
            let spaces = " ".repeat(indent.min(16));
            value.serialize(&mut Serializer::with_formatter(
                &mut json,
                PrettyFormatter::with_indent(spaces.as_bytes()),
            ))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut json, Python)),
    };
    written.map_err(|error| broken(&error))?;
    String::from_utf8(json).map_err(|error| broken(&error))
}

/// A space after each comma and colon.
struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    fn render(source: &str) -> Result<String, Failed> {
        let jinja = Jinja::new(source).unwrap_or_else(|error| panic!("{error}"));
        jinja.render(&context! { a => "x" }, 1, 0)
    }

    fn text(source: &str) -> String {
        match render(source) {
            Ok(text) => text,
            Err(Failed::Messages(why) | Failed::Template(why)) => panic!("{why}"),
        }
    }

    #[test]
    fn a_template_that_does_not_end_or_writes_without_end_is_given_up() {
        for source in [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% for a in range(99999) %}{{ 'sixteen letters.' * 9 }}{% endfor %}",
        ] {
            match render(source) {
                Err(Failed::Template(why)) => assert!(why.contains("more than"), "{why}"),
                Ok(_) | Err(Failed::Messages(_)) => panic!("{source} was not given up"),
            }
        }
    }

    #[test]
    fn it_speaks_the_dialect() {
        assert_eq!(text("{% generation %}a{%- endgeneration -%} b"), "ab");
        assert_eq!(text("{{ {'k': [1, 'ü<']} | tojson }}"), "{\"k\": [1, \"ü<\"]}");
        assert_eq!(text("{{ [1] | tojson(indent=2) }}"), "[\n  1\n]");
        assert_eq!(
            text("{% for a in [1, 2, 3] %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% endfor %}"),
            "1"
        );
        assert_eq!(
            text("{{ ' a,b '.strip().split(',')[-1] }}{{ [1, 2][::-1] }}"),
            "b[2, 1]"
        );
        assert_eq!(text("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}"), "2");
        assert_eq!(
            text("{% if strftime_now is defined %}{{ strftime_now('%Y') | length }}{% endif %}"),
            "4"
        );
    }

    #[test]
    fn what_is_no_template_is_refused_when_it_is_loaded() {
        assert!(matches!(Jinja::new("{% if %}"), Err(TextError::Template(_))));
    }
}
