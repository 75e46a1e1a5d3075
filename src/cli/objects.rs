//! Objects that commands print with --json.

use serde_json::Value;

/// Returns an object as one line. What does not apply is left out: no value is null.
pub(crate) fn line(value: Value) -> String {
    without_nulls(value).to_string()
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let known = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(known.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(values) => Value::Array(values.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
