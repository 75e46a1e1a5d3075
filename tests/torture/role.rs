//! The processes of the tests. Each has several clients, which share a manager.

use std::io::{self, Read as _};
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use dlm_fixtures::role::{self, Running};
use dlm_testkit::history::Recorder;
use dlm_testkit::workload::LockWorkload;

const PROCESS: &str = "DLM_TEST_PROCESS";

/// Longest time that a process lives.
const LASTS_MAX: Duration = Duration::from_secs(600);

/// What a process uses, and how.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) uri: String,
    /// Part of the names of the locks.
    pub(crate) client_id: String,
    /// Number of the process. One that replaces a killed process has its number.
    pub(crate) number: u64,
    /// Counts the processes that had this number.
    pub(crate) incarnation: u64,
    pub(crate) clients: u64,
    pub(crate) workload: LockWorkload,
}

impl Process {
    /// Returns the beginning of the names that its clients have in the log.
    pub(crate) fn name(&self) -> String {
        format!("{}{}/", prefix(self.number), self.incarnation)
    }

    /// Starts the process, which logs to files in this directory.
    pub(crate) fn start(&self, logs: &Path) -> Running {
        let mut command = role::process(module_path!(), "torture", logs);
        self.describe_to(&mut command);
        // The process ends when this one does, because its input ends then.
        command.stdin(Stdio::piped()).spawn().map(Running).unwrap()
    }

    fn describe_to(&self, command: &mut Command) {
        let LockWorkload {
            seed,
            clients,
            locks,
            ttl,
            quiet_locks,
            pace,
            outlast_one_in,
            linger,
            modes,
            permits,
            resizes,
            ..
        } = self.workload;
        let (linger, modes, resizes) = (linger.as_nanos(), u64::from(modes), u64::from(resizes));
        let pace = pace.expect("torture sets it").as_nanos();
        let (number, incarnation, threads, ttl) =
            (self.number, self.incarnation, self.clients, ttl.as_nanos());
        let text = format!(
            "{} {} {number} {incarnation} {threads} {seed} {clients} {locks} {ttl} {quiet_locks} {pace} \
             {outlast_one_in} {linger} {modes} {permits} {resizes}",
            self.uri, self.client_id
        );
        command.env(PROCESS, text);
    }

    fn described() -> Process {
        let text = env::var(PROCESS).unwrap();
        let mut words = text.split(' ');
        let [uri, client_id] = [(); 2].map(|()| words.next().unwrap().to_owned());
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        let [
            number,
            incarnation,
            threads,
            seed,
            clients,
            locks,
            ttl,
            quiet_locks,
            pace,
            outlast_one_in,
            linger,
            modes,
            permits,
            resizes,
        ] = numbers.try_into().expect("as many as were written");
        let (ttl, pace) = (Duration::from_nanos(ttl), Some(Duration::from_nanos(pace)));
        let lasts = LASTS_MAX;
        let workload = LockWorkload {
            seed,
            clients,
            locks,
            ttl,
            lasts,
            quiet_locks,
            pace,
            outlast_one_in,
            other_ttls: false,
            linger: Duration::from_nanos(linger),
            modes: modes == 1,
            permits: u16::try_from(permits).expect("a size"),
            resizes: resizes == 1,
        };
        Process { uri, client_id, number, incarnation, clients: threads, workload }
    }
}

/// Returns the beginning of the names that the clients of all processes with this number have in the log.
pub(crate) fn prefix(number: u64) -> String {
    format!("p{number}.")
}

/// What a process does until it is killed.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((_, logs)) = role::asked() else { return };
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        process::exit(0);
    });
    let process = Process::described();
    let store = dlm::store::open(&process.uri).unwrap();
    let manager = process.workload.manager(&store, &process.client_id);
    thread::scope(|scope| {
        for client in 0..process.clients {
            let (process, manager, logs) = (&process, &manager, &logs);
            // The first client takes its time, so that it often holds a lock when the process is stopped.
            let pace = process.workload.pace.filter(|_| client > 0);
            let workload = LockWorkload { pace, ..process.workload.clone() };
            scope.spawn(move || {
                let name = format!("{}{client}", process.name());
                let mut log = Recorder::append(&name, logs.join(name.replace('/', "-"))).unwrap();
                let number = process.number * process.clients + client;
                workload.run_thread(manager, number, None, &mut log);
            });
        }
    });
}
