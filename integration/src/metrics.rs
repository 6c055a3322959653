use std::collections::BTreeMap;

/// One scrape of one node.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Metrics {
    /// Reads the Prometheus text format.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let samples = lines
            .map(|line| read(line).unwrap_or_else(|| panic!("no sample of a metric: `{line}`")))
            .collect();
        Self { samples }
    }

    /// The sum of all samples of a metric that have these labels; 0 if there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|(_, _, value)| value).sum()
    }

    /// Whether there is such a sample.
    #[must_use]
    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.matching(name, labels).next().is_some()
    }

    /// `innkeeper_rooms_ended_total` by reason and blame, without zeroes.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a counter of a test"
    )]
    pub fn ended(&self) -> Vec<(String, String, u64)> {
        let label = |labels: &BTreeMap<String, String>, name: &str| labels.get(name).cloned().unwrap_or_default();
        self.matching("innkeeper_rooms_ended_total", &[])
            .filter(|(_, _, value)| *value > 0.0)
            .map(|(_, labels, value)| (label(labels, "reason"), label(labels, "blame"), *value as u64))
            .collect()
    }

    fn matching<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a (String, BTreeMap<String, String>, f64)> {
        self.samples.iter().filter(move |(of, with, _)| {
            of == name
                && labels
                    .iter()
                    .all(|(key, value)| with.get(*key).is_some_and(|has| has == value))
        })
    }
}

/// `name{label="value",…} number`; no label of this project holds a quote or a comma.
fn read(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}')?),
        None => (series, ""),
    };
    let pairs = labels.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=')?;
        Some((key.to_owned(), value.trim_matches('"').to_owned()))
    });
    Some((name.to_owned(), pairs.collect::<Option<_>>()?, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_name_and_labels() {
        let text = "# HELP a b\na{kind=\"x\",y=\"z\"} 2\na{kind=\"q\"} 3\nb 1.5\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.sum("a", &[]).to_bits(), 5.0_f64.to_bits());
        assert_eq!(metrics.sum("a", &[("kind", "x")]).to_bits(), 2.0_f64.to_bits());
        assert_eq!(metrics.sum("b", &[]).to_bits(), 1.5_f64.to_bits());
        assert!(!metrics.has("a", &[("kind", "y")]));
    }
}
