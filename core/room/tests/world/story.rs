//! Stories for people: names instead of numbers, and nothing that says nothing.

use crate::node::incarnation;
use crate::world::World;

/// Fields that are left out of a story when they hold this.
const EMPTY: [&str; 9] = [
    "0",
    "false",
    "None",
    "Nobody",
    "Millis(0)",
    "Counters",
    "Evidence",
    "\"\"",
    "[]",
];

/// Fields of a room's spec that a story can do without.
const PLAIN: [&str; 6] = ["request", "attempt", "router", "prefill", "decode", "queue_left"];

impl World {
    /// A line of the story: `X <- what X is told`, `X -> what X orders`.
    pub(crate) fn say(&mut self, text: &str) {
        self.lines += 1;
        let line = self.named(&brief(text));
        println!("{:>5}. {:>6} ms  {line}", self.lines, self.now);
    }

    /// Puts names in the place of ids.
    pub(crate) fn named(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (index, node) in self.nodes.iter().enumerate() {
            for life in 0..=node.life {
                let again = if life > 0 {
                    format!("{} (life {})", node.name(), life + 1)
                } else {
                    node.name()
                };
                text = text.replace(&incarnation(index, life).to_string(), &again);
            }
        }
        for (room, number) in &self.story_rooms {
            text = text.replace(&format!("room: {room}"), &format!("room {number}"));
            text = text.replace(&room.to_string(), &format!("room {number}"));
        }
        text.replace("room room", "room")
    }
}

/// Leaves out of `Name { field: value, … }` what is empty or plain.
fn brief(text: &str) -> String {
    let Some(open) = text.find(" { ") else {
        return text.to_owned();
    };
    let Some(close) = closing(&text[open + 3..]).map(|at| open + 3 + at) else {
        return text.to_owned();
    };
    let of_spec = text[..open].ends_with("RoomSpec");
    let kept: Vec<String> = fields(&text[open + 3..close])
        .into_iter()
        .filter(|field| !(of_spec && PLAIN.iter().any(|plain| field.starts_with(plain))))
        .filter_map(|field| keep(&field))
        .collect();
    let inside = if kept.is_empty() {
        String::new()
    } else {
        format!(" {{ {} }}", kept.join(", "))
    };
    format!(
        "{}{inside}{}",
        &text[..open],
        brief(text[close..].trim_start_matches(" }"))
    )
}

/// A field as the story has it, if it says something.
fn keep(field: &str) -> Option<String> {
    let Some((name, value)) = field.split_once(": ") else {
        return Some(brief(field));
    };
    let value = brief(value);
    if EMPTY.contains(&value.as_str()) {
        return None;
    }
    if name == "spec" {
        let inside = value.trim_start_matches("RoomSpec { ").trim_end_matches(" }");
        return Some(inside.to_owned());
    }
    Some(format!("{name}: {value}"))
}

/// Where the brace that is open at the start of `text` is closed: the place of its ` }`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at.saturating_sub(1));
        }
    }
    None
}

/// The fields between two braces.
fn fields(text: &str) -> Vec<String> {
    let (mut depth, mut field, mut found) = (0, String::new(), vec![]);
    for letter in text.chars() {
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if letter == ',' && depth == 0 {
            found.push(std::mem::take(&mut field).trim().to_owned());
        } else {
            field.push(letter);
        }
    }
    found.push(field.trim().to_owned());
    found
}

#[test]
fn a_line_is_left_with_what_it_says() {
    let said = "D2 -> Tell { room: 7, message: Ended { end: Done, evidence: Evidence { waited: Millis(0), waited_for: Nobody, \
                counters: Counters { sent: 0 }, engine_owes: Millis(5) }, relayed: false } }";
    assert_eq!(
        brief(said),
        "D2 -> Tell { room: 7, message: Ended { end: Done, evidence: Evidence { engine_owes: Millis(5) } } }"
    );
}
