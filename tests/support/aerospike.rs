//! A real Aerospike for the tests: the one that `DLM_TEST_AEROSPIKE=host:port/namespace` names, or one
//! that is started here from the `asd` on the PATH, with a configuration of its own, on private ports of
//! the loopback interface, and that ends with this process however it ends.

#![allow(dead_code, reason = "no test program needs all of it")]

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

use super::patience::until;
use super::skip::skipped;

const VARIABLE: &str = "DLM_TEST_AEROSPIKE";
/// The namespace of a server started here.
const NAMESPACE: &str = "test";
/// What it says about memory, time and disks unless a test wants otherwise.
pub(crate) const IN_MEMORY: &str =
    "replication-factor 1\nnsup-period 1\nstorage-engine memory {\ndata-size 512M\n}\n";

/// In a namespace's configuration: the directory of its server, which is there for as long as the server.
pub(crate) const DIRECTORY: &str = "$DIRECTORY";

/// Where the tests' records go.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    pub(crate) namespace: String,
}

impl Place {
    /// URI of the locks there, by way of `address`.
    pub(crate) fn uri_by(&self, address: SocketAddr) -> String {
        format!("aerospike://{address}/{}/tests", self.namespace)
    }

    pub(crate) fn uri(&self) -> String {
        self.uri_by(self.address)
    }
}

/// A server shared by all tests of this program; `None`, after saying so, where there is none.
#[track_caller]
pub(crate) fn aerospike_or_skip() -> Option<Place> {
    static SHARED: OnceLock<Option<(Place, Option<Server>)>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| match named() {
        Some(place) => Some((place, None)),
        None => Server::start(IN_MEMORY).map(|server| (server.place(), Some(server))),
    });
    if shared.is_none() {
        skipped("asd", NONE);
    }
    shared.as_ref().map(|(place, _)| place.clone())
}

/// A server of the test's own, which it may kill; `None`, after saying so, where there is none. A
/// server named by the environment is not ours to kill.
#[track_caller]
pub(crate) fn own_server_or_skip(namespace: &str) -> Option<Server> {
    let server = Server::start(namespace);
    if server.is_none() {
        skipped("asd", NONE);
    }
    server
}

/// The same, with more in the environment of the server.
#[track_caller]
pub(crate) fn own_server_in_or_skip(
    namespace: &str,
    environment: &[(&'static str, OsString)],
) -> Option<Server> {
    let server = Server::start_in(None, namespace, environment);
    if server.is_none() {
        skipped("asd", NONE);
    }
    server
}

/// Two servers of the test's own that keep a copy of each other's records, as the namespace says.
#[track_caller]
pub(crate) fn own_cluster_or_skip(namespace: &str) -> Option<[Server; 2]> {
    let first = own_server_or_skip(namespace)?;
    let second = Server::start_beside(Some(&first), namespace)?;
    let both = [first, second];
    wait_joined(&both);
    Some(both)
}

/// Returns when the two have found each other and have exchanged what they have.
pub(crate) fn wait_joined(both: &[Server; 2]) {
    until("the nodes find each other", || {
        both.iter().all(|server| {
            info(server.address, "statistics").is_ok_and(|told| told.contains("cluster_size=2;"))
        })
    });
    both.iter().for_each(Server::wait_ready);
    until("the nodes have exchanged their records", || {
        both.iter().all(|server| {
            info(server.address, "statistics")
                .is_ok_and(|told| told.contains("migrate_partitions_remaining=0;"))
        })
    });
}

const NONE: &str = "no Aerospike server: there is no asd on the PATH, and DLM_TEST_AEROSPIKE=host:port/namespace is not \
                    set";

/// The namespace of the shared server, which need not be there.
pub(crate) fn namespace() -> String {
    named().map_or_else(|| NAMESPACE.into(), |place| place.namespace)
}

/// What the environment names.
fn named() -> Option<Place> {
    let text = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty())?;
    let (address, namespace) = text.split_once('/').expect("DLM_TEST_AEROSPIKE=host:port/namespace");
    let address = address.to_socket_addrs().expect("an address").next().expect("an address");
    Some(Place { address, namespace: namespace.to_owned() })
}

/// A server started here.
pub(crate) struct Server {
    /// A shell that waits for the end of its input, which is the end of this process, and kills the server.
    keeper: Option<Child>,
    address: SocketAddr,
    heartbeat: u16,
    directory: TempDir,
    environment: Vec<(&'static str, OsString)>,
}

impl Server {
    /// With a namespace that is configured so.
    fn start(namespace: &str) -> Option<Server> {
        Server::start_beside(None, namespace)
    }

    /// In one cluster with `partner`.
    fn start_beside(partner: Option<&Server>, namespace: &str) -> Option<Server> {
        Server::start_in(partner, namespace, &[])
    }

    fn start_in(
        partner: Option<&Server>,
        namespace: &str,
        environment: &[(&'static str, OsString)],
    ) -> Option<Server> {
        let found = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("asd").is_file()));
        if !found {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let ports = free_ports::<4>();
        fs::create_dir_all(directory.path().join("lua")).unwrap();
        fs::create_dir_all(directory.path().join("smd")).unwrap();
        let configuration = configuration(directory.path(), ports, partner, namespace);
        fs::write(directory.path().join("conf"), configuration).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[0]));
        let environment = environment.to_vec();
        let mut server = Server { keeper: None, address, heartbeat: ports[2], directory, environment };
        server.restart();
        Some(server)
    }

    pub(crate) fn place(&self) -> Place {
        Place { address: self.address, namespace: NAMESPACE.into() }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts it again with what it has on disk; waits until it takes writes.
    pub(crate) fn restart(&mut self) {
        self.restart_unready();
        self.wait_ready();
    }

    /// Starts it again, and returns when it answers questions: it refuses writes for some time yet.
    pub(crate) fn restart_unready(&mut self) {
        self.kill();
        // The shell's own signals and its child's end are of no interest to anyone else.
        let script = r#"asd --config-file "$1/conf" --foreground >>"$1/log" 2>&1 </dev/null & pid=$!
            echo $pid >"$1/pid"
            while read -r signal; do kill -"$signal" $pid; done; kill -KILL $pid; wait $pid"#;
        let keeper = Command::new("sh")
            .args(["-c", script, "asd"])
            .arg(self.directory.path())
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        self.keeper = Some(keeper);
        until("asd answers", || {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(!log.contains("CRITICAL"), "asd does not start: {log}");
            info(self.address, "status").is_ok()
        });
    }

    pub(crate) fn wait_ready(&self) {
        until("asd takes writes", || {
            info(self.address, "cluster-stable:").is_ok_and(|answer| !answer.contains("ERROR"))
        });
    }

    /// SIGKILL, or nothing if it does not run. What it had in memory is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            keeper.wait().unwrap();
        }
    }

    /// Ends it as an operator does. What it acknowledged is on its disk then.
    pub(crate) fn shut_down(&mut self) {
        self.signal("TERM");
        until("asd has ended", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()));
            // Nobody has waited for it yet.
            !stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z")))
        });
        self.kill();
    }

    fn pid(&self) -> String {
        fs::read_to_string(self.directory.path().join("pid")).unwrap().trim().to_owned()
    }

    /// Stops it in the middle of what it does, as a machine that hangs. Returns when it has stopped.
    pub(crate) fn pause(&mut self) {
        self.signal("STOP");
        until("asd stops", || self.is_paused());
    }

    /// Lets it go on after a [`pause`](Server::pause).
    pub(crate) fn go_on(&mut self) {
        self.signal("CONT");
        until("asd goes on", || !self.is_paused());
    }

    fn signal(&mut self, name: &str) {
        let keeper = self.keeper.as_mut().expect("it runs");
        writeln!(keeper.stdin.as_mut().expect("open until killed"), "{name}").unwrap();
    }

    /// Whether all its threads are.
    fn is_paused(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        // A thread's name stands in parentheses, and its state behind.
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat"));
            stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T")))
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn configuration(directory: &Path, ports: [u16; 4], partner: Option<&Server>, namespace: &str) -> String {
    let directory = directory.display();
    let namespace = namespace.replace(DIRECTORY, &directory.to_string());
    let [service, fabric, heartbeat, admin] = ports;
    let node = if partner.is_none() { "a1" } else { "b1" };
    let seed = partner.map(|partner| format!("mesh-seed-address-port 127.0.0.1 {}\n", partner.heartbeat));
    let seed = seed.unwrap_or_default();
    format!(
        "service {{\ncluster-name dlm-tests\nnode-id {node}\nproto-fd-max 1024\nwork-directory {directory}\n}}\n\
         mod-lua {{\nuser-path {directory}/lua\n}}\n\
         logging {{\nconsole {{\ncontext any warning\n}}\n}}\n\
         network {{\n\
         service {{\naddress 127.0.0.1\naccess-address 127.0.0.1\nport {service}\n}}\n\
         fabric {{\naddress 127.0.0.1\nport {fabric}\n}}\n\
         heartbeat {{\nmode mesh\naddress 127.0.0.1\nport {heartbeat}\ninterval 50\ntimeout 4\nconnect-timeout-ms 50\n{seed}}}\n\
         admin {{\naddress 127.0.0.1\nport {admin}\n}}\n}}\n\
         namespace {NAMESPACE} {{\n{namespace}}}\n"
    )
}

/// Ports that were free a moment ago.
fn free_ports<const N: usize>() -> [u16; N] {
    let taken = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    taken.map(|listener| listener.local_addr().unwrap().port())
}

/// One question of the servers' info protocol, answered with what stands behind the question's name.
pub(crate) fn info(address: SocketAddr, question: &str) -> io::Result<String> {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let body = format!("{question}\n");
    let mut message = ((2u64 << 56) | (1 << 48) | body.len() as u64).to_be_bytes().to_vec();
    message.extend_from_slice(body.as_bytes());
    stream.write_all(&message)?;
    let mut header = [0; 8];
    stream.read_exact(&mut header)?;
    let mut answer = vec![0; (u64::from_be_bytes(header) & 0xffff_ffff_ffff) as usize];
    stream.read_exact(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.trim_end().split_once('\t').map_or_else(String::new, |(_, answer)| answer.to_owned()))
}
