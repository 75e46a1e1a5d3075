//! The processes of a round, which are killed and stopped.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use dlm::Moment;
use dlm_fixtures::role::Running;
use dlm_testkit::Proxy;
use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};

use crate::incidents::{Incidents, Kill, Stop};
use crate::role::{Process, prefix};
use crate::subject::Subject;

pub(crate) struct Crew<'a> {
    logs: &'a Path,
    incidents: Arc<Incidents>,
    members: Vec<Mutex<Member>>,
}

/// A process, and the proxy through which it uses the store.
struct Member {
    process: Process,
    running: Running,
    proxy: Option<Proxy>,
}

impl<'a> Crew<'a> {
    /// Starts all processes. Their messages are disturbed while `blows`.
    pub(crate) fn start(
        subject: &Subject<'_>,
        template: &Process,
        logs: &'a Path,
        incidents: &Arc<Incidents>,
        blows: &Arc<AtomicBool>,
    ) -> Crew<'a> {
        let member = |number: u64| {
            let network = subject.network.as_ref();
            let proxy = network.map(|network| {
                let (proxy, seed) = ((network.proxy)(), template.workload.seed << 8 | number);
                let (random, blows) = (Rng::with_seed(seed), Arc::clone(blows));
                network.storm.over(&proxy, prefix(number), random, blows, Arc::clone(incidents));
                proxy
            });
            let uri = match (network, &proxy) {
                (Some(network), Some(proxy)) => (network.uri)(proxy.address()),
                _ => subject.uri.clone(),
            };
            let process = Process { uri, number, ..template.clone() };
            let running = process.start(logs);
            Mutex::new(Member { process, running, proxy })
        };
        let members = (0..subject.processes).map(member).collect();
        Crew { logs, incidents: Arc::clone(incidents), members }
    }

    /// Kills a process and starts the next one of its number.
    pub(crate) fn kill_one(&self, random: &mut Rng) {
        let mut member = self.member(random);
        member.must_run();
        member.running.0.kill().unwrap();
        let kill = Kill { clients: member.process.name(), at: Moment::now() };
        self.incidents.kill(kill);
        member.running.0.wait().unwrap();
        member.process.incarnation += 1;
        // Each incarnation makes other choices.
        member.process.workload.seed = random.u64(..1 << 48);
        member.running = member.process.start(self.logs);
    }

    /// Stops a process for so long.
    pub(crate) fn stop_one(&self, random: &mut Rng, lasts: Duration) {
        let mut member = self.member(random);
        member.must_run();
        let pid = Pid::from_child(&member.running.0);
        let clients = member.process.name();
        kill_process(pid, Signal::STOP).unwrap();
        let from = Moment::now();
        thread::sleep(lasts);
        let to = Moment::now();
        kill_process(pid, Signal::CONT).unwrap();
        self.incidents.stop(Stop { clients, from, to });
    }

    /// Cuts all connections of a process.
    pub(crate) fn cut_one(&self, random: &mut Rng) {
        let member = self.member(random);
        if let Some(proxy) = &member.proxy {
            self.incidents.cut(&prefix(member.process.number));
            proxy.hang_up();
        }
    }

    /// Kills all processes, and then closes their proxies. Returns how many requests the servers received late.
    pub(crate) fn end(self) -> usize {
        let end = |member: Mutex<Member>| {
            let Member { running, proxy, .. } = member.into_inner();
            drop(running);
            proxy.map_or(0, |proxy| proxy.late())
        };
        self.members.into_iter().map(end).sum()
    }

    fn member(&self, random: &mut Rng) -> MutexGuard<'_, Member> {
        self.members[random.usize(..self.members.len())].lock()
    }
}

impl Member {
    /// A process ends by itself only if a call failed that cannot fail.
    fn must_run(&mut self) {
        let ended = self.running.0.try_wait().unwrap();
        assert!(ended.is_none(), "a process has ended by itself: {ended:?}");
    }
}
