//! Changes of the records of locks that their token allows, one or many at once, for both layouts.

use super::client::{BinOperation, Client, ManyWrite, Write, Written};
use crate::error::Result;
use crate::runtime::time::{Deadline, Moment};
use crate::store::remote::{OnReply, Replace, Reply, Standing};

/// What the request of a [`Replace`] consists of.
pub(super) trait ReplaceParts: Sized {
    fn steps(&self) -> Vec<BinOperation<'_>>;

    fn write<'a>(&'a self, steps: &'a [BinOperation<'a>]) -> Write<'a>;
}

pub(super) fn replace(client: &Client, parts: Result<impl ReplaceParts>, by: Deadline) -> Reply {
    replaced(parts.and_then(|parts| client.write(&parts.write(&parts.steps()), by)))
}

/// Makes changes as [`Register::replace_many`](crate::store::remote::Register::replace_many) describes. `parts_of` makes
/// the request of one.
pub(super) fn replace_many<'a, P: ReplaceParts>(
    client: &Client,
    changes: &[Replace<'a>],
    parts_of: impl Fn(&Replace<'a>) -> Result<P>,
    by: Deadline,
    answered: OnReply<'_, 'a>,
) {
    let mut all = Vec::with_capacity(changes.len());
    for change in changes {
        match parts_of(change) {
            Ok(parts) => all.push((change, parts)),
            Err(error) => drop(answered(change, Moment::now(), Reply::failed(error))),
        }
    }
    let steps: Vec<_> = all.iter().map(|(_, parts)| parts.steps()).collect();
    let writes: Vec<_> = all
        .iter()
        .zip(&steps)
        .map(|((change, parts), steps)| ManyWrite { write: parts.write(steps), alone: change.alone })
        .collect();
    client.write_many(&writes, by, &mut |at, since, written| {
        // The token that is compared does not change, so no other change follows.
        answered(all[at].0, since, replaced(written));
    });
}

fn replaced(written: Result<Written>) -> Reply {
    Reply::of(written, |written| match written {
        Written::Done(_) => Reply::Yes(()),
        Written::Missing => Reply::No(Some(Standing::Free)),
        // Another owner's record, one that has ended, or our record with more time left than the new TTL.
        Written::Refused => Reply::No(None),
    })
}
