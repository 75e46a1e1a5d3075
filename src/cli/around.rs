//! What the `dlm`s around this process hold: a command that would wait for itself learns it at once, and not when its wait is over.
//!
//! Each of them adds a line to a variable of its command: the store, the full name, and which process holds it. No line has
//! anything secret. A line may be of a `dlm` that has ended since, so the store is asked. A process that a command leaves running in
//! the background is refused as well while the `dlm` around it holds what it asks for.

use std::fmt::Write as _;

use dlm::store::Identity;
use dlm::{Holder, LockManager, LockName};

/// For the command, and read by the `dlm`s in it.
pub(crate) const VARIABLE: &str = "DLM_HELD";
/// A variable is no longer than this: the kernel refuses a command whose variable has 128 KiB. The innermost lines are kept.
const BYTES_MAX: usize = 32 << 10;

/// One lock that a `dlm` around this process held when it started its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) store: String,
    /// The full name.
    pub(crate) name: String,
    pid: u32,
    /// When its manager was opened: the number of a process may be used again.
    start_ms: u64,
    host: String,
}

impl Around {
    /// Whether this holder is that `dlm`.
    pub(crate) fn is(&self, holder: &Holder) -> bool {
        let is = |identity: &Identity| {
            (identity.pid, identity.start_ms, &identity.host) == (self.pid, self.start_ms, &self.host)
        };
        holder.identity.as_ref().is_some_and(is)
    }

    fn line(&self) -> String {
        let Around { store, name, pid, start_ms, host } = self;
        format!("{} {} {pid} {start_ms} {}", encoded(store), encoded(name), encoded(host))
    }

    /// Returns `None` for a line that no `dlm` has written.
    fn parse(line: &str) -> Option<Around> {
        let mut fields = line.split(' ');
        let mut next = || fields.next();
        let (store, name) = (decoded(next()?)?, decoded(next()?)?);
        let (pid, start_ms) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let host = decoded(next()?)?;
        next().is_none().then_some(Around { store, name, pid, start_ms, host })
    }
}

/// Returns what the `dlm`s around this process say that they hold.
pub(crate) fn all() -> Vec<Around> {
    read(&std::env::var(VARIABLE).unwrap_or_default())
}

fn read(text: &str) -> Vec<Around> {
    text.lines().filter_map(Around::parse).collect()
}

/// Returns the variable for a command of this process, whose manager holds locks with these names.
pub(crate) fn with<'a>(manager: &LockManager, names: impl Iterator<Item = &'a LockName>) -> String {
    let Identity { host, pid, start_ms, .. } = manager.identity();
    let own = |name: &LockName| Around {
        store: manager.store(),
        name: name.key().into(),
        pid: *pid,
        start_ms: *start_ms,
        host: host.clone(),
    };
    lines(&all().into_iter().chain(names.map(own)).collect::<Vec<_>>())
}

fn lines(held: &[Around]) -> String {
    let mut lines: Vec<_> = held.iter().map(|around| around.line() + "\n").collect();
    let mut room = BYTES_MAX;
    let fits = |line: &&String| {
        room = room.saturating_sub(line.len());
        room > 0
    };
    let kept = lines.iter().rev().take_while(fits).count();
    lines.drain(..lines.len() - kept);
    lines.concat()
}

/// Encodes a text so that it has no blank and no end of a line.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'%' | 0..=b' ' | 0x7f.. => {
                let _ = write!(out, "%{byte:02x}");
            }
            _ => out.push(char::from(byte)),
        }
        out
    })
}

fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_whatever_its_names_are() {
        for name in ["DC#eu#orders#42", "XDC#a#b c%20\n%", "XDC#ü#日本"] {
            let around = Around {
                store: "embedded:/a b".into(),
                name: name.into(),
                pid: 7,
                start_ms: 9,
                host: "h".into(),
            };
            let line = around.line();
            assert!(!line.contains('\n') && line.is_ascii());
            assert_eq!(
                read(&format!("x\n\n{line}\n%zz a 1 1 h\na b c 1 d\na b 1 1 h e\na b 1 h\n")),
                [around]
            );
        }
    }

    #[test]
    fn of_many_lines_the_last_are_kept() {
        let of =
            |pid| Around { store: "s".into(), name: "n".repeat(1000), pid, start_ms: 9, host: "h".into() };
        let text = lines(&(0..100).map(of).collect::<Vec<_>>());
        let found = read(&text);
        assert!(text.len() <= BYTES_MAX && found.len() == 32, "{} {}", text.len(), found.len());
        assert_eq!(found.last(), Some(&of(99)));
        assert_eq!(lines(&[of(1), Around { name: "n".repeat(BYTES_MAX), ..of(2) }]), "");
    }
}
