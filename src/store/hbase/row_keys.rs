//! The rows of locks and latches. The Java libraries compute the same.

use crate::names::latch_name::LatchName;
use crate::names::lock_name::LockName;

/// Returns the row of a lock: one byte of hash, which spreads names over the table's 256 pre-splits, then the key. (PhonePe
/// DLM 1.0.1, through hbasewd's one-byte hash distributor.)
pub(crate) fn lock_row(name: &LockName) -> Vec<u8> {
    salted(name.key().as_bytes(), &[])
}

/// Returns the row of a lock's fence counter: the hash byte of the lock's row, which puts both in one region, then `F#` and
/// the key. No lock's row can equal it, because those continue with `DC#` or `XDC#`.
pub(crate) fn fence_row(name: &LockName) -> Vec<u8> {
    salted(name.key().as_bytes(), b"F#")
}

/// Returns the row of a latch: one byte of hash, then `<client>_<id>`.
pub(crate) fn latch_row(name: &LatchName) -> Vec<u8> {
    salted(format!("{}_{}", name.client(), name.id()).as_bytes(), &[])
}

/// Returns the region of a new table that has the lock, by number. A region may fail while the others serve.
pub(super) fn shard(name: &LockName) -> u8 {
    one_byte_hash(name.key().as_bytes())
}

/// Returns `hash(key) ++ infix ++ key`.
pub(super) fn salted(key: &[u8], infix: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(1 + infix.len() + key.len());
    row.push(one_byte_hash(key));
    row.extend_from_slice(infix);
    row.extend_from_slice(key);
    row
}

/// Computes Java's `31 * x + b` over signed bytes, starting from 1, and returns the low byte of the absolute value.
fn one_byte_hash(key: &[u8]) -> u8 {
    let hash = key.iter().fold(1i32, |x, &b| x.wrapping_mul(31).wrapping_add(i32::from(b as i8)));
    hash.unsigned_abs() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};

    /// Values computed by Java's hash (hbasewd 0.1.0). `KWK-!-;` hashes to `Integer.MIN_VALUE`.
    #[test]
    fn the_hash_byte_is_that_of_the_java_library() {
        let thousand = "x".repeat(1000);
        let a31 = "a".repeat(31);
        let text = [
            ("", 0x01),
            ("a", 0x80),
            ("XDC#CLIENT_ID#LOCK_ID", 0xd2),
            ("DC#FA1#CLIENT_ID#LOCK_ID", 0xcb),
            ("client_latch", 0xaf),
            ("é", 0xf9),
            ("日本語", 0xd9),
            ("💥lock", 0x6e),
            ("polygenelubricants", 0xc1),
            (&thousand, 0xff),
            (&a31, 0xa0),
            ("XDC#svc#order-42", 0xb3),
            ("KWK-!-;", 0x00),
        ];
        for (key, byte) in text {
            assert_eq!(one_byte_hash(key.as_bytes()), byte, "{key:?}");
        }
        for (raw, byte) in
            [(&[0xffu8][..], 0x1e), (&[0x80], 0x61), (&[0x00], 0x1f), (&[0xff, 0xff, 0xff, 0xff], 0x41)]
        {
            assert_eq!(one_byte_hash(raw), byte, "{raw:?}");
        }
    }

    #[test]
    fn rows_are_those_of_the_java_library() {
        let named =
            |level, farm| LockName::new(level, "CLIENT_ID", farm, "LOCK_ID", NamePolicy::Strict).unwrap();
        let xdc = named(Level::Xdc, None);
        assert_eq!(lock_row(&xdc), b"\xd2XDC#CLIENT_ID#LOCK_ID");
        assert_eq!(fence_row(&xdc), b"\xd2F#XDC#CLIENT_ID#LOCK_ID");
        assert_eq!(shard(&xdc), 0xd2);
        assert_eq!(lock_row(&named(Level::Dc, Some("FA1"))), b"\xcbDC#FA1#CLIENT_ID#LOCK_ID");
        let latch = LatchName::new("client", "dc1", "latch", NamePolicy::Strict).unwrap();
        assert_eq!(latch_row(&latch), b"\xafclient_latch");
    }
}
