//! The picture for the documentation: one line for each row of the table.

use std::fmt::Write as _;

use crate::THREADS;
use crate::row::{Row, of_threads};

/// Sizes in pixels.
const NAMES_WIDTH: f64 = 330.0;
const PLOT_WIDTH: f64 = 520.0;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 62.0;
const ROW_HEIGHT: f64 = 62.0;
const MARK_DISTANCE: f64 = 16.0;

/// Colours that remain distinct for colour-blind readers, one for each number of threads.
const COLOURS: [&str; THREADS.len()] = ["#4477aa", "#228833", "#aa3377"];

/// Draws the ratios on a logarithmic scale as a self-contained SVG. A dot is a median. The bar reaches from the first
/// to the third quartile.
pub(crate) fn svg(rows: &[Row]) -> String {
    let scale = Scale::of(rows);
    let width = NAMES_WIDTH + PLOT_WIDTH + 2.0 * MARGIN;
    let bottom = HEAD + ROW_HEIGHT * rows.len() as f64;
    let mut picture = Picture(String::new());
    picture.add(format_args!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">"##,
        height = bottom + 46.0,
    ));
    picture.add(format_args!(r##"<rect width="100%" height="100%" fill="#ffffff"/>"##));
    picture.head();
    for ratio in scale.ticks() {
        let (x, colour) = (scale.x(ratio), if ratio == 1.0 { "#333333" } else { "#dddddd" });
        picture.add(format_args!(
            r##"<line x1="{x:.1}" y1="{HEAD}" x2="{x:.1}" y2="{bottom}" stroke="{colour}"/>"##
        ));
        picture.text(x, bottom + 18.0, "middle", &format!("{ratio}"));
    }
    let below = "pairs per second, as a multiple of the peer's: further right is faster";
    picture.text(NAMES_WIDTH + MARGIN + PLOT_WIDTH / 2.0, bottom + 38.0, "middle", below);
    for (number, row) in rows.iter().enumerate() {
        picture.row(row, HEAD + ROW_HEIGHT * number as f64, &scale);
    }
    picture.add(format_args!("</svg>"));
    picture.0
}

struct Picture(String);

impl Picture {
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(element);
        self.0.push('\n');
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(format_args!(r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"##));
    }

    /// Explains the colours.
    fn head(&mut self) {
        self.text(MARGIN, 28.0, "start", "Acquire and release of locks, compared in one run");
        for (number, (threads, colour)) in THREADS.iter().zip(COLOURS).enumerate() {
            let x = NAMES_WIDTH + MARGIN + 110.0 * number as f64;
            self.add(format_args!(r##"<circle cx="{x:.1}" cy="24" r="5" fill="{colour}"/>"##));
            self.text(x + 10.0, 28.0, "start", &of_threads(*threads));
        }
    }

    fn row(&mut self, row: &Row, top: f64, scale: &Scale) {
        self.text(MARGIN, top + 26.0, "start", &row.subject);
        self.text(MARGIN, top + 44.0, "start", &format!("compared with {}", row.peer));
        for (number, (cell, colour)) in row.cells.iter().zip(COLOURS).enumerate() {
            let y = top + 15.0 + MARK_DISTANCE * number as f64;
            let [low, median, high] =
                [cell.ratio.low, cell.ratio.median, cell.ratio.high].map(|ratio| scale.x(ratio));
            self.add(format_args!(
                r##"<line x1="{low:.1}" y1="{y:.1}" x2="{high:.1}" y2="{y:.1}" stroke="{colour}" stroke-width="3"/>"##
            ));
            self.add(format_args!(r##"<circle cx="{median:.1}" cy="{y:.1}" r="5" fill="{colour}"/>"##));
        }
    }
}

/// A logarithmic scale from one power of two to another. 1 is always on it.
struct Scale {
    from: i32,
    to: i32,
}

impl Scale {
    fn of(rows: &[Row]) -> Scale {
        let cells = rows.iter().flat_map(|row| &row.cells);
        let powers = cells.flat_map(|cell| [cell.ratio.low, cell.ratio.high]).map(f64::log2);
        let (low, high) =
            powers.fold((-1.0_f64, 1.0_f64), |(low, high), power| (low.min(power), high.max(power)));
        Scale { from: low.floor() as i32, to: high.ceil() as i32 }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        (self.from..=self.to).map(|power| 2.0_f64.powi(power))
    }

    fn x(&self, ratio: f64) -> f64 {
        let part = (ratio.log2() - f64::from(self.from)) / f64::from(self.to - self.from);
        NAMES_WIDTH + MARGIN + PLOT_WIDTH * part
    }
}
