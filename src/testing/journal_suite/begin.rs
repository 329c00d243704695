//! Promises about the first write.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use tokio::task::JoinSet;

use super::sample::{LEASE, begin, differences, full, get, id, prepared, record, stamped};
use super::{Checked, Shown, TestStore, checks, ensure, failed, open};
use crate::journal::{Acquired, Begun};
use crate::operation::Phase;

checks![
    of_all_who_begin_an_operation_at_once_one_does,
    a_known_operation_is_handed_back_as_it_is,
    a_begin_takes_the_lease,
    a_begin_stamps_the_record_with_the_journals_time,
    every_field_is_kept_to_the_byte,
    operations_are_told_apart_by_every_byte_of_their_id,
    a_begin_that_nobody_waits_for_leaves_the_operation_free,
    what_was_begun_is_there_after_a_restart,
    the_salt_stays_the_same,
];

async fn of_all_who_begin_an_operation_at_once_one_does(store: &dyn TestStore) -> Checked {
    const RACERS: usize = 32;
    let handles = [open(store).await?, open(store).await?];
    let mut racers = JoinSet::new();
    for handle in handles.iter().cycle().take(RACERS) {
        let (handle, record) = (Arc::clone(handle), record("race")?);
        racers.spawn(async move { handle.begin(record, LEASE).await });
    }
    let (mut winners, mut keys) = (0, Vec::new());
    while let Some(begun) = racers.join_next().await {
        match begun.map_err(|error| error.to_string())?.map_err(failed("begin"))? {
            Begun::New { record, lease, .. } => {
                winners += 1;
                ensure!(lease.operation == record.operation, "the lease is on {}", lease.operation);
                keys.push(record.key);
            }
            Begun::Known(record) => keys.push(record.key),
        }
    }
    ensure!(winners == 1, "{winners} of {RACERS} were told that the operation was new");
    keys.dedup();
    ensure!(keys.len() == 1, "they were told {} different keys", keys.len());
    Ok(Shown::Kept)
}

async fn a_known_operation_is_handed_back_as_it_is(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let (first, _) = begin(&*journal, record("order")?).await?;
    let Begun::Known(known) = journal.begin(full("order")?, LEASE).await.map_err(failed("begin"))? else {
        return Err("the second begin of one operation was told that it was new".to_owned());
    };
    let differ = differences(&first, &known);
    ensure!(differ.is_empty(), "it came back with another {differ:?}");
    let differ = differences(&first, &get(&*journal, &first.operation).await?);
    ensure!(differ.is_empty(), "the second begin changed {differ:?}");
    Ok(Shown::Kept)
}

async fn a_begin_takes_the_lease(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    let (_, lease) = begin(&*journal, record("order")?).await?;
    for handle in [&journal, &other] {
        let acquired = handle.acquire(lease.operation.clone(), LEASE).await.map_err(failed("acquire"))?;
        ensure!(
            matches!(acquired, Acquired::Held { until } if until == lease.until),
            "the lease until {} was taken, and the next worker got {acquired:?}",
            lease.until
        );
    }
    Ok(Shown::Kept)
}

async fn a_begin_stamps_the_record_with_the_journals_time(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    for (record, sent) in [(record("sent")?, true), (prepared("later")?, false)] {
        let operation = record.operation.clone();
        let begun = journal.begin(record, LEASE).await.map_err(failed("begin"))?;
        let Begun::New { record, lease, now } = begun else { return Err(format!("{operation} is said to be known")) };
        ensure!(record.begun_at == now, "begun_at is {} and the journal's time {now}", record.begun_at);
        ensure!(record.updated_at == now, "updated_at is {} and the journal's time {now}", record.updated_at);
        let expected = sent.then_some(now);
        ensure!(
            record.first_sent_at == expected,
            "a {} record has first_sent_at {:?} instead of {expected:?}",
            record.phase,
            record.first_sent_at
        );
        ensure!(lease.until == now.plus(LEASE), "the lease of {LEASE:?} from {now} ends at {}", lease.until);
        let differ = differences(&record, &get(&*journal, &operation).await?);
        ensure!(differ.is_empty(), "what was handed back and what was stored differ in {differ:?}");
    }
    Ok(Shown::Kept)
}

async fn every_field_is_kept_to_the_byte(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    let mut bare = record("bare")?;
    bare.request = None;
    let mut large = record("large")?;
    if let Some(request) = &mut large.request {
        request.body = (0..1 << 20).map(|byte: u32| byte.to_le_bytes()[0]).collect();
    }
    let mut empty = record("empty")?;
    if let Some(request) = &mut empty.request {
        request.body.clear();
    }
    for record in [full("full")?, bare, large, empty] {
        begin(&*journal, record.clone()).await?;
        let found = get(&*other, &record.operation).await?;
        let differ = differences(&stamped(&record, &found), &found);
        ensure!(differ.is_empty(), "{} came back with another {differ:?}", record.operation);
    }
    Ok(Shown::Kept)
}

async fn operations_are_told_apart_by_every_byte_of_their_id(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let longest = "ß".repeat(127) + "x";
    // Case, spaces, the two ways to write é, characters that mean something to a shell, a pattern or a path.
    let ids = [
        "order",
        "Order",
        " order",
        "order ",
        "caf\u{e9}",
        "cafe\u{301}",
        "100%",
        "100_",
        "a'b\"c",
        "../x",
        "🦀",
        &longest,
    ];
    for text in ids {
        begin(&*journal, record(text)?).await?;
    }
    for text in ids {
        let found = get(&*journal, &id(text)?).await?;
        ensure!(found.operation.as_str() == text, "{text:?} was asked for and {:?} came back", found.operation);
    }
    Ok(Shown::Kept)
}

async fn a_begin_that_nobody_waits_for_leaves_the_operation_free(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    {
        let mut begin = pin!(journal.begin(record("order")?, LEASE));
        // As far as it gets without waiting, then it is dropped.
        if begin.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return Ok(Shown::LeftOut("its begin never waits"));
        }
    }
    let operation = id("order")?;
    for _ in 0..1_000 {
        match journal.begin(record("order")?, LEASE).await.map_err(failed("begin"))? {
            Begun::New { .. } => return Ok(Shown::Kept),
            Begun::Known(_) => {}
        }
        let acquired = journal.acquire(operation.clone(), LEASE).await.map_err(failed("acquire"))?;
        if matches!(acquired, Acquired::Taken { .. }) {
            return Ok(Shown::Kept);
        }
        tokio::task::yield_now().await;
    }
    Err("its future was dropped, and the lease stayed taken".to_owned())
}

async fn what_was_begun_is_there_after_a_restart(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    if !journal.is_durable() {
        return Ok(Shown::LeftOut("the journal does not outlive its process, and says so"));
    }
    let (begun, _) = begin(&*journal, full("order")?).await?;
    drop(journal);
    let journal = open(store).await?;
    let differ = differences(&begun, &get(&*journal, &begun.operation).await?);
    ensure!(differ.is_empty(), "it came back with another {differ:?}");
    ensure!(begun.phase == Phase::Sending, "a direct send begins as {}", begun.phase);
    Ok(Shown::Kept)
}

async fn the_salt_stays_the_same(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    ensure!(journal.salt() == other.salt(), "two handles have two salts");
    if journal.is_durable() {
        ensure!(journal.salt().len() >= 16, "a durable journal's salt has {} bytes", journal.salt().len());
        let before = journal.salt().to_vec();
        drop((journal, other));
        ensure!(open(store).await?.salt() == before, "a restart changed the salt");
    }
    Ok(Shown::Kept)
}
