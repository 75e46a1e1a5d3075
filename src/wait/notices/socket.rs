//! The datagram socket of a process, over UDP or in the directory of an embedded store.
//!
//! A local socket is a file `notices-<number>`. A process that is killed leaves its file behind; the next one that
//! opens a socket in the directory removes every file without a receiver.

use std::fs::{self, File, Permissions};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use crate::names::notice_endpoint::NoticeEndpoint;
use crate::runtime::process::descriptors::StreamsTaken;
#[cfg(not(dlm_simulation))]
use crate::runtime::process::descriptors::above_streams;

const PREFIX: &str = "notices-";
/// Longest path of a socket, without the zero that ends it.
const PATH_MAX: usize = 107;
/// Highest number of files that are checked for a receiver.
const LEFT_MAX: usize = 256;

#[derive(Debug)]
pub(super) enum NoticeSocket {
    #[cfg_attr(dlm_simulation, expect(dead_code, reason = "the simulation has sockets of its own"))]
    Udp(UdpSocket),
    #[cfg(dlm_simulation)]
    Simulated(SocketAddr),
    Local(LocalSocket),
}

#[derive(Debug)]
pub(super) struct LocalSocket {
    socket: UnixDatagram,
    number: u64,
    /// The file, to be removed.
    file: PathBuf,
    /// The directory by a path that is short enough.
    short: PathBuf,
    /// Keeps `short` valid, if it is not the path of the directory.
    _directory: Option<File>,
}

impl NoticeSocket {
    #[cfg(dlm_simulation)]
    pub(super) fn udp(address: SocketAddr) -> io::Result<(NoticeSocket, NoticeEndpoint)> {
        Ok((NoticeSocket::Simulated(address), NoticeEndpoint::Udp(address)))
    }

    #[cfg(not(dlm_simulation))]
    pub(super) fn udp(address: SocketAddr) -> io::Result<(NoticeSocket, NoticeEndpoint)> {
        let socket = above_streams(|| UdpSocket::bind(address))?;
        socket.set_nonblocking(true)?;
        let own = plain(socket.local_addr()?);
        Ok((NoticeSocket::Udp(socket), NoticeEndpoint::Udp(own)))
    }

    /// Creates a socket in `directory`, with the permissions of the directory. `number` is part of its name.
    pub(super) fn local(directory: &Path, number: u64) -> io::Result<(NoticeSocket, NoticeEndpoint)> {
        let _taken = StreamsTaken::new();
        let name = file_name(number);
        let (short, opened) = match directory.as_os_str().len() + 1 + name.len() <= PATH_MAX {
            true => (directory.to_path_buf(), None),
            false => {
                let opened = File::open(directory)?;
                // Linux finds the directory of an open descriptor under this path.
                (PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd())), Some(opened))
            }
        };
        remove_abandoned(directory, &short);
        let socket = UnixDatagram::bind(short.join(&name))?;
        let file = directory.join(&name);
        let local = LocalSocket { socket, number, file, short, _directory: opened };
        local.socket.set_nonblocking(true)?;
        // Whoever may use the store may send. The sticky bit keeps systemd-tmpfiles away.
        let group = fs::metadata(directory)?.mode() & 0o060;
        fs::set_permissions(&local.file, Permissions::from_mode(0o1600 | group))?;
        Ok((NoticeSocket::Local(local), NoticeEndpoint::Local(number)))
    }

    /// Sends a datagram, or fails at once.
    pub(super) fn send(&self, to: NoticeEndpoint, bytes: &[u8]) -> io::Result<()> {
        match (self, to) {
            (NoticeSocket::Udp(socket), NoticeEndpoint::Udp(address)) => {
                socket.send_to(bytes, address).map(drop)
            }
            (NoticeSocket::Local(local), NoticeEndpoint::Local(number)) => {
                local.socket.send_to(bytes, local.short.join(file_name(number))).map(drop)
            }
            #[cfg(dlm_simulation)]
            (NoticeSocket::Simulated(from), NoticeEndpoint::Udp(to)) => {
                crate::runtime::simulation::send(*from, to, bytes);
                Ok(())
            }
            _ => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// Returns the length of the next datagram and its sender, and `None` if there is none. A sender without an address
    /// has sent no notice.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<Option<(usize, Option<NoticeEndpoint>)>> {
        let received = match self {
            NoticeSocket::Udp(socket) => {
                socket.recv_from(bytes).map(|(len, from)| (len, Some(NoticeEndpoint::Udp(plain(from)))))
            }
            NoticeSocket::Local(local) => local.socket.recv_from(bytes).map(|(len, from)| {
                let number = from.as_pathname().and_then(number_of);
                (len, number.map(NoticeEndpoint::Local))
            }),
            #[cfg(dlm_simulation)]
            NoticeSocket::Simulated(at) => {
                let Some((received, from)) = crate::runtime::simulation::receive(*at) else {
                    return Ok(None);
                };
                let len = received.len().min(bytes.len());
                bytes[..len].copy_from_slice(&received[..len]);
                Ok((len, Some(NoticeEndpoint::Udp(from))))
            }
        };
        match received {
            Ok(received) => Ok(Some(received)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for NoticeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            NoticeSocket::Udp(socket) => socket.as_fd(),
            NoticeSocket::Local(local) => local.socket.as_fd(),
            #[cfg(dlm_simulation)]
            NoticeSocket::Simulated(_) => unreachable!("a simulated socket has no descriptor"),
        }
    }
}

impl LocalSocket {
    /// Removes the file. A forked child must not call it.
    fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.file) {
            log::debug!("the notice socket {} could not be removed: {error}", self.number);
        }
    }
}

impl NoticeSocket {
    /// Ends the socket. A forked child must not call it.
    pub(super) fn remove(&self) {
        if let NoticeSocket::Local(local) = self {
            local.remove();
        }
    }
}

fn file_name(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

fn number_of(path: &Path) -> Option<u64> {
    let hex = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    if hex.len() == 16 { u64::from_str_radix(hex, 16).ok() } else { None }
}

/// Returns the address without what only this machine knows about it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Removes the sockets of processes that were killed. `short` is the directory by a short path.
fn remove_abandoned(directory: &Path, short: &Path) {
    let Ok(files) = fs::read_dir(directory) else { return };
    let Ok(probe) = UnixDatagram::unbound() else { return };
    for file in files.take(LEFT_MAX).flatten() {
        let name = file.file_name();
        if number_of(Path::new(&name)).is_some()
            && probe
                .connect(short.join(&name))
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        {
            let _ = fs::remove_file(file.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::patience::until;

    fn pair(directory: &Path) -> [(NoticeSocket, NoticeEndpoint); 2] {
        [NoticeSocket::local(directory, 1).unwrap(), NoticeSocket::local(directory, u64::MAX).unwrap()]
    }

    fn talk([(first, at_first), (second, at_second)]: &[(NoticeSocket, NoticeEndpoint); 2]) {
        let mut bytes = [0; 9];
        assert!(matches!(second.receive(&mut bytes), Ok(None)));
        first.send(*at_second, b"hello").unwrap();
        let mut received = None;
        until("it arrives", || {
            received = second.receive(&mut bytes).unwrap();
            received.is_some()
        });
        assert_eq!(received, Some((5, Some(*at_first))));
        assert_eq!(&bytes[..5], b"hello");
    }

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn sockets_of_one_directory_reach_each_other_also_by_a_long_path() {
        let directory = tempfile::tempdir().unwrap();
        talk(&pair(directory.path()));
        let long = directory.path().join("d".repeat(120));
        fs::create_dir(&long).unwrap();
        let pair = pair(&long);
        talk(&pair);
        for (socket, _) in &pair {
            socket.remove();
        }
        assert_eq!(fs::read_dir(&long).unwrap().count(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn only_files_without_a_receiver_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (kept, _) = NoticeSocket::local(directory.path(), 1).unwrap();
        drop(NoticeSocket::local(directory.path(), 2).unwrap());
        fs::write(directory.path().join("notices-other"), "").unwrap();
        let (_new, _) = NoticeSocket::local(directory.path(), 3).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["notices-0000000000000001", "notices-0000000000000003", "notices-other"]);
        drop(kept);
    }

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn udp_sockets_reach_each_other() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(first) = NoticeSocket::udp(address.parse().unwrap()) else { continue };
            talk(&[first, NoticeSocket::udp(address.parse().unwrap()).unwrap()]);
        }
    }
}
