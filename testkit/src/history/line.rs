//! The text format of a log: one line for each call and one for each return.
//!
//! ```text
//! call A 12 5000000 acquire orders/1 ttl=60000000 wait=0
//! return A 12 5004000 granted fence=17 ends=59000000
//! ```
//!
//! The words are: kind, client, number, time in nanoseconds, operation and key or answer, details. A lock is asked for
//! exclusively unless the line says `mode=SHARED` or `mode=UPDATE`: logs of before the modes say nothing. Other bytes than
//! letters, digits and `.` `_` `/` `#` `-` are written as `%` and two hexadecimal digits in names.

use std::fmt::Write as _;
use std::time::Duration;

use dlm::{Mode, Moment};

use super::event::{Answer, CallId, Operation};

/// One line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    Call { id: CallId, at: Moment, key: String, operation: Operation },
    Return { id: CallId, at: Moment, answer: Answer },
}

impl Line {
    /// Returns the text of the line, with its line feed.
    pub(super) fn to_text(&self) -> String {
        match self {
            Line::Call { id, at, key, operation } => {
                let words = Words::of("call", id, *at);
                operation_to(words, &escaped(key), operation).text()
            }
            Line::Return { id, at, answer } => answer_to(Words::of("return", id, *at), answer).text(),
        }
    }

    /// Reads a line. `None` if it is not one.
    pub(super) fn parse(text: &str) -> Option<Line> {
        let mut words = text.split(' ');
        let kind = words.next()?;
        let id = CallId { client: unescaped(words.next()?)?.into(), number: words.next()?.parse().ok()? };
        let at = Moment::from_nanos(words.next()?.parse().ok()?);
        let word = words.next()?;
        match kind {
            "call" => {
                let key = unescaped(words.next()?)?;
                let operation = operation_of(word, &Details(words.collect()))?;
                Some(Line::Call { id, at, key, operation })
            }
            "return" => Some(Line::Return { id, at, answer: answer_of(word, &Details(words.collect()))? }),
            _ => None,
        }
    }
}

fn operation_to(words: Words, key: &str, operation: &Operation) -> Words {
    match operation {
        Operation::Acquire { ttl, wait, mode } => {
            words.word("acquire").word(key).time("ttl", *ttl).time("wait", *wait).mode(*mode)
        }
        Operation::AcquirePermit { ttl, wait, permits } => words
            .word("acquire_permit")
            .word(key)
            .time("ttl", *ttl)
            .time("wait", *wait)
            .with("permits", permits),
        Operation::Resize { permits } => words.word("resize").word(key).with("permits", permits),
        Operation::Convert { lease, mode, ttl, wait } => {
            words.word("convert").word(key).lease(lease).time("ttl", *ttl).time("wait", *wait).mode(*mode)
        }
        Operation::Renew { lease, ttl } => words.word("renew").word(key).lease(lease).time("ttl", *ttl),
        Operation::Release { lease } => words.word("release").word(key).lease(lease),
        Operation::Check { lease } => words.word("check").word(key).lease(lease),
        Operation::Write { lease, fence } => words.word("write").word(key).lease(lease).with("fence", fence),
        Operation::Read { lease, epoch } => words.word("read").word(key).lease(lease).with("epoch", epoch),
        Operation::CreateLatch { count, ttl } => {
            words.word("create_latch").word(key).with("count", count).time("ttl", *ttl)
        }
        Operation::DeleteLatch => words.word("delete_latch").word(key),
        Operation::ResetLatch { count, ttl } => {
            words.word("reset_latch").word(key).with("count", count).time("ttl", *ttl)
        }
        Operation::CountDown { participant: None } => words.word("count_down").word(key),
        Operation::CountDown { participant: Some(name) } => {
            words.word("count_down").word(key).with("participant", escaped(name))
        }
        Operation::CountUp => words.word("count_up").word(key),
        Operation::ReadCount => words.word("read_count").word(key),
        Operation::Await { deadline } => words.word("await").word(key).with("deadline", deadline.as_nanos()),
        Operation::CreateRow { value } => words.word("create_row").word(key).with("value", value),
        Operation::Put { value } => words.word("put").word(key).with("value", value),
        Operation::CompareAndSet { expected, value } => {
            words.word("compare_and_set").word(key).optional("expected", *expected).with("value", value)
        }
        Operation::Get => words.word("get").word(key),
        Operation::Increment { by } => words.word("increment").word(key).with("by", by),
        Operation::Modify { by } => words.word("modify").word(key).with("by", by),
        Operation::Beat { every } => words.word("beat").word(key).time("every", *every),
        Operation::Delay { longest } => words.word("delay").word(key).time("longest", *longest),
        Operation::Outage => words.word("outage").word(key),
    }
}

fn operation_of(word: &str, details: &Details<'_>) -> Option<Operation> {
    Some(match word {
        "acquire" => Operation::Acquire {
            ttl: details.time("ttl")?,
            wait: details.time("wait")?,
            mode: details.mode()?,
        },
        "acquire_permit" => Operation::AcquirePermit {
            ttl: details.time("ttl")?,
            wait: details.time("wait")?,
            permits: details.number("permits")?,
        },
        "resize" => Operation::Resize { permits: details.number("permits")? },
        "convert" => Operation::Convert {
            lease: details.lease()?,
            mode: details.mode()?,
            ttl: details.time("ttl")?,
            wait: details.time("wait")?,
        },
        "renew" => Operation::Renew { lease: details.lease()?, ttl: details.time("ttl")? },
        "release" => Operation::Release { lease: details.lease()? },
        "check" => Operation::Check { lease: details.lease()? },
        "write" => Operation::Write { lease: details.lease()?, fence: details.number("fence")? },
        "read" => Operation::Read { lease: details.lease()?, epoch: details.number("epoch")? },
        "create_latch" => {
            Operation::CreateLatch { count: details.number("count")?, ttl: details.time("ttl")? }
        }
        "delete_latch" => Operation::DeleteLatch,
        "reset_latch" => Operation::ResetLatch { count: details.number("count")?, ttl: details.time("ttl")? },
        "count_down" => {
            let participant = match details.word("participant") {
                Some(name) => Some(unescaped(name)?),
                None => None,
            };
            Operation::CountDown { participant }
        }
        "count_up" => Operation::CountUp,
        "read_count" => Operation::ReadCount,
        "await" => Operation::Await { deadline: details.moment("deadline")? },
        "create_row" => Operation::CreateRow { value: details.number("value")? },
        "put" => Operation::Put { value: details.number("value")? },
        "compare_and_set" => Operation::CompareAndSet {
            expected: details.optional("expected")?,
            value: details.number("value")?,
        },
        "get" => Operation::Get,
        "increment" => Operation::Increment { by: details.number("by")? },
        "modify" => Operation::Modify { by: details.number("by")? },
        "beat" => Operation::Beat { every: details.time("every")? },
        "delay" => Operation::Delay { longest: details.time("longest")? },
        "outage" => Operation::Outage,
        _ => return None,
    })
}

fn answer_to(words: Words, answer: &Answer) -> Words {
    match answer {
        Answer::Ok => words.word("ok"),
        Answer::No => words.word("no"),
        Answer::Granted { fence, ends } => {
            words.word("granted").optional("fence", *fence).with("ends", ends.as_nanos())
        }
        Answer::GrantedPermit { permit, fence, ends } => words
            .word("granted_permit")
            .with("permit", permit)
            .optional("fence", *fence)
            .with("ends", ends.as_nanos()),
        Answer::Renewed { ends } => words.word("renewed").with("ends", ends.as_nanos()),
        Answer::Lost => words.word("lost"),
        Answer::NotFound => words.word("not_found"),
        Answer::Value(value) => words.word("value").optional("is", *value),
        Answer::Refused { highest } => words.word("refused").with("highest", highest),
        Answer::InDoubt => words.word("in_doubt"),
        Answer::Failed { code } => words.word("failed").with("code", escaped(code)),
        Answer::Unknown => words.word("unknown"),
    }
}

fn answer_of(word: &str, details: &Details<'_>) -> Option<Answer> {
    Some(match word {
        "ok" => Answer::Ok,
        "no" => Answer::No,
        "granted" => Answer::Granted { fence: details.optional("fence")?, ends: details.moment("ends")? },
        "granted_permit" => Answer::GrantedPermit {
            permit: details.number("permit")?,
            fence: details.optional("fence")?,
            ends: details.moment("ends")?,
        },
        "renewed" => Answer::Renewed { ends: details.moment("ends")? },
        "lost" => Answer::Lost,
        "not_found" => Answer::NotFound,
        "value" => Answer::Value(details.optional("is")?),
        "refused" => Answer::Refused { highest: details.number("highest")? },
        "in_doubt" => Answer::InDoubt,
        "failed" => Answer::Failed { code: unescaped(details.word("code")?)? },
        "unknown" => Answer::Unknown,
        _ => return None,
    })
}

/// A line that is being written.
struct Words(String);

impl Words {
    fn of(kind: &str, id: &CallId, at: Moment) -> Words {
        Words(format!("{kind} {} {} {}", escaped(&id.client), id.number, at.as_nanos()))
    }

    fn word(mut self, word: &str) -> Words {
        self.0.push(' ');
        self.0.push_str(word);
        self
    }

    fn with(self, name: &str, value: impl std::fmt::Display) -> Words {
        self.word(&format!("{name}={value}"))
    }

    fn optional(self, name: &str, value: Option<impl std::fmt::Display>) -> Words {
        match value {
            Some(value) => self.with(name, value),
            None => self.with(name, "none"),
        }
    }

    fn time(self, name: &str, time: Duration) -> Words {
        self.with(name, time.as_nanos())
    }

    fn lease(self, lease: &CallId) -> Words {
        self.with("lease", format!("{}:{}", escaped(&lease.client), lease.number))
    }

    fn mode(self, mode: Mode) -> Words {
        if mode == Mode::Exclusive { self } else { self.with("mode", mode.name()) }
    }

    fn text(mut self) -> String {
        self.0.push('\n');
        self.0
    }
}

/// The words `name=value` of a line.
struct Details<'a>(Vec<&'a str>);

impl<'a> Details<'a> {
    fn word(&self, name: &str) -> Option<&'a str> {
        self.0
            .iter()
            .find_map(|detail| detail.split_once('=').filter(|(given, _)| *given == name))
            .map(|d| d.1)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.word(name)?.parse().ok()
    }

    /// The outer `None` means that the detail is missing or unreadable.
    fn optional<T: std::str::FromStr>(&self, name: &str) -> Option<Option<T>> {
        match self.word(name)? {
            "none" => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    fn time(&self, name: &str) -> Option<Duration> {
        self.number(name).map(Duration::from_nanos)
    }

    fn moment(&self, name: &str) -> Option<Moment> {
        self.number(name).map(Moment::from_nanos)
    }

    fn mode(&self) -> Option<Mode> {
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Update];
        match self.word("mode") {
            Some(word) => modes.into_iter().find(|mode| mode.name() == word),
            None => Some(Mode::Exclusive),
        }
    }

    fn lease(&self) -> Option<CallId> {
        let (client, number) = self.word("lease")?.rsplit_once(':')?;
        Some(CallId { client: unescaped(client)?.into(), number: number.parse().ok()? })
    }
}

fn escaped(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._/#-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        bytes.push(u8::from_str_radix(rest.get(at + 1..at + 3)?, 16).ok()?);
        rest = &rest[at + 3..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok()
}
