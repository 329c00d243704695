//! Promises about what is pending, and what is closed.

use std::collections::BTreeSet;

use super::sample::{begin, closed, get, id, prepared, record, save};
use super::{Checked, Shown, TestStore, checks, ensure, failed, open};
use crate::operation::{AfterSave, OperationId, Phase};

checks![
    all_that_is_pending_is_listed_and_nothing_else,
    the_list_can_be_read_in_pages_of_any_size,
    a_page_may_begin_after_an_operation_that_is_gone,
];

const CLOSED: [Phase; 6] =
    [Phase::Completed, Phase::Rejected, Phase::NotSent, Phase::Failed, Phase::Expired, Phase::Abandoned];

async fn all_that_is_pending_is_listed_and_nothing_else(store: &dyn TestStore) -> Checked {
    let (journal, other) = (open(store).await?, open(store).await?);
    begin(&*journal, record("sending")?).await?;
    begin(&*journal, prepared("prepared")?).await?;
    for phase in CLOSED {
        let (begun, lease) = begin(&*journal, record(phase.as_str())?).await?;
        save(&*journal, &closed(&begun, phase), &lease, AfterSave::ReleaseLease).await?;
    }
    for handle in [&journal, &other] {
        let listed = handle.pending(None, 100).await.map_err(failed("pending"))?;
        let mut listed: Vec<&str> = listed.iter().map(OperationId::as_str).collect();
        listed.sort_unstable();
        ensure!(listed == ["prepared", "sending"], "pending are prepared and sending, and listed were {listed:?}");
    }
    for phase in CLOSED {
        let found = get(&*other, &id(phase.as_str())?).await?;
        ensure!(found.phase == phase, "{phase} came back as {}", found.phase);
    }
    Ok(Shown::Kept)
}

async fn the_list_can_be_read_in_pages_of_any_size(store: &dyn TestStore) -> Checked {
    const OPERATIONS: usize = 25;
    let journal = open(store).await?;
    // Begun in another order than any sorting would give.
    for number in (0..OPERATIONS).map(|number| number * 7 % OPERATIONS) {
        begin(&*journal, record(&format!("order-{number}"))?).await?;
    }
    let all = journal.pending(None, OPERATIONS * 2).await.map_err(failed("pending"))?;
    ensure!(
        all.iter().collect::<BTreeSet<_>>().len() == OPERATIONS,
        "{OPERATIONS} were begun and {} listed",
        all.len()
    );
    for size in [1, 7, OPERATIONS - 1, OPERATIONS, OPERATIONS + 1] {
        let (mut read, mut after) = (Vec::new(), None);
        // One page more than there can be, so that a list that never ends ends here.
        for _ in 0..=OPERATIONS {
            let page = journal.pending(after.clone(), size).await.map_err(failed("pending"))?;
            ensure!(page.len() <= size, "a page of at most {size} had {}", page.len());
            let Some(last) = page.last() else { break };
            after = Some(last.clone());
            read.extend(page);
        }
        ensure!(read == all, "pages of {size} gave {read:?} and the whole list {all:?}");
    }
    let none = journal.pending(None, 0).await.map_err(failed("pending"))?;
    ensure!(none.is_empty(), "a page of none had {}", none.len());
    Ok(Shown::Kept)
}

async fn a_page_may_begin_after_an_operation_that_is_gone(store: &dyn TestStore) -> Checked {
    let journal = open(store).await?;
    let mut begun = Vec::new();
    for operation in ["b", "c", "a"] {
        begun.push(begin(&*journal, record(operation)?).await?);
    }
    let all = journal.pending(None, 10).await.map_err(failed("pending"))?;
    let [_, second, third] = &all[..] else { return Err(format!("three were begun and {} listed", all.len())) };
    // Between two pages, the one that the next page begins after is finished.
    for (begun, lease) in begun.iter().filter(|(begun, _)| begun.operation == *second) {
        save(&*journal, &closed(begun, Phase::Completed), lease, AfterSave::ReleaseLease).await?;
    }
    let rest = journal.pending(Some(second.clone()), 10).await.map_err(failed("pending"))?;
    ensure!(rest == [third.clone()], "after {second} came {rest:?}");
    Ok(Shown::Kept)
}
