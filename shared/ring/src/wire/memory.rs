//! A network in the memory of a test: devices are keys, links are queues. Every frame passes a hook that
//! may lose, change, delay or add frames, or cut the link.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::core::{DeviceId, Node};
use crate::locked;
use crate::wire::link::{FrameReceiver, FrameSender, Link, LinkError, Network, Purpose};

/// Frames that a link holds before its sender waits.
const QUEUE: usize = 4;

/// What happens to a frame.
pub enum Fate {
    /// It arrives.
    Pass,
    /// These frames arrive in its place.
    Instead(Vec<Vec<u8>>),
    /// The link ends.
    Cut,
    /// It stays with its sender, which waits until the link ends or its time is over.
    Hold,
}

/// One frame in transit.
pub struct Passing<'a> {
    /// Who sends it.
    pub from: DeviceId,
    /// Who receives it.
    pub to: DeviceId,
    /// What the link is for.
    pub purpose: Purpose,
    /// The frame's bytes.
    pub frame: &'a [u8],
}

type Hook = Box<dyn FnMut(&Passing<'_>) -> Fate + Send>;

#[derive(Default)]
struct State {
    /// Links that wait to be accepted, by device.
    knocking: BTreeMap<DeviceId, VecDeque<(Link, Purpose)>>,
    /// How often each device was added. The program that was added last takes its links.
    programs: BTreeMap<DeviceId, u64>,
    pipes: Vec<(DeviceId, DeviceId, Arc<Pipe>)>,
    dead: Vec<DeviceId>,
    /// Purposes of links that are refused, each once.
    refused: Vec<Purpose>,
}

/// All devices and links.
#[derive(Default)]
pub struct Hub {
    state: Mutex<State>,
    knock: Condvar,
    hook: Mutex<Option<Hook>>,
}

impl Hub {
    /// Adds a device with this number.
    pub fn node(self: &Arc<Self>, number: u8) -> Arc<MemoryNetwork> {
        let key = DeviceId([number; 32]);
        let mut state = locked(&self.state);
        state.knocking.entry(key).or_default();
        let program = state.programs.entry(key).or_default();
        *program += 1;
        Arc::new(MemoryNetwork { hub: Arc::clone(self), key, program: *program })
    }

    /// Sets the hook for all later frames.
    pub fn hook(&self, hook: impl FnMut(&Passing<'_>) -> Fate + Send + 'static) {
        *locked(&self.hook) = Some(Box::new(hook));
    }

    /// Ends a device: its links are cut and it accepts no new ones.
    pub fn kill(&self, number: u8) {
        let key = DeviceId([number; 32]);
        let mut state = locked(&self.state);
        state.dead.push(key);
        state.pipes.iter().filter(|(a, b, _)| *a == key || *b == key).for_each(|(_, _, pipe)| pipe.close());
    }
}

impl Hub {
    /// Lets a device that was ended accept links again.
    pub fn revive(&self, number: u8) {
        locked(&self.state).dead.retain(|key| *key != DeviceId([number; 32]));
    }

    /// Refuses the next `times` links of this purpose.
    pub fn refuse(&self, purpose: Purpose, times: usize) {
        locked(&self.state).refused.extend(std::iter::repeat_n(purpose, times));
    }

    /// Returns whether a device accepts links.
    pub fn is_alive(&self, key: &DeviceId) -> bool {
        let state = locked(&self.state);
        state.knocking.contains_key(key) && !state.dead.contains(key)
    }
}

#[derive(Default)]
struct Pipe {
    frames: Mutex<(VecDeque<Vec<u8>>, bool)>,
    moved: Condvar,
}

impl Pipe {
    fn close(&self) {
        locked(&self.frames).1 = true;
        self.moved.notify_all();
    }

    /// Waits until `ready` returns something.
    fn wait<T>(
        &self,
        timeout: Duration,
        mut ready: impl FnMut(&mut VecDeque<Vec<u8>>, bool) -> Option<Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        let end = Instant::now() + timeout;
        let mut frames = locked(&self.frames);
        loop {
            let (queue, closed) = &mut *frames;
            if let Some(done) = ready(queue, *closed) {
                self.moved.notify_all();
                return done;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LinkError::TimedOut);
            }
            frames = self.moved.wait_timeout(frames, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

struct Sending {
    hub: Arc<Hub>,
    from: DeviceId,
    to: DeviceId,
    purpose: Purpose,
    pipe: Arc<Pipe>,
}

impl FrameSender for Sending {
    fn send(&mut self, frame: &[u8], timeout: Duration) -> Result<(), LinkError> {
        let passing = Passing { from: self.from, to: self.to, purpose: self.purpose, frame };
        let fate = locked(&self.hub.hook).as_mut().map_or(Fate::Pass, |hook| hook(&passing));
        let frames = match fate {
            Fate::Pass => vec![frame.to_vec()],
            Fate::Instead(frames) => frames,
            Fate::Cut => {
                self.pipe.close();
                return Err(LinkError::Closed);
            }
            Fate::Hold => {
                return self.pipe.wait(timeout, |_, closed| closed.then_some(Err(LinkError::Closed)));
            }
        };
        for frame in frames {
            let mut frame = Some(frame);
            self.pipe.wait(timeout, |queue, closed| match frame.take() {
                _ if closed => Some(Err(LinkError::Closed)),
                Some(own) if queue.len() < QUEUE => {
                    queue.push_back(own);
                    Some(Ok(()))
                }
                own => {
                    frame = own;
                    None
                }
            })?;
        }
        Ok(())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.pipe.close();
    }
}

struct Receiving(Arc<Pipe>);

impl FrameReceiver for Receiving {
    fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, LinkError> {
        self.0.wait(timeout, |queue, closed| match queue.pop_front() {
            Some(frame) => Some(Ok(frame)),
            None if closed => Some(Err(LinkError::Closed)),
            None => None,
        })
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The hub as one device sees it.
pub struct MemoryNetwork {
    hub: Arc<Hub>,
    key: DeviceId,
    /// Which of the device's programs it is.
    program: u64,
}

impl MemoryNetwork {
    fn link(&self, to: DeviceId, purpose: Purpose, there: Arc<Pipe>, back: Arc<Pipe>) -> Link {
        let sending = Sending { hub: Arc::clone(&self.hub), from: self.key, to, purpose, pipe: there };
        Link { peer: to, sender: Box::new(sending), receiver: Box::new(Receiving(back)) }
    }
}

impl Network for MemoryNetwork {
    fn own(&self) -> Node {
        Node { address: format!("memory:{}", self.key.0[0]), device: self.key }
    }

    fn allow(&self, _keys: &[DeviceId]) {}

    fn connect(&self, to: &Node, purpose: Purpose, _timeout: Duration) -> Result<Link, LinkError> {
        let [there, back] = [(); 2].map(|()| Arc::new(Pipe::default()));
        let other = MemoryNetwork { hub: Arc::clone(&self.hub), key: to.device, program: 0 };
        let mut state = locked(&self.hub.state);
        if state.dead.contains(&to.device) || state.dead.contains(&self.key) {
            return Err(LinkError::Closed);
        }
        if let Some(at) = state.refused.iter().position(|refused| *refused == purpose) {
            state.refused.remove(at);
            return Err(LinkError::Refused);
        }
        for pipe in [&there, &back] {
            state.pipes.push((self.key, to.device, Arc::clone(pipe)));
        }
        let knocking = state.knocking.get_mut(&to.device).ok_or(LinkError::Refused)?;
        let own = self.link(to.device, purpose, Arc::clone(&there), Arc::clone(&back));
        knocking.push_back((other.link(self.key, purpose, back, there), purpose));
        self.hub.knock.notify_all();
        Ok(own)
    }

    fn accept(&self, timeout: Duration) -> Result<(Link, Purpose), LinkError> {
        let end = Instant::now() + timeout;
        let mut state = locked(&self.hub.state);
        loop {
            // A program that has ended may still wait here for a moment.
            let is_last = state.programs.get(&self.key) == Some(&self.program);
            let waiting = state.knocking.get_mut(&self.key).filter(|_| is_last);
            if let Some(link) = waiting.and_then(VecDeque::pop_front) {
                return Ok(link);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LinkError::TimedOut);
            }
            state = self.hub.knock.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
