//! Runs cases on workers, each with its own engines, and writes every result to disk at once.
//!
//! Cases about one text go to one worker, one after the other, so that they share the engines' caches.
//! Results do not depend on the number of workers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use baton_baselines::{Chosen, Ranking};
use baton_engine::{EngineError, Model, StepControl};
use baton_refine::Calibration;

use crate::arm::Arm;
use crate::case::Case;
use crate::cloud::{Cloud, CloudRun, RunError};
use crate::device::{CloudPart, Device, DeviceSpec};
use crate::evict::EvictingDevice;
use crate::predict::{Known, Predictor};
use crate::store::{Origin, Row, Store, StoreError, digest_of};

/// The models and workers of a run.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The cloud's model.
    pub cloud: Arc<Model>,
    /// The heads calibrated for it.
    pub calibration: Option<Arc<Calibration>>,
    /// The devices, by name.
    pub devices: Vec<DeviceSpec>,
    /// Number of workers, one thread each.
    pub workers: NonZeroUsize,
}

/// A case and the arms to run it with.
#[derive(Debug, Clone)]
pub struct Job {
    /// The case.
    pub case: Case,
    /// The arms.
    pub arms: Vec<Arm>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All cases are done.
    Whole,
    /// The run was stopped on request; its results so far are kept.
    Stopped,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// An engine cannot be set up.
    #[error("set up an engine")]
    Engine(#[from] EngineError),
    /// A device cannot be set up, or an engine failed for another reason than the case.
    #[error("run case `{case}`")]
    Run {
        /// The case.
        case: String,
        /// Why.
        #[source]
        err: RunError,
    },
    /// Results cannot be stored.
    #[error("keep results")]
    Store(#[from] StoreError),
    /// An arm names a device that was not given.
    #[error("arm `{arm}` names a device that was not given")]
    NoDevice {
        /// The arm.
        arm: String,
    },
}

impl Setup {
    /// Returns the origin that marks the results of this setup.
    pub fn origin(&self) -> Origin {
        let mut cloud = self.cloud.file_sha256().to_owned();
        if let Some(calibration) = &self.calibration {
            let heads: Vec<String> =
                calibration.heads().iter().map(|h| format!("{}.{}:{}", h.layer, h.head, h.weight)).collect();
            cloud = format!("{cloud} {}", heads.join(" "));
        }
        let device = |spec: &DeviceSpec| {
            let window = spec.window.map_or_else(String::new, |w| format!(" {}+{}", w.tokens, w.sinks));
            format!("{} {}{window}", spec.name, spec.model.file_sha256())
        };
        Origin::new(cloud, self.devices.iter().map(device).collect())
    }

    fn device(&self, arm: &Arm) -> Result<Option<&DeviceSpec>, EvalError> {
        let Some(name) = arm.device_name() else { return Ok(None) };
        let found = self.devices.iter().find(|spec| spec.name == name);
        found.map(Some).ok_or_else(|| EvalError::NoDevice { arm: arm.to_string() })
    }
}

/// Cancels a step once the flag is set.
struct UntilStopped<'a>(&'a AtomicBool);

impl StepControl for UntilStopped<'_> {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        if self.0.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Runs the cases whose results are not in the store. `progress(done, total, what)` is called after each
/// case.
///
/// # Errors
/// [`EvalError`]; earlier results are kept. A prompt that is too long for a model is not an error: its result
/// has a message in `error`.
pub fn run(
    setup: &Setup,
    jobs: Vec<Job>,
    store: &mut Store,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Ended, EvalError> {
    for arm in jobs.iter().flat_map(|job| &job.arms) {
        setup.device(arm)?;
    }
    let total = jobs.len();
    let open: Vec<Job> = jobs.into_iter().filter_map(|job| missing(job, store)).collect();
    let mut done = total - open.len();
    let queue = Mutex::new(grouped(open));
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..setup.workers.get() {
            let (queue, sender) = (&queue, sender.clone());
            scope.spawn(move || work(setup, queue, stop, &sender));
        }
        drop(sender);
        let mut failed = None;
        for result in results {
            match result.and_then(|rows| Ok((store.add(rows.1)?, rows.0))) {
                Ok(((), what)) => {
                    done += 1;
                    progress(done, total, &what);
                }
                Err(err) => {
                    // The workers stop at their next layer.
                    stop.store(true, Ordering::Relaxed);
                    failed.get_or_insert(err);
                }
            }
        }
        match failed {
            Some(err) => Err(err),
            None if done < total => Ok(Ended::Stopped),
            None => Ok(Ended::Whole),
        }
    })
}

/// Removes the arms that have results; returns `None` if no arm is left.
fn missing(mut job: Job, store: &Store) -> Option<Job> {
    job.arms.retain(|arm| store.get(&job.case, &arm.to_string()).is_none());
    (!job.arms.is_empty()).then_some(job)
}

/// Groups adjacent jobs about the same text.
fn grouped(jobs: Vec<Job>) -> VecDeque<Vec<Job>> {
    let mut groups: VecDeque<Vec<Job>> = VecDeque::new();
    for job in jobs {
        match groups.back_mut() {
            Some(group) if group[0].case.content == job.case.content => group.push(job),
            _ => groups.push_back(vec![job]),
        }
    }
    groups
}

type Done = Result<(String, Vec<Row>), EvalError>;

fn work(setup: &Setup, queue: &Mutex<VecDeque<Vec<Job>>>, stop: &AtomicBool, results: &mpsc::Sender<Done>) {
    let mut worker = Worker {
        setup,
        stop,
        cloud: None,
        devices: HashMap::new(),
        evicting: HashMap::new(),
        predictors: HashMap::new(),
    };
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(group) = next.filter(|_| !stop.load(Ordering::Relaxed)) else { return };
        for job in group {
            let rows = match worker.case(&job) {
                Err(EvalError::Run { err, .. }) if err.is_cancelled() => return,
                other => other,
            };
            let failed = rows.is_err();
            let sent = results.send(rows.map(|rows| (job.case.id, rows)));
            if failed || sent.is_err() {
                return;
            }
        }
    }
}

/// The engines of one thread, made when first needed.
struct Worker<'a> {
    setup: &'a Setup,
    stop: &'a AtomicBool,
    cloud: Option<Cloud>,
    devices: HashMap<String, Device>,
    evicting: HashMap<String, EvictingDevice>,
    predictors: HashMap<String, Predictor>,
}

impl Worker<'_> {
    fn case(&mut self, job: &Job) -> Result<Vec<Row>, EvalError> {
        let case = &job.case;
        let mut rows = Vec::with_capacity(job.arms.len());
        let cloud = match self.cloud_run(job) {
            Err(EvalError::Run { err: RunError::TooLong { tokens, limit }, .. }) => {
                Err(format!("prompt has {tokens} tokens, the cloud holds {limit}"))
            }
            other => Ok(other?),
        };
        let mut masks = BTreeMap::new();
        for arm in &job.arms {
            let mut row = blank(case, arm);
            let answered = match &cloud {
                Err(reason) if arm.needs_cloud() => Err(RunError::Device(reason.clone())),
                cloud => {
                    self.arm(case, arm, cloud.as_ref().ok().and_then(Option::as_ref), &mut masks, &mut row)
                }
            };
            match answered {
                Ok(()) => {}
                Err(RunError::Device(reason)) => row.error = Some(reason),
                Err(err @ RunError::TooLong { .. }) => row.error = Some(err.to_string()),
                Err(err) => return Err(EvalError::Run { case: case.id.clone(), err }),
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// Runs the cloud once for all arms, if any arm needs it.
    fn cloud_run(&mut self, job: &Job) -> Result<Option<CloudRun>, EvalError> {
        if !job.arms.iter().any(Arm::needs_cloud) {
            return Ok(None);
        }
        let cloud = match &mut self.cloud {
            Some(cloud) => cloud,
            none => none.insert(Cloud::new(
                self.setup.cloud.clone(),
                self.setup.calibration.clone(),
                NonZeroUsize::MIN,
            )?),
        };
        let mut rankings: Vec<Ranking> = Vec::new();
        for ranking in job.arms.iter().filter_map(Arm::ranking) {
            if !rankings.contains(&ranking) {
                rankings.push(ranking);
            }
        }
        let max_tokens = job.case.max_tokens;
        let wanted = job.arms.iter().map(|arm| arm.cloud_tokens().unwrap_or(max_tokens)).max().unwrap_or(0);
        let mut control = UntilStopped(self.stop);
        cloud
            .run(job.case.segments(), &rankings, wanted.min(max_tokens), &mut control)
            .map(Some)
            .map_err(|err| EvalError::Run { case: job.case.id.clone(), err })
    }

    fn arm(
        &mut self,
        case: &Case,
        arm: &Arm,
        cloud: Option<&CloudRun>,
        masks: &mut BTreeMap<String, Chosen>,
        row: &mut Row,
    ) -> Result<(), RunError> {
        let mut control = UntilStopped(self.stop);
        let mask = match (arm.ranking(), arm.ratio(), cloud) {
            (Some(ranking), Some(ratio), Some(run)) => {
                let key = format!("{ranking}@{ratio}");
                if !masks.contains_key(&key) {
                    masks.insert(key.clone(), run.choose(ranking, ratio)?);
                }
                masks.get(&key).inspect(|mask| note_mask(case, run, mask, ratio, row))
            }
            _ => None,
        };
        match arm {
            Arm::Mask { .. } => {}
            Arm::Cloud => {
                if let Some(run) = cloud {
                    row.prompt_tokens = run.prompt_tokens();
                    row.tokens = run.written.ids.len();
                    judge(case, run.text(usize::MAX), row);
                }
            }
            Arm::Device { device } => {
                let answer =
                    self.device(device)?.alone(case.segments().into(), case.max_tokens, &mut control)?;
                (row.prompt_tokens, row.tokens) = (answer.prompt_tokens, answer.tokens);
                judge(case, answer.text, row);
            }
            Arm::Relay { device, assist_tokens, corrector, .. } => {
                let (Some(run), Some(mask)) = (cloud, mask) else { return Ok(()) };
                let assist_tokens = (*assist_tokens).min(case.max_tokens);
                if run.written.ended && run.written.ids.len() < assist_tokens {
                    // The cloud ended the answer within its L tokens, so the device does not take over.
                    row.tokens = run.written.ids.len();
                    judge(case, run.text(usize::MAX), row);
                    return Ok(());
                }
                let segments = run.refined_segments(mask).into();
                let same = self.setup.cloud.tokenizer().digest_hex()
                    == self.device(device)?.model().tokenizer().digest_hex();
                let part = CloudPart { run, assist_tokens, corrector: *corrector, same_tokens: same };
                let answer = self.device(device)?.relay(segments, case.max_tokens, part, &mut control)?;
                (row.prompt_tokens, row.tokens) = (answer.prompt_tokens, answer.tokens);
                row.agreement = answer.agreement.iter().map(|&same| if same { '1' } else { '0' }).collect();
                judge(case, answer.text, row);
            }
            Arm::Predict { device, .. } => {
                let (Some(run), Some(mask)) = (cloud, mask) else { return Ok(()) };
                let segments = run.refined_segments(mask);
                let known = self.known(case, device, cloud)?;
                let (predicted, tokens) = self.predictor(device)?.predict(&segments, known, &mut control)?;
                row.prompt_tokens = tokens;
                (row.right_ln_p, row.acceptance) = (predicted.right_ln_p, predicted.acceptance);
            }
            Arm::Evict { device, policy, ratio } => {
                let known = self.known(case, device, cloud)?;
                let device = self.evicting(device)?;
                let segments = case.segments();
                let asked = (*policy, *ratio);
                let (answer, predicted) =
                    device.answer(&segments, asked, case.max_tokens, known, &mut control)?;
                (row.right_ln_p, row.acceptance) = (predicted.right_ln_p, predicted.acceptance);
                (row.prompt_tokens, row.tokens) = (answer.prompt_tokens, answer.tokens);
                judge(case, answer.text, row);
            }
        }
        Ok(())
    }

    fn spec(&self, name: &str) -> Result<&DeviceSpec, RunError> {
        let found = self.setup.devices.iter().find(|spec| spec.name == name);
        found.ok_or_else(|| RunError::Device(format!("no device `{name}`")))
    }

    /// Returns what a device's model may predict: the cloud's answer only in tokens of its own tokenizer.
    fn known<'a>(
        &self,
        case: &'a Case,
        device: &str,
        cloud: Option<&'a CloudRun>,
    ) -> Result<Known<'a>, RunError> {
        let own = self.spec(device)?.model.tokenizer().digest_hex();
        let same = own == self.setup.cloud.tokenizer().digest_hex();
        Ok(Known {
            right: &case.answers,
            cloud: cloud.filter(|_| same).map(|run| run.first_tokens(usize::MAX)),
        })
    }

    fn predictor(&mut self, name: &str) -> Result<&mut Predictor, RunError> {
        if !self.predictors.contains_key(name) {
            let model = self.spec(name)?.model.clone();
            let predictor =
                Predictor::new(model, NonZeroUsize::MIN).map_err(|err| RunError::Device(err.to_string()))?;
            self.predictors.insert(name.to_owned(), predictor);
        }
        Ok(self.predictors.get_mut(name).expect("inserted above"))
    }

    fn device(&mut self, name: &str) -> Result<&mut Device, RunError> {
        if !self.devices.contains_key(name) {
            let device = Device::new(self.spec(name)?, NonZeroUsize::MIN)?;
            self.devices.insert(name.to_owned(), device);
        }
        Ok(self.devices.get_mut(name).expect("inserted above"))
    }

    fn evicting(&mut self, name: &str) -> Result<&mut EvictingDevice, RunError> {
        if !self.evicting.contains_key(name) {
            let model = self.spec(name)?.model.clone();
            let device = EvictingDevice::new(model, NonZeroUsize::MIN)
                .map_err(|err| RunError::Device(err.to_string()))?;
            self.evicting.insert(name.to_owned(), device);
        }
        Ok(self.evicting.get_mut(name).expect("inserted above"))
    }
}

fn blank(case: &Case, arm: &Arm) -> Row {
    Row {
        case: case.id.clone(),
        digest: digest_of(case),
        arm: arm.to_string(),
        suite: case.suite.to_owned(),
        group: case.group.clone(),
        length: case.length,
        cluster: case.cluster,
        metric: case.metric.name().to_owned(),
        ..Row::default()
    }
}

fn note_mask(case: &Case, run: &CloudRun, mask: &Chosen, ratio: f32, row: &mut Row) {
    let mask = &mask.refined;
    row.recall = case.recall(run.map(), &mask.kept);
    row.ratio = Some(mask.ratio);
    row.gold_fits = row.recall.map(|_| {
        let gold = run.content_tokens(&case.gold_units(run.map()));
        gold as f64 <= f64::from(ratio) * mask.content_tokens as f64
    });
}

fn judge(case: &Case, text: String, row: &mut Row) {
    match case.judge(&text) {
        Ok((score, faults)) => (row.score, row.faults) = (Some(score), faults),
        Err(err) => row.error = Some(err.to_string()),
    }
    row.text = text;
}
