//! Reads `faults.txt`.
//!
//! A line that begins in the first column begins a fault, or a part of the last one. An indented line belongs to the
//! part above it. Empty lines and lines that begin with `#` are ignored:
//!
//! ```text
//! fault 1: a client is killed while it holds a lock
//! promise: the lock is granted to the next waiter when its TTL ends
//! tests:
//!   tests/processes/stores_kills.rs::embedded::the_lock_of_a_killed_process_is_granted_when_its_ttl_ends
//! weak: what the tests do not show (may be left out)
//! break: src/store/embedded/record.rs
//!   - now < self.ends
//!   + true
//!   fails: tests/processes/stores_kills.rs::embedded::the_lock_of_a_killed_process_is_granted_when_its_ttl_ends
//! ```
//!
//! A piece of code may have several lines, each with `- ` or `+ ` before it.

/// One fault, with all that the list says about it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Fault {
    pub number: usize,
    pub name: String,
    pub promise: String,
    pub tests: Vec<String>,
    pub weak: String,
    pub breaks: Vec<Break>,
}

/// A change of the library that a test must notice.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Break {
    pub file: String,
    /// A piece of the file, which stands there once.
    pub piece: String,
    /// Stands there instead when the line is broken.
    pub replacement: String,
    /// The test that then fails.
    pub fails: String,
}

/// Reads the list.
///
/// # Errors
/// The number of the line that cannot be read, and why.
pub fn read(text: &str) -> Result<Vec<Fault>, String> {
    let mut faults: Vec<Fault> = Vec::new();
    let mut part = String::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| format!("line {}: {what}: {line}", at + 1);
        if !line.starts_with(' ') {
            let (head, rest) = line.split_once(':').ok_or_else(|| wrong("no colon"))?;
            let rest = rest.trim().to_owned();
            if let Some(number) = head.strip_prefix("fault ") {
                let number = number.parse().map_err(|_| wrong("not a number"))?;
                faults.push(Fault { number, name: rest, ..Fault::default() });
                part.clear();
                continue;
            }
            let fault = faults.last_mut().ok_or_else(|| wrong("not part of a fault"))?;
            match head {
                "promise" => fault.promise = rest,
                "weak" => fault.weak = rest,
                "break" => fault.breaks.push(Break { file: rest, ..Break::default() }),
                "tests" if rest.is_empty() => {}
                _ => return Err(wrong("not a part of a fault")),
            }
            head.clone_into(&mut part);
            continue;
        }
        let fault = faults.last_mut().ok_or_else(|| wrong("not part of a fault"))?;
        let content = line.trim();
        match part.as_str() {
            "promise" => add(&mut fault.promise, ' ', content),
            "weak" => add(&mut fault.weak, ' ', content),
            "tests" => fault.tests.push(content.to_owned()),
            "break" => {
                let broken = fault.breaks.last_mut().expect("the part began with one");
                let code = line.trim_start();
                if let Some(code) = code.strip_prefix("- ") {
                    add(&mut broken.piece, '\n', code);
                } else if let Some(code) = code.strip_prefix("+ ") {
                    add(&mut broken.replacement, '\n', code);
                } else if let Some(test) = code.strip_prefix("fails: ") {
                    test.clone_into(&mut broken.fails);
                } else {
                    return Err(wrong("neither -, + nor fails:"));
                }
            }
            _ => return Err(wrong("not part of anything")),
        }
    }
    Ok(faults)
}

fn add(text: &mut String, between: char, more: &str) {
    if !text.is_empty() {
        text.push(between);
    }
    text.push_str(more);
}
