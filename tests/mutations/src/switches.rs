//! Puts broken lines behind switches, so that one build has them all. Building the library again takes longer than nearly
//! every test.
//!
//! The function around a broken line gets its body once more with the line broken. Which body runs is said by the
//! variable [`VARIABLE`], so a run of one test breaks one line. Papers call this mutant schemata.
//!
//! Some lines have to be broken in the text, for a build of their own: those of other languages, those outside of
//! functions, and those of a function whose bodies must be one (it is `const`, or returns an `impl`).

use std::collections::BTreeMap;
use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::list::Break;

/// In a process that has it, this line is broken.
pub const VARIABLE: &str = "DLM_BROKEN_LINE";
/// The root of the library, which gets the function that switches ask.
pub const ROOT: &str = "src/lib.rs";

/// Asks which line is broken. It reads the variable once, because some tests count what a call does.
const SWITCH: &str = r#"
pub(crate) fn broken_line() -> usize {
    static LINE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *LINE.get_or_init(|| std::env::var("DLM_BROKEN_LINE").map_or(0, |line| line.parse().expect("the number of a line")))
}
"#;

/// A broken line with its number in the list. The first one has the number 1.
pub type Line<'a> = (usize, &'a Break);

/// One file with its switches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switched {
    pub text: String,
    /// The numbers of the lines that have no switch.
    pub apart: Vec<usize>,
}

/// Puts these lines of one file behind switches. A line whose piece is not there once has none.
///
/// # Errors
/// If the text is not Rust.
pub fn of(file: &str, text: &str, lines: &[Line<'_>]) -> Result<Switched, String> {
    let mut apart = Vec::new();
    // The innermost bodies, with the lines in each.
    let mut switched: BTreeMap<(usize, usize), Vec<Line<'_>>> = BTreeMap::new();
    let bodies = if file.ends_with(".rs") {
        bodies(text).map_err(|error| format!("{file}: {error}"))?
    } else {
        Vec::new()
    };
    for (number, broken) in lines {
        let body = range_of(text, &broken.piece).and_then(|piece| {
            let around =
                bodies.iter().filter(|body| body.range.start < piece.start && piece.end < body.range.end);
            around.min_by_key(|body| body.range.len())
        });
        match body {
            Some(body) if body.may_be_two => {
                switched.entry((body.range.start, body.range.end)).or_default().push((*number, broken));
            }
            _ => apart.push(*number),
        }
    }
    // From the end, so that the ranges of the others stay true. A function inside of another one ends before it.
    let mut whole = text.to_owned();
    let mut changed_from = text.len();
    for ((start, end), lines) in switched.iter().rev() {
        if *end > changed_from {
            apart.extend(lines.iter().map(|(number, _)| *number));
            continue;
        }
        whole.replace_range(*start..*end, &with_switches(&text[*start..*end], lines));
        changed_from = *start;
    }
    if file == ROOT {
        // What is behind a switch is not as the lints want it.
        whole = format!("#![allow(warnings)]\n{whole}{SWITCH}");
    }
    apart.sort_unstable();
    Ok(Switched { text: whole, apart })
}

fn with_switches(body: &str, lines: &[Line<'_>]) -> String {
    let mut text = "{ match crate::broken_line() { ".to_owned();
    for (number, broken) in lines {
        text += &format!("{number} => {} ", body.replace(&broken.piece, &broken.replacement));
    }
    text + "_ => " + body + " } }"
}

/// Returns where the piece is, if it is there once.
fn range_of(text: &str, piece: &str) -> Option<Range<usize>> {
    let mut found = text.match_indices(piece).map(|(at, _)| at..at + piece.len());
    found.next().filter(|_| found.next().is_none())
}

/// The body of a function, with its braces.
#[derive(Debug)]
struct Body {
    range: Range<usize>,
    may_be_two: bool,
}

fn bodies(text: &str) -> Result<Vec<Body>, String> {
    let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| error.to_string())?;
    let mut bodies = Vec::new();
    find(tokens, &mut bodies);
    Ok(bodies)
}

fn find(tokens: TokenStream, bodies: &mut Vec<Body>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    // Of the function whose body has not come yet.
    let mut may_be_two = None;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "fn" => {
                may_be_two = Some(!words_before(&tokens[..at]).any(|word| word == "const"));
            }
            TokenTree::Punct(mark) if mark.as_char() == ';' => may_be_two = None,
            // Only a result is on this level.
            TokenTree::Ident(word) if word == "impl" => may_be_two = may_be_two.map(|_| false),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                if let Some(may_be_two) = may_be_two.take() {
                    let range = group.span_open().byte_range().start..group.span_close().byte_range().end;
                    bodies.push(Body { range, may_be_two });
                }
                let defines_a_macro = at >= 3 && tokens[at - 3].to_string() == "macro_rules";
                if !defines_a_macro {
                    find(group.stream(), bodies);
                }
            }
            // Closures in arguments have functions inside.
            TokenTree::Group(group) => find(group.stream(), bodies),
            _ => {}
        }
    }
}

/// Returns what stands directly before `fn` and belongs to it, backwards.
fn words_before(tokens: &[TokenTree]) -> impl Iterator<Item = String> + use<'_> {
    let words = tokens.iter().rev().map(ToString::to_string);
    words.take_while(|word| ["const", "unsafe", "extern"].contains(&&**word) || word.starts_with('"'))
}
