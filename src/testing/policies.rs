//! The settings of one server, put to a request. Pure.

use http::Method;

use super::defect::Defect;
use super::ledger::Scope;
use super::payload;
use super::policy::{BodyForm, KeyPolicy, KeyScope, Payload, ServerErrors, WhileRunning};
use super::routes::Pattern;
use super::seen::SeenRequest;
use crate::fingerprint::Fingerprint;

/// What this server does where servers differ.
#[derive(Clone, Debug, Default)]
pub(super) struct Policies {
    pub(super) key: KeyPolicy,
    /// Endpoints with another policy; the last one that fits counts.
    pub(super) key_at: Vec<(Method, Pattern, KeyPolicy)>,
    pub(super) scope: KeyScope,
    pub(super) payload: Payload,
    pub(super) body_form: BodyForm,
    pub(super) server_errors: ServerErrors,
    pub(super) while_running: WhileRunning,
    pub(super) defect: Option<Defect>,
}

impl Policies {
    pub(super) fn key_policy(&self, method: &Method, path: &str) -> KeyPolicy {
        let fits = |(for_method, pattern, _): &&(Method, Pattern, KeyPolicy)| {
            for_method == method && pattern.parameters(path).is_some()
        };
        self.key_at.iter().rev().find(fits).map_or(self.key, |(_, _, policy)| *policy)
    }

    pub(super) fn scope(&self, principal: &str, request: &SeenRequest) -> Scope {
        let principal = if self.has(Defect::UnscopedKey) { String::new() } else { principal.to_owned() };
        let by_endpoint = self.scope == KeyScope::Endpoint && !self.has(Defect::PathNotInScope);
        let endpoint = if by_endpoint { request.endpoint() } else { String::new() };
        Scope { principal, endpoint }
    }

    pub(super) fn fingerprint(&self, request: &SeenRequest) -> Fingerprint {
        payload::fingerprint(request, self.payload, self.body_form, self.defect)
    }

    pub(super) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_endpoint_that_fits_says_whether_it_needs_a_key() {
        let at = |method, path, policy| (method, Pattern::parse(path), policy);
        let policies = Policies {
            key_at: vec![
                at(Method::POST, "/{any}", KeyPolicy::Optional),
                at(Method::POST, "/orders", KeyPolicy::Required),
                at(Method::PATCH, "/orders/{id}", KeyPolicy::Optional),
            ],
            ..Policies::default()
        };
        for (method, path, expected) in [
            (Method::POST, "/notes", KeyPolicy::Optional),
            (Method::POST, "/orders", KeyPolicy::Required),
            (Method::PATCH, "/orders/7", KeyPolicy::Optional),
            (Method::PATCH, "/notes/7", KeyPolicy::Required),
        ] {
            assert_eq!(policies.key_policy(&method, path), expected, "{method} {path}");
        }
    }
}
