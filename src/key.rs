//! The idempotency key: what makes two requests one operation.

use std::fmt;
use std::sync::Arc;

use rand::TryRng as _;
use rand::rngs::SysRng;

/// The key that a server sees for one operation, the same on every attempt.
///
/// A key that exists can be sent: it is not empty, at most [`MAX_BYTES`](Self::MAX_BYTES) long, and printable ASCII.
/// What a particular server accepts beyond that is its [`Contract`](crate::Contract)'s rule.
///
/// A key gives whoever has it a view of the stored reply, so `Debug` shows its last four characters only. It also ends
/// up in the server's logs: make no key from an e-mail address or anything else about a person.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The longest key that any contract of this crate allows.
    pub const MAX_BYTES: usize = 1000;

    /// A new UUID v4: 122 random bits, drawn from the operating system for this key alone. No generator is seeded, so
    /// processes forked or restored from one snapshot do not repeat each other's keys.
    ///
    /// # Errors
    ///
    /// The operating system could not give randomness.
    pub fn generate() -> Result<Self, KeyError> {
        let mut bytes = [0_u8; 16];
        SysRng.try_fill_bytes(&mut bytes).map_err(|error| KeyError::NoRandomness(error.to_string()))?;
        Ok(Self::of_uuid(uuid::Builder::from_random_bytes(bytes).into_uuid()))
    }

    /// A key that follows from the operation's id alone: a UUID v5 (RFC 9562 section 5.5) of the namespace and the id. Any
    /// process that knows both makes the same key again, with no journal at all.
    ///
    /// It is weaker than a recorded key in four ways. Nothing remembers when it was first sent, so nobody refuses a retry that
    /// the server's window no longer protects. Another payload under the same id is noticed by the server only. An id that is
    /// ever used twice, such as a number that starts again, repeats an old key. And whoever can guess the id can guess the key.
    ///
    /// `namespace` keeps systems apart that use the same ids, such as `shop.example/live`.
    ///
    /// ```
    /// use reqwest_idempotency::IdempotencyKey;
    ///
    /// let key = IdempotencyKey::derive("shop.example/live", "order-42");
    /// assert_eq!(key, IdempotencyKey::derive("shop.example/live", "order-42"));
    /// assert_ne!(key, IdempotencyKey::derive("shop.example/test", "order-42"));
    /// ```
    #[must_use]
    pub fn derive(namespace: &str, operation: &str) -> Self {
        let namespace = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, namespace.as_bytes());
        Self::of_uuid(uuid::Uuid::new_v5(&namespace, operation.as_bytes()))
    }

    /// Takes the caller's own key.
    ///
    /// # Errors
    ///
    /// The key is empty or blank, too long, or has a character that no header can carry.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        if text.trim().is_empty() {
            return Err(KeyError::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(KeyError::TooLong { bytes: text.len(), limit: Self::MAX_BYTES });
        }
        // A header loses the space around its value on the way, and the key with it.
        if text.trim_matches(' ') != text {
            return Err(KeyError::Padded);
        }
        match text.char_indices().find(|(_, c)| !matches!(c, ' '..='~')) {
            Some((position, character)) => Err(KeyError::Character { character, position }),
            None => Ok(Self(Arc::from(text))),
        }
    }

    /// The whole key. Keep it out of logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn of_uuid(uuid: uuid::Uuid) -> Self {
        let mut text = [0_u8; uuid::fmt::Hyphenated::LENGTH];
        Self(Arc::from(&*uuid.hyphenated().encode_lower(&mut text)))
    }

    /// The last four characters, for logs. Nothing of a key so short that this would be most of it.
    pub(crate) fn tail(&self) -> &str {
        let text = self.as_str();
        if text.len() < 12 { "" } else { text.get(text.len() - 4..).unwrap_or("") }
    }
}

impl std::str::FromStr for IdempotencyKey {
    type Err = KeyError;

    /// As [`parse`](Self::parse).
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey(…{})", self.tail())
    }
}

/// Why a text cannot be a key. Every message names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Empty, or nothing but spaces.
    #[error("the idempotency key is empty; leave it out to have one generated, or pass 1 to 1000 visible characters")]
    Empty,
    /// Longer than the limit, in bytes.
    #[error("the idempotency key has {bytes} bytes and the limit is {limit}; shorten it, or hash what it is made from")]
    #[expect(missing_docs, reason = "the variant says it")]
    TooLong { bytes: usize, limit: usize },
    /// A control character, or one outside ASCII. `position` counts bytes from 0.
    #[error(
        "the idempotency key has the character {character:?} at byte {position}; use visible ASCII, such as a UUID"
    )]
    #[expect(missing_docs, reason = "the variant says it")]
    Character { character: char, position: usize },
    /// It begins or ends with a space, which no header delivers.
    #[error("the idempotency key begins or ends with a space, which is lost on the way; remove it")]
    Padded,
    /// Not a quoted string, where the contract takes one. `0` says what is wrong with it.
    #[error("the key in the header is no Structured-Field string ({0}); quote it, or pass it with `key(…)`")]
    NotQuoted(&'static str),
    /// Not a UUID, which this contract insists on.
    #[error("the contract takes a UUID as the idempotency key; leave the key out to have one generated")]
    NotUuid,
    /// The operating system gave no randomness.
    #[error("no randomness for an idempotency key: {0}; nothing was sent")]
    NoRandomness(String),
    /// The caller's own source of keys failed.
    #[error("the key source failed: {0}; nothing was sent")]
    Source(String),
}

/// How a key is written into its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Serialisation {
    /// The characters as they are. Most live servers read this.
    Raw,
    /// A Structured-Field String (RFC 9651 section 3.3.3): quoted, with `"` and `\` escaped.
    StructuredField,
}

impl Serialisation {
    /// The header's value for a key.
    pub(crate) fn write(self, key: &IdempotencyKey) -> String {
        match self {
            Self::Raw => key.as_str().to_owned(),
            Self::StructuredField => {
                let mut text = String::with_capacity(key.as_str().len() + 2);
                text.push('"');
                for character in key.as_str().chars() {
                    if matches!(character, '"' | '\\') {
                        text.push('\\');
                    }
                    text.push(character);
                }
                text.push('"');
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn k16_generated_keys_are_version_4_of_the_rfc_variant_and_never_repeat() {
        let keys: HashSet<String> =
            (0..10_000).map(|_| IdempotencyKey::generate().unwrap().as_str().to_owned()).collect();
        assert_eq!(keys.len(), 10_000);
        for key in &keys {
            let uuid = uuid::Uuid::parse_str(key).unwrap();
            assert_eq!(uuid.get_version_num(), 4);
            assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122);
            assert!(!uuid.is_nil());
        }
    }

    #[test]
    fn k19_each_of_the_122_free_bits_takes_both_values() {
        let (mut ones, mut zeros) = (0_u128, 0_u128);
        for _ in 0..200 {
            let bits = uuid::Uuid::parse_str(IdempotencyKey::generate().unwrap().as_str()).unwrap().as_u128();
            ones |= bits;
            zeros |= !bits;
        }
        // A fair bit stays the same 200 times with a chance of 2^-199.
        assert_eq!((ones & zeros).count_ones(), 122);
    }

    #[test]
    fn v03_no_control_character_gets_into_a_key() {
        for bad in ["a\r\nX-Evil: 1", "nul\0", "del\u{7f}", "tab\t", "umlaut-ä"] {
            let error = IdempotencyKey::parse(bad).unwrap_err();
            assert!(matches!(error, KeyError::Character { .. }), "{bad:?}: {error}");
        }
    }

    #[test]
    fn v06_an_empty_or_blank_key_is_an_error_and_never_the_absence_of_a_key() {
        for bad in ["", " ", "   "] {
            assert_eq!(IdempotencyKey::parse(bad), Err(KeyError::Empty));
        }
    }

    #[test]
    fn v01_the_longest_key_is_accepted_and_one_byte_more_names_the_limit() {
        assert!(IdempotencyKey::parse(&"k".repeat(1000)).is_ok());
        let error = IdempotencyKey::parse(&"k".repeat(1001)).unwrap_err();
        assert_eq!(error, KeyError::TooLong { bytes: 1001, limit: 1000 });
        assert!(error.to_string().contains("1001") && error.to_string().contains("1000"));
    }

    #[test]
    fn v06_a_space_around_a_key_would_be_lost_on_the_way() {
        for bad in [" abc", "abc ", "  abc  "] {
            assert_eq!(IdempotencyKey::parse(bad), Err(KeyError::Padded));
        }
        assert!(IdempotencyKey::parse("a b").is_ok());
    }

    #[test]
    fn v09_a_key_need_not_be_a_uuid() {
        assert_eq!(IdempotencyKey::parse("mykey123").unwrap().as_str(), "mykey123");
    }

    #[test]
    fn v04_a_structured_field_string_escapes_quotes_and_backslashes() {
        let key = IdempotencyKey::parse(r#"a"b\c"#).unwrap();
        assert_eq!(Serialisation::StructuredField.write(&key), r#""a\"b\\c""#);
        assert_eq!(Serialisation::Raw.write(&key), r#"a"b\c"#);
    }

    #[test]
    fn l01_debug_shows_no_more_than_the_tail() {
        let key = IdempotencyKey::parse("550e8400-e29b-41d4-a716-446655440000").unwrap();
        assert_eq!(format!("{key:?}"), "IdempotencyKey(…0000)");
        assert_eq!(format!("{:?}", IdempotencyKey::parse("short").unwrap()), "IdempotencyKey(…)");
    }
}
