//! Exceptions of the server: their effect on the request, and how to retry.

use std::io;

use super::address::Address;
use super::messages::{ExceptionResponse, NameBytesPair};

/// An exception from the header of a reply or from inside a `MultiResponse`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {message}")]
pub(super) struct Exception {
    /// Last component of the name of the Java class.
    pub(super) class: String,
    /// First line of the message.
    pub(super) message: String,
    moved_to: Option<Address>,
    do_not_retry: bool,
}

/// Class of an exception that decides about retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RetryClass {
    /// Not applied: this server does not serve the region. Contains the new server if this one names it.
    Elsewhere(Option<Address>),
    /// Not applied: retry after a pause.
    Busy,
    /// Not applied: this server is starting or stopping. Look up the region again and connect again.
    Leave,
    /// Not applied, and a retry would not help.
    Refused,
    /// It is not known whether the request was applied.
    Unknown,
}

impl From<ExceptionResponse> for Exception {
    fn from(response: ExceptionResponse) -> Exception {
        let port = response.port.and_then(|port| u16::try_from(port).ok());
        let told = response.hostname.zip(port).and_then(|(host, port)| Address::from_server(&host, port));
        let mut exception = Exception::from_server(&response.class, &response.stack);
        exception.do_not_retry = response.do_not_retry;
        exception.moved_to = told.or(exception.moved_to);
        exception
    }
}

impl From<NameBytesPair> for Exception {
    fn from(pair: NameBytesPair) -> Exception {
        Exception::from_server(&pair.name, &String::from_utf8_lossy(&pair.value))
    }
}

impl Exception {
    pub(super) fn from_server(class: &str, text: &str) -> Exception {
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

    /// Returns the message if the server refused the input of a write and so can never apply it. The server checks
    /// these things before it writes (`HRegion.getLongValue`, `HRegion.checkForRow` and
    /// `RSRpcServices.checkCellSizeLimit`).
    pub(super) fn refused_input(&self) -> Option<&str> {
        const NEVER: [&str; 2] = ["Field is not a long", "exceeds limit of"];
        let told = NEVER.iter().any(|words| self.message.contains(words));
        (self.class == "DoNotRetryIOException" && told).then_some(self.message.as_str())
    }

    /// Returns whether this user lacks a right. HBase checks rights before it runs a request.
    pub(super) fn is_denied(&self) -> bool {
        self.class == "AccessDeniedException"
    }

    /// Classifies the exception. Only classes that the server throws before it runs a request mean "not applied".
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

    /// Converts an exception about the whole connection to an error. `PermissionDenied` means that the server
    /// refuses this client. Then it has run none of the requests of the connection.
    pub(super) fn of_connection(&self) -> io::Error {
        let refusal = match self.class.as_str() {
            "AccessDeniedException" | "BadAuthException" | "SaslException" => {
                Some("; it may require Kerberos (auth=kerberos)")
            }
            "FatalConnectionException" | "WrongVersionException" | "UnsupportedCryptoException" => Some(""),
            _ => None,
        };
        match refusal {
            Some(hint) => io::Error::new(io::ErrorKind::PermissionDenied, format!("{self}{hint}")),
            None => io::Error::new(io::ErrorKind::ConnectionAborted, self.to_string()),
        }
    }

    /// Returns whether a later send of the same request may get another answer.
    pub(super) fn may_pass(&self) -> bool {
        match self.retry_class() {
            RetryClass::Elsewhere(_) | RetryClass::Busy | RetryClass::Leave => true,
            RetryClass::Refused => false,
            // An overloaded server throws IOException. Other unknown exceptions are not retried.
            RetryClass::Unknown => self.class == "IOException" && !self.do_not_retry,
        }
    }
}

/// Parses `... hostname=H port=P startCode=...`. Inside a Multi, only the text contains the new server.
fn moved_to(text: &str) -> Option<Address> {
    let value = |key: &str| text.split_once(key)?.1.split([' ', '.', '\n', ',']).next();
    let host = text.split_once("hostname=")?.1.split([' ', '\n']).next()?;
    Address::from_server(host, value("port=")?.parse().ok()?)
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
        assert_eq!(
            exception.retry_class(),
            RetryClass::Elsewhere(Address::from_server("rs-2.example.org", 16020))
        );
        let cut =
            pair("org.apache.hadoop.hbase.exceptions.RegionMovedException", "Region moved to: hostname=");
        assert_eq!(cut.retry_class(), RetryClass::Elsewhere(None));
        let header = ExceptionResponse {
            class: "org.apache.hadoop.hbase.exceptions.RegionMovedException".into(),
            hostname: Some("h".into()),
            port: Some(7),
            ..Default::default()
        };
        assert_eq!(
            Exception::from(header).retry_class(),
            RetryClass::Elsewhere(Address::from_server("h", 7))
        );
    }

    #[test]
    fn an_unlisted_class_proves_nothing() {
        for class in ["java.io.IOException", "org.apache.hadoop.hbase.DoNotRetryIOException", "x", ""] {
            assert_eq!(pair(class, "Java heap space").retry_class(), RetryClass::Unknown, "{class}");
        }
    }
}
