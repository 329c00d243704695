//! What a request asks for, as 32 bytes, to notice when an operation's id comes back with another payload.

use std::fmt;

use http::Method;
use sha2::{Digest as _, Sha256};
use url::Url;

/// SHA-256 over method, absolute URL (without user info and fragment) and body of a request, and the journal's salt.
///
/// The salt keeps fingerprints of two journals from being compared. It is stored in the journal, so whoever has stolen that
/// can still test guesses of a short body against it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a request. An absent body and an empty one are the same.
    #[must_use]
    pub fn of(salt: &[u8], method: &Method, url: &Url, body: &[u8]) -> Self {
        let mut hash = Sha256::new();
        let url = without_credentials(url);
        // Each part is preceded by its length, so that no two requests run together into the same bytes.
        for part in [salt, method.as_str().as_bytes(), url.as_str().as_bytes(), body] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// From stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, to store them.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "Fingerprint({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// The URL as it identifies a target: user info is a credential and a fragment is never sent.
pub(crate) fn without_credentials(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_fragment(None);
    // Both fail only for URLs that cannot have user info, and then there is none to remove.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: Method, url: &str, body: &[u8]) -> Fingerprint {
        Fingerprint::of(b"salt", &method, &Url::parse(url).unwrap(), body)
    }

    #[test]
    fn method_path_query_and_body_each_change_it() {
        let base = of(Method::POST, "https://a.example/orders?x=1", b"{}");
        assert_ne!(base, of(Method::PATCH, "https://a.example/orders?x=1", b"{}"));
        assert_ne!(base, of(Method::POST, "https://a.example/order?x=1", b"{}"));
        assert_ne!(base, of(Method::POST, "https://a.example/orders?x=2", b"{}"));
        assert_ne!(base, of(Method::POST, "https://b.example/orders?x=1", b"{}"));
        assert_ne!(base, of(Method::POST, "https://a.example/orders?x=1", b"{ }"));
    }

    #[test]
    fn user_info_and_fragment_do_not() {
        assert_eq!(
            of(Method::POST, "https://a.example/orders", b""),
            of(Method::POST, "https://me:secret@a.example/orders#top", b"")
        );
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(of(Method::POST, "https://a.example/x", b"yz"), of(Method::POST, "https://a.example/xy", b"z"));
    }

    #[test]
    fn the_salt_changes_it() {
        let url = Url::parse("https://a.example/").unwrap();
        assert_ne!(
            Fingerprint::of(b"one", &Method::POST, &url, b""),
            Fingerprint::of(b"two", &Method::POST, &url, b"")
        );
    }
}
