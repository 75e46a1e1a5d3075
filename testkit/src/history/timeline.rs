//! A picture of a history, to see a violation at a glance.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use dlm::{Mode, Moment};

use super::History;
use super::event::{Answer, Event, Operation};
use super::grant::{Grant, LockHistory};
use super::tolerances::Tolerances;
use super::violation::Violation;

/// Colours of holds, by key.
const COLOURS: [&str; 8] =
    ["#4477aa", "#ccbb44", "#228833", "#aa3377", "#66ccee", "#ee8866", "#77aadd", "#999933"];
const RED: &str = "#d00000";

/// Sizes in pixels.
const PLOT_WIDTH: f64 = 1400.0;
const NAMES_WIDTH: f64 = 130.0;
const LANE_HEIGHT: f64 = 34.0;
const HOLD_HEIGHT: f64 = 16.0;
const CALL_HEIGHT: f64 = 6.0;
const LINE_HEIGHT: f64 = 18.0;
const TICKS: u32 = 10;

/// Draws a history as a self-contained SVG: one lane for each client, time from left to right.
///
/// A lock is a bar in the colour of its key: solid while its client surely holds it, pale while it may hold it. A hold
/// that is shared or for update is lighter, and has a dashed or a solid frame. The small bars below are the calls, red in doubt, grey if they were refused. Violations are marked in red, numbered, and
/// listed below. Pointing at a bar shows the call. Cut a long history before: see [`History::around`].
pub fn timeline_svg(history: &History, tolerances: &Tolerances, violations: &[Violation]) -> String {
    let mut picture = Picture::of(history);
    picture.lanes();
    for (number, lock) in LockHistory::of(history).iter().filter(|lock| !lock.grants.is_empty()).enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        picture.key(number, &lock.key, colour);
        lock.grants.iter().for_each(|grant| picture.hold(grant, tolerances, colour));
    }
    history.events().iter().for_each(|event| picture.call(event));
    for (number, violation) in (1..).zip(violations) {
        picture.violation(number, violation);
    }
    picture.finish(violations)
}

struct Picture {
    from: Moment,
    to: Moment,
    clients: Vec<Arc<str>>,
    body: String,
}

impl Picture {
    fn of(history: &History) -> Picture {
        let drawn = history.events().iter().filter(|event| is_drawn(event));
        let mut clients: Vec<Arc<str>> = drawn.clone().map(|event| Arc::clone(&event.id.client)).collect();
        clients.sort();
        clients.dedup();
        let from = drawn.clone().map(|event| event.called).min().unwrap_or(Moment::from_nanos(0));
        let to = drawn.map(Event::last_seen).max().unwrap_or(from);
        Picture { from, to, clients, body: String::new() }
    }

    fn add(&mut self, element: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }

    fn x(&self, at: Moment) -> f64 {
        let whole = self.to.since(self.from).as_secs_f64().max(1e-9);
        let part = at.clamp(self.from, self.to).since(self.from).as_secs_f64();
        NAMES_WIDTH + PLOT_WIDTH * part / whole
    }

    /// Returns the top of a client's lane; `None` if the client is not drawn.
    fn y(&self, client: &Arc<str>) -> Option<f64> {
        let lane = self.clients.binary_search(client).ok()?;
        Some(2.0 * LINE_HEIGHT + LANE_HEIGHT * lane as f64)
    }

    fn bottom(&self) -> f64 {
        2.0 * LINE_HEIGHT + LANE_HEIGHT * self.clients.len() as f64
    }

    fn lanes(&mut self) {
        for client in self.clients.clone() {
            let Some(y) = self.y(&client) else { continue };
            let (text, right) = (y + HOLD_HEIGHT, NAMES_WIDTH + PLOT_WIDTH);
            self.add(format_args!("<text x='4' y='{text:.1}'>{}</text>", escaped(&client)));
            self.add(format_args!("<path class='grid' d='M{NAMES_WIDTH} {y:.1}H{right}'/>"));
        }
        for tick in 0..=TICKS {
            let since = self.to.since(self.from) * tick / TICKS;
            let (x, bottom) = (self.x(self.from.after(since)), self.bottom());
            let (top, ms) = (2.0 * LINE_HEIGHT, since.as_secs_f64() * 1e3);
            self.add(format_args!("<path class='grid' d='M{x:.1} {top}V{bottom:.1}'/>"));
            self.add(format_args!("<text class='tick' x='{x:.1}' y='{:.1}'>{ms:.1} ms</text>", top - 4.0));
        }
    }

    fn key(&mut self, number: usize, key: &str, colour: &str) {
        let x = NAMES_WIDTH + 150.0 * number as f64;
        self.add(format_args!("<rect x='{x:.1}' y='2' width='12' height='12' fill='{colour}'/>"));
        self.add(format_args!("<text x='{:.1}' y='13'>{}</text>", x + 16.0, escaped(key)));
    }

    fn hold(&mut self, grant: &Grant<'_>, tolerances: &Tolerances, colour: &str) {
        let client = &grant.acquire.id.client;
        let number = grant.fence.map_or_else(String::new, |number| match grant.mode {
            Mode::Exclusive => format!(", fence {number}"),
            _ => format!(", epoch {number}"),
        });
        let title = format!("{}: {}, {}{number}", grant.acquire.id, grant.acquire.key, grant.mode);
        let class = |certainty: &str| match grant.mode {
            Mode::Exclusive => certainty.to_owned(),
            mode => format!("{certainty} {}", mode.name().to_lowercase()),
        };
        let possible = (grant.acquire.called, grant.possible_end(tolerances));
        self.bar(&class("possible"), client, possible, HOLD_HEIGHT, colour, &title);
        let sure = (grant.granted, grant.sure_end(tolerances));
        if sure.0 < sure.1 {
            self.bar(&class("sure"), client, sure, HOLD_HEIGHT, colour, &title);
        }
    }

    fn call(&mut self, event: &Event) {
        if !is_drawn(event) {
            return;
        }
        let colour = match event.answer {
            Answer::InDoubt | Answer::Unknown => RED,
            Answer::No | Answer::Lost | Answer::NotFound | Answer::Refused { .. } | Answer::Failed { .. } => {
                "#999"
            }
            _ => "#333",
        };
        let title = format!("{}: {} {:?}: {:?}", event.id, event.key, event.operation, event.answer);
        self.bar("call", &event.id.client, (event.called, event.last_seen()), CALL_HEIGHT, colour, &title);
    }

    fn bar(
        &mut self,
        class: &str,
        client: &Arc<str>,
        (from, to): (Moment, Moment),
        height: f64,
        colour: &str,
        title: &str,
    ) {
        let Some(lane) = self.y(client) else { return };
        // Calls are drawn below the holds.
        let y = if class == "call" { lane + HOLD_HEIGHT + 6.0 } else { lane + 4.0 };
        let (x, width) = (self.x(from), (self.x(to) - self.x(from)).max(1.0));
        let title = escaped(title);
        self.add(format_args!(
            "<rect class='{class}' x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height}' fill='{colour}'>\
             <title>{title}</title></rect>"
        ));
    }

    /// Frames the calls of a violation, and draws a line where it shows.
    fn violation(&mut self, number: usize, violation: &Violation) {
        for event in &violation.events {
            let Some(lane) = self.y(&event.id.client) else { continue };
            let (x, last) = (self.x(event.called) - 2.0, self.x(event.last_seen()) + 2.0);
            let (width, height) = (last - x, LANE_HEIGHT - 4.0);
            self.add(format_args!(
                "<rect class='violation' x='{x:.1}' y='{:.1}' width='{width:.1}' height='{height}'>\
                 <title>{number}. rule {}</title></rect>",
                lane + 2.0,
                violation.rule
            ));
        }
        if let Some(shown) = violation.events.iter().map(Event::last_seen).max() {
            let (x, bottom) = (self.x(shown), self.bottom());
            self.add(format_args!("<path class='violation' d='M{x:.1} {}V{bottom:.1}'/>", 2.0 * LINE_HEIGHT));
            self.add(format_args!(
                "<text class='number' x='{x:.1}' y='{:.1}'>{number}</text>",
                bottom + 14.0
            ));
        }
    }

    fn finish(mut self, violations: &[Violation]) -> String {
        let top = self.bottom() + 2.0 * LINE_HEIGHT;
        for (line, violation) in violations.iter().enumerate() {
            let y = top + LINE_HEIGHT * line as f64;
            let text =
                format!("{}. rule {}, {}: {}", line + 1, violation.rule, violation.key, violation.what);
            self.add(format_args!("<text class='what' x='4' y='{y:.1}'>{}</text>", escaped(&text)));
        }
        let (width, height) = (NAMES_WIDTH + PLOT_WIDTH + 60.0, top + LINE_HEIGHT * violations.len() as f64);
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height:.0}'>\n<style>\n\
             text {{ font: 12px sans-serif }} .tick {{ fill: #666; text-anchor: middle }}\n\
             .grid {{ stroke: #ddd }} .possible {{ opacity: .3 }} .sure {{ opacity: .9 }}\n\
             .shared, .update {{ fill-opacity: .4; stroke: #333 }} .shared {{ stroke-dasharray: 4 3 }}\n\
             .violation {{ fill: none; stroke: {RED}; stroke-width: 1.5 }} .number, .what {{ fill: {RED} }}\n\
             </style>\n<rect width='100%' height='100%' fill='white'/>\n{}</svg>\n",
            self.body
        )
    }
}

fn is_drawn(event: &Event) -> bool {
    !matches!(event.operation, Operation::Beat { .. })
}

/// Escapes a text for XML, which allows no control characters.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}
