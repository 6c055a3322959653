//! Where decode's engine finds a room's KV. It is made by prefill's worker and travels in the manifest; no field of a
//! client ever becomes one.

use innkeeper_room::RoomId;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::failure::RemoteError;

/// Longest ticket in bytes. vLLM names each block: a prompt of a million tokens in blocks of 16 takes half of it.
pub const LONGEST_TICKET: usize = 1 << 20;
/// One list per KV group, with one number per block.
const BLOCKS: &str = "remote_block_ids";

/// A ticket.
#[derive(Clone, Debug, PartialEq)]
pub enum Ticket {
    /// vLLM: what prefill's engine said, as it was written.
    Vllm(VllmTicket),
    /// SGLang: where both engines meet.
    Sglang(Bootstrap),
}

/// The bytes are no ticket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no ticket: {0}")]
pub struct TicketError(String);

/// What vLLM's prefill says about a prompt that it computed. Its set of fields grows with each release, so it is passed on
/// as it is.
#[derive(Clone, Debug)]
pub struct VllmTicket {
    raw: Box<RawValue>,
    engine_id: String,
    request_id: String,
    blocks: usize,
}

impl PartialEq for VllmTicket {
    fn eq(&self, other: &Self) -> bool {
        self.raw.get() == other.raw.get()
    }
}

/// The fields without which decode's engine would quietly compute the prompt itself.
#[derive(Deserialize)]
struct Needed {
    do_remote_prefill: bool,
    remote_engine_id: String,
    remote_request_id: String,
    remote_host: String,
    remote_port: u16,
    remote_block_ids: serde_json::Value,
}

impl VllmTicket {
    /// Reads `kv_transfer_params` of an answer of prefill's engine.
    ///
    /// # Errors
    /// [`TicketError`] says what is missing.
    pub fn new(raw: &RawValue) -> Result<Self, TicketError> {
        if raw.get().len() > LONGEST_TICKET {
            return Err(TicketError(format!("it is longer than {LONGEST_TICKET} bytes")));
        }
        let needed: Needed = serde_json::from_str(raw.get()).map_err(|error| TicketError(error.to_string()))?;
        let blocks = blocks(&needed.remote_block_ids);
        let empty = [
            (!needed.do_remote_prefill, "do_remote_prefill"),
            (needed.remote_engine_id.is_empty(), "remote_engine_id"),
            (needed.remote_request_id.is_empty(), "remote_request_id"),
            (needed.remote_host.is_empty(), "remote_host"),
            (needed.remote_port == 0, "remote_port"),
            (blocks == 0, BLOCKS),
        ];
        if let Some((_, name)) = empty.iter().find(|(empty, _)| *empty) {
            return Err(TicketError(format!("`{name}` is empty")));
        }
        Ok(Self {
            raw: raw.to_owned(),
            engine_id: needed.remote_engine_id,
            request_id: needed.remote_request_id,
            blocks,
        })
    }

    /// As it was written.
    #[must_use]
    pub fn raw(&self) -> &RawValue {
        &self.raw
    }

    /// Prefill's engine: one life of it.
    #[must_use]
    pub fn engine_id(&self) -> &str {
        &self.engine_id
    }

    /// Blocks that are kept for it.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// Whether it is of this room: vLLM's own ids have ours in them.
    #[must_use]
    pub fn is_of(&self, room: RoomId) -> bool {
        self.request_id.contains(&format!("ik-{room}-"))
    }
}

fn blocks(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => items.iter().map(blocks).sum(),
        serde_json::Value::Number(_) => 1,
        _ => 0,
    }
}

/// Where both engines of SGLang meet for a room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// Prefill's host, as decode reaches it.
    pub host: String,
    /// Prefill's bootstrap port.
    pub port: u16,
    /// The room, which both engines know by the same number.
    pub room: RoomId,
}

impl Ticket {
    /// Its bytes in a manifest.
    ///
    /// # Errors
    /// [`TicketError`] if there would be too many.
    pub fn encode(&self) -> Result<Vec<u8>, TicketError> {
        let mut bytes = match self {
            Self::Vllm(_) => vec![b'v'],
            Self::Sglang(_) => vec![b's'],
        };
        match self {
            Self::Vllm(ticket) => bytes.extend_from_slice(ticket.raw.get().as_bytes()),
            Self::Sglang(ticket) => {
                let json = serde_json::to_vec(ticket).map_err(|error| TicketError(error.to_string()))?;
                bytes.extend_from_slice(&json);
            }
        }
        if bytes.len() > LONGEST_TICKET {
            return Err(TicketError(format!("it is longer than {LONGEST_TICKET} bytes")));
        }
        Ok(bytes)
    }

    /// Reads the bytes of a manifest. Never panics, whatever they are.
    ///
    /// # Errors
    /// [`TicketError`] says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, TicketError> {
        let wrong = |error: serde_json::Error| TicketError(error.to_string());
        if bytes.len() > LONGEST_TICKET {
            return Err(TicketError(format!("it is longer than {LONGEST_TICKET} bytes")));
        }
        match bytes.split_first() {
            Some((b'v', json)) => {
                let raw: Box<RawValue> = serde_json::from_slice(json).map_err(wrong)?;
                VllmTicket::new(&raw).map(Self::Vllm)
            }
            Some((b's', json)) => {
                let ticket: Bootstrap = serde_json::from_slice(json).map_err(wrong)?;
                if ticket.host.is_empty() || ticket.host.len() > 255 || ticket.port == 0 {
                    return Err(TicketError("it names no place".to_owned()));
                }
                Ok(Self::Sglang(ticket))
            }
            Some((kind, _)) => Err(TicketError(format!("no engine has the letter {kind:#04x}"))),
            None => Err(TicketError("it is empty".to_owned())),
        }
    }
}

impl From<TicketError> for RemoteError {
    fn from(error: TicketError) -> Self {
        Self::NoTicket { why: error.0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = r#"{"do_remote_prefill":true, "do_remote_decode":false,"remote_block_ids":[[3,4],[9]],
        "remote_engine_id":"e-1","remote_request_id":"cmpl-ik-00000000000000ab-1-0-deadbeef","remote_host":"10.0.0.1",
        "remote_port":5600,"tp_size":1,"remote_blocks_expiry_time":null,"new_in_a_later_release":{"x":1.50}}"#;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    #[test]
    fn a_ticket_goes_on_as_it_was_written() {
        let ticket = VllmTicket::new(&raw(GOOD)).expect("good");
        assert_eq!((ticket.blocks(), ticket.engine_id()), (3, "e-1"));
        assert!(ticket.is_of(RoomId::from_random(0xab)) && !ticket.is_of(RoomId::from_random(0xac)));
        let ticket = Ticket::Vllm(ticket);
        let bytes = ticket.encode().expect("short");
        assert!(bytes.ends_with(GOOD.as_bytes()));
        assert_eq!(Ticket::decode(&bytes), Ok(ticket));
    }

    #[test]
    fn what_would_be_computed_again_is_no_ticket() {
        for (from, to) in [
            ("\"do_remote_prefill\":true", "\"do_remote_prefill\":false"),
            ("[[3,4],[9]]", "[[],[]]"),
            ("[[3,4],[9]]", "null"),
            ("\"e-1\"", "\"\""),
            ("5600", "0"),
            ("5600", "null"),
            ("\"remote_host\"", "\"other\""),
        ] {
            let text = GOOD.replace(from, to);
            assert!(VllmTicket::new(&raw(&text)).is_err(), "{to}");
        }
    }

    #[test]
    fn sglang_meets_at_a_place() {
        let ticket = Ticket::Sglang(Bootstrap {
            host: "10.0.0.1".to_owned(),
            port: 8998,
            room: RoomId::from_random(7),
        });
        let bytes = ticket.encode().expect("short");
        assert_eq!(Ticket::decode(&bytes), Ok(ticket));
        assert!(Ticket::decode(br#"s{"host":"","port":1,"room":"0000000000000007"}"#).is_err());
        assert!(Ticket::decode(br#"s{"host":"a","port":1,"room":"0000000000000000"}"#).is_err());
        assert!(Ticket::decode(br#"s{"host":"a","port":1,"room":"0000000000000007","x":1}"#).is_err());
        assert!(Ticket::decode(b"").is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Ticket::decode(&bytes);
        }

        #[test]
        fn damaged_tickets_are_refused_or_read_back(at in 0usize..400, byte in any::<u8>()) {
            let mut bytes = [b"v", GOOD.as_bytes()].concat();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(ticket) = Ticket::decode(&bytes) {
                prop_assert_eq!(Ticket::decode(&ticket.encode().expect("no longer")), Ok(ticket));
            }
        }
    }
}
