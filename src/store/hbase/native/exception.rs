//! What an exception of the server says about the request and about where to turn next.

use std::io;

use super::address::Address;
use super::messages::{ExceptionResponse, NameBytesPair};

/// An exception, wherever in a reply it stood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {message}")]
pub(super) struct Exception {
    /// Last component of the Java class's name.
    pub(super) class: String,
    /// Its first line.
    pub(super) message: String,
    moved_to: Option<Address>,
    do_not_retry: bool,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RetryClass {
    /// Not applied: the region is elsewhere. Where, if the server knows.
    Elsewhere(Option<Address>),
    /// Not applied: ask again after a pause.
    Busy,
    /// Not applied: this server is on its way up or down; connect and look up again.
    Leave,
    /// Not applied, and asking again would not help.
    Refused,
    /// Nobody can tell whether it was applied.
    Unknown,
}

impl From<ExceptionResponse> for Exception {
    fn from(response: ExceptionResponse) -> Exception {
        let port = response.port.and_then(|port| u16::try_from(port).ok());
        let told = response.hostname.zip(port).and_then(|(host, port)| Address::told(&host, port));
        let mut exception = Exception::told(&response.class, &response.stack);
        exception.do_not_retry = response.do_not_retry;
        exception.moved_to = told.or(exception.moved_to);
        exception
    }
}

impl From<NameBytesPair> for Exception {
    fn from(pair: NameBytesPair) -> Exception {
        Exception::told(&pair.name, &String::from_utf8_lossy(&pair.value))
    }
}

impl Exception {
    pub(super) fn told(class: &str, text: &str) -> Exception {
        const MESSAGE_CHARS: usize = 300;
        let class = class.rsplit(['.', '$']).next().unwrap_or(class);
        let first = text.lines().next().unwrap_or_default().chars().filter(|c| !c.is_control());
        Exception {
            class: class.chars().filter(|c| !c.is_control()).take(100).collect(),
            message: first.take(MESSAGE_CHARS).collect(),
            moved_to: if class == "RegionMovedException" { moved_to(text) } else { None },
            do_not_retry: false,
        }
    }

    /// What the server says of a write that it can never make: it looks at these things before it writes.
    /// (`HRegion.getLongValue`, `HRegion.checkForRow` and `RSRpcServices.checkCellSizeLimit`.)
    pub(super) fn refused_input(&self) -> Option<&str> {
        const NEVER: [&str; 2] = ["Field is not a long", "exceeds limit of"];
        let told = NEVER.iter().any(|words| self.message.contains(words));
        (self.class == "DoNotRetryIOException" && told).then_some(self.message.as_str())
    }

    /// Only classes that are known to be thrown before a request is run count as "not applied".
    pub(super) fn retry_class(&self) -> RetryClass {
        match self.class.as_str() {
            "RegionMovedException" => RetryClass::Elsewhere(self.moved_to.clone()),
            "NotServingRegionException" | "RegionOpeningException" | "WrongRegionException" => {
                RetryClass::Elsewhere(None)
            }
            "RegionTooBusyException"
            | "CallQueueTooBigException"
            | "CallDroppedException"
            | "RpcThrottlingException" => RetryClass::Busy,
            "RegionServerStoppedException"
            | "RegionServerAbortedException"
            | "ServerNotRunningYetException"
            | "PleaseHoldException"
            | "MasterNotRunningException"
            | "MasterStoppedException" => RetryClass::Leave,
            "TableNotFoundException"
            | "TableExistsException"
            | "TableNotDisabledException"
            | "TableNotEnabledException"
            | "NoSuchColumnFamilyException"
            | "AccessDeniedException"
            | "UnknownProtocolException"
            | "NamespaceNotFoundException" => RetryClass::Refused,
            _ => RetryClass::Unknown,
        }
    }

    /// What a server says of a whole connection, as an error of it. `PermissionDenied` where it says that
    /// it does not want us: it has then run none of our requests.
    pub(super) fn of_connection(&self) -> io::Error {
        let refusal = match self.class.as_str() {
            "AccessDeniedException" | "BadAuthException" | "SaslException" => {
                Some("; it may demand Kerberos, which this library does not speak")
            }
            "FatalConnectionException" | "WrongVersionException" | "UnsupportedCryptoException" => Some(""),
            _ => None,
        };
        match refusal {
            Some(hint) => io::Error::new(io::ErrorKind::PermissionDenied, format!("{self}{hint}")),
            None => io::Error::new(io::ErrorKind::ConnectionAborted, self.to_string()),
        }
    }

    /// Whether the same request may be answered otherwise later.
    pub(super) fn may_pass(&self) -> bool {
        match self.retry_class() {
            RetryClass::Elsewhere(_) | RetryClass::Busy | RetryClass::Leave => true,
            RetryClass::Refused => false,
            // An overloaded server throws this one. Others that are not known here are not asked again.
            RetryClass::Unknown => self.class == "IOException" && !self.do_not_retry,
        }
    }
}

/// `... hostname=H port=P startCode=...`: inside a Multi the new place stands in the text only.
fn moved_to(text: &str) -> Option<Address> {
    let value = |key: &str| text.split_once(key)?.1.split([' ', '.', '\n', ',']).next();
    let host = text.split_once("hostname=")?.1.split([' ', '\n']).next()?;
    Address::told(host, value("port=")?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(class: &str, text: &str) -> Exception {
        NameBytesPair { name: class.into(), value: text.as_bytes().to_vec() }.into()
    }

    #[test]
    fn a_moved_region_is_followed_also_when_only_the_text_says_where() {
        let text = "Region moved to: hostname=rs-2.example.org port=16020 startCode=17. As of locationSeqNum=5.\n at a.b";
        let exception = pair("org.apache.hadoop.hbase.exceptions.RegionMovedException", text);
        assert_eq!(exception.retry_class(), RetryClass::Elsewhere(Address::told("rs-2.example.org", 16020)));
        let cut =
            pair("org.apache.hadoop.hbase.exceptions.RegionMovedException", "Region moved to: hostname=");
        assert_eq!(cut.retry_class(), RetryClass::Elsewhere(None));
        let header = ExceptionResponse {
            class: "org.apache.hadoop.hbase.exceptions.RegionMovedException".into(),
            hostname: Some("h".into()),
            port: Some(7),
            ..Default::default()
        };
        assert_eq!(Exception::from(header).retry_class(), RetryClass::Elsewhere(Address::told("h", 7)));
    }

    #[test]
    fn an_unlisted_class_proves_nothing() {
        for class in ["java.io.IOException", "org.apache.hadoop.hbase.DoNotRetryIOException", "x", ""] {
            assert_eq!(pair(class, "Java heap space").retry_class(), RetryClass::Unknown, "{class}");
        }
    }
}
