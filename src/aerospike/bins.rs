//! The bins of an application in a record.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::store::aerospike::client::BinValue;
use crate::store::aerospike::keys::checked_bin;

/// A value in a bin.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// An integer.
    Int(i64),
    /// A string.
    Text(String),
    /// A blob.
    Bytes(Vec<u8>),
    /// A value of another type, such as a list. It can be detected, but neither read nor written.
    Other,
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Value {
        Value::Int(number.into())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Int(number.into())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value::Bytes(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Value {
        Value::Bytes(bytes)
    }
}

/// Bins of a record: unique names and their values.
///
/// ```
/// use dlm::aerospike::Bins;
///
/// let bins = Bins::new().with("sum", 5).with("state", "packed").with("sum", 7);
/// assert_eq!((bins.int("sum"), bins.text("state"), bins.len()), (Some(7), Some("packed"), 2));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bins(BTreeMap<String, Value>);

impl Bins {
    /// Makes an empty set of bins.
    pub fn new() -> Bins {
        Bins::default()
    }

    /// Adds a bin, or replaces its value. Names are checked when the bins are written.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Bins {
        self.0.insert(name.into(), value.into());
        self
    }

    /// Returns the value in the bin.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Returns the integer in the bin. `None` if there is no such bin, or if it has another type.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.0.get(name) {
            Some(&Value::Int(number)) => Some(number),
            _ => None,
        }
    }

    /// Returns the string in the bin. `None` if there is no such bin, or if it has another type.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.0.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns the blob in the bin. `None` if there is no such bin, or if it has another type.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.0.get(name) {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Returns names and values, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns the number of bins.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no bins.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn of(bins: impl Iterator<Item = (String, BinValue)>) -> Bins {
        let value = |bin_value| match bin_value {
            BinValue::Int(number) => Value::Int(number),
            BinValue::Text(text) => Value::Text(text),
            BinValue::Bytes(bytes) => Value::Bytes(bytes),
            BinValue::List(_) | BinValue::Map(_) | BinValue::Other => Value::Other,
        };
        Bins(bins.map(|(name, bin_value)| (name, value(bin_value))).collect())
    }

    /// Checks names, types and the total of at most `max_bytes`. Returns the bins as they are written.
    pub(super) fn checked(&self, max_bytes: usize) -> Result<Vec<(&str, BinValue)>> {
        if self.is_empty() {
            return Err(Error::invalid("bins", "", "at least one; to write only the fence, use raise_fence"));
        }
        let mut total = 0;
        let mut data = Vec::with_capacity(self.len());
        for (name, value) in self.iter() {
            let (bin_value, bytes) = match value {
                Value::Int(number) => (BinValue::Int(*number), size_of::<i64>()),
                Value::Text(text) => (BinValue::Text(text.clone()), text.len()),
                Value::Bytes(bytes) => (BinValue::Bytes(bytes.clone()), bytes.len()),
                Value::Other => {
                    return Err(Error::invalid("value of bin", name, "an integer, a string or a blob"));
                }
            };
            data.push((checked_bin(name)?, bin_value));
            total += name.len() + bytes;
        }
        if total > max_bytes {
            let allowed = format!(
                "at most {max_bytes} (see Records::max_value, and `max-record-size` of the namespace)"
            );
            return Err(Error::invalid("size of the bins in bytes", total.to_string(), allowed));
        }
        Ok(data)
    }
}

impl<N: Into<String>, V: Into<Value>> FromIterator<(N, V)> for Bins {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(bins: I) -> Bins {
        Bins(bins.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_that_a_server_would_refuse_are_refused_before() {
        let fifteen = "fifteen-bytes--";
        let full = Bins::new().with(fifteen, "x".repeat(85));
        assert_eq!(full.checked(100).unwrap().len(), 1);
        for (bins, said) in [
            (Bins::new(), "at least one"),
            (Bins::new().with("", 1), "1 to 15 bytes"),
            (Bins::new().with(format!("{fifteen}x"), 1), "1 to 15 bytes"),
            (Bins::new().with("a\nb", 1), "1 to 15 bytes"),
            (Bins::new().with("a", Value::Other), "an integer, a string or a blob"),
            (full.with("a", 1), "109 is not allowed: at most 100"),
        ] {
            let error = bins.checked(100).unwrap_err();
            assert_eq!(error.code(), crate::Code::InvalidArgument, "{bins:?}");
            let message = error.to_string().replace('"', "");
            assert!(message.contains(said), "{message}");
        }
    }
}
