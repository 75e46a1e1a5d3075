//! A checksum that stored bytes and datagrams have.

/// Returns the FNV-1a hash of 64 bits. It detects every change of a single byte, and other damage except for one case in
/// 2^64. It hides nothing from somebody who tries.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the test vectors of the algorithm's authors.
    #[test]
    fn it_is_the_hash_of_the_standard() {
        assert_eq!(
            [fnv1a(b""), fnv1a(b"a"), fnv1a(b"foobar")],
            [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8]
        );
    }
}
