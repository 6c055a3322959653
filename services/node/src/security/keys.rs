//! API keys: made, hashed, read, compared.
//!
//! A key is 256 random bits, so that its hash alone gives nothing away and needs no salt and no slow function.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use ring::digest::{SHA256, digest};
use subtle::{Choice, ConstantTimeEq};

/// How a key begins, so that people and scanners of secrets know one when they see it.
const PREFIX: &str = "ik-";
/// How its hash begins.
const HASH: &str = "sha256:";
/// A key that is shorter can be guessed, whatever its hash.
const SHORTEST: usize = 20;
/// Far beyond any key; the front door refuses longer headers anyway.
const LONGEST: usize = 1024;
/// The longest name: it goes into logs and the rooms' records.
const LONGEST_NAME: usize = 64;
/// Each request is compared with all of them.
const MOST: usize = 10_000;

/// What is wrong with a key, its name, or a file of them. Never holds a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A line.
    #[error("line {line} is wrong: {why}; a line is `NAME sha256:HEX`, as `innkeeper key new NAME` prints it")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// There is none, and so nobody could ask.
    #[error("there is no key; add one with `innkeeper key new NAME`, or leave the flag out to let everybody ask")]
    None,
    /// There are too many.
    #[error("there are more than {MOST} keys")]
    TooMany,
    /// A name.
    #[error("`{0}` is no name: it must be 1 to {LONGEST_NAME} letters, digits, dots, dashes or underscores")]
    Name(String),
    /// A key.
    #[error(
        "a key must be {SHORTEST} to {LONGEST} printable ASCII characters without spaces; `innkeeper key new NAME` makes one"
    )]
    Key,
    /// The system.
    #[error("the system gives no random numbers ({0})")]
    Random(String),
}

/// What a tenant is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// The name of the key that it showed.
    Key,
    /// The address that it asks from, where keys are not asked for. That proves nothing: all behind one proxy have the same.
    Address,
}

impl KnownBy {
    const fn label(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Address => "address",
        }
    }
}

/// Who asks, as a number for workers: the same at every router, and never 0, which is nobody. Made of the name of a key, never of
/// the key; and a key that is named like an address is another tenant than that address.
#[must_use]
pub fn tenant_number(by: KnownBy, name: &str) -> u128 {
    let hash = digest(&SHA256, format!("innkeeper tenant {} {name}", by.label()).as_bytes());
    let folded = hash
        .as_ref()
        .iter()
        .take(16)
        .fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    folded.max(1)
}

/// A fresh key.
///
/// # Errors
/// [`KeyError::Random`].
pub fn new_key() -> Result<String, KeyError> {
    let mut bits = [0_u8; 32];
    getrandom::fill(&mut bits).map_err(|error| KeyError::Random(error.to_string()))?;
    Ok(format!("{PREFIX}{}", hex(&bits)))
}

/// The line of a file that lets this key in, under this name.
///
/// # Errors
/// [`KeyError`] says what is wrong with the name or the key.
pub fn key_line(name: &str, key: &str) -> Result<String, KeyError> {
    if !is_name(name) {
        return Err(KeyError::Name(name.chars().take(LONGEST_NAME).collect()));
    }
    if !(SHORTEST..=LONGEST).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(KeyError::Key);
    }
    Ok(format!("{name} {HASH}{}", hex(&hash(key))))
}

/// Who may ask: names and the hashes of their keys. Several keys may have one name, as while one is replaced by another.
#[derive(Clone, PartialEq, Eq)]
pub struct Keyring {
    entries: Vec<(Arc<str>, [u8; 32])>,
}

impl Keyring {
    /// Reads lines; empty ones and those that begin with `#` say nothing.
    ///
    /// # Errors
    /// [`KeyError`] names the line. That there is no key at all is an error too: a file that was emptied by mistake must
    /// neither open the door for everybody nor close it for all.
    pub fn parse(texts: &[&str]) -> Result<Self, KeyError> {
        let (mut entries, mut known) = (vec![], HashSet::new());
        for text in texts {
            for (index, line) in text.lines().enumerate() {
                let line = (index + 1, line.trim());
                if line.1.is_empty() || line.1.starts_with('#') {
                    continue;
                }
                let entry = entry(line.1).map_err(|why| KeyError::Line { line: line.0, why })?;
                if !known.insert(entry.1) {
                    let why = "its key is there already";
                    return Err(KeyError::Line { line: line.0, why });
                }
                entries.push(entry);
            }
        }
        match entries.len() {
            0 => Err(KeyError::None),
            1..=MOST => Ok(Self { entries }),
            _ => Err(KeyError::TooMany),
        }
    }

    /// Whose key it is. Takes the same time for every key, known or not: all are compared, each in full.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<Arc<str>> {
        let guess = hash(key);
        let mut found = None;
        for (name, own) in &self.entries {
            let same: Choice = own.ct_eq(&guess);
            if bool::from(same) {
                found = Some(Arc::clone(name));
            }
        }
        found
    }

    /// How many keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Never: see [`Self::parse`].
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl fmt::Debug for Keyring {
    /// Names alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.entries.iter().map(|(name, _)| name))
            .finish()
    }
}

/// The keys that count now.
#[derive(Debug)]
pub struct Keys(RwLock<Arc<Keyring>>);

impl Keys {
    /// These, until others take their place.
    #[must_use]
    pub fn new(ring: Keyring) -> Self {
        Self(RwLock::new(Arc::new(ring)))
    }

    /// As [`Keyring::find`].
    #[must_use]
    pub fn find(&self, key: &str) -> Option<Arc<str>> {
        let ring = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        ring.find(key)
    }

    /// From now on these count.
    pub fn replace(&self, ring: Keyring) {
        tracing::info!(keys = ring.len(), "API keys were read");
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ring);
    }
}

fn entry(line: &str) -> Result<(Arc<str>, [u8; 32]), &'static str> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(hash), None) = (words.next(), words.next(), words.next()) else {
        return Err("it has not two words");
    };
    if !is_name(name) {
        return Err("its name may only have letters, digits, dots, dashes and underscores, and at most 64 of them");
    }
    let digits = hash
        .strip_prefix(HASH)
        .ok_or("its second word does not begin with `sha256:`")?;
    let digest = unhex(digits).ok_or("its hash is not 64 hexadecimal digits")?;
    Ok((name.into(), digest))
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(plain)
}

fn hash(key: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Option<[u8; 32]> {
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_number_is_its_own() {
        let (key, address) = (KnownBy::Key, KnownBy::Address);
        assert_eq!(tenant_number(key, "a"), tenant_number(key, "a"));
        assert_ne!(tenant_number(key, "a"), tenant_number(key, "b"));
        // Names of keys may have digits and dots.
        assert_ne!(tenant_number(key, "10.0.0.1"), tenant_number(address, "10.0.0.1"));
        assert_ne!(tenant_number(address, ""), 0);
    }

    #[test]
    fn a_key_that_was_made_is_found_and_nothing_like_it() {
        let (key, other) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(key, other);
        assert!(key.starts_with(PREFIX) && key.len() == 67, "{key}");
        let line = key_line("tenant-a", &key).unwrap();
        assert!(!line.contains(&key[3..]), "hashed");
        let ring = Keyring::parse(&["# who may\n\n", &line]).unwrap();
        assert_eq!(ring.find(&key).as_deref(), Some("tenant-a"));
        for wrong in [&other, &key.to_uppercase(), &format!("{key} "), &key[..66], ""] {
            assert_eq!(ring.find(wrong), None, "{wrong}");
        }
        assert_eq!(format!("{ring:?}"), r#"["tenant-a"]"#);
    }

    #[test]
    fn the_hash_is_that_of_other_tools() {
        // printf %s ik-00000000000000000000 | sha256sum
        let line = key_line("a", "ik-00000000000000000000").unwrap();
        assert_eq!(line.split_once(HASH).unwrap().1.len(), 64);
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hex(&hash("")), empty);
        assert_eq!(unhex(empty), Some(hash("")));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let wrong = |text: &str, expected: &str| {
            let error = Keyring::parse(&["", text]).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        wrong("", "there is no key");
        wrong("# a\n", "there is no key");
        wrong("a", "line 1 is wrong: it has not two words");
        wrong(&format!("a {hash}\nb c d"), "line 2");
        wrong("a md5:00", "line 1 is wrong: its second word");
        wrong("a sha256:00", "64 hexadecimal digits");
        wrong(&format!("a sha256:{}", "é".repeat(32)), "64 hexadecimal digits");
        wrong(&format!("a/b {hash}"), "line 1 is wrong: its name");
        wrong(
            &format!("a {hash}\nb {hash}"),
            "line 2 is wrong: its key is there already",
        );
    }

    #[test]
    fn a_key_that_can_be_guessed_is_refused() {
        assert_eq!(key_line("a", "secret"), Err(KeyError::Key));
        assert_eq!(key_line("a", &"x y".repeat(10)), Err(KeyError::Key));
        assert_eq!(key_line("a b", &"x".repeat(30)), Err(KeyError::Name("a b".to_owned())));
        assert!(!format!("{:?}", key_line("a", "secret").unwrap_err()).contains("secret"));
    }
}
