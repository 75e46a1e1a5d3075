//! Bytes to and from one server: a socket with or without TLS, and with or without what Kerberos protects. One thread may send
//! while another thread receives. Every wait has a deadline.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::{ClientConnection, pki_types::ServerName};

use super::auth::SecurityLayer;
use crate::runtime::sync::real::TimedMutex;
use crate::runtime::time::Deadline;
use crate::store::deadline_socket::{Arrived, DeadlineSocket, left};

pub(super) use crate::store::tls::Security;

pub(super) struct Channel {
    socket: DeadlineSocket,
    tls: Option<TimedMutex<ClientConnection>>,
    layer: Option<SecurityLayer>,
}

impl Channel {
    /// Connects, and completes the TLS handshake if TLS is on. `PermissionDenied` means that one side refused the
    /// other. A retry would not help.
    pub(super) fn connect(
        address: &SocketAddr,
        host: &str,
        security: &Security,
        by: Deadline,
    ) -> io::Result<Channel> {
        let socket = DeadlineSocket::connect(address, by)?;
        let Some(config) = security else { return Ok(Channel { socket, tls: None, layer: None }) };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
        let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        // A request is written in one piece and sent before the next. The default limit, 64 KiB, is too small for
        // hundreds of latches or a roster.
        tls.set_buffer_limit(None);
        while tls.is_handshaking() {
            push(&mut tls, &socket, by)?;
            if tls.is_handshaking() {
                let mut bytes = [0; 4096];
                let count = socket.read_some(&mut bytes, by)?;
                feed(&mut tls, &bytes[..count])?;
            }
        }
        push(&mut tls, &socket, by)?;
        Ok(Channel { socket, tls: Some(TimedMutex::new(tls)), layer: None })
    }

    /// Protects all that is sent and received from now on.
    pub(super) fn protect(&mut self, layer: Option<SecurityLayer>) {
        self.layer = layer;
    }

    /// Sends all of `bytes`. Only one thread at a time may call it. After an error the channel is unusable.
    pub(super) fn send(&self, bytes: &[u8], by: Deadline) -> io::Result<()> {
        match &self.layer {
            None => self.send_raw(bytes, by),
            Some(layer) => self.send_raw(&layer.protect(bytes, by)?, by),
        }
    }

    /// Receives some bytes. Only one thread at a time may call it. No bytes are lost on `TimedOut`.
    pub(super) fn receive(&self, out: &mut [u8], by: Deadline) -> io::Result<usize> {
        match &self.layer {
            None => self.receive_raw(out, by),
            Some(layer) => layer.receive(out, |raw| self.receive_raw(raw, by)),
        }
    }

    fn send_raw(&self, bytes: &[u8], by: Deadline) -> io::Result<()> {
        match &self.tls {
            None => self.socket.write_all(bytes, by),
            Some(tls) => {
                let tls = &mut *tls.try_lock_for(left(by)?).ok_or(io::ErrorKind::TimedOut)?;
                tls.writer().write_all(bytes)?;
                push(tls, &self.socket, by)
            }
        }
    }

    fn receive_raw(&self, out: &mut [u8], by: Deadline) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.read_some(out, by) };
        loop {
            let turn = || Ok::<_, io::Error>(tls.try_lock_for(left(by)?).ok_or(io::ErrorKind::TimedOut)?);
            match turn()?.reader().read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                received => return received,
            }
            // The socket is read without the lock, because another thread may send meanwhile.
            let mut bytes = [0; 4096];
            let count = self.socket.read_some(&mut bytes, by)?;
            // This lock has no deadline: after a time-out the bytes would be lost. The sending thread that holds it
            // has a deadline.
            let tls = &mut *tls.lock();
            feed(tls, &bytes[..count])?;
            // If only part of a TLS record was sent, all later bytes are garbled. So a time-out here is fatal.
            push(tls, &self.socket, by).map_err(|error| io::Error::new(io::ErrorKind::BrokenPipe, error))?;
        }
    }

    /// Returns whether the server has closed an idle connection, as far as this side knows.
    pub(super) fn is_closed(&self) -> bool {
        match self.socket.arrived() {
            Arrived::Nothing => false,
            // These bytes may be a reply that arrived after its caller's deadline. With TLS they may also be the
            // notice of a close.
            Arrived::Bytes => self.tls.is_some(),
            Arrived::End => true,
        }
    }

    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        self.socket.peer()
    }

    /// Closes the connection in both directions. A thread that is receiving returns.
    pub(super) fn shut(&self) {
        self.socket.shut();
    }
}

fn feed(tls: &mut ClientConnection, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        tls.read_tls(&mut bytes)?;
        let handshaking = tls.is_handshaking();
        tls.process_new_packets().map_err(|error| {
            let kind = if handshaking || is_refusal(&error) {
                io::ErrorKind::PermissionDenied
            } else {
                io::ErrorKind::InvalidData
            };
            io::Error::new(kind, format!("TLS: {error}{}", hint(&error)))
        })?;
    }
    Ok(())
}

/// Returns whether the server refused the client's certificate. In TLS 1.3 this error can arrive after the
/// handshake has ended on the client's side. The server reads no request before that check.
fn is_refusal(error: &rustls::Error) -> bool {
    use rustls::AlertDescription as Alert;
    matches!(
        error,
        rustls::Error::AlertReceived(
            Alert::CertificateRequired
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
        )
    )
}

fn hint(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidMessage(_) => "; the server may not use TLS",
        error if is_refusal(error) => "; the server may require a client certificate (tls_cert and tls_key)",
        _ => "",
    }
}

fn push(tls: &mut ClientConnection, socket: &DeadlineSocket, by: Deadline) -> io::Result<()> {
    while tls.wants_write() {
        let mut bytes = Vec::new();
        tls.write_tls(&mut bytes)?;
        socket.write_all(&bytes, by)?;
    }
    Ok(())
}
