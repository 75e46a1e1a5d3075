//! The options of a manager. Each is one row: the builder's methods, the keys of URIs, the settings, the defaults and what
//! `dlm --help` prints come from it. Tests compare the C header, README and docs with it.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::lock_name::NamePolicy;
use crate::settings::limits::{
    NoticesSetting, checked_background_threads, checked_clock_margin, checked_history, checked_linger,
    checked_lock_delay, checked_poll, checked_retry, checked_timeout, checked_ttl, parse_clock_margin,
    parse_notices,
};
use crate::settings::options::{Options, duration_of};
use crate::settings::store_option::StoreOption;

/// Gives the table to another macro. A row: the documentation of the builder's method, its name and the key in URIs, the
/// [kind](OptionKind), the default as text, the meaning in a line of Markdown, and the check of a value.
macro_rules! manager_options {
    ($table_to:ident) => {
        $table_to! {
            /// Sets the client id: the service that uses the locks, such as `order-service`. It is part of every
            /// name. Required.
            client = "client": Text, "", "required: the service that uses the locks; part of every name", Ok;
            /// Sets the farm id: the data centre of this process, such as `dc1`. It is part of the name of each lock
            /// of level DC. Of a latch, this process changes the count of this farm only. Required for latches and
            /// for locks of level DC.
            farm = "farm": OptionalText, "",
                "the data centre; part of the names of level DC; latches need it",
                given_text;
            /// Sets how long a lease lasts unless it is renewed. Default 90 s; 1 ms to 365 days.
            ttl = "ttl": Time, "90s", "how long a lease lasts unless it is renewed", checked_ttl;
            /// Sets how long `acquire` waits. Default 90 s; zero tries once, [`Duration::MAX`](std::time::Duration::MAX) waits for ever.
            wait = "wait": Time, "90s", "how long an acquire waits", Ok;
            /// Sets the retry interval: how long a waiting process sleeps between two checks of a lock, plus or minus
            /// a tenth. Default 1 s; 1 ms to 1 h.
            retry = "retry": Time, "1s",
                "how long a waiting process pauses between two attempts, plus or minus a tenth",
                checked_retry;
            /// Sets how long one call to the store may take. Default 10 s; 10 ms to 10 min.
            timeout = "timeout": Time, "10s", "the time limit of one call to the store", checked_timeout;
            /// Sets the clock margin: how much earlier than in the store a lease expires here, in parts per million of its TTL.
            /// Default 100,000, a tenth; 0 to 500,000.
            ///
            /// The store and this process measure the lease with different clocks. Time daemons correct clocks by changing
            /// their speed, including the boot clock: ntpd and systemd-timesyncd by up to 500 ppm, chrony by up to 83,333
            /// ppm unless its `maxslewrate` is set. Linux allows about 100,000 ppm. A tenth covers one clock at 100,000 ppm,
            /// or both at 50,000. Two hosts whose chrony corrects at full speed in opposite directions need 160,000. No
            /// margin covers a clock that is set instead of slewed.
            clock_margin_ppm = "clock_margin": PartsPerMillion, "100000ppm",
                "how much earlier a lease ends for its holder than in the store, in parts per million of its TTL: a tenth",
                checked_clock_margin;
            /// Sets the lock delay: how much longer the store keeps the record of a lease than the lease lasts. If a holder
            /// dies, nobody gets the lock during the delay, so that requests it has sent to other services can end before. A
            /// release has no delay. Default zero; at most 1 h. All processes that use the lock should set the same.
            lock_delay = "lock_delay": Time, "0s",
                "how long nobody gets the lock after the lease of a dead holder",
                checked_lock_delay;
            /// Sets how long a lock stays with this process after its release: see [locks that
            /// stay](https://github.com/dlm-rs/dlm/blob/main/docs/linger.md). Default zero: a release frees the lock. At most 1 h,
            /// and for each lease at most its TTL. A holder that dies delays others by TTL and linger. Without
            /// [notices](Builder::notices), others may wait that much longer for a lock that nobody holds. Then this process leaves
            /// it to them for 1.2 [retry](Builder::retry) intervals, unless [all have notices](Builder::notices_all) or the store knows that
            /// nobody polls.
            ///
            /// Not through a gateway to HBase and not with `layout=both`: [`open`](Builder::open) refuses that.
            linger = "linger": Time, "0s",
                "how long a released lock stays with its process, which takes it again without the store",
                checked_linger;
            /// Lets the manager write the history of each lock into the store: when it was acquired, released and lost, by whom, and
            /// how long that took. Each entry is kept for this time; zero writes none. Default: 0 s.
            /// [`Lock::history`](crate::Lock::history) and `dlm history` read it.
            ///
            /// A thread of its own writes the entries after the fact, so no caller waits for them. An acquire and a release cost one
            /// more write to the store each. If the store does not keep up, entries are dropped, and a warning is logged. 0 s, or
            /// 1 s to 365 days.
            history = "history": Time, "0s",
                "how long the store keeps what happened to each lock; `0s` writes nothing",
                checked_history;
            /// Sets whether all exclusive leases of this manager die with this process: see
            /// [`AcquireOptions::dies_with_process`](crate::AcquireOptions::dies_with_process). Others never do. Default: `false`.
            /// For the embedded store only.
            dies_with_process = "dies_with_process": Flag, "false",
                "`true`: others get the lock at once if the process dies (embedded)",
                Ok;
            /// Sets what client and farm ids may contain. Default [`NamePolicy::Strict`](crate::NamePolicy::Strict).
            names = "names": Policy, "strict", "`compat` allows `#` and control characters in client and farm ids", Ok;
            /// Sets what the locks are used for. Others see it when they find a lock held. At most 255 bytes without
            /// control characters.
            purpose = "purpose": Text, "", "a text that others see while the lock is held", Ok;
            /// Sets whether [`open`](Builder::open) refuses a store that [`diagnose`](LockManager::diagnose) reports
            /// as unsafe. Default: `false`, and `open` does not diagnose.
            strict = "strict": Flag, "false", "`true` refuses a store that `dlm doctor` reports as unsafe", Ok;
            /// Sets how long a latch lives after its last change. Default one day; 1 ms to 365 days.
            latch_ttl = "latch_ttl": Time, "1d", "how long a latch lives after its last change", checked_ttl;
            /// Sets the poll interval: the longest pause between two reads of a latch that has waiters, plus or minus
            /// a tenth. Default 5 s; 10 ms to 1 h. Pauses are shorter at first and when a latch is about to open.
            poll = "poll": Time, "5s",
                "the longest pause between two reads of an awaited latch, plus or minus a tenth",
                checked_poll;
            /// Sets the highest number of background threads. They read latches, and free locks that requests in
            /// doubt may have acquired. Default 2; 1 to 64. Each thread is started when it is needed.
            ///
            /// With two or more threads, one is kept for latches, so a server that hangs while a lock is freed does not
            /// delay reads of latches. With 1, the same thread does both, and freeing a lock may delay the reads by 2 s.
            background_threads = "background_threads": Count, "2",
                "the most threads that poll latches and release locks in doubt",
                checked_background_threads;
            /// Sets where this process receives notices: other processes that release a lock notify it at once that it may ask for it,
            /// so that it need not wait for the end of its retry interval. Notices change when a process asks the store, never
            /// who holds a lock. See `docs/notices.md`.
            ///
            /// | value | notices are received |
            /// |---|---|
            /// | `local` (default) | in the directory of the store, by the processes of this machine; other stores have none |
            /// | `off` | nowhere, and none are sent |
            /// | `udp://ADDRESS[:PORT]` | at this UDP address, which the other processes must reach; any free port by default |
            ///
            /// UDP is for networks whose hosts are trusted: whoever can read the records of the store can make waiters ask it
            /// earlier.
            notices = "notices": NoticesText, "local",
                "`local`, `off`, `udp://ADDRESS[:PORT]`: where waiters receive notices of a release",
                checked_notices;
            /// Sets whether all processes that use the locks receive notices. If so, nobody depends on finding a lock free by
            /// polling, and processes that pass a lock on do not leave it free now and then. Default: `false`: they do, unless the store
            /// knows that nobody polls, as an embedded one of one user does. With `true`, a process
            /// without notices, such as a Java service, may wait for as long as others want the lock.
            notices_all = "notices_all": Flag, "false",
                "`true`: nobody polls, so waiters need not leave the lock free now and then",
                Ok;
        }
    };
}
pub(crate) use manager_options;

/// The type of the default of an option, and of the argument of the builder's method.
macro_rules! type_of {
    ($text:ty, Text) => {
        $text
    };
    ($text:ty, OptionalText) => {
        $text
    };
    ($text:ty, NoticesText) => {
        $text
    };
    ($text:ty, Time) => {
        ::std::time::Duration
    };
    ($text:ty, Flag) => {
        bool
    };
    ($text:ty, PartsPerMillion) => {
        u32
    };
    ($text:ty, Count) => {
        usize
    };
    ($text:ty, Policy) => {
        $crate::NamePolicy
    };
}
pub(crate) use type_of;

macro_rules! settings {
    ($($(#[doc = $doc:literal])* $name:ident = $key:literal: $kind:ident, $default:literal, $meaning:literal, $check:path;)*) => {
        /// The options of every manager. A store's own options are [`Scheme::options`](crate::store::Scheme::options).
        pub const MANAGER: [StoreOption; [$($key),*].len()] = [$(StoreOption::new($key, $default, $meaning)),*];

        /// What a manager uses if neither the builder nor the URI says otherwise: the value is [`DEFAULTS`]. The methods of
        /// [`Builder`](crate::Builder) with these names say what each means. An empty text means that there is no default.
        #[derive(Debug, Clone, Copy)]
        #[non_exhaustive]
        pub struct Defaults {
            $(#[doc = concat!("See [`Builder::", stringify!($name), "`](crate::Builder::", stringify!($name), ").")]
            pub $name: type_of!(&'static str, $kind),)*
        }

        /// The defaults of a manager's options.
        pub const DEFAULTS: Defaults = Defaults { $($name: $kind::constant($default)),* };

        /// Settings of a manager.
        #[derive(Debug, Clone)]
        pub(crate) struct Settings {
            $(pub(crate) $name: <$kind as OptionKind>::Setting,)*
        }

        /// Settings that were given, by a builder or as text.
        #[derive(Default)]
        pub(crate) struct GivenSettings {
            $(pub(crate) $name: Option<<$kind as OptionKind>::Given>,)*
        }

        impl GivenSettings {
            /// Takes the options of a manager out of `options`.
            ///
            /// # Errors
            /// INVALID_ARGUMENT, with the text, for one that cannot be read, and for a duration that is not allowed.
            pub(crate) fn take(options: &mut Options) -> Result<GivenSettings> {
                Ok(GivenSettings { $($name: $kind::take(options, $key, $check)?),* })
            }

            /// Returns these settings. What is not among them comes from `others`, or is the default.
            ///
            /// # Errors
            /// INVALID_ARGUMENT for a value that is not allowed.
            pub(crate) fn settled(self, others: GivenSettings) -> Result<Settings> {
                Ok(Settings { $($name: match self.$name.or(others.$name) {
                    Some(given) => $check(given).map_err(|error: Error| error.about($key))?,
                    None => $kind::default(DEFAULTS.$name)?,
                }),* })
            }
        }
    };
}

manager_options!(settings);

/// The defaults, of a manager without a name.
#[cfg(test)]
impl Default for Settings {
    fn default() -> Settings {
        GivenSettings::default().settled(GivenSettings::default()).expect("defaults are allowed")
    }
}

/// A kind of option. Each also has the functions `constant`, which reads the default when the library is compiled, and
/// `given`, which takes the argument of the builder's method.
pub(crate) trait OptionKind {
    /// The default.
    type Const: Copy;
    /// What was given.
    type Given;
    /// What the manager uses.
    type Setting;

    /// Takes the option out of `options`. A duration is checked here, so that the error has the text as it was typed.
    fn take(
        options: &mut Options,
        key: &'static str,
        check: fn(Self::Given) -> Result<Self::Setting>,
    ) -> Result<Option<Self::Given>>;

    fn default(constant: Self::Const) -> Result<Self::Setting>;
}

/// An option whose default, argument and setting are of one type.
macro_rules! plain_kind {
    ($(#[doc = $doc:literal])* $kind:ident: $type:ty, |$options:ident, $key:ident, $check:ident| $take:expr) => {
        $(#[doc = $doc])*
        pub(crate) struct $kind;

        impl $kind {
            pub(crate) fn given(argument: $type) -> $type {
                argument
            }
        }

        impl OptionKind for $kind {
            type Const = $type;
            type Given = $type;
            type Setting = $type;

            fn take(
                $options: &mut Options,
                $key: &'static str,
                $check: fn($type) -> Result<$type>,
            ) -> Result<Option<$type>> {
                $take
            }

            fn default(constant: $type) -> Result<$type> {
                Ok(constant)
            }
        }
    };
}

plain_kind!(
    /// A duration, such as `90s`.
    Time: Duration, |options, key, check| options.take_checked(key, check)
);
plain_kind!(
    /// `true` or `false`.
    Flag: bool, |options, key, _check| options.take_flag(key)
);
plain_kind!(
    /// A number such as `100ppm`.
    PartsPerMillion: u32, |options, key, _check| options.take(key).map(|text| parse_clock_margin(&text).map_err(|error| error.about(key))).transpose()
);
plain_kind!(
    /// A whole number.
    Count: usize, |options, key, _check| options.take_number(key, 0, usize::MAX)
);
plain_kind!(
    /// `strict` or `compat`.
    Policy: NamePolicy, |options, key, _check| options.take_policy(key)
);

impl Time {
    const fn constant(text: &'static str) -> Duration {
        duration_of(text)
    }
}

impl Flag {
    const fn constant(text: &'static str) -> bool {
        assert!(matches!(text.as_bytes(), b"true" | b"false"), "true or false");
        matches!(text.as_bytes(), b"true")
    }
}

impl PartsPerMillion {
    const fn constant(text: &'static str) -> u32 {
        let (digits, unit) = text.as_bytes().split_at(text.len() - 3);
        assert!(matches!(unit, b"ppm"), "a number of ppm");
        let number = number_of(digits);
        assert!(number <= 1_000_000, "at most the whole");
        number as u32
    }
}

impl Count {
    const fn constant(text: &'static str) -> usize {
        number_of(text.as_bytes()) as usize
    }
}

impl Policy {
    const fn constant(text: &'static str) -> NamePolicy {
        assert!(matches!(text.as_bytes(), b"strict"), "the default is strict");
        NamePolicy::Strict
    }
}

/// An option whose argument is a text.
macro_rules! text_kind {
    ($(#[doc = $doc:literal])* $kind:ident: $setting:ty, $default:expr) => {
        $(#[doc = $doc])*
        pub(crate) struct $kind;

        impl $kind {
            const fn constant(text: &'static str) -> &'static str {
                text
            }

            pub(crate) fn given(argument: &str) -> String {
                argument.to_owned()
            }
        }

        impl OptionKind for $kind {
            type Const = &'static str;
            type Given = String;
            type Setting = $setting;

            fn take(
                options: &mut Options,
                key: &'static str,
                _check: fn(String) -> Result<$setting>,
            ) -> Result<Option<String>> {
                Ok(options.take(key))
            }

            fn default(constant: &'static str) -> Result<$setting> {
                $default(constant)
            }
        }
    };
}

text_kind!(
    /// A text.
    Text: String, |text: &str| Ok(text.to_owned())
);
text_kind!(
    /// A text that need not be given.
    OptionalText: Option<String>, |_| Ok(None)
);
text_kind!(
    /// Where notices are received.
    NoticesText: NoticesSetting, parse_notices
);

fn given_text(text: String) -> Result<Option<String>> {
    Ok(Some(text))
}

fn checked_notices(text: String) -> Result<NoticesSetting> {
    parse_notices(&text)
}

const fn number_of(digits: &[u8]) -> u64 {
    assert!(!digits.is_empty(), "a number");
    let (mut at, mut number) = (0, 0);
    while at < digits.len() {
        assert!(digits[at].is_ascii_digit(), "a number");
        number = 10 * number + (digits[at] - b'0') as u64;
        at += 1;
    }
    number
}
