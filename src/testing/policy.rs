//! What servers differ in, as settings. Pure.

/// What a key belongs to, besides its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyScope {
    /// Method and path: the same key at another endpoint is another operation.
    #[default]
    Endpoint,
    /// Nothing: a key means one operation, wherever its caller sends it. Whether another endpoint is then a reuse is up to
    /// the [`Payload`].
    Caller,
}

/// What a repeat must have in common with the first request. If it has not, it is told that it reuses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Payload {
    /// Method, path, query and body. The order of the query's parameters does not matter.
    #[default]
    Request,
    /// The body alone.
    Body,
    /// Nothing: reuse is never detected, and whatever comes with the key gets the stored answer.
    Nothing,
}

/// When two bodies are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BodyForm {
    /// When all of their bytes are.
    #[default]
    Bytes,
    /// When they are the same JSON: spaces, the order of members and escapes do not matter; how a number is written does.
    /// A body that is no JSON is compared by its bytes.
    Json,
}

/// What becomes of an operation whose handler answers 5xx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ServerErrors {
    /// Nothing happened: the key is released, and the next attempt executes. The execution does not count.
    #[default]
    Release,
    /// The failure is the operation's outcome: it is stored and replayed.
    Store,
    /// Something may have happened: the execution counts, the key stays bound to its payload, and the next attempt executes
    /// again.
    ReExecute,
}

/// What an attempt meets while another one with its key is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhileRunning {
    /// It is answered 409 at once.
    #[default]
    Refuse,
    /// It waits for the other's outcome and gets the same. When the other's lease has ended without one, 409.
    Wait,
}

/// Whether an operation may come without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum KeyPolicy {
    #[default]
    Required,
    Optional,
}
