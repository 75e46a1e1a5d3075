//! Lists and maps in replies, in MessagePack. Bytes from the network: `tests/fuzz` feeds this file too.
//!
//! A string or a blob begins with a byte for its type. An ordered map or list begins with an extension that holds its order.

use std::io;

use super::operation::BinValue;
use super::rest::{Rest, bad};

/// How deep lists and maps may be in each other. The library writes two levels.
const DEPTH_MAX: usize = 8;

const STRING: u8 = 3;
const BLOB: u8 = 4;

/// An item of a list, or a key of a map.
enum Parsed {
    Value(BinValue),
    Order,
}

/// Parses the value of a bin that is a list or a map.
pub(super) fn value(bytes: &[u8]) -> io::Result<BinValue> {
    let mut rest = Rest(bytes);
    match item(&mut rest, 0)? {
        Parsed::Value(value) if rest.0.is_empty() => Ok(value),
        _ => Err(bad("a list or a map has bytes beyond its end")),
    }
}

fn item(rest: &mut Rest<'_>, depth: usize) -> io::Result<Parsed> {
    if depth > DEPTH_MAX {
        return Err(bad("lists and maps are too deep in each other"));
    }
    let first = rest.take(1)?[0];
    let value = match first {
        0x00..0x80 => BinValue::Int(i64::from(first)),
        0xe0.. => BinValue::Int(i64::from(first as i8)),
        0x80..0x90 => map(rest, usize::from(first & 0x0f), depth)?,
        0x90..0xa0 => list(rest, usize::from(first & 0x0f), depth)?,
        0xa0..0xc0 => text(rest.take(usize::from(first & 0x1f))?),
        0xc0 | 0xc2 | 0xc3 => BinValue::Other,
        0xc4 | 0xd9 => text_of(rest, 1)?,
        0xc5 | 0xda => text_of(rest, 2)?,
        0xc6 | 0xdb => text_of(rest, 4)?,
        0xc7..0xca => {
            let length = number(rest, 1 << (first - 0xc7))?;
            rest.take(length.saturating_add(1))?;
            return Ok(Parsed::Order);
        }
        0xd4..0xd9 => {
            rest.take(1 + (1 << (first - 0xd4)))?;
            return Ok(Parsed::Order);
        }
        0xca => other(rest, 4)?,
        0xcb => other(rest, 8)?,
        0xcc..0xcf => BinValue::Int(number(rest, 1 << (first - 0xcc))? as i64),
        0xcf | 0xd3 => BinValue::Int(number(rest, 8)? as i64),
        0xd0 => BinValue::Int(i64::from(number(rest, 1)? as i8)),
        0xd1 => BinValue::Int(i64::from(number(rest, 2)? as i16)),
        0xd2 => BinValue::Int(i64::from(number(rest, 4)? as i32)),
        0xdc | 0xdd => {
            let count = number(rest, if first == 0xdc { 2 } else { 4 })?;
            list(rest, count, depth)?
        }
        0xde | 0xdf => {
            let count = number(rest, if first == 0xde { 2 } else { 4 })?;
            map(rest, count, depth)?
        }
        0xc1 => return Err(bad("a value has an unknown type")),
    };
    Ok(Parsed::Value(value))
}

fn list(rest: &mut Rest<'_>, count: usize, depth: usize) -> io::Result<BinValue> {
    let mut items = Vec::new();
    for _ in 0..count {
        if let Parsed::Value(value) = item(rest, depth + 1)? {
            items.push(value);
        }
    }
    Ok(BinValue::List(items))
}

fn map(rest: &mut Rest<'_>, count: usize, depth: usize) -> io::Result<BinValue> {
    let mut entries = Vec::new();
    for _ in 0..count {
        if let (Parsed::Value(key), Parsed::Value(value)) = (item(rest, depth + 1)?, item(rest, depth + 1)?) {
            entries.push((key, value));
        }
    }
    Ok(BinValue::Map(entries))
}

fn text_of(rest: &mut Rest<'_>, size: usize) -> io::Result<BinValue> {
    let length = number(rest, size)?;
    Ok(text(rest.take(length)?))
}

fn text(bytes: &[u8]) -> BinValue {
    match bytes {
        [BLOB, bytes @ ..] => BinValue::Bytes(bytes.to_vec()),
        [STRING, text @ ..] => match std::str::from_utf8(text) {
            Ok(text) => BinValue::Text(text.to_owned()),
            Err(_) => BinValue::Other,
        },
        _ => BinValue::Other,
    }
}

fn other(rest: &mut Rest<'_>, size: usize) -> io::Result<BinValue> {
    rest.take(size).map(|_| BinValue::Other)
}

/// Takes a number of `size` bytes.
fn number(rest: &mut Rest<'_>, size: usize) -> io::Result<usize> {
    Ok(rest.take(size)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_maps_of_a_server_are_read() {
        let bytes = |bytes: &[u8]| BinValue::Bytes(bytes.to_vec());
        // An ordered map, as a server returns it.
        let map = [
            &[0x83, 0xc7, 0, 1, 0xc0][..],
            &[0xa2, BLOB, 1, 0x93, 0xcf, 0, 0, 1, 0xa2, 0, 0, 0, 1, 0xcd, 1, 44, 0xa2, BLOB, b'w'],
            &[7, 0x92, 0xff, 0xd9, 3, STRING, b'h', b'i'],
        ]
        .concat();
        let entries = vec![
            (
                bytes(&[1]),
                BinValue::List(vec![BinValue::Int(0x1a2_0000_0001), BinValue::Int(300), bytes(b"w")]),
            ),
            (BinValue::Int(7), BinValue::List(vec![BinValue::Int(-1), BinValue::Text("hi".into())])),
        ];
        assert_eq!(value(&map).unwrap(), BinValue::Map(entries));
        for length in 0..map.len() {
            assert!(value(&map[..length]).is_err(), "a part of a map is no map");
        }
        assert!(value(&[&map[..], &[0]].concat()).is_err());
    }

    #[test]
    fn numbers_have_their_sign() {
        for (packed, number) in [
            (&[0x7f][..], 127),
            (&[0xe0], -32),
            (&[0xcc, 0xff], 255),
            (&[0xce, 0xff, 0xff, 0xff, 0xff], 0xffff_ffff),
            (&[0xd0, 0x80], -128),
            (&[0xd1, 0xff, 0x7f], -129),
            (&[0xd2, 0xff, 0xff, 0x7f, 0xff], -32_769),
            (&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0], i64::MIN),
        ] {
            let list = [&[0x91], packed].concat();
            assert_eq!(value(&list).unwrap(), BinValue::List(vec![BinValue::Int(number)]));
        }
    }

    #[test]
    fn values_that_are_too_deep_or_claim_a_length_that_they_do_not_have_are_refused() {
        assert!(value(&[0x91; 100]).is_err());
        for bytes in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0xff, 0xff, 0xff, 0xff],
            &[0xc6, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert!(value(bytes).is_err());
        }
    }
}
