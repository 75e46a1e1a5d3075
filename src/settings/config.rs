//! What follows from the settings of a manager.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::lock_name::check_part;
use crate::runtime::time::Moment;
use crate::settings::limits::TTL_MAX;
use crate::settings::manager_options::Settings;

impl Settings {
    /// # Errors
    /// INVALID_ARGUMENT if the client id is missing, or the client or farm id is not allowed.
    pub(crate) fn check_names(&self) -> Result<()> {
        if self.client.is_empty() {
            let how = "set the option client, such as ?client=order-service in the store's URI";
            return Err(Error::invalid("client id", "", how));
        }
        check_part("client id", &self.client, self.names)?;
        self.farm.as_ref().map_or(Ok(()), |farm| check_part("farm id", farm, self.names))
    }

    /// Returns when a lease that was requested at `since` expires here. That is earlier than in the store by the
    /// clock margin, see [`Builder::clock_margin_ppm`](crate::Builder::clock_margin_ppm).
    pub(crate) fn lease_end(&self, since: Moment, ttl: Duration) -> Moment {
        since.after(ttl - ttl.mul_f64(f64::from(self.clock_margin_ppm) / 1e6))
    }

    /// Returns how long the store is asked to keep the record of a lease with this TTL.
    pub(crate) fn asked_ttl(&self, ttl: Duration) -> Duration {
        ttl + self.lock_delay + self.linger_of(ttl)
    }

    /// Returns how long a lock stays with this process after a lease with this TTL.
    pub(crate) fn linger_of(&self, ttl: Duration) -> Duration {
        self.linger.min(ttl)
    }

    /// Returns the TTL of a lease that lasts `length` here: the reverse of [`lease_end`](Settings::lease_end).
    pub(crate) fn ttl_of_lease(&self, length: Duration) -> Duration {
        // The margin is at most a half. A time beyond all leases cannot be multiplied.
        length.min(TTL_MAX).div_f64(1.0 - f64::from(self.clock_margin_ppm) / 1e6)
    }
}
