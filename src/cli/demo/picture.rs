//! Draws the history in the terminal. Time runs to the right, and a letter is the worker that held the lock.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

use dlm::Moment;

use super::history::{Check, History, Hold};
use super::words::letter;

const WIDTH_WITHOUT_TERMINAL: usize = 80;
const WIDTH_MIN: usize = 60;
const WIDTH_MAX: usize = 160;
/// Width of "  demo-16 ".
const MARGIN: usize = 10;
/// Least width of the median hold. It keeps single holds visible, so only a part of a long demo is shown.
const MEDIAN_HOLD_COLUMNS: u32 = 5;
const BAR: usize = 30;

/// Background colours for black letters, by worker.
const COLOURS: [u8; 12] = [114, 179, 110, 176, 209, 80, 186, 147, 217, 150, 223, 252];
const RED: &str = "\x1b[1;37;41m";
const GREEN: &str = "\x1b[1;32m";
const FAINT: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Width of the output, and whether it has colours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Canvas {
    pub(crate) width: usize,
    pub(crate) colour: bool,
}

impl Canvas {
    pub(crate) fn of_stdout() -> Canvas {
        let out = std::io::stdout();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
        let measured = || rustix::termios::tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
        let width = columns.or_else(measured).filter(|width| *width > 0).unwrap_or(WIDTH_WITHOUT_TERMINAL);
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Canvas {
            width: width.clamp(WIDTH_MIN, WIDTH_MAX),
            colour: out.is_terminal() && !set("NO_COLOR") && !dumb,
        }
    }

    fn paint(self, style: &str, text: &str) -> String {
        if self.colour { format!("{style}{text}{PLAIN}") } else { text.to_owned() }
    }

    fn worker(self, worker: u8, text: &str) -> String {
        let colour = COLOURS[usize::from(worker) % COLOURS.len()];
        self.paint(&format!("\x1b[30;48;5;{colour}m"), text)
    }
}

/// The part of the history that is drawn.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: Moment,
    column: Duration,
    columns: usize,
    /// Start of the whole history.
    began: Moment,
    /// Length of the whole history.
    length: Duration,
}

impl Window {
    /// Chooses the whole history if single holds stay visible, otherwise a part of its middle. `None` without holds.
    fn of(history: &History, columns: usize) -> Option<Window> {
        let holds = history.holds();
        let began = holds.iter().map(|hold| hold.granted).min()?;
        let length = holds.iter().map(|hold| hold.ended).max()?.since(began);
        let mut lengths: Vec<Duration> = holds.iter().map(|hold| hold.ended.since(hold.granted)).collect();
        lengths.sort();
        let median = lengths[lengths.len() / 2];
        let whole = length / columns as u32;
        // Whole milliseconds are easier to read. At least one, because a column must have a length.
        let column = (median / MEDIAN_HOLD_COLUMNS).min(whole).as_millis().max(1) as u64;
        let column = Duration::from_millis(column);
        let shown = (column * columns as u32).min(length);
        Some(Window { from: began.after((length - shown) / 2), column, columns, began, length })
    }

    fn shown(&self) -> Duration {
        self.column * self.columns as u32
    }
}

/// Holder of a lock in one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Square {
    Free,
    Worker(u8),
    /// Two holders at the same moment, which must never happen.
    Overlap,
}

/// Returns the picture and the summary as text.
pub(crate) fn picture(history: &History, check: &Check, canvas: &Canvas) -> String {
    let mut out = String::new();
    if let Some(window) = Window::of(history, canvas.width.saturating_sub(MARGIN + 1)) {
        timelines(&mut out, history, &window, canvas);
    }
    fences(&mut out, history);
    workers(&mut out, history, canvas);
    verdict(&mut out, history, check, canvas);
    out.pop();
    out
}

fn timelines(out: &mut String, history: &History, window: &Window, canvas: &Canvas) {
    out.push('\n');
    for lock in 0..history.locks {
        let name = format!("demo-{}", lock + 1);
        push(out, format_args!("  {name:<8}{}", row(&cells(&history.of_lock(lock), window), canvas)));
    }
    push(out, format_args!("{:MARGIN$}{}", "", canvas.paint(FAINT, &scale(window))));
    let part = if window.shown() < window.length {
        format!(" of {:.1} s", window.length.as_secs_f64())
    } else {
        String::new()
    };
    let text = format!(
        "{:.1} s{part}, {} ms a column; a letter is the process that held the lock, a dot means free",
        window.shown().min(window.length).as_secs_f64(),
        window.column.as_millis()
    );
    for line in wrapped(&text, canvas.width.saturating_sub(MARGIN)) {
        push(out, format_args!("{:MARGIN$}{}", "", canvas.paint(FAINT, &line)));
    }
}

/// Returns for each column who held the lock for most of it.
fn cells(holds: &[&Hold], window: &Window) -> Vec<Square> {
    let overlapping = |hold: &Hold| {
        holds.iter().any(|other| {
            other.granted < hold.ended && hold.granted < other.ended && !std::ptr::eq(*other, hold)
        })
    };
    let column = |number: usize| {
        let from = window.from.after(window.column * number as u32);
        let to = from.after(window.column);
        let share = |hold: &Hold| hold.ended.min(to).since(hold.granted.max(from));
        let here = holds.iter().filter(|hold| !share(hold).is_zero());
        let free = window.column.saturating_sub(here.clone().map(|hold| share(hold)).sum());
        match here.max_by_key(|hold| share(hold)) {
            Some(hold) if overlapping(hold) => Square::Overlap,
            Some(hold) if share(hold) >= free => Square::Worker(hold.worker),
            _ => Square::Free,
        }
    };
    (0..window.columns).map(column).collect()
}

fn row(cells: &[Square], canvas: &Canvas) -> String {
    let mut row = String::new();
    for run in cells.chunk_by(|a, b| a == b) {
        let text = |c: char| c.to_string().repeat(run.len());
        row.push_str(&match run[0] {
            Square::Free => canvas.paint(FAINT, &text('·')),
            Square::Worker(worker) => canvas.worker(worker, &text(letter(worker))),
            Square::Overlap => canvas.paint(RED, &text('!')),
        });
    }
    row
}

/// Returns the time axis: seconds since the first grant, every twenty columns.
fn scale(window: &Window) -> String {
    const EVERY: usize = 20;
    let offset = window.from.since(window.began);
    let mut scale = String::new();
    for column in (0..window.columns.saturating_sub(8)).step_by(EVERY) {
        let at = offset + window.column * column as u32;
        push_str(&mut scale, format_args!("{:<EVERY$}", format!("|{:.2} s", at.as_secs_f64())));
    }
    scale.trim_end().to_owned()
}

fn fences(out: &mut String, history: &History) {
    out.push('\n');
    for lock in 0..history.locks {
        let holds = history.of_lock(lock);
        let ends = (holds.first().and_then(|hold| hold.fence), holds.last().and_then(|hold| hold.fence));
        if let (Some(first), Some(last)) = ends {
            let (count, plus) = (holds.len(), last.saturating_sub(first));
            push(out, format_args!("  demo-{:<3}{count} grants, last fence {last} (+{plus})", lock + 1));
        }
    }
}

fn workers(out: &mut String, history: &History, canvas: &Canvas) {
    let counts: Vec<usize> = (0..history.workers)
        .map(|worker| history.holds().iter().filter(|hold| hold.worker == worker).count())
        .collect();
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let room = BAR.min(canvas.width.saturating_sub(24));
    out.push('\n');
    for (worker, count) in (0..).zip(&counts) {
        let bar = letter(worker).to_string().repeat((count * room).div_ceil(most));
        push(out, format_args!("  {} {count} grants", canvas.worker(worker, &bar)));
    }
}

fn verdict(out: &mut String, history: &History, check: &Check, canvas: &Canvas) {
    for trouble in history.troubles().iter().take(3).chain(history.deaths()) {
        push(out, format_args!("  {trouble}"));
    }
    out.push('\n');
    let wait = check.longest_wait.as_millis();
    push(out, format_args!("  {} grants, longest wait {wait} ms", history.grants()));
    if check.run_out > 0 {
        push(out, format_args!("  {} leases ended before they were released", check.run_out));
    }
    let fences = match (check.fences_fell, check.unfenced) {
        (0, 0) => canvas.paint(GREEN, "fences rose with every grant"),
        (0, unfenced) => format!("{unfenced} grants without a fence"),
        (fell, _) => canvas.paint(RED, &format!("{fell} fences did not rise")),
    };
    let style = if check.overlaps == 0 { GREEN } else { RED };
    push(out, format_args!("  {}, {fences}", canvas.paint(style, &format!("{} overlaps", check.overlaps))));
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

fn push(out: &mut String, line: std::fmt::Arguments<'_>) {
    push_str(out, line);
    out.push('\n');
}

fn push_str(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::super::words::Word;
    use super::*;

    const MS: u64 = 1_000_000;

    fn history(grants: &[(u8, u8, u64, u64)]) -> History {
        let mut history = History::new(2, 3);
        for (fence, &(worker, lock, from, to)) in (1_882_437_041_524_834_305..).zip(grants) {
            let [granted, at, ends] = [from, to, 1_000_000].map(|ms| Moment::from_nanos(ms * MS));
            history.add(worker, Word::Got { lock, fence: Some(fence), asked: granted, granted, ends });
            history.add(worker, Word::Put { at, lost: false });
        }
        history
    }

    fn plain(history: &History, width: usize) -> String {
        picture(history, &history.check(), &Canvas { width, colour: false })
    }

    #[test]
    fn the_picture_shows_who_held_what_when() {
        let history = history(&[(0, 0, 1000, 1010), (1, 0, 1015, 1025), (2, 1, 1000, 1060)]);
        let picture = plain(&history, 71);
        let rows: Vec<&str> = picture.lines().filter(|line| line.starts_with("  demo-")).collect();
        // 60 columns of one millisecond.
        assert_eq!(rows[0], format!("  demo-1  AAAAAAAAAA·····BBBBBBBBBB{}", "·".repeat(35)));
        assert_eq!(rows[1], format!("  demo-2  {}", "C".repeat(60)));
        assert!(
            picture.ends_with("  3 grants, longest wait 0 ms\n  0 overlaps, fences rose with every grant")
        );
    }

    #[test]
    fn an_overlap_cannot_be_overlooked() {
        let history = history(&[(0, 0, 1000, 1030), (1, 0, 1020, 1060)]);
        let picture = plain(&history, 71);
        assert!(picture.contains("!!!!!") && picture.contains("1 overlaps"), "{picture}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_no_colour_is_left_in_plain_text() {
        let grants: Vec<_> =
            (0..200u64).map(|n| ((n % 3) as u8, 0, 1000 + 20 * n, 1000 + 20 * n + 15)).collect();
        for width in [WIDTH_MIN, 80, WIDTH_MAX] {
            let picture = plain(&history(&grants), width);
            let widest = picture.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width, "{widest} > {width}\n{picture}");
            assert!(!picture.contains('\x1b'));
        }
    }

    #[test]
    fn a_history_of_one_short_grant_or_none_is_drawn_without_a_panic() {
        plain(&history(&[(0, 0, 1000, 1000)]), WIDTH_MIN);
        plain(&history(&[]), WIDTH_MIN);
    }
}
