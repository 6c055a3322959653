//! Stop strings across token seams.

/// Looks for stop strings in text that comes in pieces. Text that may still become one is held back.
///
/// The stop string that is *complete* first wins, and of those that end at the same place the longest: so the result
/// does not depend on how the text was cut into pieces.
#[derive(Debug, Default)]
pub(super) struct Stops {
    strings: Vec<String>,
    held: String,
}

impl Stops {
    pub(super) fn new(strings: Vec<String>) -> Self {
        Self {
            strings,
            held: String::new(),
        }
    }

    /// The text that is safe to show, and whether a stop string was found behind it. Nothing may be pushed after one.
    pub(super) fn push(&mut self, text: &str) -> (String, bool) {
        if self.strings.is_empty() {
            return (text.to_owned(), false);
        }
        self.held.push_str(text);
        let found = self
            .strings
            .iter()
            .filter_map(|stop| self.held.find(stop).map(|at| (at + stop.len(), at)));
        if let Some((_, start)) = found.min() {
            let mut shown = std::mem::take(&mut self.held);
            shown.truncate(start);
            return (shown, true);
        }
        let safe = self.held.len() - self.longest_beginning();
        let rest = self.held.split_off(safe);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What is held back, when no more text comes.
    pub(super) fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of the held text with which some stop string begins.
    fn longest_beginning(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = |stop: &String| {
            let most = held.len().min(stop.len().saturating_sub(1));
            (1..=most)
                .rev()
                .find(|len| held.ends_with(&stop.as_bytes()[..*len]))
                .unwrap_or(0)
        };
        // A beginning may end inside of a character of the stop string, but then the held text, which is whole
        // characters, does not end with it.
        self.strings.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(strings: &[&str]) -> Stops {
        Stops::new(strings.iter().map(|text| (*text).to_owned()).collect())
    }

    #[test]
    fn a_beginning_is_held_back_and_given_when_it_was_none() {
        let mut stops = stops(&["END"]);
        assert_eq!(stops.push("an E"), ("an ".to_owned(), false));
        assert_eq!(stops.push("N"), (String::new(), false));
        assert_eq!(stops.push("T"), ("ENT".to_owned(), false));
        assert_eq!(stops.push("EN"), (String::new(), false));
        assert_eq!(stops.push("DING"), (String::new(), true));
    }

    #[test]
    fn the_first_complete_one_wins_in_one_piece_as_in_many() {
        assert_eq!(stops(&["abcd", "bc"]).push("xabcd"), ("xa".to_owned(), true));
        assert_eq!(stops(&["c", "abc"]).push("xabc"), ("x".to_owned(), true));
        let mut pieces = stops(&["abcd", "bc"]);
        let shown: Vec<_> = "xabcd"
            .chars()
            .map(|letter| pieces.push(&letter.to_string()))
            .take_while(|(_, hit)| !hit)
            .collect();
        assert_eq!(shown.into_iter().map(|(text, _)| text).collect::<String>(), "x");
        assert_eq!(pieces.flush(), "");
    }

    #[test]
    fn repeated_beginnings_do_not_lose_text() {
        let mut stops = stops(&["aab"]);
        assert_eq!(stops.push("aaa"), ("a".to_owned(), false));
        assert_eq!(stops.push("a"), ("a".to_owned(), false));
        assert_eq!(stops.push("b!"), (String::new(), true));
    }

    #[test]
    fn characters_of_several_bytes_are_never_cut() {
        let mut stops = stops(&["é\u{301}x"]);
        assert_eq!(stops.push("aé"), ("a".to_owned(), false));
        assert_eq!(stops.push("è"), ("éè".to_owned(), false));
    }
}
