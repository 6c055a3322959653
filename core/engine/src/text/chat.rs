//! Chat templates. Contents never pass through the template engine: it sees placeholders, so that what came from a
//! client and what came from the template can be told apart afterwards.

use std::collections::BTreeMap;

use minijinja::{Value, context};

use super::jinja::{Failed, Jinja};
use super::{Message, TextError};

/// A model's chat template.
pub struct ChatTemplate {
    jinja: Jinja,
    /// Special tokens that it may name, such as `bos_token`, with their spellings.
    names: BTreeMap<String, String>,
}

/// A stretch of a rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Written by the template: special tokens in it are meant.
    Template(String),
    /// Written by somebody in the conversation: text, whatever it looks like.
    Content(String),
}

/// Roles are written into the prompt by the template, so only known ones may get there.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// Private-use characters around a number. A template that contains these is refused.
const OPEN: char = '\u{F8F0}';
const CLOSE: char = '\u{F8F1}';

impl ChatTemplate {
    /// A template in the Jinja dialect that models carry, with the special tokens that it may name: `bos_token` and
    /// the like, and how they are spelled.
    ///
    /// # Errors
    /// [`TextError::Template`] for what is no template.
    pub fn new(source: &str, names: &[(&str, &str)]) -> Result<Self, TextError> {
        if source.contains([OPEN, CLOSE]) {
            return Err(TextError::Template(format!(
                "it contains U+{:X} or U+{:X}, which stand for contents here",
                u32::from(OPEN),
                u32::from(CLOSE)
            )));
        }
        let owned = |(name, spelling): &(&str, &str)| ((*name).to_owned(), (*spelling).to_owned());
        Ok(Self {
            jinja: Jinja::new(source)?,
            names: names.iter().map(owned).collect(),
        })
    }

    /// Renders a conversation up to where the assistant is to speak.
    ///
    /// # Errors
    /// [`TextError::Messages`] if there is no message, a role is unknown, or the template refuses;
    /// [`TextError::Template`] if it comes to no end.
    pub fn render(&self, messages: &[Message]) -> Result<Vec<Piece>, TextError> {
        if messages.is_empty() {
            return Err(TextError::Messages("there is no message".to_owned()));
        }
        if let Some(message) = messages.iter().find(|message| !ROLES.contains(&message.role.as_str())) {
            return Err(TextError::Messages(format!(
                "the role `{}` is none of {}",
                message.role,
                ROLES.join(", ")
            )));
        }
        let marked: Vec<Value> = (0..)
            .zip(messages)
            .map(|(at, message)| context! { role => message.role, content => placeholder(at, &message.content) })
            .collect();
        let values = context! {
            messages => marked, add_generation_prompt => true, tools => Value::from(()), documents => Value::from(()),
            ..Value::from_serialize(&self.names)
        };
        let content_bytes = messages.iter().map(|message| message.content.len()).sum();
        let rendered = self.jinja.render(&values, messages.len(), content_bytes);
        let rendered = rendered.map_err(|failed| match failed {
            Failed::Messages(why) => TextError::Messages(why),
            Failed::Template(why) => TextError::Template(why),
        })?;
        pieces(&rendered, messages)
    }
}

/// What the template sees of a content: a placeholder, between the white space around it. So templates can strip that, and
/// ask whether there is anything.
fn placeholder(at: usize, content: &str) -> String {
    let trimmed = content.trim();
    if trimmed.is_empty() {
        return content.to_owned();
    }
    let (before, rest) = content.split_at(content.len() - content.trim_start().len());
    format!("{before}{OPEN}{at}{CLOSE}{}", &rest[trimmed.len()..])
}

/// Puts the contents where their placeholders are.
fn pieces(rendered: &str, messages: &[Message]) -> Result<Vec<Piece>, TextError> {
    let mut pieces = Vec::new();
    for (at, part) in rendered.split(OPEN).enumerate() {
        let text = if at == 0 {
            part
        } else {
            let broken = || TextError::Messages("the template took a content apart".to_owned());
            let (number, text) = part.split_once(CLOSE).ok_or_else(broken)?;
            let message = number
                .parse()
                .ok()
                .and_then(|number: usize| messages.get(number))
                .ok_or_else(broken)?;
            pieces.push(Piece::Content(message.content.trim().to_owned()));
            text
        };
        if !text.is_empty() {
            pieces.push(Piece::Template(text.to_owned()));
        }
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source, &[("bos_token", "<s>")]).expect("a template")
    }

    fn text(pieces: Vec<Piece>) -> String {
        pieces
            .into_iter()
            .map(|piece| match piece {
                Piece::Template(text) | Piece::Content(text) => text,
            })
            .collect()
    }

    #[test]
    fn contents_stay_apart_even_if_they_look_like_placeholders_or_templates() {
        let template = template("{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}");
        let tricky = ["\u{F8F0}1\u{F8F1}", "{{ bos_token }}", "<s>"];
        let messages: Vec<_> = tricky.iter().map(|text| Message::new("user", *text)).collect();
        let contents: Vec<_> = template
            .render(&messages)
            .expect("renders")
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Content(text) => Some(text),
                Piece::Template(_) => None,
            })
            .collect();
        assert_eq!(contents, tricky);
    }

    #[test]
    fn a_template_may_strip_contents_and_ask_whether_there_is_one() {
        let says = "{% for m in messages %}[{{ m.content | trim }}|{{ m.content.lstrip() }}|{{ m.content }}{% if not m.content \
                    %}nothing{% endif %}]{% endfor %}{{ tools is none }}{{ bos_token }}";
        let messages = [
            Message::new("user", "\n é x \u{3000}"),
            Message::new("user", ""),
            Message::new("user", " "),
        ];
        let rendered = template(says).render(&messages).expect("renders");
        assert_eq!(
            text(rendered),
            "[é x|é x \u{3000}|\n é x \u{3000}][||nothing][|| ]True<s>"
        );
    }

    #[test]
    fn unknown_roles_and_empty_conversations_are_refused() {
        let template = template("{{ messages[0].role }}");
        assert!(template.render(&[Message::new("user<|im_end|>", "x")]).is_err());
        assert!(template.render(&[]).is_err());
    }

    #[test]
    fn a_template_that_refuses_is_an_error() {
        let template = template("{{ raise_exception('no system here') }}");
        let error = template.render(&[Message::new("system", "x")]).expect_err("refused");
        assert!(error.to_string().contains("no system here"), "{error}");
    }

    #[test]
    fn a_template_with_placeholders_of_its_own_is_refused() {
        assert!(ChatTemplate::new("\u{F8F0}0\u{F8F1}", &[]).is_err());
    }
}
