//! Promises about who may write, and when.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::sample::{LEASE, acquire, begin, closed, differences, get, id, prepared, record, save};
use super::{Checked, NEEDS_STEP, NEEDS_TIME, Shown, TestStore, checks, ensure, failed, open};
use crate::journal::{Acquired, JournalErrorKind, Lease};
use crate::operation::{AfterSave, Durability, Phase};

checks![
    of_all_who_take_a_free_lease_at_once_one_gets_it,
    an_operation_that_nobody_began_is_unknown,
    a_lease_ends_by_itself_and_the_next_has_a_higher_token,
    a_writer_whose_token_is_not_the_newest_changes_nothing,
    a_token_that_was_never_given_changes_nothing,
    a_save_keeps_or_releases_the_lease_as_it_is_told,
    a_lease_given_back_is_free_at_once,
    only_the_newest_lease_can_be_given_back,
    a_finished_operation_can_be_taken_up_again,
    a_clock_behind_the_journal_refuses_what_may_have_been_sent,
];

async fn of_all_who_take_a_free_lease_at_once_one_gets_it(store: &dyn TestStore) -> Checked {
    const RACERS: usize = 32;
    let handles = [open(store).await?, open(store).await?];
    let [journal, _] = &handles;
    let (begun, lease) = begin(&**journal, record("race")?).await?;
    save(&**journal, &begun, &lease, AfterSave::ReleaseLease).await?;
    let mut racers = JoinSet::new();
    for handle in handles.iter().cycle().take(RACERS) {
        let (handle, operation) = (Arc::clone(handle), begun.operation.clone());
        racers.spawn(async move { handle.acquire(operation, LEASE).await });
    }
    let mut winners = 0;
    while let Some(acquired) = racers.join_next().await {
        match acquired.map_err(|error| error.to_string())?.map_err(failed("acquire"))? {
            Acquired::Taken { .. } => winners += 1,
            Acquired::Held { .. } => {}
            Acquired::Unknown => return Err("it was begun, and is said to be unknown".to_owned()),
        }
    }
    ensure!(winners == 1, "{winners} of {RACERS} workers got the lease");
    Ok(Shown::Kept)
}

async fn an_operation_that_nobody_began_is_unknown(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let acquired = journal.acquire(id("nothing")?, LEASE).await.map_err(failed("acquire"))?;
    ensure!(matches!(acquired, Acquired::Unknown), "it was {acquired:?}");
    let found = journal.get(id("nothing")?).await.map_err(failed("get"))?;
    ensure!(found.is_none(), "something was found");
    Ok(Shown::Kept)
}

async fn a_lease_ends_by_itself_and_the_next_has_a_higher_token(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    let (begun, first) = begin(&*journal, record("order")?).await?;
    if !store.advance(LEASE - Duration::from_millis(1)).await {
        return Ok(NEEDS_TIME);
    }
    let early = other.acquire(begun.operation.clone(), LEASE).await.map_err(failed("acquire"))?;
    ensure!(matches!(early, Acquired::Held { .. }), "a millisecond before its end it was {early:?}");
    store.advance(Duration::from_millis(1)).await;
    let (found, second) = acquire(&*other, &begun.operation).await?;
    let differ = differences(&begun, &found);
    ensure!(differ.is_empty(), "taking the lease changed {differ:?}");
    ensure!(second.token > first.token, "the tokens were {} and then {}", first.token, second.token);
    let held = journal.acquire(begun.operation.clone(), LEASE).await.map_err(failed("acquire"))?;
    ensure!(matches!(held, Acquired::Held { until } if until == second.until), "the new lease was {held:?}");
    Ok(Shown::Kept)
}

async fn a_writer_whose_token_is_not_the_newest_changes_nothing(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    let (begun, stale) = begin(&*journal, record("order")?).await?;
    save(&*journal, &begun, &stale, AfterSave::ReleaseLease).await?;
    let (_, newest) = acquire(&*other, &begun.operation).await?;
    let before = get(&*other, &begun.operation).await?;
    let wrong = closed(&begun, Phase::Abandoned);
    for then in [AfterSave::KeepLease, AfterSave::ReleaseLease] {
        let saved = journal.save(wrong.clone(), stale.clone(), then, Durability::Now).await;
        let kind = saved.as_ref().err().map(crate::journal::JournalError::kind);
        ensure!(kind == Some(JournalErrorKind::LeaseLost), "the stale worker was told {saved:?}");
        // This one may be told late, or never; it must not be done either way.
        let _ = journal.save(wrong.clone(), stale.clone(), then, Durability::Late).await;
        // Through the handle that it was asked of, so that it has been looked at by now.
        for handle in [&journal, &other] {
            let differ = differences(&before, &get(&**handle, &begun.operation).await?);
            ensure!(differ.is_empty(), "the stale worker changed {differ:?}");
        }
        let held = other.acquire(begun.operation.clone(), LEASE).await.map_err(failed("acquire"))?;
        ensure!(
            matches!(held, Acquired::Held { until } if until == newest.until),
            "after the stale save the newest lease was {held:?}"
        );
    }
    save(&*other, &closed(&begun, Phase::Rejected), &newest, AfterSave::ReleaseLease)
        .await
        .map_err(|seen| format!("the newest worker could not save after that: {seen}"))?;
    Ok(Shown::Kept)
}

async fn a_token_that_was_never_given_changes_nothing(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let (begun, lease) = begin(&*journal, record("order")?).await?;
    let ahead = Lease::new(lease.operation.clone(), lease.token.saturating_add(1), lease.until);
    let elsewhere = Lease::new(id("nothing")?, lease.token, lease.until);
    for forged in [ahead, elsewhere] {
        let mut record = closed(&begun, Phase::Abandoned);
        record.operation = forged.operation.clone();
        let saved = journal.save(record, forged, AfterSave::ReleaseLease, Durability::Now).await;
        let kind = saved.as_ref().err().map(crate::journal::JournalError::kind);
        ensure!(kind == Some(JournalErrorKind::LeaseLost), "it was told {saved:?}");
    }
    let differ = differences(&begun, &get(&*journal, &begun.operation).await?);
    ensure!(differ.is_empty(), "it changed {differ:?}");
    let found = journal.get(id("nothing")?).await.map_err(failed("get"))?;
    ensure!(found.is_none(), "a save began an operation");
    Ok(Shown::Kept)
}

async fn a_save_keeps_or_releases_the_lease_as_it_is_told(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    let (begun, lease) = begin(&*journal, record("order")?).await?;
    save(&*journal, &begun, &lease, AfterSave::KeepLease).await?;
    let held = other.acquire(begun.operation.clone(), LEASE).await.map_err(failed("acquire"))?;
    ensure!(matches!(held, Acquired::Held { until } if until == lease.until), "after KeepLease it was {held:?}");
    save(&*journal, &begun, &lease, AfterSave::ReleaseLease).await?;
    let (_, next) = acquire(&*other, &begun.operation).await?;
    ensure!(next.token > lease.token, "the tokens were {} and then {}", lease.token, next.token);
    Ok(Shown::Kept)
}

async fn a_lease_given_back_is_free_at_once(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let (begun, lease) = begin(&*journal, record("order")?).await?;
    journal.relinquish(lease.clone());
    // It is not waited for, so another call may come in between.
    for _ in 0..1_000 {
        let acquired = journal.acquire(begun.operation.clone(), LEASE).await.map_err(failed("acquire"))?;
        if let Acquired::Taken { record, lease: next, .. } = acquired {
            let differ = differences(&begun, &record);
            ensure!(differ.is_empty(), "giving the lease back changed {differ:?}");
            ensure!(next.token > lease.token, "the tokens were {} and then {}", lease.token, next.token);
            return Ok(Shown::Kept);
        }
        tokio::task::yield_now().await;
    }
    Err("it was given back, and stayed taken".to_owned())
}

async fn only_the_newest_lease_can_be_given_back(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let (begun, stale) = begin(&*journal, record("order")?).await?;
    save(&*journal, &begun, &stale, AfterSave::ReleaseLease).await?;
    let (_, newest) = acquire(&*journal, &begun.operation).await?;
    journal.relinquish(stale);
    for _ in 0..20 {
        let held = journal.acquire(begun.operation.clone(), LEASE).await.map_err(failed("acquire"))?;
        ensure!(
            matches!(held, Acquired::Held { until } if until == newest.until),
            "an old lease was given back, and the newest was {held:?}"
        );
        tokio::task::yield_now().await;
    }
    Ok(Shown::Kept)
}

async fn a_finished_operation_can_be_taken_up_again(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    let phases = [Phase::Rejected, Phase::NotSent, Phase::Completed, Phase::Failed, Phase::Expired, Phase::Abandoned];
    for phase in phases {
        let (begun, first) = begin(&*journal, record(phase.as_str())?).await?;
        save(&*journal, &closed(&begun, phase), &first, AfterSave::ReleaseLease).await?;
        let (found, second) = acquire(&*other, &begun.operation).await?;
        ensure!(found.phase == phase, "it was saved as {phase} and came back as {}", found.phase);
        ensure!(second.token > first.token, "the tokens were {} and then {}", first.token, second.token);
        save(&*other, &begun, &second, AfterSave::KeepLease).await?;
        let found = get(&*journal, &begun.operation).await?;
        ensure!(found.phase == Phase::Sending, "it was reopened and is {}", found.phase);
        ensure!(found.closing.is_none(), "it was reopened and still has its closing");
        let stale = journal.save(begun, first, AfterSave::KeepLease, Durability::Now).await;
        ensure!(stale.is_err(), "the worker that had closed it could still write");
    }
    let pending = journal.pending(None, 100).await.map_err(failed("pending"))?;
    ensure!(pending.len() == phases.len(), "{} of {} reopened ones are pending", pending.len(), phases.len());
    Ok(Shown::Kept)
}

async fn a_clock_behind_the_journal_refuses_what_may_have_been_sent(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let (sent, lease) = begin(&*journal, record("sent")?).await?;
    save(&*journal, &sent, &lease, AfterSave::ReleaseLease).await?;
    let (waiting, lease) = begin(&*journal, prepared("waiting")?).await?;
    save(&*journal, &waiting, &lease, AfterSave::ReleaseLease).await?;
    if !store.step_back(Duration::from_millis(1)).await {
        return Ok(NEEDS_STEP);
    }
    let other = open(store).await?;
    for handle in [&journal, &other] {
        let acquired = handle.acquire(sent.operation.clone(), LEASE).await;
        let kind = acquired.as_ref().err().map(crate::journal::JournalError::kind);
        ensure!(kind == Some(JournalErrorKind::ClockBehind), "with a clock behind, it was {acquired:?}");
    }
    let differ = differences(&sent, &get(&*journal, &sent.operation).await?);
    ensure!(differ.iter().all(|field| *field == "updated_at"), "the refusal changed {differ:?}");
    // Nothing of this one can be at the server, so its age does not matter.
    acquire(&*other, &waiting.operation).await?;
    store.advance(Duration::from_millis(1)).await;
    acquire(&*other, &sent.operation).await?;
    Ok(Shown::Kept)
}
