//! Callers' texts in messages.

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
