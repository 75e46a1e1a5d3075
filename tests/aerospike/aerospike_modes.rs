//! Locks in several modes in the layout `own` on a real Aerospike: the contract, the bins, and lost messages.
#![cfg(feature = "aerospike")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::aerospike as raw;
use dlm::store::{
    Acquired, AcquiredPermits, Attempt, Conversion, Converted, Grant, INTENT_MAX, Identity, Intent, IntentId,
    LockName, LockStore, Mode, ModeStore, ModeTerms, OwnerRecord, PermitGrant, PermitTerms, Released,
};
use dlm::{Deadline, Holder, Level, Moment, NamePolicy};
use dlm_fixtures::aerospike::{Place, aerospike_or_skip};
use dlm_fixtures::aerospike_proxy;
use dlm_testkit::contract::Site;
use dlm_testkit::{Fault, Gate, LONG, Proxy, until};

use crate::aerospike_raw::{client_policy, read_policy, write_policy};

/// How much longer than its TTL a lease lasts for others, on one node.
const SLACK: Duration = Duration::from_millis(20);

fn own(uri: &str) -> String {
    format!("{uri}?layout=own")
}

fn site(test: &str) -> Option<Site> {
    let uri = own(&aerospike_or_skip()?.uri());
    let site = Site::new(test, 200, move || dlm::store::open(&uri).unwrap());
    Some(site.with_slack(SLACK).with_many_reads())
}

dlm_testkit::modes_contract!(site);
dlm_testkit::semaphores_contract!(site);

// ---- The record ----------------------------------------------------------------------------------------------------

/// TTL of holds that do not end during a test.
const HELD: Duration = Duration::from_secs(600);

/// The token of a lock that is held in other modes than exclusive.
const BASE: &[u8; 16] = b"dlm-several-hold";

/// A lock as two processes see it. One reaches the server through a proxy, the other one directly.
struct Stage {
    place: Place,
    proxy: Proxy,
    client: String,
    name: LockName,
    ours: Arc<dyn LockStore>,
    theirs: Arc<dyn LockStore>,
}

fn stage(test: &str) -> Option<Stage> {
    let place = aerospike_or_skip()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let client = format!("{test}-{since}");
    let proxy = aerospike_proxy::before(place.address);
    let open = |address| dlm::store::open(&own(&place.uri_by(address))).unwrap();
    let (ours, theirs) = (open(proxy.address()), open(place.address));
    let name = LockName::new(Level::Xdc, &client, None, "a", NamePolicy::Strict).unwrap();
    Some(Stage { place, proxy, client, name, ours, theirs })
}

fn soon() -> Deadline {
    Deadline::after(LONG)
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// What the record of a lock says, without the library.
#[derive(Debug)]
struct Stored {
    bins: HashMap<String, raw::Value>,
    generation: u32,
}

impl Stored {
    fn int(&self, bin: &str) -> i64 {
        match self.bins.get(bin) {
            Some(raw::Value::Int(number)) => *number,
            other => panic!("{bin}: {other:?}"),
        }
    }

    fn token(&self) -> &[u8] {
        match self.bins.get("own_token") {
            Some(raw::Value::Blob(token)) => token,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the ends of the holds, the soonest first.
    fn ends(&self) -> Vec<i64> {
        let entries: Vec<_> = match self.bins.get("own_holds") {
            Some(raw::Value::OrderedMap(map)) => map.values().cloned().collect(),
            Some(raw::Value::SortedMap(map)) => map.values().cloned().collect(),
            Some(raw::Value::HashMap(map)) => map.values().cloned().collect(),
            other => panic!("{other:?}"),
        };
        let end = |entry: &raw::Value| match entry {
            raw::Value::List(parts) => match parts[0] {
                raw::Value::Int(end) => end,
                ref other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        let mut ends: Vec<_> = entries.iter().map(end).collect();
        ends.sort_unstable();
        ends
    }
}

impl Stage {
    fn raw<T>(&self, request: impl AsyncFnOnce(&raw::Client, &raw::Key) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = raw::Client::new(&client_policy(), &self.place.address.to_string()).await.unwrap();
            let key = format!("{}#a", self.client);
            let key = raw::Key::new(self.place.namespace.as_str(), "XDC#tests", key.into()).unwrap();
            request(&client, &key).await
        })
    }

    fn stored(&self) -> Stored {
        let record =
            self.raw(async |client, key| client.get(&read_policy(), key, raw::Bins::All).await.unwrap());
        Stored { generation: record.generation, bins: record.bins.into_iter().collect() }
    }

    /// Adds a hold as a version with more modes does.
    fn put_hold(&self, key: &[u8], value: Vec<raw::Value>, lasts_ms: i64) {
        self.raw(async |client, record_key| {
            let policy = raw::WritePolicy { expiration: raw::Expiration::Seconds(600), ..write_policy() };
            let in_order =
                raw::MapPolicy::new(raw::operations::maps::MapOrder::KeyOrdered, raw::MapWriteFlags::DEFAULT);
            let (key, value) = (raw::Value::Blob(key.to_vec()), raw::Value::List(value));
            let steps = [
                raw::operations::maps::put(&in_order, "own_holds", key, value),
                raw::operations::scalar::put(&raw::Bin::new("own_lasts_ms", lasts_ms.into())),
            ];
            client.operate(&policy, record_key, &steps).await.unwrap();
        });
    }

    fn put_bins(&self, bins: &[raw::Bin]) {
        self.raw(async |client, key| {
            let policy = raw::WritePolicy { expiration: raw::Expiration::Seconds(600), ..write_policy() };
            client.put(&policy, key, bins).await.unwrap();
        });
    }

    fn holds(&self) -> Vec<dlm::store::LockHold> {
        modes(&*self.theirs).holds(&self.name, soon()).unwrap()
    }

    fn take(&self, mode: Mode) -> Grant {
        self.take_for(mode, HELD)
    }

    fn take_for(&self, mode: Mode, ttl: Duration) -> Grant {
        match ask(&*self.theirs, &self.name, ttl, ModeTerms::new(mode)) {
            Acquired::Granted(grant) => grant,
            Acquired::Held(holder) => panic!("{mode} is held by {holder}"),
        }
    }

    #[track_caller]
    fn refused(&self, mode: Mode) -> Holder {
        match ask(&*self.theirs, &self.name, HELD, ModeTerms::new(mode)) {
            Acquired::Held(holder) => holder,
            Acquired::Granted(_) => panic!("{mode} was granted"),
        }
    }

    fn convert(&self, store: &dyn LockStore, grant: &Grant, from: Mode, to: Mode) -> Converted {
        let (identity, mut doubtful) = (Identity::this_process("tests").unwrap(), Vec::new());
        let attempt = Attempt { name: &self.name, ttl: HELD, identity: &identity, by: soon() };
        let conversion = Conversion { owner_record: &grant.owner_record, from, to, intent: None };
        modes(store).convert(attempt, conversion, &mut doubtful).unwrap()
    }

    fn converted(&self, store: &dyn LockStore, grant: &Grant, from: Mode, to: Mode) -> Grant {
        match self.convert(store, grant, from, to) {
            Converted::Granted(changed) => changed,
            other => panic!("{from} to {to}: {other:?}"),
        }
    }

    fn release(&self, grant: &Grant) {
        let released = self.theirs.release(&self.name, &grant.owner_record, soon()).unwrap();
        assert_eq!(released, Released::Freed);
    }

    /// Returns a moment before which the intent has not ended.
    fn announce(&self, id: IntentId) -> Moment {
        let ends = Moment::now().after(INTENT_MAX);
        let identity = Identity::this_process("writer").unwrap();
        let intent = Intent { id, identity: &identity, lasts: INTENT_MAX };
        modes(&*self.theirs).announce(&self.name, intent, soon()).unwrap();
        ends
    }

    /// Asserts that a reader waits for a writer whose intent lasts until `ends` at least.
    #[track_caller]
    fn waits_for_writer(&self, store: &dyn LockStore, ends: Moment) {
        match ask(store, &self.name, HELD, ModeTerms::new(Mode::Shared)) {
            Acquired::Held(holder) => assert!(holder.is_waiting),
            Acquired::Granted(grant) => {
                assert!(Moment::now() >= ends, "granted in spite of an intent");
                self.release(&grant);
            }
        }
    }
}

fn modes(store: &dyn LockStore) -> &dyn ModeStore {
    store.modes().expect("the layout own has modes")
}

fn ask(store: &dyn LockStore, name: &LockName, ttl: Duration, terms: ModeTerms<'_>) -> Acquired {
    let (identity, mut doubtful) = (Identity::this_process("tests").unwrap(), Vec::new());
    let attempt = Attempt { name, ttl, identity: &identity, by: soon() };
    modes(store)
        .acquire_mode(attempt, terms, &mut doubtful)
        .unwrap_or_else(|error| panic!("{}", error.chain()))
}

fn number(grant: &Grant) -> u64 {
    grant.fence.map(|fence| fence.0).or(grant.epoch.map(|epoch| epoch.0)).expect("each grant has a number")
}

#[test]
fn only_the_layout_own_has_modes() {
    let Some(place) = aerospike_or_skip() else { return };
    let has_modes = |layout: &str| {
        let store = dlm::store::open(&format!("{}?layout={layout}", place.uri())).unwrap();
        store.modes().is_some()
    };
    assert_eq!(["java", "both", "own"].map(has_modes), [false, false, true]);
}

#[test]
fn a_lock_that_is_only_held_exclusively_has_the_record_and_the_requests_of_versions_without_modes() {
    let Some(stage) = stage("exclusive") else { return };
    for round in 0..2 {
        let before = stage.proxy.requests().len();
        let Acquired::Granted(grant) = ask(&*stage.ours, &stage.name, HELD, ModeTerms::new(Mode::Exclusive))
        else {
            panic!("held");
        };
        stage.ours.renew(&stage.name, &grant.owner_record, 2 * HELD, soon()).unwrap().expect("it is held");
        stage.ours.release(&stage.name, &grant.owner_record, soon()).unwrap();
        let requests = stage.proxy.requests().split_off(before);
        let requests: Vec<_> = requests.into_iter().filter(|request| request != "info").collect();
        // The first fence of a lock may need further ones, because of the layout `java`.
        if round > 0 {
            assert_eq!(requests, ["acquire", "change", "release"]);
        }
    }
    let mut bins: Vec<_> = stage.stored().bins.into_keys().collect();
    bins.sort();
    assert_eq!(bins, ["own_fence", "own_lasts_ms", "own_name", "own_token", "own_who"]);
}

/// Except for the first reader of a lock and the first one after a writer, who must look for intents.
#[test]
fn a_grant_a_renewal_and_a_release_beside_others_are_one_request_each() {
    let Some(stage) = stage("requests") else { return };
    let (first, begun) = (stage.take(Mode::Shared), stage.holds().len());
    let before = stage.proxy.requests().len();
    for mode in [Mode::Shared, Mode::Update] {
        let Acquired::Granted(grant) = ask(&*stage.ours, &stage.name, HELD, ModeTerms::new(mode)) else {
            panic!("held");
        };
        stage.ours.renew(&stage.name, &grant.owner_record, 2 * HELD, soon()).unwrap().expect("it is held");
        stage.ours.release(&stage.name, &grant.owner_record, soon()).unwrap();
    }
    let requests = stage.proxy.requests().split_off(before);
    let requests: Vec<_> = requests.into_iter().filter(|request| request != "info").collect();
    assert_eq!(requests, ["acquire", "change", "change"].repeat(2));
    assert_eq!((stage.holds().len(), begun), (1, 1));
    stage.release(&first);
}

/// What versions without modes compare: the token, and the time since the last write with `own_lasts_ms`.
#[test]
fn versions_without_modes_see_the_base_until_the_last_hold_ends() {
    let Some(stage) = stage("older") else { return };
    // `written`: a moment before the last write.
    let covers = |at_least: i64, written: i64| {
        let read_ms = now_ms();
        let stored = stage.stored();
        let ends = stored.ends();
        assert_eq!(stored.token(), BASE);
        // It was written before it was read, so it ends no later than this.
        let base_ends = read_ms + stored.int("own_lasts_ms");
        let last = ends[ends.len() - 1];
        assert!(base_ends >= last, "{base_ends} {ends:?}");
        assert!(stored.int("own_lasts_ms") <= last - written, "longer than any hold: {stored:?}");
        assert!(ends[ends.len() - 1] >= at_least, "{ends:?} {at_least}");
        ends
    };
    let ms = |time: Duration| time.as_millis() as i64;
    let begin = now_ms();
    let short = stage.take(Mode::Shared);
    covers(begin + ms(HELD), begin);
    let long = stage.take_for(Mode::Update, 3 * HELD);
    let before = covers(begin + ms(3 * HELD), begin);
    let third = stage.take_for(Mode::Shared, HELD / 2);
    assert_eq!(covers(begin + ms(3 * HELD), begin).len(), 3);
    stage.release(&third);
    // Neither a hold that came nor one that went, nor a renewal, has moved the end of another one.
    assert_eq!(covers(begin + ms(3 * HELD), begin), before);
    stage.theirs.renew(&stage.name, &short.owner_record, 2 * HELD, soon()).unwrap().expect("it is held");
    let renewed = covers(begin + ms(3 * HELD), begin);
    assert!(renewed[0] >= begin + ms(2 * HELD) && renewed[1] == before[1], "{renewed:?} after {before:?}");
    std::thread::sleep(Duration::from_millis(50));
    let announced = now_ms();
    stage.announce(IntentId::draw().unwrap());
    assert_eq!(covers(begin + ms(3 * HELD), announced), renewed);
    stage.release(&long);
    let stored = stage.stored();
    assert!(stored.int("own_lasts_ms") <= ms(2 * HELD + SLACK), "the longest one has gone");
    assert_eq!(stored.ends(), renewed[..1]);
    stage.release(&short);
    assert_eq!(stage.stored().int("own_lasts_ms"), -1);
}

/// The end of an exclusive lease counts from the last write of the record.
#[test]
fn nobody_else_writes_to_the_record_of_a_lock_that_is_held_exclusively() {
    let Some(stage) = stage("untouched") else { return };
    let reader = stage.take(Mode::Shared);
    let update = stage.take(Mode::Update);
    stage.release(&reader);
    let writer = stage.converted(&*stage.theirs, &update, Mode::Update, Mode::Exclusive);
    let before = stage.stored();
    assert!(!before.bins.contains_key("own_holds") && before.token() != BASE);
    let id = IntentId::draw().unwrap();
    stage.announce(id);
    for mode in Mode::OF_LOCKS {
        assert_eq!(stage.refused(mode).mode, Mode::Exclusive);
        let turn = ModeTerms { turn: Some(INTENT_MAX), ..ModeTerms::new(mode) };
        let nested = ModeTerms { nested_in: Some(&reader.owner_record), ..ModeTerms::new(mode) };
        for terms in [turn, nested] {
            assert!(matches!(ask(&*stage.theirs, &stage.name, HELD, terms), Acquired::Held(_)));
        }
    }
    for gone in [&reader, &update] {
        assert!(stage.theirs.renew(&stage.name, &gone.owner_record, HELD, soon()).unwrap().is_none());
        let released = stage.theirs.release(&stage.name, &gone.owner_record, soon()).unwrap();
        assert_eq!(released, Released::NotOurs);
    }
    for to in [Mode::Exclusive, Mode::Shared] {
        assert!(matches!(stage.convert(&*stage.theirs, &update, Mode::Update, to), Converted::NotOurs));
    }
    modes(&*stage.theirs).withdraw(&stage.name, id, soon()).unwrap();
    assert_eq!(stage.stored().generation, before.generation, "somebody wrote to the record");
    stage.release(&writer);
}

#[test]
fn a_hold_of_an_unknown_kind_keeps_everybody_out_until_it_ends() {
    let end_in = |ms: i64| raw::Value::Int(now_ms() + ms);
    let ms = HELD.as_millis() as i64;
    // The code of a mode to come, and something that is no key of this version.
    for key in [&[3; 17][..], &[7], &[0; 17]] {
        let Some(stage) = stage("unknown") else { return };
        let (reader, update) = (stage.take(Mode::Shared), stage.take(Mode::Update));
        stage.put_hold(key, vec![end_in(2 * ms), "more".into()], 2 * ms);
        for mode in Mode::OF_LOCKS {
            assert_eq!(stage.refused(mode).mode, Mode::Exclusive, "{mode} beside {key:?}");
            let blocker = modes(&*stage.theirs).blocker(&stage.name, mode, soon()).unwrap();
            assert!(blocker.is_some(), "{mode} beside {key:?}");
        }
        // Those who hold the lock go on, and change to fewer rights only.
        stage.theirs.renew(&stage.name, &reader.owner_record, HELD, soon()).unwrap().expect("it is held");
        let refused = stage.convert(&*stage.theirs, &update, Mode::Update, Mode::Exclusive);
        assert!(matches!(refused, Converted::Held(_)), "{refused:?}");
        let second = stage.converted(&*stage.theirs, &update, Mode::Update, Mode::Shared);
        assert_eq!(stage.holds().len(), 3);
        stage.release(&reader);
        stage.release(&second);
        assert!(stage.stored().int("own_lasts_ms") > ms, "the unknown hold lasts");
        for mode in Mode::OF_LOCKS {
            stage.refused(mode);
        }
        stage.put_hold(key, vec![end_in(-1), "more".into()], 10 * ms);
        // The base lasts, and no hold that this version knows: another kind may be there.
        for mode in Mode::OF_LOCKS {
            stage.refused(mode);
        }
        stage.put_hold(key, vec![end_in(-1), "more".into()], -1);
        let next = stage.take(Mode::Shared);
        assert_eq!(stage.stored().ends().len(), 1, "what has ended is removed");
        stage.release(&next);
    }
}

#[test]
fn a_base_of_an_unknown_kind_keeps_everybody_out() {
    let Some(stage) = stage("unknown-base") else { return };
    stage.release(&stage.take(Mode::Shared));
    let other = raw::Bin::new("own_token", raw::Value::Blob(b"dlm-other-kinds!".to_vec()));
    stage.put_bins(&[other, raw::Bin::new("own_lasts_ms", 600_000.into())]);
    for mode in Mode::OF_LOCKS {
        assert_eq!(stage.refused(mode).mode, Mode::Exclusive);
    }
    assert_eq!(stage.holds().len(), 1);
}

#[test]
fn of_so_many_readers_that_there_is_no_room_for_another_one_each_leaves_room() {
    const HOLDS_MAX: usize = 256;
    let Some(stage) = stage("full") else { return };
    let readers: Vec<_> = (0..HOLDS_MAX).map(|_| stage.take(Mode::Shared)).collect();
    for mode in [Mode::Shared, Mode::Update] {
        assert_eq!(stage.refused(mode).mode, Mode::Shared);
    }
    stage.release(&readers[100]);
    let update = stage.take(Mode::Update);
    stage.refused(Mode::Shared);
    stage.release(&update);
    stage.take_for(Mode::Shared, Duration::from_millis(1));
    until("the hold of a dead reader leaves room", || {
        matches!(ask(&*stage.theirs, &stage.name, HELD, ModeTerms::new(Mode::Shared)), Acquired::Granted(_))
    });
}

/// `dlm break` of a version without modes releases the token that it reads.
#[test]
fn an_older_version_that_breaks_the_base_breaks_all_holds_for_good() {
    let Some(stage) = stage("broken") else { return };
    let (reader, update) = (stage.take(Mode::Shared), stage.take(Mode::Update));
    let base = OwnerRecord::from_bytes([&[2], BASE.as_slice()].concat());
    assert_eq!(stage.theirs.release_broken(&stage.name, &base, soon()).unwrap(), Released::Freed);
    let is_void = |grant: &Grant| {
        assert!(stage.theirs.renew(&stage.name, &grant.owner_record, HELD, soon()).unwrap().is_none());
        let released = stage.theirs.release(&stage.name, &grant.owner_record, soon()).unwrap();
        assert_eq!(released, Released::NotOurs);
    };
    for gone in [&reader, &update] {
        is_void(gone);
    }
    assert_eq!(stage.holds(), []);
    // Neither a writer nor a reader brings them back.
    let writer = stage.take(Mode::Exclusive);
    for gone in [&reader, &update] {
        is_void(gone);
    }
    stage.release(&writer);
    for mode in [Mode::Shared, Mode::Update] {
        stage.release(&stage.take(mode));
    }
    let (reader, update) = (stage.take(Mode::Shared), stage.take(Mode::Update));
    assert_eq!(stage.theirs.release_broken(&stage.name, &base, soon()).unwrap(), Released::Freed);
    let next = stage.take(Mode::Shared);
    assert!(number(&next) > number(&reader));
    for gone in [&reader, &update] {
        is_void(gone);
    }
    assert_eq!(stage.holds().len(), 1);
    stage.release(&next);
    let writer = stage.take(Mode::Exclusive);
    let down = stage.converted(&*stage.theirs, &writer, Mode::Exclusive, Mode::Shared);
    for gone in [&reader, &update, &next] {
        is_void(gone);
    }
    stage.release(&down);
}

/// During a writer's lease an announcement cannot be noted in the record of the lock.
#[test]
fn what_is_announced_during_a_lease_is_seen_by_the_first_reader_and_by_those_after_it() {
    for case in ["released", "to a reader whose turn it is", "to a reader that was the writer"] {
        let Some(stage) = stage("noted") else { return };
        let writer = stage.take(Mode::Exclusive);
        let id = IntentId::draw().unwrap();
        let ends = stage.announce(id);
        // The first hold after the writer does not look for intents, and those after it must.
        let first = match case {
            "to a reader that was the writer" => {
                Some(stage.converted(&*stage.theirs, &writer, Mode::Exclusive, Mode::Shared))
            }
            _ => {
                stage.release(&writer);
                let turn = (case != "released").then_some(Duration::from_millis(1));
                turn.map(|turn| {
                    let terms = ModeTerms { turn: Some(turn), ..ModeTerms::new(Mode::Shared) };
                    match ask(&*stage.theirs, &stage.name, HELD, terms) {
                        Acquired::Granted(first) => first,
                        Acquired::Held(holder) => panic!("{holder} stands in the way of a turn"),
                    }
                })
            }
        };
        std::thread::sleep(Duration::from_millis(50));
        stage.waits_for_writer(&*stage.theirs, ends);
        modes(&*stage.theirs).withdraw(&stage.name, id, soon()).unwrap();
        if let Some(first) = &first {
            stage.release(first);
        }
        stage.release(&stage.take(Mode::Shared));
    }
}

/// The reader has read that nobody waits. Its request comes later.
#[test]
fn what_is_announced_while_a_reader_joins_is_seen_by_it_or_by_those_after_it() {
    for has_record in [false, true] {
        let Some(stage) = stage("between") else { return };
        if has_record {
            stage.release(&stage.take(Mode::Exclusive));
        }
        let gate = Arc::new(Gate::default());
        // The second request of a first reader: the first one is refused, because it has read nothing yet.
        stage.proxy.later("acquire", 1, 1, Fault::Keep(Arc::clone(&gate)));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| ask(&*stage.ours, &stage.name, HELD, ModeTerms::new(Mode::Shared)));
            until("the reader has read that nobody waits", || stage.proxy.hits() == 1);
            // During a lease the announcement cannot be noted.
            let writer = has_record.then(|| stage.take(Mode::Exclusive));
            let ends = stage.announce(IntentId::draw().unwrap());
            if let Some(writer) = writer {
                stage.release(&writer);
            }
            gate.open();
            match reader.join().unwrap() {
                Acquired::Held(holder) => assert!(holder.is_waiting),
                Acquired::Granted(_) => assert!(Moment::now() >= ends, "granted in spite of an intent"),
            }
            stage.waits_for_writer(&*stage.theirs, ends);
        });
    }
}

// ---- Lost messages -------------------------------------------------------------------------------------------------

/// What may happen to one request.
fn losses() -> [Fault; 4] {
    // A protocol header of 8 bytes and a message header of 22 bytes.
    [Fault::LoseReply, Fault::LoseRequest, Fault::CutReply(29), Fault::CutReply(0)]
}

#[test]
fn a_hold_of_which_a_message_is_lost_is_granted_once() {
    for mode in [Mode::Shared, Mode::Update] {
        for loss in losses() {
            let Some(stage) = stage("lost-join") else { return };
            let beside = stage.take(Mode::Shared);
            stage.proxy.next("acquire", loss);
            let Acquired::Granted(grant) = ask(&*stage.ours, &stage.name, HELD, ModeTerms::new(mode)) else {
                panic!("held");
            };
            assert_eq!((stage.proxy.hits(), stage.holds().len()), (1, 2));
            assert_eq!(number(&grant), number(&beside));
            stage.release(&grant);
            assert_eq!(stage.holds().len(), 1);
        }
    }
}

/// The request arrives when its process has got the lock by another one.
#[test]
fn a_hold_whose_request_comes_late_can_be_released_by_what_the_call_said() {
    let Some(stage) = stage("late-join") else { return };
    let beside = stage.take(Mode::Shared);
    let gate = Arc::new(Gate::default());
    stage.proxy.next("acquire", Fault::KeepAndBreak(Arc::clone(&gate)));
    let (identity, mut doubtful) = (Identity::this_process("tests").unwrap(), Vec::new());
    let attempt = Attempt { name: &stage.name, ttl: HELD, identity: &identity, by: soon() };
    let answer = modes(&*stage.ours).acquire_mode(attempt, ModeTerms::new(Mode::Shared), &mut doubtful);
    let Ok(Acquired::Granted(grant)) = answer else { panic!("{answer:?}") };
    assert_eq!((doubtful.len(), stage.holds().len()), (1, 2));
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    assert_eq!(stage.holds().len(), 3);
    assert_eq!(stage.theirs.release(&stage.name, &doubtful[0], soon()).unwrap(), Released::Freed);
    stage.release(&grant);
    stage.release(&beside);
}

#[test]
fn a_change_of_mode_of_which_a_message_is_lost_happens_once() {
    let changes = [
        (Mode::Exclusive, Mode::Update),
        (Mode::Exclusive, Mode::Shared),
        (Mode::Update, Mode::Shared),
        (Mode::Update, Mode::Exclusive),
    ];
    for (from, to) in changes {
        for loss in losses() {
            let Some(stage) = stage("lost-change") else { return };
            let grant = stage.take(from);
            stage.proxy.next("acquire", loss);
            let changed = stage.converted(&*stage.ours, &grant, from, to);
            assert_eq!(stage.proxy.hits(), 1);
            let found: Vec<_> = stage.holds().iter().map(|hold| hold.holder.mode).collect();
            assert_eq!(found, [to]);
            let keeps_number = (from, to) == (Mode::Update, Mode::Shared);
            assert_eq!(number(&changed) == number(&grant), keeps_number, "{from} to {to}");
            assert_eq!(stage.holds()[0].epoch.map(|epoch| epoch.0), Some(number(&changed)));
            assert!(stage.theirs.renew(&stage.name, &grant.owner_record, HELD, soon()).unwrap().is_none());
            stage.release(&changed);
        }
    }
}

/// The lock has gone on meanwhile: the request must not bring the old hold back.
#[test]
fn a_change_of_mode_that_comes_late_changes_nothing() {
    let Some(stage) = stage("late-change") else { return };
    let update = stage.take(Mode::Update);
    let gate = Arc::new(Gate::default());
    stage.proxy.next("acquire", Fault::KeepAndBreak(Arc::clone(&gate)));
    let writer = stage.converted(&*stage.ours, &update, Mode::Update, Mode::Exclusive);
    stage.release(&writer);
    let next = stage.take(Mode::Exclusive);
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    assert!(stage.theirs.renew(&stage.name, &next.owner_record, HELD, soon()).unwrap().is_some());
    assert_eq!(stage.holds()[0].epoch.map(|epoch| epoch.0), Some(number(&next)));
    stage.release(&next);
}

fn ask_for_permits(stage: &Stage, count: u16) -> Vec<PermitGrant> {
    let (identity, mut doubtful) = (Identity::this_process("tests").unwrap(), Vec::new());
    let attempt = Attempt { name: &stage.name, ttl: HELD, identity: &identity, by: soon() };
    let terms = PermitTerms { permits: 3, count };
    let answer = stage.ours.semaphores().unwrap().acquire_permits(attempt, terms, &mut doubtful);
    // As the background threads do.
    for record in &doubtful {
        stage.theirs.release(&stage.name, record, soon()).unwrap();
    }
    match answer.unwrap_or_else(|error| panic!("{}", error.chain())) {
        AcquiredPermits::Granted(grants) => grants,
        other => panic!("{other:?}"),
    }
}

#[test]
fn permits_of_which_a_message_is_lost_are_granted_together_and_go_alone() {
    for loss in losses() {
        let Some(stage) = stage("lost-permits") else { return };
        let beside = ask_for_permits(&stage, 1);
        stage.proxy.next("acquire", loss.clone());
        let grants = ask_for_permits(&stage, 2);
        assert_eq!((stage.proxy.hits(), stage.holds().len()), (1, 3), "{loss:?}");
        assert!(grants.iter().all(|it| number(&it.grant) > number(&beside[0].grant)));
        stage.proxy.next("change", loss.clone());
        let renewed = stage.ours.renew(&stage.name, &grants[0].grant.owner_record, 3 * HELD, soon()).unwrap();
        assert!(renewed.is_some());
        stage.proxy.next("change", loss);
        let released = stage.ours.release(&stage.name, &grants[0].grant.owner_record, soon()).unwrap();
        assert_ne!(released, Released::NotOurs);
        let mut left: Vec<_> = stage.holds().iter().map(|hold| hold.holder.permit).collect();
        left.sort_unstable();
        assert_eq!(left, [Some(beside[0].permit), Some(grants[1].permit)]);
        stage.release(&grants[1].grant);
        stage.release(&beside[0].grant);
    }
}

/// Its process has got permits by another request.
#[test]
fn a_request_for_permits_that_comes_late_changes_nothing() {
    let Some(stage) = stage("late-permits") else { return };
    let gate = Arc::new(Gate::default());
    let first = ask_for_permits(&stage, 1);
    stage.proxy.next("acquire", Fault::KeepAndBreak(Arc::clone(&gate)));
    let grants = ask_for_permits(&stage, 2);
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    assert_eq!(stage.holds().len(), 3);
    grants.iter().chain(&first).for_each(|it| stage.release(&it.grant));
    assert_eq!(stage.holds().len(), 0);
}

/// Written by a stranger, or by a version to come.
#[test]
fn a_size_that_no_version_writes_is_refused_and_not_replaced() {
    let Some(stage) = stage("odd-size") else { return };
    ask_for_permits(&stage, 1);
    for size in [0, -1, 70_000, i64::MAX] {
        stage.put_bins(&[raw::Bin::new("own_size", size.into())]);
        let identity = Identity::this_process("tests").unwrap();
        let attempt = Attempt { name: &stage.name, ttl: HELD, identity: &identity, by: soon() };
        let terms = PermitTerms { permits: 3, count: 1 };
        let answer = stage.ours.semaphores().unwrap().acquire_permits(attempt, terms, &mut Vec::new());
        assert!(matches!(answer, Ok(AcquiredPermits::OtherSize(_))), "{size}: {answer:?}");
        assert_eq!(stage.stored().int("own_size"), size);
    }
}

#[test]
fn a_renewal_and_a_release_of_which_a_message_is_lost_happen_to_one_hold() {
    for loss in losses() {
        let Some(stage) = stage("lost-rest") else { return };
        let (other, grant) = (stage.take(Mode::Update), stage.take(Mode::Shared));
        stage.proxy.next("change", loss.clone());
        stage.ours.renew(&stage.name, &grant.owner_record, 3 * HELD, soon()).unwrap().expect("it is held");
        let longest = stage.holds().iter().filter_map(|hold| hold.holder.remaining).max();
        assert!(longest > Some(2 * HELD), "{longest:?}");
        stage.proxy.next("change", loss);
        let released = stage.ours.release(&stage.name, &grant.owner_record, soon()).unwrap();
        assert!(matches!(released, Released::Freed | Released::Gone), "{released:?}");
        assert_eq!((stage.proxy.hits(), stage.holds().len()), (2, 1));
        stage.release(&other);
    }
}

// ---- The layout java before it -------------------------------------------------------------------------------------

/// Puts a fence of the layout `java` that is higher than the clock's numbers. Returns it.
fn java_fence_ahead(stage: &Stage) -> u64 {
    let ahead = (now_ms() as u64 + 3_600_000) << 20;
    stage.raw(async |client, _| {
        let key = format!("XDC#{}#a", stage.client);
        let key = raw::Key::new(stage.place.namespace.as_str(), "D_FNC#tests", key.into()).unwrap();
        let policy = raw::WritePolicy { expiration: raw::Expiration::Seconds(600), ..write_policy() };
        client.put(&policy, &key, &[raw::Bin::new("fence", (ahead as i64).into())]).await.unwrap();
    });
    ahead
}

#[test]
fn the_first_epoch_is_above_the_fence_of_the_layout_java_though_a_message_is_lost() {
    // The first hold of a lock is asked for, refused, and asked for again. The third request raises the number.
    let none = [(0, None)];
    let lost = (1..=2).flat_map(|at| losses().map(move |loss| (at, Some(loss))));
    for (at, loss) in none.into_iter().chain(lost) {
        let Some(stage) = stage("epoch") else { return };
        let ahead = java_fence_ahead(&stage);
        if let Some(loss) = loss {
            stage.proxy.later("acquire", at, 1, loss);
        }
        let Acquired::Granted(first) = ask(&*stage.ours, &stage.name, HELD, ModeTerms::new(Mode::Shared))
        else {
            panic!("held");
        };
        assert_eq!(stage.proxy.hits(), usize::from(at > 0));
        assert!(number(&first) > ahead, "{} after {ahead}", number(&first));
        let second = stage.take(Mode::Update);
        assert_eq!(number(&second), number(&first));
        assert_eq!(stage.holds().len(), 2);
        stage.release(&first);
        let writer = stage.converted(&*stage.theirs, &second, Mode::Update, Mode::Exclusive);
        assert!(number(&writer) > number(&second));
        stage.release(&writer);
    }
}

/// The fence is negative until the first hold has raised it, and that hold may be lost.
#[test]
fn holds_that_raise_the_first_epoch_at_one_time_have_the_same_one() {
    let Some(stage) = stage("one-epoch") else { return };
    let ahead = java_fence_ahead(&stage);
    let gate = Arc::new(Gate::default());
    // The request that raises the number of the first hold is late.
    stage.proxy.later("acquire", 2, 1, Fault::Keep(Arc::clone(&gate)));
    std::thread::scope(|scope| {
        let first =
            scope.spawn(|| match ask(&*stage.ours, &stage.name, HELD, ModeTerms::new(Mode::Shared)) {
                Acquired::Granted(grant) => grant,
                Acquired::Held(holder) => panic!("held by {holder}"),
            });
        until("the number is not raised yet", || stage.proxy.hits() == 1);
        let second = stage.take(Mode::Shared);
        gate.open();
        let first = first.join().unwrap();
        assert!(number(&second) > ahead && number(&first) == number(&second));
        stage.release(&first);
        stage.release(&second);
    });
}

// ---- Requests that the client crate sends --------------------------------------------------------------------------

mod by_crate {
    use super::*;

    /// The nodes tell the same address under both names. The library has no connections of its own then.
    fn site(test: &str) -> Option<Site> {
        let uri = format!("{}&services_alternate=on", own(&aerospike_or_skip()?.uri()));
        Some(Site::new(test, 200, move || dlm::store::open(&uri).unwrap()).with_slack(SLACK))
    }

    // The others differ in the order of these requests only.
    dlm_testkit::contract! { site => modes:
        modes_go_together_as_the_table_says_and_a_refusal_names_the_holder,
        each_of_many_readers_renews_and_releases_alone,
        a_dead_reader_ends_with_its_own_ttl_while_others_go_on,
        a_number_begins_with_each_writer_and_with_the_first_reader_after_one,
        a_conversion_changes_the_mode_and_voids_the_earlier_record,
        of_many_renewals_of_all_modes_each_has_its_own_answer,
    }
    dlm_testkit::contract! { site => intents:
        while_a_process_waits_exclusively_no_reader_is_let_in_and_holders_go_on,
        a_refusal_names_the_writer_that_has_waited_longest_and_for_how_long,
        an_intent_ends_with_the_grant_that_it_waits_for_and_with_no_other,
        a_turn_lets_readers_pass_intents_until_its_end,
    }
}
