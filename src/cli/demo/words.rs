//! Messages from a worker to the demo: a word and its values on one line of text.

use std::fmt;
use std::str::FromStr;

use dlm::Moment;

/// One message. Moments are of the boot clock, which all processes of the machine share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// The worker has opened the store, and waits for the start.
    Ready,
    /// A lock was granted. `asked` is before the call, `granted` after it, and `ends` is the end of the lease.
    Got { lock: u8, fence: Option<u64>, asked: Moment, granted: Moment, ends: Moment },
    /// The worker is about to release the lock. `lost` says that the lease had ended before.
    Put { at: Moment, lost: bool },
    /// A call failed and will be tried again.
    Trouble(String),
    /// The worker ends with this exit status and message.
    Failed(u8, String),
}

/// Returns the letter that names a worker: A, B, C.
pub(crate) fn letter(worker: u8) -> char {
    char::from(b'A' + worker)
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Ready => f.write_str("ready"),
            Word::Got { lock, fence, asked, granted, ends } => {
                let [asked, granted, ends] = [asked, granted, ends].map(|moment| moment.as_nanos());
                // Fences begin at 1.
                write!(f, "got {lock} {} {asked} {granted} {ends}", fence.unwrap_or(0))
            }
            Word::Put { at, lost } => write!(f, "put {} {}", at.as_nanos(), u8::from(*lost)),
            Word::Trouble(what) => write!(f, "trouble {}", what.escape_debug()),
            Word::Failed(status, what) => write!(f, "failed {status} {}", what.escape_debug()),
        }
    }
}

impl FromStr for Word {
    type Err = ();

    fn from_str(line: &str) -> Result<Word, ()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let numbers = || -> Option<Vec<u64>> { rest.split(' ').map(|number| number.parse().ok()).collect() };
        match word {
            "ready" => Some(Word::Ready),
            "got" => numbers().and_then(|numbers| {
                let &[lock, fence, asked, granted, ends] = numbers.as_slice() else { return None };
                let [asked, granted, ends] = [asked, granted, ends].map(Moment::from_nanos);
                let fence = (fence != 0).then_some(fence);
                Some(Word::Got { lock: u8::try_from(lock).ok()?, fence, asked, granted, ends })
            }),
            "put" => numbers().and_then(|numbers| {
                let &[at, lost] = numbers.as_slice() else { return None };
                Some(Word::Put { at: Moment::from_nanos(at), lost: lost != 0 })
            }),
            "trouble" => Some(Word::Trouble(rest.to_owned())),
            "failed" => rest
                .split_once(' ')
                .and_then(|(status, what)| Some(Word::Failed(status.parse().ok()?, what.to_owned()))),
            _ => None,
        }
        .ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_pipe_and_others_are_refused() {
        let at = Moment::from_nanos;
        let words = [
            Word::Ready,
            Word::Got { lock: 2, fence: Some(u64::MAX), asked: at(1), granted: at(2), ends: at(3) },
            Word::Got { lock: 0, fence: None, asked: at(1), granted: at(2), ends: at(3) },
            Word::Put { at: at(9), lost: true },
            Word::Trouble("a b".into()),
            Word::Failed(69, "no store; try".into()),
        ];
        for word in words {
            assert_eq!(word.to_string().parse::<Word>(), Ok(word));
        }
        for line in ["", "got", "got 1 2 3 4", "got 256 1 1 1 1", "put 1", "hello", "failed x y"] {
            assert!(line.parse::<Word>().is_err(), "{line}");
        }
    }
}
