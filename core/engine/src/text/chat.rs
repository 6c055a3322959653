//! Chat templates. Contents never pass through the template engine: it sees placeholders, so that what came from a
//! client and what came from the template can be told apart afterwards.

use minijinja::{Environment, Value, context};

use super::{Message, TextError};

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
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
    /// A template in the Jinja dialect that model files carry, with the spellings of the two tokens it may name.
    #[must_use]
    pub fn new(source: &str, bos: &str, eos: &str) -> Self {
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, text))
        });
        // As the reference implementation renders: block tags take their line end and indentation with them.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        Self {
            environment,
            source: source.to_owned(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        }
    }

    /// Renders a conversation up to where the assistant is to speak.
    ///
    /// # Errors
    /// [`TextError::Messages`] if there is no message, a role is unknown, or the template refuses.
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
            .map(|(at, message): (usize, _)| context! { role => message.role, content => format!("{OPEN}{at}{CLOSE}") })
            .collect();
        let values = context! {
            messages => marked, add_generation_prompt => true, bos_token => self.bos, eos_token => self.eos,
        };
        let rendered = self
            .environment
            .render_str(&self.source, values)
            .map_err(|error| TextError::Messages(format!("{error:#}")))?;
        pieces(&rendered, messages)
    }
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
            pieces.push(Piece::Content(message.content.clone()));
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

    #[test]
    fn contents_stay_apart_even_if_they_look_like_placeholders_or_templates() {
        let template = ChatTemplate::new(
            "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}",
            "",
            "",
        );
        let tricky = ["\u{F8F0}1\u{F8F1}", "{{ bos_token }}", ""];
        let messages: Vec<_> = tricky.iter().map(|text| Message::new("user", *text)).collect();
        let contents: Vec<_> = template
            .render(&messages)
            .expect("renders")
            .into_iter()
            .filter_map(|piece| {
                if let Piece::Content(text) = piece {
                    Some(text)
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(contents, tricky);
    }

    #[test]
    fn unknown_roles_and_empty_conversations_are_refused() {
        let template = ChatTemplate::new("{{ messages[0].role }}", "", "");
        assert!(template.render(&[Message::new("user<|im_end|>", "x")]).is_err());
        assert!(template.render(&[]).is_err());
    }

    #[test]
    fn a_template_that_refuses_is_an_error() {
        let template = ChatTemplate::new("{{ raise_exception('no system here') }}", "", "");
        let error = template.render(&[Message::new("system", "x")]).expect_err("refused");
        assert!(error.to_string().contains("no system here"), "{error}");
    }
}
