//! Promises about saving: the whole record, at once for those who may act on it.

use http::StatusCode;

use super::sample::{begin, closed, closing, differences, full, get, reply, save, stamped};
use super::{Checked, NEEDS_TIME, Shown, TestStore, checks, ensure, failed, open};
use crate::journal::Acquired;
use crate::operation::{AfterSave, Closing, Durability, Phase, Record};

checks![
    a_save_replaces_the_whole_record,
    every_kind_of_closing_comes_back_as_it_was,
    a_save_stamps_the_record_with_the_journals_time,
    a_late_save_is_seen_by_the_handle_that_made_it,
    a_closing_is_seen_by_everyone_before_the_save_returns,
    a_closed_operation_stays_closed_after_a_restart,
];

async fn a_save_replaces_the_whole_record(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    let (begun, lease) = begin(&*journal, full("order")?).await?;
    // From everything to nothing, and back again.
    let bare = Record {
        credential_scope: None,
        fingerprint: None,
        request: None,
        next_attempt_at: None,
        attempts: 0,
        named: true,
        ..begun.clone()
    };
    let closed = Record { closing: Some(Closing { reply: Some(reply()), ..closing(None) }), ..begun.clone() };
    for record in [bare, closed, begun] {
        save(&*journal, &record, &lease, AfterSave::KeepLease).await?;
        let found = get(&*other, &record.operation).await?;
        let differ = differences(&Record { updated_at: found.updated_at, ..record }, &found);
        ensure!(differ.is_empty(), "it came back with another {differ:?}");
    }
    Ok(Shown::Kept)
}

async fn every_kind_of_closing_comes_back_as_it_was(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let (begun, lease) = begin(&*journal, full("order")?).await?;
    let statuses = [None, Some(StatusCode::CREATED), Some(StatusCode::CONFLICT), StatusCode::from_u16(999).ok()];
    for status in statuses {
        for flags in 0..8_u8 {
            let closing = Closing {
                status,
                in_front: flags & 1 != 0,
                after_unknown: flags & 2 != 0,
                resolved: flags & 4 != 0,
                reply: status.map(|_| reply()),
            };
            let record = Record { phase: Phase::Rejected, closing: Some(closing), ..begun.clone() };
            save(&*journal, &record, &lease, AfterSave::KeepLease).await?;
            let found = get(&*journal, &record.operation).await?;
            let differ = differences(&stamped(&record, &found), &found);
            ensure!(differ.is_empty(), "{:?} came back with another {differ:?}", record.closing);
        }
    }
    Ok(Shown::Kept)
}

async fn a_save_stamps_the_record_with_the_journals_time(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let (begun, lease) = begin(&*journal, full("order")?).await?;
    if !store.advance(std::time::Duration::from_secs(1)).await {
        return Ok(NEEDS_TIME);
    }
    save(&*journal, &begun, &lease, AfterSave::KeepLease).await?;
    let found = get(&*journal, &begun.operation).await?;
    let passed = found.updated_at.since(begun.updated_at);
    ensure!(passed.as_secs() == 1, "after a second updated_at had moved by {passed:?}");
    ensure!(found.begun_at == begun.begun_at, "the save moved begun_at");
    ensure!(found.first_sent_at == begun.first_sent_at, "the save moved first_sent_at, from where the window counts");
    Ok(Shown::Kept)
}

async fn a_late_save_is_seen_by_the_handle_that_made_it(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let (begun, lease) = begin(&*journal, full("order")?).await?;
    let completed = closed(&begun, Phase::Completed);
    journal.save(completed, lease, AfterSave::ReleaseLease, Durability::Late).await.map_err(failed("save"))?;
    let found = get(&*journal, &begun.operation).await?;
    ensure!(found.phase == Phase::Completed, "it was completed, and is {}", found.phase);
    let pending = journal.pending(None, 10).await.map_err(failed("pending"))?;
    ensure!(pending.is_empty(), "it was completed, and is listed as pending");
    let acquired = journal.acquire(begun.operation, super::sample::LEASE).await.map_err(failed("acquire"))?;
    ensure!(matches!(acquired, Acquired::Taken { .. }), "its lease was released, and is {acquired:?}");
    Ok(Shown::Kept)
}

async fn a_closing_is_seen_by_everyone_before_the_save_returns(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    for phase in [Phase::Rejected, Phase::NotSent, Phase::Failed, Phase::Expired, Phase::Abandoned] {
        let (begun, lease) = begin(&*journal, full(phase.as_str())?).await?;
        save(&*journal, &closed(&begun, phase), &lease, AfterSave::ReleaseLease).await?;
        let found = get(&*other, &begun.operation).await?;
        ensure!(found.phase == phase, "its caller was told {phase}, and another handle still sees {}", found.phase);
    }
    Ok(Shown::Kept)
}

async fn a_closed_operation_stays_closed_after_a_restart(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    if !journal.is_durable() {
        return Ok(Shown::LeftOut("the journal does not outlive its process, and says so"));
    }
    let (begun, lease) = begin(&*journal, full("order")?).await?;
    let rejected =
        Record { closing: Some(Closing { reply: Some(reply()), ..closing(None) }), ..closed(&begun, Phase::Rejected) };
    save(&*journal, &rejected, &lease, AfterSave::ReleaseLease).await?;
    drop(journal);
    let found = get(&*open(store).await?, &begun.operation).await?;
    let differ = differences(&stamped(&rejected, &found), &found);
    ensure!(differ.is_empty(), "it came back with another {differ:?}");
    Ok(Shown::Kept)
}
