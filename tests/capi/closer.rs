//! A server that closes each connection while its client still has data to write.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dlm_fixtures::c;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

/// The server closes the connection of a client that sends nothing for this time.
const SILENCE: Duration = Duration::from_secs(10);

pub(crate) struct Closer {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    tls: Option<Arc<ServerConfig>>,
    stopping: AtomicBool,
    connections: AtomicUsize,
    handshakes: AtomicUsize,
}

impl Closer {
    /// Starts the server. With a certificate it uses TLS.
    pub(crate) fn start(certificate: Option<&Certificate>) -> Closer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            tls: certificate.map(Certificate::server),
            stopping: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            handshakes: AtomicUsize::new(0),
        });
        let of_thread = Arc::clone(&shared);
        let accept = move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if of_thread.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let number = of_thread.connections.fetch_add(1, Ordering::SeqCst);
                // The connection is closed after an error, too.
                let _ = of_thread.meet(stream, number);
            }
        };
        let accepting = thread::Builder::new().name("dlm-test-closer".into()).spawn(accept).unwrap();
        Closer { address, shared, accepting: Some(accepting) }
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Returns how many TLS handshakes have reached the server's last message. The client needs no more to complete
    /// its side.
    pub(crate) fn handshakes(&self) -> usize {
        self.shared.handshakes.load(Ordering::SeqCst)
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl Shared {
    fn meet(&self, mut stream: TcpStream, number: usize) -> std::io::Result<()> {
        stream.set_read_timeout(Some(SILENCE))?;
        let Some(config) = &self.tls else {
            if number.is_multiple_of(2) {
                stream.read_exact(&mut [0; 1])?;
            }
            return Ok(());
        };
        let mut tls = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
        while tls.wants_read() && !tls.wants_write() {
            if tls.read_tls(&mut stream)? == 0 {
                return Ok(());
            }
            tls.process_new_packets().map_err(std::io::Error::other)?;
        }
        let mut flight = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut flight)?;
        }
        self.handshakes.fetch_add(1, Ordering::SeqCst);
        if number % 3 < 2 {
            // One packet contains the rest of the handshake and the end of the stream. The client still has to answer
            // and to send its request: the answer meets a closed socket, the request an error.
            rustix::net::sockopt::set_tcp_cork(&stream, true)?;
            stream.write_all(&flight)?;
            return stream.shutdown(Shutdown::Write);
        }
        stream.write_all(&flight)?;
        // Reads the start of the first request and then closes.
        let mut heard = [0; 1];
        loop {
            match tls.reader().read(&mut heard) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => return Ok(()),
            }
            while tls.wants_write() {
                tls.write_tls(&mut stream)?;
            }
            if tls.read_tls(&mut stream)? == 0 {
                return Ok(());
            }
            tls.process_new_packets().map_err(std::io::Error::other)?;
        }
    }
}

/// A certificate for `localhost`, signed by a new authority.
pub(crate) struct Certificate {
    dir: tempfile::TempDir,
}

impl Certificate {
    /// Creates the certificate. Fails if openssl is not installed.
    pub(crate) fn new() -> Result<Certificate, String> {
        let certificate = Certificate { dir: tempfile::tempdir().unwrap() };
        const KEY: [&str; 6] =
            ["-nodes", "-sha256", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        let new = |rest: &[&'static str]| [&["req"], &KEY[..], rest].concat();
        let steps = [
            new(&["-x509", "-days", "1", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"]),
            new(&["-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"]),
            [
                &["x509", "-req", "-days", "1", "-in", "server.csr", "-out", "server.pem"][..],
                &["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"],
            ]
            .concat(),
        ];
        std::fs::write(certificate.path("names"), "subjectAltName=DNS:localhost\n").unwrap();
        for step in steps {
            c::run(Command::new("openssl").args(step).current_dir(certificate.dir.path()))?;
        }
        Ok(certificate)
    }

    /// Returns the file with the authority that the client must trust.
    pub(crate) fn authority(&self) -> PathBuf {
        self.path("ca.pem")
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    fn server(&self) -> Arc<ServerConfig> {
        let chain = vec![CertificateDer::from_pem_file(self.path("server.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.path("server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        Arc::new(config.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap())
    }
}
