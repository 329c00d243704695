//! A key of the caller's own, as it stands in a header: it goes back as it came, or it is refused.

use http::HeaderValue;

use crate::contract::Contract;
use crate::error::{Error, ErrorKind};
use crate::key::{IdempotencyKey, KeyError, Serialisation};

/// A key out of the caller's own header. It goes back as it came, so only a well-formed one is taken.
pub(super) fn read_key(value: &HeaderValue, serialisation: Serialisation) -> Result<IdempotencyKey, KeyError> {
    let text = value.to_str().map_err(|_| {
        let position = value.as_bytes().iter().position(|byte| !matches!(byte, b' '..=b'~')).unwrap_or_default();
        KeyError::Character { character: char::REPLACEMENT_CHARACTER, position }
    })?;
    match serialisation {
        Serialisation::Raw => IdempotencyKey::parse(text),
        Serialisation::StructuredField => IdempotencyKey::parse(&unquoted(text).map_err(KeyError::NotQuoted)?),
    }
}

/// What a Structured-Field String (RFC 9651 section 3.3.3) says. Parameters would be lost, so they are refused.
fn unquoted(text: &str) -> Result<String, &'static str> {
    let mut characters = text.strip_prefix('"').ok_or("it does not begin with a quote")?.chars();
    let mut plain = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        match character {
            '"' if characters.as_str().is_empty() => return Ok(plain),
            '"' => return Err("something follows the closing quote"),
            '\\' => match characters.next() {
                Some(escaped @ ('"' | '\\')) => plain.push(escaped),
                _ => return Err("a backslash escapes neither a quote nor a backslash"),
            },
            other => plain.push(other),
        }
    }
    Err("it does not end with a quote")
}

pub(super) fn invalid_key(contract: &Contract, error: &KeyError) -> Error {
    Error::new(ErrorKind::InvalidKey, format!("for the contract {:?}: {error}", contract.name()))
}
