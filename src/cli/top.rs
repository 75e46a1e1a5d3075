//! `dlm top`: the held locks of a store, on a screen that is drawn again and again.

use std::collections::{BinaryHeap, HashMap};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::thread;
use std::time::{Duration, SystemTime};

use dlm::store::ListedLock;
use dlm::{Fence, Holder, LockManager, Mode, Waiters};
use serde_json::json;

use crate::cli::args::{Global, Top};
use crate::cli::exit::{CommandFailure, CommandOutcome};
use crate::cli::ls::{as_json, holders_of, named, queries};
use crate::cli::show::{ago, seconds};
use crate::cli::{open, output};

/// Rows of a screen that is no terminal.
const ROWS: usize = 40;
const COLUMNS: usize = 100;
/// Lines above and below the locks.
const FRAME: usize = 3;
const BAR: usize = 10;
/// Width of bar, time and numbers.
const NUMBERS: usize = 43;
/// Most locks whose hand-overs are counted.
const FOLLOWED: usize = 100_000;

/// What tells one grant of a lock from the next. Without a fence, a new holder.
#[derive(PartialEq)]
struct GrantMark {
    fence: Option<Fence>,
    pid: Option<u32>,
}

/// The hand-overs of locks since the last screen.
#[derive(Default)]
struct HandOvers {
    last: HashMap<String, GrantMark>,
    now: HashMap<String, GrantMark>,
    count: u64,
}

impl HandOvers {
    fn see(&mut self, lock: &ListedLock, holder: &Holder) -> u64 {
        let pid = holder.identity.as_ref().map(|identity| identity.pid);
        let mark = GrantMark { fence: lock.fence, pid };
        let changes = match self.last.get(&lock.key) {
            Some(before) if *before != mark => match (before.fence, mark.fence) {
                // Several grants may have come between two screens.
                (Some(Fence(before)), Some(Fence(now))) if now > before && now - before < 1 << 20 => {
                    now - before
                }
                _ => 1,
            },
            _ => 0,
        };
        self.count += changes;
        if self.now.len() < FOLLOWED {
            self.now.insert(lock.key.clone(), mark);
        }
        changes
    }
}

/// A lock on the screen. The one that ends first is the smallest.
struct ShownLock {
    left: Option<Duration>,
    lock: ListedLock,
    /// All that hold it.
    holders: Vec<Holder>,
    hand_overs: u64,
    /// `None` if the holder does not answer.
    waiting: Option<Waiters>,
}

impl ShownLock {
    fn rank(&self) -> (bool, Duration, &str) {
        (self.left.is_none(), self.left.unwrap_or_default(), &self.lock.key)
    }
}

impl Ord for ShownLock {
    fn cmp(&self, other: &ShownLock) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for ShownLock {
    fn partial_cmp(&self, other: &ShownLock) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ShownLock {
    fn eq(&self, other: &ShownLock) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for ShownLock {}

/// What one screen shows.
struct Screen {
    held: u64,
    unnamed: u64,
    rows: Vec<ShownLock>,
    hand_overs: u64,
    /// How full the store is, if it has a limit.
    room: Option<String>,
}

/// `dlm top`
pub(crate) fn top(global: &Global, args: &Top) -> CommandOutcome {
    let manager = open::manager(global, None, "top")?;
    open::reach(&manager, None)?;
    let mut hand_overs = HandOvers::default();
    let is_terminal = std::io::stdout().is_terminal();
    loop {
        let (rows, columns) = size();
        let screen = read(&manager, args.prefix.as_deref(), rows, &mut hand_overs)?;
        let text = match global.json {
            true => screen_json(&screen),
            false => drawn(&manager.store(), &screen, columns, args),
        };
        // From the first line on, and nothing below the last one.
        let text =
            if is_terminal && !args.once && !global.json { format!("\x1b[H\x1b[J{text}") } else { text };
        output::show(&text)?;
        if args.once {
            return Ok(0);
        }
        thread::sleep(args.interval);
    }
}

/// Reads the locks, and keeps those that end first.
fn read(
    manager: &LockManager,
    prefix: Option<&str>,
    rows: usize,
    hand_overs: &mut HandOvers,
) -> Result<Screen, CommandFailure> {
    hand_overs.last = std::mem::take(&mut hand_overs.now);
    hand_overs.count = 0;
    let (mut first, mut held, mut unnamed) = (BinaryHeap::new(), 0, 0);
    let queries = queries(manager, prefix, true)?;
    for lock in queries.iter().flat_map(|query| manager.locks(query)) {
        let lock = lock?;
        let Some(holder) = &lock.holder else { continue };
        held += 1;
        unnamed += u64::from(lock.name.is_none());
        let (left, changes) = (holder.remaining, hand_overs.see(&lock, holder));
        first.push(ShownLock { left, lock, holders: Vec::new(), hand_overs: changes, waiting: None });
        if first.len() > rows {
            first.pop();
        }
    }
    let mut rows = first.into_sorted_vec();
    let holders: Vec<_> = rows.iter().filter_map(|row| row.lock.holder.clone()).collect();
    for (row, line) in rows.iter_mut().zip(manager.waiting(&holders)?) {
        row.waiting = line;
        row.holders = holders_of(manager, &row.lock)?;
    }
    Ok(Screen { held, unnamed, rows, hand_overs: hand_overs.count, room: room(manager)? })
}

/// Returns how full the file of an embedded store is.
fn room(manager: &LockManager) -> Result<Option<String>, dlm::Error> {
    if !manager.store().starts_with("embedded:") {
        return Ok(None);
    }
    let found = manager.diagnose()?.into_iter().find(|diagnostic| diagnostic.topic == "room");
    Ok(found.map(|diagnostic| diagnostic.seen))
}

fn drawn(store: &str, screen: &Screen, columns: usize, args: &Top) -> String {
    let Screen { held, unnamed, rows, hand_overs, room } = screen;
    let mut text = format!("{store}: {held} held");
    if *unnamed > 0 {
        let _ = write!(text, ", {unnamed} of them without a name");
    }
    if !args.once {
        let _ = write!(text, ", {hand_overs} hand-overs in {}", seconds(args.interval));
    }
    if let Some(room) = room {
        let _ = write!(text, ", {room}");
    }
    let widest = rows.iter().map(|row| named(&row.lock).chars().count()).max().unwrap_or_default();
    let name = widest.clamp(4, (columns.saturating_sub(NUMBERS) / 2).max(20));
    let _ = write!(
        text,
        "\n{:name$}  {:BAR$}  {:>9}  {:>5}  {:>5}  HOLDER",
        "LOCK", "TTL", "LEFT", "WAIT", "TURNS"
    );
    for row in rows {
        let holder = row.lock.holder.as_ref().expect("only held locks are shown");
        let left = row.left.map_or_else(|| "?".into(), seconds);
        let by: Vec<_> = row.holders.iter().map(shown_holder).collect();
        let by = by.join("; ");
        let waiting = row.waiting.as_ref().map_or_else(|| "?".into(), |line| waiting_count(line).to_string());
        let mut line = format!(
            "{:name$}  {}  {left:>9}  {waiting:>5}  {:>5}  {by}",
            cut(&named(&row.lock), name),
            bar(holder),
            row.hand_overs
        );
        line = cut(&line, columns);
        let _ = write!(text, "\n{line}");
    }
    let more = held.saturating_sub(rows.len() as u64);
    if more > 0 {
        let _ = write!(text, "\n... and {more} that end later");
    }
    text
}

fn screen_json(screen: &Screen) -> String {
    let locks: Vec<_> = screen
        .rows
        .iter()
        .map(|row| {
            let mut lock = as_json(&row.lock, &row.holders);
            lock["waiting"] = json!(row.waiting.as_ref().map(waiting_count));
            lock
        })
        .collect();
    output::json(json!({
        "held": screen.held,
        "unnamed": screen.unnamed,
        "hand_overs": screen.hand_overs,
        "room": screen.room,
        "locks": locks,
    }))
}

/// Describes a holder, with its mode if that is not exclusive.
fn shown_holder(holder: &Holder) -> String {
    let by = holder.identity.as_ref().map_or_else(|| "unknown".into(), ToString::to_string);
    if holder.mode == Mode::Exclusive { by } else { format!("{} {by}", holder.mode) }
}

/// Returns how many wait: threads of the holder's process, and other processes.
fn waiting_count(line: &Waiters) -> u64 {
    u64::from(line.threads) + line.processes.len() as u64
}

/// Draws how much of the lease is left.
fn bar(holder: &Holder) -> String {
    let (Some(left), Some(since)) = (holder.remaining, holder.since) else { return " ".repeat(BAR) };
    let whole = left + ago(since.min(SystemTime::now()));
    let part = left.as_secs_f64() / whole.as_secs_f64().max(0.001);
    let full = (part * BAR as f64).round() as usize;
    format!("{}{}", "#".repeat(full.min(BAR)), ".".repeat(BAR - full.min(BAR)))
}

/// Cuts a text to so many characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most.saturating_sub(3)).collect();
    head + "..."
}

/// Returns how many locks fit on the screen, and its width.
fn size() -> (usize, usize) {
    let out = std::io::stdout();
    match rustix::termios::tcgetwinsize(&out) {
        Ok(size) if out.is_terminal() && size.ws_row > 0 => {
            (usize::from(size.ws_row).saturating_sub(FRAME).max(1), usize::from(size.ws_col).max(40))
        }
        _ => (ROWS, COLUMNS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(key: &str, fence: u64) -> (ListedLock, Holder) {
        let lock = ListedLock::new(dlm::LockName::from_key(key).unwrap());
        let mut lock = lock;
        lock.fence = Some(Fence(fence));
        (lock, Holder::unknown())
    }

    #[test]
    fn turns_are_counted_between_two_screens() {
        let mut hand_overs = HandOvers::default();
        let mut see = |fence, key| {
            hand_overs.last = std::mem::take(&mut hand_overs.now);
            let (lock, holder) = lock(key, fence);
            hand_overs.see(&lock, &holder)
        };
        assert_eq!([see(5, "XDC#a#b"), see(5, "XDC#a#b"), see(8, "XDC#a#b")], [0, 0, 3]);
        // A fence that jumps comes from the clock.
        assert_eq!([see(8 + (1 << 40), "XDC#a#b"), see(7, "XDC#a#c")], [1, 0]);
    }

    #[test]
    fn a_bar_shows_the_part_that_is_left() {
        let since = SystemTime::now().checked_sub(Duration::from_secs(30));
        let holder = |left| Holder::new(None, Some(Duration::from_secs(left)), since);
        assert_eq!(bar(&holder(30)), "#####.....");
        assert_eq!(bar(&holder(0)), "..........");
        assert_eq!(bar(&Holder::unknown()), "          ");
    }

    #[test]
    fn a_long_name_is_cut() {
        assert_eq!(cut("äbcdef", 5), "äb...");
        assert_eq!(cut("äbcde", 5), "äbcde");
    }
}
