//! Texts of callers and of other libraries in messages.

use std::borrow::Cow;

/// Returns a text of several lines as one, without other control characters. Borrows a text that is one.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len());
    for part in text.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()) {
        if !line.is_empty() {
            line.push_str(if line.ends_with([':', ';', ',', '.']) { " " } else { "; " });
        }
        line.extend(part.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    Cow::Owned(line)
}

/// Returns a caller's text as it may appear in a message: escaped, because it could forge log lines or colour a
/// terminal, and cut, because it could flood them.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN_CHARS: usize = 80;
    let total = text.chars().count();
    if total <= SHOWN_CHARS {
        return format!("{text:?}");
    }
    let head: String = text.chars().take(SHOWN_CHARS).collect();
    format!("{head:?}... ({} bytes)", text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_several_lines_becomes_one_that_forges_nothing() {
        assert!(matches!(one_line("as it is"), Cow::Borrowed("as it is")));
        assert_eq!(
            one_line("failed:\n  h:1 refused\n\ncaused by\r\n\x1b[31mx\n"),
            "failed: h:1 refused; caused by;  [31mx"
        );
    }
}
