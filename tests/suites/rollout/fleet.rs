//! Simulated devices, replicas of a cloud and a registry, in virtual time. Every decision is made by the
//! code of the programs; here are only time, chance and transport.
//!
//! What is asserted in every step: no device asks with a pair that the replica does not allow, unless it was
//! revoked. Every device has a pair that is whole and loads.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use baton_protocol::{ModelPair, ModelVersion};
use baton_random::SplitMix64;
use baton_registry::digest::Digest;
use baton_registry::envelope::{Envelope, PublicKey, SigningKey};
use baton_registry::holding::{Holding, Kept, Step};
use baton_registry::manifest::{FileEntry, Kind, Manifest, SCHEMA};
use baton_registry::rollout::{AGAIN_S, Change, SETTLE_S, Target};
use baton_registry::sync::{ANY_SCENE, SyncReply, SyncRequest};

pub(crate) const HOUR_S: u64 = 3600;
const REPLICAS: usize = 3;
/// Bytes of a model and of its chunks here.
const BYTES: usize = 4096;
const CHUNK: usize = 512;

/// How many devices of which classes there are, and with what they begin.
pub(crate) struct Shape<'a> {
    pub(crate) classes: &'a [&'static str],
    pub(crate) devices: usize,
    pub(crate) first: ModelPair,
}

/// What happened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// Requests with a pair.
    pub(crate) asked: u64,
    /// Requests that a device answered alone, because it had no lease.
    pub(crate) alone: u64,
    /// Requests that the cloud refused.
    pub(crate) refused: u64,
    /// Downloads with a damaged chunk.
    pub(crate) damaged: u64,
    /// Restarts of devices, replicas and the registry.
    pub(crate) restarts: u64,
}

struct Device {
    name: String,
    class: &'static str,
    holding: Holding,
    reply: Option<SyncReply>,
    /// What is on its disk, and whether it loads on this device.
    disk: BTreeMap<ModelVersion, Vec<u8>>,
    online: bool,
    fetching: Option<(ModelVersion, u64)>,
}

/// A replica of the cloud: what it knows of each class, and since when it may know the next.
#[derive(Default)]
struct Replica {
    known: BTreeMap<&'static str, Target>,
    coming: Vec<(u64, &'static str, Target)>,
}

pub(crate) struct Fleet {
    now_s: u64,
    random: SplitMix64,
    devices: Vec<Device>,
    replicas: Vec<Replica>,
    targets: BTreeMap<&'static str, Target>,
    reports: BTreeMap<(&'static str, ModelPair), BTreeSet<usize>>,
    failures: BTreeMap<(&'static str, ModelPair), BTreeSet<usize>>,
    registry_down_until_s: u64,
    trusted: PublicKey,
    key: SigningKey,
    breaks: Option<(ModelPair, f64)>,
    revoked: BTreeSet<ModelPair>,
    forgets: bool,
    /// Whether devices leave the network now and then.
    leave: bool,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    seen: Seen,
}

/// The bytes of a version: different for each, and always the same.
fn content(model: &ModelVersion) -> Vec<u8> {
    let mut random = SplitMix64::new(u64::from_be_bytes(
        Digest::of(model.to_string().as_bytes()).bytes()[..8].try_into().unwrap(),
    ));
    (0..BYTES).map(|_| random.next_u64() as u8).collect()
}

impl Fleet {
    pub(crate) fn new(seed: u64, shape: &Shape<'_>) -> Self {
        let (key, _) = SigningKey::generate().unwrap();
        let mut random = SplitMix64::new(seed);
        let device = |at: usize| {
            let disk =
                shape.first.models().map(|model| (model.clone(), content(model))).collect::<BTreeMap<_, _>>();
            let kept = Kept { active: Some(shape.first.clone()), ..Kept::default() };
            Device {
                name: format!("{seed}-{at}"),
                class: shape.classes[at % shape.classes.len()],
                holding: Holding::new(kept, disk.keys().cloned()),
                reply: None,
                disk,
                online: true,
                fetching: None,
            }
        };
        let devices: Vec<Device> = (0..shape.devices).map(device).collect();
        let queue =
            (0..devices.len()).map(|at| Reverse((random.below(AGAIN_S as usize) as u64, at))).collect();
        let targets: BTreeMap<_, _> =
            shape.classes.iter().map(|class| (*class, Target::new(shape.first.clone(), 0))).collect();
        let replica = || Replica { known: targets.clone(), coming: Vec::new() };
        Self {
            now_s: 0,
            random,
            devices,
            replicas: (0..REPLICAS).map(|_| replica()).collect(),
            targets,
            reports: BTreeMap::new(),
            failures: BTreeMap::new(),
            registry_down_until_s: 0,
            trusted: key.public(),
            key,
            breaks: None,
            revoked: BTreeSet::new(),
            forgets: false,
            leave: true,
            queue,
            seen: Seen::default(),
        }
    }

    /// From now on this share of the devices cannot load a pair.
    pub(crate) fn breaks(&mut self, pair: &ModelPair, share: f64) {
        self.breaks = Some((pair.clone(), share));
    }

    /// From now on replicas refuse at once what was given up: not as the programs do.
    pub(crate) fn forgets_at_once(&mut self) {
        self.forgets = true;
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen
    }

    pub(crate) fn target(&self, class: &str) -> &Target {
        &self.targets[class]
    }

    pub(crate) fn with(&self, pair: &ModelPair) -> usize {
        self.devices.iter().filter(|device| device.holding.active() == Some(pair)).count()
    }

    pub(crate) fn with_in(&self, class: &str, pair: &ModelPair) -> usize {
        let has = |device: &&Device| device.class == class && device.holding.active() == Some(pair);
        self.devices.iter().filter(has).count()
    }

    /// Changes a target, as the console does. Replicas learn of it one after another.
    pub(crate) fn change(&mut self, class: &str, change: &Change) {
        let next = self.targets[class].changed(change, self.now_s).expect("the change makes sense");
        if let Change::Revoke { pair } = change {
            self.revoked.insert(pair.clone());
        }
        self.publish(class, next);
    }

    fn publish(&mut self, class: &str, mut next: Target) {
        if self.forgets {
            next.retired.clear();
        }
        let class = *self.targets.keys().find(|known| **known == class).expect("a class");
        self.targets.insert(class, next.clone());
        for replica in &mut self.replicas {
            let at_s = self.now_s + self.random.below(SETTLE_S as usize) as u64;
            replica.coming.push((at_s, class, next.clone()));
        }
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, seconds: u64) {
        let end_s = self.now_s + seconds;
        while let Some(Reverse((at_s, device))) = self.queue.pop() {
            if at_s >= end_s {
                self.queue.push(Reverse((at_s, device)));
                break;
            }
            self.now_s = at_s;
            self.accidents(device);
            let next_s = self.live(device).max(at_s + 1);
            self.check(device);
            self.queue.push(Reverse((next_s, device)));
        }
        self.now_s = end_s;
    }

    /// Lets everyone come back and stay, long enough to get what was told: what is counted then is what
    /// devices come to. All other accidents go on.
    pub(crate) fn settle(&mut self) {
        self.leave = false;
        self.devices.iter_mut().for_each(|device| device.online = true);
        self.run(4 * HOUR_S);
        self.leave = true;
    }

    /// What goes wrong: devices restart or leave the network, replicas and the registry restart.
    fn accidents(&mut self, at: usize) {
        let registry_falls = self.random.below(20_000) == 0;
        if registry_falls {
            self.registry_down_until_s = self.now_s + 60 + self.random.below(1_200) as u64;
            self.seen.restarts += 1;
        }
        if self.random.below(5_000) == 0 {
            // A replica starts again, with the newest state of the database.
            let replica = self.random.below(REPLICAS);
            self.replicas[replica] = Replica { known: self.targets.clone(), coming: Vec::new() };
            self.seen.restarts += 1;
        }
        let (restarts, toggles) = (self.random.below(300) == 0, self.random.below(40) == 0);
        let device = &mut self.devices[at];
        if restarts {
            let kept = serde_json::to_string(device.holding.kept()).unwrap();
            let kept: Kept = serde_json::from_str(&kept).unwrap();
            device.holding = Holding::new(kept, device.disk.keys().cloned());
            (device.reply, device.fetching) = (None, None);
            self.seen.restarts += 1;
        }
        if toggles && self.leave {
            device.online = !device.online;
        }
    }

    /// Lets a device act; returns when it acts next.
    fn live(&mut self, at: usize) -> u64 {
        self.question(at);
        if let Some((model, done_s)) = self.devices[at].fetching.clone()
            && self.now_s >= done_s
        {
            self.devices[at].fetching = None;
            self.fetched(at, model);
        }
        for _ in 0..16 {
            let now_ms = self.now_s * 1000;
            let step = self.devices[at].holding.next(now_ms);
            match step {
                Step::Sync => self.sync(at),
                Step::Fetch(model) => {
                    let seconds = 20 + self.random.below(900) as u64;
                    self.devices[at].fetching = Some((model, self.now_s + seconds));
                }
                Step::StopFetch => {
                    let device = &mut self.devices[at];
                    device.fetching = None;
                    device.holding.fetch_failed(now_ms);
                }
                Step::Switch(pair) => self.switch(at, pair),
                Step::Remove(model) => {
                    let device = &mut self.devices[at];
                    device.disk.remove(&model);
                    device.holding.removed(&model);
                }
                Step::Wait { until_ms } => {
                    let question_s = self.now_s + 60 + self.random.below(1_200) as u64;
                    let fetch_s = self.devices[at].fetching.as_ref().map_or(u64::MAX, |(_, done_s)| *done_s);
                    return until_ms.div_ceil(1000).min(question_s).min(fetch_s);
                }
            }
        }
        panic!("a device does not come to rest");
    }

    /// A person asks something. A device without a lease, or without a network, answers alone.
    fn question(&mut self, at: usize) {
        let replica = self.random.below(REPLICAS);
        let device = &self.devices[at];
        let Some(pair) = device.holding.pair_for_cloud(self.now_s * 1000).filter(|_| device.online).cloned()
        else {
            self.seen.alone += 1;
            return;
        };
        self.seen.asked += 1;
        let (class, now_s) = (device.class, self.now_s);
        if self.knows(replica, class).allows(&pair, now_s) {
            return;
        }
        self.seen.refused += 1;
        assert!(
            self.revoked.contains(&pair) || self.forgets,
            "a device asked with {pair}, which it was told it may"
        );
        self.devices[at].holding.refused();
    }

    /// Returns what a replica knows of a class now.
    fn knows(&mut self, replica: usize, class: &str) -> Target {
        let (now_s, replica) = (self.now_s, &mut self.replicas[replica]);
        // Changes come in their order, even if one is late.
        while let Some((_, class, target)) =
            replica.coming.first().filter(|(at_s, ..)| *at_s <= now_s).cloned()
        {
            replica.known.insert(class, target);
            replica.coming.remove(0);
        }
        replica.known[class].clone()
    }

    fn sync(&mut self, at: usize) {
        let (now_s, replica) = (self.now_s, self.random.below(REPLICAS));
        let device = &self.devices[at];
        if !device.online || self.random.below(200) == 0 {
            self.devices[at].holding.sync_failed(now_s * 1000);
            return;
        }
        let request = device.holding.request(&device.name, device.class, ANY_SCENE);
        let json = serde_json::to_vec(&request).unwrap();
        let request = SyncRequest::parse(&json).expect("what a device says is well formed");
        let target = self.knows(replica, device.class);
        self.report(at, &request);
        let wanted = target.wanted(&request.device, request.active.as_ref(), &request.failed, now_s).clone();
        let pairs = std::iter::once(&wanted).chain(request.active.as_ref().filter(|pair| **pair != wanted));
        let reply = SyncReply {
            leases: pairs.filter_map(|pair| target.lease(pair, now_s)).collect(),
            wanted: Some(wanted.clone()),
            models: Vec::new(),
            locations: Vec::new(),
            serves: true,
            again_s: AGAIN_S,
        };
        let reply: SyncReply = serde_json::from_slice(&serde_json::to_vec(&reply).unwrap()).unwrap();
        let device = &mut self.devices[at];
        device.holding.synced(&reply, now_s * 1000);
        device.reply = Some(reply);
    }

    /// Counts what a device reports, and lets the guard look.
    fn report(&mut self, at: usize, request: &SyncRequest) {
        let class = self.devices[at].class;
        for devices in self.reports.iter_mut().filter(|((of, _), _)| *of == class).map(|(_, devices)| devices)
        {
            devices.remove(&at);
        }
        if let Some(active) = &request.active {
            self.reports.entry((class, active.clone())).or_default().insert(at);
        }
        if let Some(failed) = request.failed.last() {
            self.failures.entry((class, failed.clone())).or_default().insert(at);
        }
        let target = &self.targets[class];
        let Some(rollout) = &target.rollout else { return };
        let key = (class, rollout.candidate.clone());
        let count = |counts: &BTreeMap<_, BTreeSet<usize>>| counts.get(&key).map_or(0, BTreeSet::len) as u64;
        if let Some(paused) = target.guarded(count(&self.reports), count(&self.failures)) {
            self.publish(class, paused);
        }
    }

    /// The end of a download: the signed manifest and each chunk are checked, as by the real program.
    fn fetched(&mut self, at: usize, model: ModelVersion) {
        let now_ms = self.now_s * 1000;
        if !self.devices[at].online || self.now_s < self.registry_down_until_s {
            self.devices[at].holding.fetch_failed(now_ms);
            return;
        }
        let manifest = self.published(&model);
        let mut bytes = content(&model);
        if self.random.below(8) == 0 {
            let bit = self.random.below(BYTES * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let file = &manifest.files[0];
        let is_right = bytes.chunks(CHUNK).map(Digest::of).eq(file.chunks.iter().copied());
        assert_eq!(is_right, bytes == content(&model), "no flipped bit is overlooked");
        let device = &mut self.devices[at];
        if !is_right {
            self.seen.damaged += 1;
            device.holding.fetch_failed(now_ms);
            return;
        }
        device.disk.insert(model.clone(), bytes);
        device.holding.fetched(model);
    }

    /// Returns the manifest of a version, as a device reads it.
    fn published(&self, model: &ModelVersion) -> Manifest {
        let bytes = content(model);
        let is_adapter = model.name() == "law";
        let manifest = Manifest {
            schema: SCHEMA,
            model: model.clone(),
            kind: if is_adapter { Kind::Adapter } else { Kind::Base },
            family: "llama".into(),
            tokenizer_sha256: (!is_adapter).then(|| Digest::of(b"").hex()),
            licence: "Apache-2.0".into(),
            base: is_adapter.then(|| "m@2".parse().unwrap()),
            files: vec![FileEntry {
                name: "m.gguf".into(),
                bytes: bytes.len() as u64,
                digest: Digest::of(&bytes),
                chunk_bytes: CHUNK as u64,
                chunks: bytes.chunks(CHUNK).map(Digest::of).collect(),
            }],
        };
        let envelope = self.key.sign(&manifest).to_json();
        let read = Envelope::parse(&envelope).unwrap().verify(&[self.trusted]).unwrap();
        assert_eq!(read, manifest);
        read
    }

    fn switch(&mut self, at: usize, pair: ModelPair) {
        let breaks =
            self.breaks.as_ref().filter(|(broken, _)| *broken == pair).map_or(0.0, |(_, share)| *share);
        let device = &mut self.devices[at];
        // Whether a device can load a pair is of the device, not of chance.
        let place = u64::from_be_bytes(Digest::of(device.name.as_bytes()).bytes()[..8].try_into().unwrap());
        match (place as f64 / u64::MAX as f64) < breaks {
            true => device.holding.switch_failed(pair),
            false => device.holding.switched(pair),
        }
    }

    /// Every device has a pair whose bytes are all here and right.
    fn check(&self, at: usize) {
        let device = &self.devices[at];
        let active = device.holding.active().expect("every device has a pair");
        for model in active.models() {
            let bytes = device.disk.get(model);
            assert_eq!(bytes, Some(&content(model)), "{} of {}", model, device.name);
        }
    }
}
