//! Names of locks on the command line and on the screen: every command takes what another one prints.

use dlm::{Level, LockManager, LockName};

/// Returns the name in `text` if it is a full name, as `dlm ls` prints it: `DC#eu#orders#42`, also in the quotes and with
/// the escapes of the printed form.
pub(crate) fn full_name(text: &str) -> Option<LockName> {
    let printed = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).and_then(unescaped);
    LockName::from_key(printed.as_deref().unwrap_or(text)).ok()
}

/// Returns a full name for the screen: quoted and escaped, because it could colour a terminal or forge a line, and whole,
/// because other commands take it.
pub(crate) fn shown(key: &str) -> String {
    format!("{key:?}")
}

/// Returns the client id of this manager.
pub(crate) fn client_of(manager: &LockManager) -> String {
    let lock = manager.lock("x", Level::Xdc);
    let key = lock.as_ref().map(|lock| lock.name().key()).unwrap_or_default();
    key.strip_prefix("XDC#").and_then(|key| key.strip_suffix("#x")).unwrap_or_default().to_owned()
}

/// Returns the id and the level of a lock of this manager's client and farm.
pub(crate) fn own_id(manager: &LockManager, name: &LockName) -> Option<(String, Level)> {
    let (level, rest) = name.key().split_once('#')?;
    let (level, parts) = if level == "DC" { (Level::Dc, 3) } else { (Level::Xdc, 2) };
    let id = rest.splitn(parts, '#').last()?;
    let is_own = manager.lock(id, level).is_ok_and(|lock| lock.name() == name);
    is_own.then(|| (id.to_owned(), level))
}

/// Undoes the escapes of Rust's `{:?}`.
fn unescaped(text: &str) -> Option<String> {
    let (mut out, mut rest) = (String::new(), text.chars());
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match rest.next()? {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '0' => '\0',
            'u' => {
                let code = rest.as_str().strip_prefix('{')?.split_once('}')?.0.to_owned();
                rest.by_ref().nth(code.len() + 1)?;
                char::from_u32(u32::from_str_radix(&code, 16).ok()?)?
            }
            c @ ('\\' | '"' | '\'') => c,
            _ => return None,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_back() {
        let long = "x".repeat(500);
        for id in ["order-42", "a b", "a\"b\\", "\n\t\u{1b}[31m", "日本語 \u{200b}", "a#b", &long] {
            let key = format!("DC#eu#orders#{id}");
            for text in [&key, &shown(&key)] {
                assert_eq!(full_name(text).map(|name| name.key().to_owned()).as_ref(), Some(&key), "{text}");
            }
        }
        for text in ["order-42", "DC#a#b", "XDC#a", "\"order-42\"", "\"", "\"\\q\"", ""] {
            assert_eq!(full_name(text), None, "{text}");
        }
    }

    #[test]
    fn a_lock_of_this_client_is_told_from_others() {
        let manager = LockManager::builder().store_uri("memory:").client("c").farm("f").open().unwrap();
        let own = |key: &str| own_id(&manager, &LockName::from_key(key).unwrap());
        assert_eq!(own("DC#f#c#a#b"), Some(("a#b".into(), Level::Dc)));
        assert_eq!(own("XDC#c#a"), Some(("a".into(), Level::Xdc)));
        assert_eq!((own("XDC#d#a"), own("DC#g#c#a")), (None, None));
    }
}
