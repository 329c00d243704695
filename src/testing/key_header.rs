//! Reads the key from its header, independently of how the client writes it: a mistake in one must not hide one in the
//! other.

use http::HeaderMap;

use crate::contract::Contract;
use crate::key::{IdempotencyKey, Serialisation};

/// Why the header is no key. Says nothing of its value, which would end up in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("the header is there more than once, or lists several keys; send one")]
    Several,
    #[error("the key is empty")]
    Empty,
    #[error("the header has a character outside visible ASCII")]
    Character,
    #[error("the header is not a Structured-Field string (RFC 9651 section 3.3.3); quote the key")]
    Quoting,
    #[error("the contract does not take this key: it is too long, or has a character or form that the rule excludes")]
    Rule,
}

/// The key of a request, or `None` if the header is absent.
///
/// Where the contract writes keys raw, a quoted Structured-Field string is understood as well. A raw key has no comma,
/// because that is how a proxy joins two header lines.
pub(super) fn read_key(headers: &HeaderMap, contract: &Contract) -> Result<Option<String>, Malformed> {
    let mut lines = headers.get_all(contract.key_header()).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(Malformed::Several);
    }
    let bytes = line.as_bytes().trim_ascii();
    if !bytes.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(Malformed::Character);
    }
    let text = str::from_utf8(bytes).map_err(|_| Malformed::Character)?;
    let key = match contract.key_serialisation() {
        Serialisation::StructuredField => structured_string(text)?,
        Serialisation::Raw if text.starts_with('"') => structured_string(text)?,
        Serialisation::Raw if text.contains(',') => return Err(Malformed::Several),
        Serialisation::Raw => text.to_owned(),
    };
    if key.trim().is_empty() {
        return Err(Malformed::Empty);
    }
    let parsed = IdempotencyKey::parse(&key).map_err(|_| Malformed::Rule)?;
    contract.accepts(&parsed).map_err(|_| Malformed::Rule)?;
    Ok(Some(key))
}

/// A Structured-Field Item that is a String (RFC 9651 section 4.2), with its parameters, which are ignored.
fn structured_string(text: &str) -> Result<String, Malformed> {
    let mut input = Input(text.trim_matches(' '));
    let key = input.string().ok_or(Malformed::Quoting)?;
    input.parameters().ok_or(Malformed::Quoting)?;
    match input.0.trim_start_matches(' ').chars().next() {
        None => Ok(key),
        Some(',') => Err(Malformed::Several),
        Some(_) => Err(Malformed::Quoting),
    }
}

/// What is still to be read.
struct Input<'a>(&'a str);

impl Input<'_> {
    /// Section 4.2.5. The characters were checked before.
    fn string(&mut self) -> Option<String> {
        self.expect('"')?;
        let mut text = String::new();
        loop {
            match self.next()? {
                '"' => return Some(text),
                '\\' => text.push(self.next().filter(|escaped| matches!(escaped, '"' | '\\'))?),
                other => text.push(other),
            }
        }
    }

    /// Section 4.2.3.2.
    fn parameters(&mut self) -> Option<()> {
        while self.0.starts_with(';') {
            self.next();
            self.0 = self.0.trim_start_matches(' ');
            self.next().filter(|first| matches!(first, 'a'..='z' | '*'))?;
            self.skip(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-' | '.' | '*'));
            if self.0.starts_with('=') {
                self.next();
                self.bare_item()?;
            }
        }
        Some(())
    }

    /// Section 4.2.3.1.
    fn bare_item(&mut self) -> Option<()> {
        match self.peek()? {
            '"' => self.string().map(drop),
            '0'..='9' | '-' => self.number(),
            'a'..='z' | 'A'..='Z' | '*' => {
                self.skip(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(c));
                Some(())
            }
            ':' => {
                self.next();
                self.skip(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '='));
                self.expect(':')
            }
            '?' => {
                self.next();
                self.next().filter(|c| matches!(c, '0' | '1')).map(drop)
            }
            '@' => {
                self.next();
                let before = self.0;
                self.number()?;
                let read = before.get(..before.len() - self.0.len())?;
                (!read.contains('.')).then_some(())
            }
            '%' => {
                self.next();
                self.string().map(drop)
            }
            _ => None,
        }
    }

    /// Section 4.2.4: up to 15 digits, or up to 12, a point, and 1 to 3 more.
    fn number(&mut self) -> Option<()> {
        if self.0.starts_with('-') {
            self.next();
        }
        let digits = self.skip(|c| c.is_ascii_digit());
        if !self.0.starts_with('.') {
            return (1..=15).contains(&digits).then_some(());
        }
        self.next();
        let decimals = self.skip(|c| c.is_ascii_digit());
        ((1..=12).contains(&digits) && (1..=3).contains(&decimals)).then_some(())
    }

    fn peek(&self) -> Option<char> {
        self.0.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.0.chars();
        let next = characters.next();
        self.0 = characters.as_str();
        next
    }

    fn expect(&mut self, wanted: char) -> Option<()> {
        (self.next()? == wanted).then_some(())
    }

    /// Skips all that belong, and says how many they were.
    fn skip(&mut self, belongs: impl Fn(char) -> bool) -> usize {
        let rest = self.0.trim_start_matches(belongs);
        let skipped = self.0.len() - rest.len();
        self.0 = rest;
        skipped
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(contract: &Contract, value: &[u8]) -> Result<String, Malformed> {
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_bytes(value).unwrap());
        read_key(&headers, contract).map(|key| key.expect("the header is there"))
    }

    fn lenient(value: &[u8]) -> Result<String, Malformed> {
        read(&Contract::default(), value)
    }

    fn strict(value: &[u8]) -> Result<String, Malformed> {
        read(&Contract::default().serialisation(Serialisation::StructuredField), value)
    }

    #[test]
    fn c5_a_bare_key_is_read_leniently_and_refused_strictly() {
        let uuid = b"550e8400-e29b-41d4-a716-446655440000";
        assert_eq!(lenient(uuid).as_deref(), Ok("550e8400-e29b-41d4-a716-446655440000"));
        assert_eq!(strict(uuid), Err(Malformed::Quoting));
        assert_eq!(strict(b"token"), Err(Malformed::Quoting));
    }

    #[test]
    fn v04_c7_a_quoted_key_is_unescaped_and_its_parameters_are_ignored() {
        for value in [
            r#""a\"b\\c""#,
            r#""a\"b\\c";v=1"#,
            r#""a\"b\\c"; v=-1.25;  w;x=tok/en:*;y=?1;z="q;\"";a=:aGk=:;b=@1700000000;c=%"d%c3%bc""#,
            r#"  "a\"b\\c"  "#,
        ] {
            assert_eq!(strict(value.as_bytes()).as_deref(), Ok(r#"a"b\c"#), "{value}");
            assert_eq!(lenient(value.as_bytes()).as_deref(), Ok(r#"a"b\c"#), "{value}");
        }
    }

    #[test]
    fn c8_broken_quoting_and_parameters_are_refused_in_both_modes() {
        for value in [
            r#"""#,
            r#""abc"#,
            r#""abc\"#,
            r#""abc\""#,
            r#""a\bc""#,
            r#""abc"x"#,
            r#""abc" ;v=1"#,
            r#""abc";"#,
            r#""abc";V=1"#,
            r#""abc";v="#,
            r#""abc";v=1."#,
            r#""abc";v=1234567890123456"#,
            r#""abc";v=@1.5"#,
            r#""abc";v=?2"#,
            r#""abc";v=:a"#,
            r#""abc";v="open"#,
        ] {
            assert_eq!(strict(value.as_bytes()), Err(Malformed::Quoting), "{value}");
            assert_eq!(lenient(value.as_bytes()), Err(Malformed::Quoting), "{value}");
        }
    }

    #[test]
    fn c8_tabs_and_bytes_outside_ascii_are_refused() {
        for value in [&b"a\tb"[..], b"\"a\tb\"", b"k\xc3\xa4", b"\"\xff\""] {
            assert_eq!(lenient(value), Err(Malformed::Character));
            assert_eq!(strict(value), Err(Malformed::Character));
        }
    }

    #[test]
    fn c3_an_empty_or_blank_key_is_malformed_and_not_absent() {
        for value in [&b""[..], b"   ", b"\"\"", b"\"  \""] {
            assert_eq!(lenient(value), Err(Malformed::Empty), "{value:?}");
        }
        assert_eq!(strict(b"\"\""), Err(Malformed::Empty));
    }

    #[test]
    fn c4_two_lines_or_a_list_are_malformed() {
        let mut headers = HeaderMap::new();
        headers.append("idempotency-key", HeaderValue::from_static("a"));
        headers.append("idempotency-key", HeaderValue::from_static("a"));
        assert_eq!(read_key(&headers, &Contract::default()), Err(Malformed::Several));
        assert_eq!(lenient(b"a, b"), Err(Malformed::Several));
        assert_eq!(lenient(b"\"a\", \"b\""), Err(Malformed::Several));
        assert_eq!(strict(b"\"a\", \"b\""), Err(Malformed::Several));
        // Inside the quotes a comma is a character like any other.
        assert_eq!(strict(b"\"a,b\"").as_deref(), Ok("a,b"));
    }

    #[test]
    fn c9_the_limit_counts_the_decoded_key() {
        let (longest, longer) = ("k".repeat(255), "k".repeat(256));
        assert!(lenient(longest.as_bytes()).is_ok());
        assert_eq!(lenient(longer.as_bytes()), Err(Malformed::Rule));
        assert!(strict(format!("\"{longest}\"").as_bytes()).is_ok());
        assert_eq!(strict(format!("\"{longer}\"").as_bytes()), Err(Malformed::Rule));
        // 255 quotes are 510 characters on the wire.
        assert!(strict(format!("\"{}\"", "\\\"".repeat(255)).as_bytes()).is_ok());
    }

    #[test]
    fn the_header_is_the_contracts_and_its_absence_is_no_error() {
        let contract = Contract::named("acme").header("x-request-id");
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_static("other"));
        assert_eq!(read_key(&headers, &contract), Ok(None));
        headers.insert("x-request-id", HeaderValue::from_static("mine"));
        assert_eq!(read_key(&headers, &contract), Ok(Some("mine".to_owned())));
    }
}
