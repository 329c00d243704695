//! When two requests ask for the same: the fingerprint that binds a key to its payload. Pure.

use sha2::{Digest as _, Sha256};

use super::defect::Defect;
use super::policy::{BodyForm, Payload};
use super::seen::SeenRequest;
use crate::fingerprint::Fingerprint;

/// SHA-256 over the parts of the request that `payload` names.
pub(super) fn fingerprint(
    request: &SeenRequest,
    payload: Payload,
    form: BodyForm,
    defect: Option<Defect>,
) -> Fingerprint {
    let with_request = payload == Payload::Request;
    let query = if with_request && defect != Some(Defect::QueryNotInFingerprint) {
        sorted_query(request)
    } else {
        String::new()
    };
    // Where the scope has the endpoint, this changes nothing; a server that forgot it there has forgotten it here, too.
    let endpoint =
        if with_request && defect != Some(Defect::PathNotInScope) { request.endpoint() } else { String::new() };
    let body = match (payload, form) {
        (Payload::Nothing, _) => Vec::new(),
        (_, BodyForm::Bytes) => request.body().to_vec(),
        (_, BodyForm::Json) => canonical_json(request.body()).unwrap_or_else(|| request.body().to_vec()),
    };
    let mut hash = Sha256::new();
    // Each part is preceded by its length, so that no two requests run together into the same bytes.
    for part in [endpoint.as_bytes(), query.as_bytes(), &body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    Fingerprint::from_bytes(hash.finalize().into())
}

fn sorted_query(request: &SeenRequest) -> String {
    let mut parameters: Vec<&str> = request.query().unwrap_or_default().split('&').collect();
    parameters.sort_unstable();
    parameters.join("&")
}

/// The same JSON in one form: no spaces, members by name, strings with as few escapes as can be. Numbers stay as they are
/// written: read as floating point, two amounts could become one. `None` if it is no JSON.
fn canonical_json(bytes: &[u8]) -> Option<Vec<u8>> {
    // Checked as a whole first, nesting included, so that what follows can trust its input.
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).ok()?;
    let mut output = String::with_capacity(bytes.len());
    Scanner(str::from_utf8(bytes).ok()?).value(&mut output)?;
    Some(output.into_bytes())
}

/// What is left of a text that is known to be JSON.
struct Scanner<'a>(&'a str);

impl<'a> Scanner<'a> {
    fn value(&mut self, output: &mut String) -> Option<()> {
        self.skip_space();
        match self.0.as_bytes().first()? {
            b'{' => self.object(output),
            b'[' => self.array(output),
            b'"' => {
                output.push_str(&self.string()?);
                Some(())
            }
            _ => {
                let end = self.0.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(self.0.len());
                output.push_str(self.take(end)?);
                Some(())
            }
        }
    }

    fn object(&mut self, output: &mut String) -> Option<()> {
        let mut members: Vec<(String, String)> = Vec::new();
        self.take(1)?;
        while !self.ends_with("}")? {
            let name = self.string()?;
            self.skip_space();
            self.take(1)?; // the colon
            let mut value = String::new();
            self.value(&mut value)?;
            members.push((name, value));
        }
        // Stable: of members with one name, readers take the last.
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        let members: Vec<String> = members.into_iter().map(|(name, value)| format!("{name}:{value}")).collect();
        output.push('{');
        output.push_str(&members.join(","));
        output.push('}');
        Some(())
    }

    fn array(&mut self, output: &mut String) -> Option<()> {
        let mut items = Vec::new();
        self.take(1)?;
        while !self.ends_with("]")? {
            let mut item = String::new();
            self.value(&mut item)?;
            items.push(item);
        }
        output.push('[');
        output.push_str(&items.join(","));
        output.push(']');
        Some(())
    }

    /// Whether the collection ends here; skips the comma if it does not.
    fn ends_with(&mut self, close: &str) -> Option<bool> {
        self.skip_space();
        if self.0.starts_with(close) {
            self.take(1)?;
            return Some(true);
        }
        if self.0.starts_with(',') {
            self.take(1)?;
            self.skip_space();
        }
        Some(false)
    }

    fn string(&mut self) -> Option<String> {
        let mut escaped = false;
        let end = self.0.char_indices().skip(1).find_map(|(index, character)| {
            let closes = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            closes.then_some(index + 1)
        })?;
        let raw = self.take(end)?;
        // Half of a surrogate pair is JSON and no string of ours: it stays as it is written.
        let read = serde_json::from_str::<String>(raw).ok().and_then(|text| serde_json::to_string(&text).ok());
        Some(read.unwrap_or_else(|| raw.to_owned()))
    }

    fn take(&mut self, bytes: usize) -> Option<&'a str> {
        let (taken, left) = self.0.split_at_checked(bytes)?;
        self.0 = left;
        Some(taken)
    }

    fn skip_space(&mut self) {
        self.0 = self.0.trim_start_matches([' ', '\t', '\n', '\r']);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        String::from_utf8(canonical_json(text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn c21_spaces_the_order_of_members_and_escapes_do_not_matter() {
        for (text, expected) in [
            (r#" { "b" : [ 1 , { } , [ ] ] , "a" : "x" } "#, r#"{"a":"x","b":[1,{},[]]}"#),
            (r#"{"\u0061":"\u00e4\/"}"#, r#"{"a":"ä/"}"#),
            ("\t[true,\nnull , -1.5e3]\r", "[true,null,-1.5e3]"),
            (r#""a\"b\\""#, r#""a\"b\\""#),
            (r#"{"a":{"d":1,"c":2}}"#, r#"{"a":{"c":2,"d":1}}"#),
            ("7", "7"),
            (r#"["\ud800"]"#, r#"["\ud800"]"#),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_are_told_apart_beyond_the_precision_of_floating_point() {
        assert_ne!(canonical("9007199254740993.0"), canonical("9007199254740992.0"));
        assert_ne!(canonical("1.0"), canonical("1"));
    }

    #[test]
    fn the_order_of_items_and_of_members_with_one_name_matters() {
        assert_ne!(canonical("[1,2]"), canonical("[2,1]"));
        assert_ne!(canonical(r#"{"a":1,"a":2}"#), canonical(r#"{"a":2,"a":1}"#));
    }

    #[test]
    fn what_is_no_json_has_no_form() {
        for text in ["", "{", "a", "{a:1}", "[1,]", "1 2", &"[".repeat(10_000)] {
            assert_eq!(canonical_json(text.as_bytes()), None, "{text:.20}");
        }
        assert_eq!(canonical_json(b"\"\xff\""), None);
    }
}
