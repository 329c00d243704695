//! Promises about forgetting.

use std::time::Duration;

use super::sample::{acquire, begin, closed, get, id, record, save};
use super::{Checked, NEEDS_TIME, Shown, TestStore, checks, ensure, failed, open};
use crate::operation::{AfterSave, Phase};

checks![
    a_purge_drops_what_is_finished_and_old_and_says_what_it_kept,
    a_purge_never_reaches_into_the_dedup_window,
    what_is_driven_again_counts_from_its_last_change,
];

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const MINUTE: Duration = Duration::from_secs(60);

async fn a_purge_drops_what_is_finished_and_old_and_says_what_it_kept(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let droppable = [Phase::Completed, Phase::Rejected, Phase::NotSent, Phase::Abandoned];
    let for_a_person = [Phase::Failed, Phase::Expired];
    for phase in droppable.iter().chain(&for_a_person) {
        let (begun, lease) = begin(&*journal, record(phase.as_str())?).await?;
        save(&*journal, &closed(&begun, *phase), &lease, AfterSave::ReleaseLease).await?;
    }
    begin(&*journal, record("sending")?).await?;
    if !store.advance(WEEK).await {
        return Ok(NEEDS_TIME);
    }
    let (begun, lease) = begin(&*journal, record("recent")?).await?;
    save(&*journal, &closed(&begun, Phase::Completed), &lease, AfterSave::ReleaseLease).await?;
    let purged = journal.purge(WEEK).await.map_err(failed("purge"))?;
    let seen = (purged.dropped, purged.pending, purged.for_a_person, purged.recent);
    ensure!(seen == (4, 1, 2, 1), "dropped, pending, for a person and recent should be (4, 1, 2, 1), and are {seen:?}");
    for phase in droppable {
        let found = journal.get(id(phase.as_str())?).await.map_err(failed("get"))?;
        ensure!(found.is_none(), "{phase} is past its time, and still there");
    }
    for phase in for_a_person {
        get(&*journal, &id(phase.as_str())?).await?;
    }
    get(&*journal, &id("recent")?).await?;
    let pending = journal.pending(None, 10).await.map_err(failed("pending"))?;
    ensure!(pending == [id("sending")?], "pending are now {pending:?}");
    Ok(Shown::Kept)
}

async fn a_purge_never_reaches_into_the_dedup_window(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let mut long = record("long")?;
    long.wire.window = WEEK * 4;
    let window = long.wire.window;
    for record in [record("short")?, long] {
        let (begun, lease) = begin(&*journal, record).await?;
        save(&*journal, &closed(&begun, Phase::Completed), &lease, AfterSave::ReleaseLease).await?;
    }
    let purged = journal.purge(Duration::ZERO).await.map_err(failed("purge"))?;
    ensure!(purged.dropped == 0, "what was finished just now was dropped");
    if !store.advance(window - MINUTE).await {
        return Ok(NEEDS_TIME);
    }
    let purged = journal.purge(Duration::ZERO).await.map_err(failed("purge"))?;
    ensure!((purged.dropped, purged.recent) == (1, 1), "inside one window of two, the purge {purged:?}");
    get(&*journal, &id("long")?).await?;
    store.advance(MINUTE).await;
    let purged = journal.purge(Duration::ZERO).await.map_err(failed("purge"))?;
    ensure!((purged.dropped, purged.recent) == (1, 0), "past both windows, the purge {purged:?}");
    Ok(Shown::Kept)
}

async fn what_is_driven_again_counts_from_its_last_change(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let (begun, lease) = begin(&*journal, record("order")?).await?;
    save(&*journal, &closed(&begun, Phase::NotSent), &lease, AfterSave::ReleaseLease).await?;
    if !store.advance(WEEK).await {
        return Ok(NEEDS_TIME);
    }
    let (_, lease) = acquire(&*journal, &begun.operation).await?;
    save(&*journal, &begun, &lease, AfterSave::KeepLease).await?;
    let purged = journal.purge(Duration::ZERO).await.map_err(failed("purge"))?;
    ensure!((purged.dropped, purged.pending) == (0, 1), "while it was driven again, the purge {purged:?}");
    save(&*journal, &closed(&begun, Phase::Completed), &lease, AfterSave::ReleaseLease).await?;
    let purged = journal.purge(Duration::ZERO).await.map_err(failed("purge"))?;
    ensure!((purged.dropped, purged.recent) == (0, 1), "just after it was finished again, the purge {purged:?}");
    Ok(Shown::Kept)
}
