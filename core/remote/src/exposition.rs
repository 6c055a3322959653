//! Prometheus' text format, as far as gauges and counters go. A line that is none is skipped: an engine's page is larger
//! than what is looked for, and what is looked for must be found or be missing, never made up.

use std::borrow::Cow;

/// One line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'a str,
    labels: &'a str,
    /// A finite number.
    pub value: f64,
}

impl<'a> Sample<'a> {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.labels;
        while let Some((key, value, after)) = pair(rest) {
            if key == name {
                return Some(unescaped(value));
            }
            rest = after;
        }
        None
    }
}

/// All samples of a page.
pub fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim_start();
    let end = line.find(|letter: char| letter == '{' || letter.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.starts_with('#') {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => {
            let end = closing(inside)?;
            (inside.get(..end)?, inside.get(end + 1..)?)
        }
        None => ("", rest),
    };
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some(Sample { name, labels, value })
}

/// Where the brace is that closes the labels: one outside of quotes.
fn closing(inside: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// The first pair of `labels`: name, value between its quotes, and what follows.
fn pair(labels: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = labels.split_once('=')?;
    let value = rest.trim_start().strip_prefix('"')?;
    let mut escaped = false;
    let end = value.bytes().position(|byte| match byte {
        _ if escaped => {
            escaped = false;
            false
        }
        b'\\' => {
            escaped = true;
            false
        }
        byte => byte == b'"',
    })?;
    let after = value.get(end + 1..)?.trim_start().trim_start_matches(',');
    Some((name.trim(), value.get(..end)?, after))
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_as_engines_write_it() {
        let page = concat!(
            "# HELP vllm:num_requests_running Number of requests.\n",
            "# TYPE vllm:num_requests_running gauge\n",
            "vllm:num_requests_running{engine=\"0\",model_name=\"a, \\\"b\\\" }\"} 3.0\n",
            "process_start_time_seconds 1.76e+09\n",
            "bad{ 1\n",
            "not_a_number{} x\n",
            "endless NaN\n",
            "with_time 5 1700000000\n",
            "  indented{a = \"1\" , b=\"2\"} 7\n",
        );
        let read: Vec<_> = samples(page).collect();
        let names: Vec<_> = read.iter().map(|sample| (sample.name, sample.value)).collect();
        assert_eq!(
            names,
            [
                ("vllm:num_requests_running", 3.0),
                ("process_start_time_seconds", 1.76e9),
                ("with_time", 5.0),
                ("indented", 7.0)
            ]
        );
        assert_eq!(read[0].label("model_name").as_deref(), Some("a, \"b\" }"));
        assert_eq!(read[0].label("engine").as_deref(), Some("0"));
        assert_eq!(read[0].label("none"), None);
        assert_eq!(read[3].label("b").as_deref(), Some("2"));
    }

    proptest! {
        #[test]
        fn no_page_hurts(page in "(?s).{0,400}", looking in "[a-z]{0,3}") {
            for sample in samples(&page) {
                prop_assert!(sample.value.is_finite());
                let _ = sample.label(&looking);
            }
        }

        #[test]
        fn what_is_written_is_read(name in "[a-z_:]{1,20}", value in any::<f64>(), text in "(?s).{0,20}") {
            prop_assume!(value.is_finite());
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            // Other line ends are not escaped by the format, and end the line.
            prop_assume!(!escaped.contains(['\r']));
            let page = format!("{name}{{a=\"x\",b=\"{escaped}\"}} {value}\n");
            let read: Vec<_> = samples(&page).collect();
            prop_assert_eq!(read.len(), 1);
            prop_assert_eq!((read[0].name, read[0].value), (name.as_str(), value));
            let label = read[0].label("b");
            prop_assert_eq!(label.as_deref(), Some(text.as_str()));
        }
    }
}
