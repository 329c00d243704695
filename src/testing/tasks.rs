//! The tasks of one server, which end with it.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::rt::Executor;
use tokio::task::JoinSet;

/// A group of tasks that is aborted as a whole.
#[derive(Clone)]
pub(super) struct Tasks(Arc<Mutex<Option<JoinSet<()>>>>);

impl Tasks {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(JoinSet::new()))))
    }

    /// Runs a future as a task. Once the group was aborted it drops it instead.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(running) = self.running().as_mut() {
            // What has ended would otherwise be kept until the server stops.
            while running.try_join_next().is_some() {}
            running.spawn(task);
        }
    }

    /// Aborts them all, and takes no more.
    pub(super) fn abort(&self) {
        let running = self.running().take();
        // Not under the lock: a task that is dropped may come back here.
        drop(running);
    }

    fn running(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        self.spawn(future);
    }
}
