//! Byte strings of requests. A clone of `Bytes` shares the bytes, and constants need no memory of their own.

use prost::bytes::Bytes;

pub(super) static EMPTY: Bytes = Bytes::new();

pub(super) fn constant(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// Copies all parts into one piece of memory. One row and its values need two allocations then, and not two each.
pub(super) fn packed<const N: usize>(parts: [&[u8]; N]) -> [Bytes; N] {
    let mut all = Bytes::from(parts.concat());
    parts.map(|part| all.split_to(part.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_parts_are_the_parts() {
        let parts = [&b"row"[..], b"", b"value", b""];
        assert_eq!(packed(parts), parts);
        assert_eq!(packed([b"", b""]), [&b""[..]; 2]);
    }
}
