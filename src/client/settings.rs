//! What can be set, on a client and on one request, and the one place where the two are merged.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::attempt::Classifier;
use crate::contract::Contract;
use crate::driver::Prepare;
use crate::error::{Error, ErrorKind};
use crate::operation::Keep;
use crate::retry::RetryPolicy;

/// What is set; the rest is the client's, or the default.
#[derive(Clone, Default)]
pub(super) struct Settings {
    pub(super) contract: Option<Contract>,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) deadline: Option<Duration>,
    pub(super) keep: Option<Keep>,
    pub(super) reply_limit: Option<usize>,
    pub(super) credential_scope: Option<String>,
    pub(super) prepare: Option<Arc<dyn Prepare>>,
    pub(super) refresh_on_401: Option<bool>,
    pub(super) classifier: Option<Classifier>,
}

/// All of it, decided.
pub(super) struct Terms {
    pub(super) contract: Contract,
    pub(super) retry: RetryPolicy,
    pub(super) keep: Keep,
    pub(super) reply_limit: usize,
    pub(super) credential_scope: Option<String>,
    pub(super) prepare: Option<Arc<dyn Prepare>>,
    pub(super) refresh_on_401: bool,
    pub(super) classifier: Option<Classifier>,
}

/// The longest reply body that is read into memory unless told otherwise: 8 MiB.
const REPLY_LIMIT: usize = 8 * 1024 * 1024;

impl Settings {
    /// The request's own settings, then the client's, then the defaults.
    pub(super) fn over(self, client: &Self) -> Result<Terms, Error> {
        let mut retry = self.retry.or_else(|| client.retry.clone()).unwrap_or_default();
        if let Some(deadline) = self.deadline.or(client.deadline) {
            retry = retry.deadline(deadline);
        }
        retry.check().map_err(|problem| Error::new(ErrorKind::Configuration, problem))?;
        let contract = self.contract.or_else(|| client.contract.clone()).unwrap_or_default();
        contract.check().map_err(|problem| Error::new(ErrorKind::Configuration, problem))?;
        let prepare = self.prepare.or_else(|| client.prepare.clone());
        let refresh_on_401 = self.refresh_on_401.or(client.refresh_on_401).unwrap_or(false);
        if refresh_on_401 && prepare.is_none() {
            return Err(Error::new(
                ErrorKind::Configuration,
                "`refresh_on_401` has no `prepare` hook to fetch credentials with; set one",
            ));
        }
        Ok(Terms {
            contract,
            retry,
            keep: self.keep.or(client.keep).unwrap_or_default(),
            reply_limit: self.reply_limit.or(client.reply_limit).unwrap_or(REPLY_LIMIT),
            credential_scope: self.credential_scope.or_else(|| client.credential_scope.clone()),
            prepare,
            refresh_on_401,
            classifier: self.classifier.or_else(|| client.classifier.clone()),
        })
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("contract", &self.contract)
            .field("retry", &self.retry)
            .field("deadline", &self.deadline)
            .field("keep", &self.keep)
            .field("reply_limit", &self.reply_limit)
            .field("credential_scope", &self.credential_scope)
            .finish_non_exhaustive()
    }
}

/// The setters, the same on a client's builder and on a request. Both have a field `settings`.
macro_rules! setters {
    () => {
        /// Sets the dialect that the server speaks. [`Contract::default`](crate::Contract) unless set.
        pub fn contract(mut self, contract: $crate::Contract) -> Self {
            self.settings.contract = Some(contract);
            self
        }

        /// Sets how often, how long and how soon is tried again.
        pub fn retry(mut self, policy: $crate::retry::RetryPolicy) -> Self {
            self.settings.retry = Some(policy);
            self
        }

        /// Sets how long one call may take in all, waits included, instead of the policy's 60 seconds. No attempt
        /// starts that could not end before it.
        pub fn deadline(mut self, deadline: std::time::Duration) -> Self {
            self.settings.deadline = Some(deadline);
            self
        }

        /// Sets how much of an operation its record keeps. [`Keep::Request`](crate::Keep::Request) unless set.
        pub fn keep(mut self, keep: $crate::Keep) -> Self {
            self.settings.keep = Some(keep);
            self
        }

        /// Sets the longest reply body that is read as part of an attempt, in bytes; 8 MiB unless set. A success with a
        /// longer body is handed on while it still streams, and is not tried again when it breaks off.
        pub fn reply_limit(mut self, bytes: usize) -> Self {
            self.settings.reply_limit = Some(bytes);
            self
        }

        /// Names the credentials in use, such as an account's id (never the credential itself). Servers keep the keys of
        /// each principal apart, so an operation that was begun under one name is refused under another.
        pub fn credential_scope(mut self, name: impl Into<String>) -> Self {
            self.settings.credential_scope = Some(name.into());
            self
        }

        /// Sets a hook that runs before each attempt and may change its headers, to refresh credentials.
        ///
        /// ```
        /// # use reqwest_idempotency::{AttemptView, IdempotentClient};
        /// # async fn token(_: bool) -> Result<String, std::io::Error> { Ok("t".into()) }
        /// # let builder = IdempotentClient::builder();
        /// let builder = builder.prepare(|attempt: AttemptView<'_>, headers: &mut http::HeaderMap| {
        ///     let stale = attempt.unauthorized;
        ///     Box::pin(async move {
        ///         let bearer = format!("Bearer {}", token(stale).await?);
        ///         headers.insert("authorization", bearer.parse()?);
        ///         Ok(())
        ///     })
        /// });
        /// ```
        pub fn prepare<F>(mut self, hook: F) -> Self
        where
            F: for<'a> Fn(
                    $crate::AttemptView<'a>,
                    &'a mut http::HeaderMap,
                ) -> $crate::BoxFuture<'a, Result<(), $crate::BoxError>>
                + Send
                + Sync
                + 'static,
        {
            self.settings.prepare = Some(std::sync::Arc::new(hook));
            self
        }

        /// As [`prepare`](Self::prepare), for a type that implements [`Prepare`](crate::Prepare).
        pub fn prepare_with(mut self, hook: impl $crate::Prepare) -> Self {
            self.settings.prepare = Some(std::sync::Arc::new(hook));
            self
        }

        /// Makes a `401` run the [`prepare`](Self::prepare) hook once more and try again with the same key, once.
        pub fn refresh_on_401(mut self) -> Self {
            self.settings.refresh_on_401 = Some(true);
            self
        }

        /// Sets a reading of answers that goes before the contract's. `None` leaves an answer to the contract.
        ///
        /// ```
        /// # use reqwest_idempotency::{IdempotentClient, Meaning};
        /// # let builder = IdempotentClient::builder();
        /// // This API says 400 with a code of its own while it is being deployed.
        /// let builder = builder.classify(|reply| {
        ///     let problem = reply.problem()?;
        ///     (reply.status() == 400 && problem.type_? == "/problems/deploying").then_some(Meaning::Transient)
        /// });
        /// ```
        pub fn classify<F>(mut self, classifier: F) -> Self
        where
            F: Fn(&$crate::Reply) -> Option<$crate::Meaning> + Send + Sync + 'static,
        {
            self.settings.classifier = Some(std::sync::Arc::new(classifier));
            self
        }
    };
}
pub(super) use setters;
