//! Changes of the mode of a held lock: they begin and end, see the table of [`held_lock`](super).

use std::sync::atomic::Ordering;

use super::requests::LostRecord;
use super::{HeldLock, Leftover, OwnedRecord, Ownership};
use crate::error::{Error, Result};
use crate::lease::freeing::LockDoubt;
use crate::names::holder::Holder;
use crate::names::mode::Mode;
use crate::names::owner::OwnerRecord;
use crate::runtime::time::Moment;
use crate::store::{Converted, Grant};

/// A change of mode that has begun, and must end.
#[must_use]
pub(crate) struct Converting<'a> {
    lock: &'a HeldLock,
    pub(crate) record: OwnerRecord,
}

/// What has become of a change of mode.
pub(crate) enum ConversionEnd {
    /// This lease is over. A new one has the grant, and what goes over to it.
    Granted(Grant, GoesOver),
    /// Others hold the lock. The lease is as it was.
    Held(Holder),
    Lost(LostRecord),
    /// The lease was given up in the meantime.
    Superseded,
    /// The lease is as it was.
    Failed(Error),
    /// The lease is over, and its record must be released if the store has it.
    InDoubt(Error, Leftover),
}

/// What a lease leaves to the one that follows it in another mode.
pub(crate) struct GoesOver {
    /// It is kept alive until then.
    pub(crate) kept_until: Option<Moment>,
    /// The lock stays held until then, even if it is released.
    hold_until: Moment,
}

impl HeldLock {
    /// Begins to change the mode.
    ///
    /// # Errors
    /// LEASE_LOST if the lease is over. UNSUPPORTED_CONVERSION or INVALID_ARGUMENT if its mode cannot become this one.
    /// INVALID_ARGUMENT while another thread changes it.
    pub(crate) fn begin_conversion(&self, to: Mode) -> Result<Converting<'_>> {
        self.check_conversion(to)?;
        let mut ownership = self.ownership.lock();
        let Ownership::Owned(owned) = &mut *ownership else { return Err(self.over()) };
        if owned.is_converting {
            let allowed = "one change at a time: another thread changes the mode of this lease";
            return Err(Error::invalid("conversion of lock", self.name.key(), allowed));
        }
        self.set_converting(owned, Some(to));
        Ok(Converting { lock: self, record: owned.record.clone() })
    }

    /// Begins or ends a change of mode. With the mutex of `owned`, so that no other change comes in between.
    fn set_converting(&self, owned: &mut OwnedRecord, to: Option<Mode>) {
        owned.is_converting = to.is_some();
        // Before the request: as soon as it arrives, others may read.
        let gives_up = to.is_some_and(|to| to != Mode::Exclusive);
        self.gives_up_rights.store(gives_up, Ordering::Release);
    }

    /// Whether a request is under way that changes the mode.
    pub(crate) fn is_converting(&self) -> bool {
        self.ownership.lock().owned_mut().is_some_and(|owned| owned.is_converting)
    }

    fn check_conversion(&self, to: Mode) -> Result<()> {
        if self.mode.converts_to(to) {
            return Ok(());
        }
        if self.mode == Mode::Shared && to != Mode::Shared {
            return Err(Error::UnsupportedConversion { name: self.name.to_string(), from: self.mode, to });
        }
        let allowed = format!("another mode than that of the lease, {}", self.mode);
        Err(Error::invalid("mode", to.name(), allowed))
    }

    /// Keeps what an earlier lease of the same lock has left.
    pub(crate) fn takes_over(mut self, from: &GoesOver) -> HeldLock {
        self.change(|owned| owned.hold_until = from.hold_until);
        // It has one fence, and none for when it is taken again.
        self.spare = None;
        self
    }
}

impl Converting<'_> {
    /// Ends the change with the store's answer.
    pub(crate) fn end(self, answer: Result<Converted>) -> ConversionEnd {
        let lock = self.lock;
        let mut ownership = lock.ownership.lock();
        let kept_until = lock.life.kept_until();
        let Some(owned) = ownership.owned_mut() else {
            return match answer {
                // The call that ended the lease had another record, so this one still holds the lock.
                Ok(Converted::Granted(grant)) => {
                    ConversionEnd::Granted(grant, GoesOver { kept_until: None, hold_until: Moment::OVER })
                }
                _ => ConversionEnd::Superseded,
            };
        };
        lock.set_converting(owned, None);
        match answer {
            Ok(Converted::Granted(grant)) => {
                let hold_until = owned.hold_until;
                *ownership = Ownership::Over;
                lock.life.released();
                ConversionEnd::Granted(grant, GoesOver { kept_until, hold_until })
            }
            Ok(Converted::Held(holder)) => ConversionEnd::Held(holder),
            Ok(Converted::NotOurs) => {
                let Ownership::Owned(owned) = &*ownership else { return ConversionEnd::Superseded };
                let why = lock.why_gone(owned);
                let lost = owned.lost(why, None);
                *ownership = Ownership::Lost;
                lock.life.end(why);
                ConversionEnd::Lost(lost)
            }
            Err(error) if error.is_in_doubt() => {
                let leftover = owned.leftover(LockDoubt::MayBeTaken);
                *ownership = Ownership::Over;
                lock.life.released();
                ConversionEnd::InDoubt(error, leftover)
            }
            Err(error) => ConversionEnd::Failed(error),
        }
    }
}
