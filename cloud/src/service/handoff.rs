//! Keys and values of prompts on their way to devices of the same model.
//!
//! Frames are parked from the moment the engine gives them until the device has read them, or for
//! [`PARKED_MAX`]. Never: makes an answer wait, or keeps more than [`BYTES_MAX`]. Always: a tenant has at
//! most half of that, and the memory goes back to the system, because each handoff is a mapping of its own. A
//! handoff is found only with the key that asked for it, and never given out as complete if it is not.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_engine::engine::KvFormat;
use baton_engine::{KvWidth, SlidingWindow};
use baton_generate::job::{Export, RowsTaker};
use baton_protocol::{KvEncoding, KvLayer, KvLayout, KvPlace, KvTicket};
use bytes::Bytes;
use memmap2::MmapMut;
use tokio::sync::watch;
use tracing::debug;

use crate::observe::metrics::Metrics;
use crate::observe::requests::RequestKey;

/// The most bytes of all handoffs together.
const BYTES_MAX: u64 = 512 << 20;
/// The most bytes of one tenant's handoffs.
const TENANT_BYTES_MAX: u64 = BYTES_MAX / 2;
/// The most handoffs.
const HANDOFFS_MAX: usize = 1024;
/// How long a handoff is parked, from its offer on.
const PARKED_MAX: Duration = Duration::from_secs(30);
/// The most bytes that a reader gets at once.
const READ_BYTES_MAX: usize = 1 << 20;

/// The request whose keys and values they are.
pub(crate) type HandoffName = RequestKey;

/// What a model's keys and values are like.
#[derive(Debug)]
pub(crate) struct KvModel {
    /// The name of what decides their bits.
    pub(crate) identity: String,
    pub(crate) widths: Vec<KvWidth>,
    /// Its largest sliding window.
    pub(crate) window: Option<SlidingWindow>,
}

/// The handoffs of one service.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handoffs(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    parked: HashMap<HandoffName, Arc<Handoff>>,
    /// Bytes that are set aside, in all and by tenant, until the last reader is gone.
    bytes: u64,
    of_tenants: HashMap<u128, u64>,
    /// How often room was set aside.
    rooms: u64,
}

impl Book {
    /// Returns the oldest handoff that nobody reads or writes, of the tenant with the most bytes, if that has
    /// more than `bytes`.
    fn gives_way(&self, bytes: u64) -> Option<HandoffName> {
        let of = |handoff: &Handoff| self.of_tenants.get(&handoff.room.tenant).copied().unwrap_or(0);
        let unread = self.parked.iter().filter(|(_, handoff)| Arc::strong_count(handoff) == 1);
        let larger = unread.filter(|(_, handoff)| of(handoff) > bytes);
        let first = larger.min_by_key(|(_, handoff)| (Reverse(of(handoff)), handoff.room.number));
        first.map(|(name, _)| *name)
    }
}

impl Handoffs {
    /// Returns a handoff, if it is parked.
    pub(crate) fn find(&self, name: &HandoffName) -> Option<Arc<Handoff>> {
        self.book().parked.get(name).cloned()
    }

    /// Forgets a handoff. Whoever reads it reads on.
    pub(crate) fn forget(&self, name: &HandoffName) {
        let gone = self.book().parked.remove(name);
        // Dropped without the lock, because it gives its room back.
        drop(gone);
    }

    /// Returns the bytes that are set aside.
    pub(crate) fn bytes(&self) -> u64 {
        self.book().bytes
    }

    /// Sets room aside. If others have taken all, what nobody reads of the tenant with the most gives way.
    fn reserve(&self, tenant: u128, bytes: u64) -> Option<Room> {
        loop {
            let mut book = self.book();
            let of_tenant = book.of_tenants.get(&tenant).copied().unwrap_or(0).saturating_add(bytes);
            if of_tenant > TENANT_BYTES_MAX {
                return None;
            }
            if book.bytes.saturating_add(bytes) <= BYTES_MAX && book.parked.len() < HANDOFFS_MAX {
                book.bytes += bytes;
                book.of_tenants.insert(tenant, of_tenant);
                book.rooms += 1;
                return Some(Room { of: self.clone(), tenant, bytes, number: book.rooms });
            }
            let name = book.gives_way(of_tenant)?;
            let gone = book.parked.remove(&name);
            drop(book);
            // Dropped without the lock, because it gives its room back.
            drop(gone);
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room that is set aside. Dropping it gives it back.
#[derive(Debug)]
struct Room {
    of: Handoffs,
    tenant: u128,
    bytes: u64,
    /// Larger than those of rooms that were set aside before.
    number: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut book = self.of.book();
        book.bytes = book.bytes.saturating_sub(self.bytes);
        let left = book.of_tenants.get(&self.tenant).copied().unwrap_or(0).saturating_sub(self.bytes);
        match left {
            0 => drop(book.of_tenants.remove(&self.tenant)),
            left => drop(book.of_tenants.insert(self.tenant, left)),
        }
    }
}

/// Keys and values of one prompt, as frames that come from the engine.
#[derive(Debug)]
pub struct Handoff {
    /// Bytes of all frames.
    bytes: u64,
    frames: Mutex<Frames>,
    /// The bytes that have come; `None` if no more will.
    come: watch::Sender<Option<u64>>,
    room: Room,
}

/// Room for all frames, and how much of it has come.
#[derive(Debug)]
struct Frames {
    room: MmapMut,
    come: usize,
}

impl Handoff {
    /// Returns the bytes of all frames.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next bytes from `at` on, or `None` if they have not come.
    ///
    /// For callers that drive the engine themselves; others wait with `next`.
    ///
    /// # Errors
    /// [`Unfinished`] if they will never come.
    pub fn look(&self, at: u64) -> Result<Option<Bytes>, Unfinished> {
        let will_come = self.come.borrow().is_some();
        let found = self.frames.lock().unwrap_or_else(PoisonError::into_inner).from(at);
        if found.is_some() || will_come { Ok(found) } else { Err(Unfinished) }
    }

    /// Waits for the next bytes from `at` on. Returns `None` behind the last one.
    ///
    /// # Errors
    /// [`Unfinished`] if they will never come.
    pub(crate) async fn next(&self, at: u64) -> Result<Option<Bytes>, Unfinished> {
        if at >= self.bytes {
            return Ok(None);
        }
        let mut come = self.come.subscribe();
        let there = come.wait_for(|come| come.is_none_or(|bytes| bytes > at)).await.map(|come| *come);
        let found = self.frames.lock().unwrap_or_else(PoisonError::into_inner).from(at);
        match (found, there) {
            (Some(bytes), _) => Ok(Some(bytes)),
            (None, _) => Err(Unfinished),
        }
    }
}

impl Frames {
    /// Makes room for so many bytes. Pages take memory when their bytes come.
    fn new(bytes: u64) -> Option<Frames> {
        let room = MmapMut::map_anon(usize::try_from(bytes).ok()?).ok()?;
        Some(Frames { room, come: 0 })
    }

    /// Takes the next frame.
    fn push(&mut self, frame: &[u8]) {
        if let Some(room) = self.room.get_mut(self.come..self.come + frame.len()) {
            room.copy_from_slice(frame);
            self.come += frame.len();
        }
    }

    /// Returns the next bytes from `at` on, if they have come.
    fn from(&self, at: u64) -> Option<Bytes> {
        let at = usize::try_from(at).ok()?;
        let rest = self.room.get(at..self.come).filter(|rest| !rest.is_empty())?;
        Some(Bytes::copy_from_slice(&rest[..rest.len().min(READ_BYTES_MAX)]))
    }
}

/// The engine gave up the handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the keys and values are not there any more")]
pub struct Unfinished;

/// What is needed to offer a handoff once it is known which tokens are kept.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) handoffs: Handoffs,
    pub(crate) name: HandoffName,
    pub(crate) tenant: u128,
    pub(crate) format: KvEncoding,
    pub(crate) model: Arc<KvModel>,
    pub(crate) prompt_sha256: String,
    pub(crate) metrics: Arc<Metrics>,
    /// Where the time is waited for; without it, what nobody reads stays until the service ends.
    pub(crate) runtime: Option<tokio::runtime::Handle>,
}

impl Offer {
    /// Offers the keys and values of these positions: the ticket for the device, and the engine's part.
    /// Returns `None` if there is no room.
    pub(crate) fn open(self, positions: Vec<usize>) -> Option<(KvTicket, Export)> {
        let format: KvFormat = self.format.as_str().parse().ok()?;
        let layers = self.model.widths.iter();
        let layers = layers
            .map(|width| KvLayer { heads: width.heads, token_bytes: width.token_bytes(format) })
            .collect();
        let of = (self.name.1, self.prompt_sha256.as_str());
        let layout = KvLayout::new(self.format, positions.len(), layers, of);
        let bytes = layout.bytes();
        let room = self.handoffs.reserve(self.tenant, bytes).filter(|_| !positions.is_empty());
        let Some((room, frames)) = room.and_then(|room| Some((room, Frames::new(bytes)?))) else {
            debug!(bytes, "no room for keys and values on their way to a device");
            self.metrics.kv_handoff("refused");
            return None;
        };
        self.metrics.kv_handoff("offered");
        let frames = Mutex::new(frames);
        let handoff = Arc::new(Handoff { bytes, frames, come: watch::Sender::new(Some(0)), room });
        let before = self.handoffs.book().parked.insert(self.name, Arc::clone(&handoff));
        // Dropped without the lock, because it gives its room back.
        drop(before);
        if let Some(runtime) = &self.runtime {
            let (handoffs, name) = (self.handoffs.clone(), self.name);
            let of = Arc::downgrade(&handoff);
            runtime.spawn(async move {
                tokio::time::sleep(PARKED_MAX).await;
                let there = handoffs.find(&name);
                // Another request may have the same id by now.
                if there.is_some_and(|there| std::ptr::eq(Arc::as_ptr(&there), of.as_ptr())) {
                    handoffs.forget(&name);
                }
            });
        }
        let places: Vec<KvPlace> = layout.places().collect();
        let parts = places.iter().map(|place| (place.layer, place.first..place.first + place.tokens));
        let tokens = u32::try_from(positions.len()).ok()?;
        let export = Export {
            positions,
            format,
            parts: parts.collect(),
            taker: Box::new(Parking { handoff, layout, places: places.into_iter(), at: 0 }),
        };
        let Offer { format, prompt_sha256, .. } = self;
        let model = self.model.identity.clone();
        Some((KvTicket { bytes, format, tokens, prompt_sha256, model }, export))
    }
}

/// Parks the engine's rows as frames.
struct Parking {
    handoff: Arc<Handoff>,
    layout: KvLayout,
    places: std::vec::IntoIter<KvPlace>,
    /// The byte at which the next frame begins.
    at: u64,
}

impl RowsTaker for Parking {
    fn wants(&self) -> bool {
        // One is here, and one with those who may still read it.
        Arc::strong_count(&self.handoff) > 1
    }

    fn take(&mut self, rows: &[u8]) {
        let Some(place) = self.places.next().filter(|place| place.bytes == rows.len()) else { return };
        let frame = self.layout.frame(place, rows);
        self.at += frame.len() as u64;
        self.handoff.frames.lock().unwrap_or_else(PoisonError::into_inner).push(&frame);
        self.handoff.come.send_replace(Some(self.at));
    }
}

impl Drop for Parking {
    fn drop(&mut self) {
        if self.at < self.handoff.bytes {
            self.handoff.come.send_replace(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn offer(handoffs: &Handoffs, request: u128, tenant: u128) -> Offer {
        Offer {
            handoffs: handoffs.clone(),
            name: ([1; 32], Uuid::from_u128(request)),
            tenant,
            format: KvEncoding::F16,
            model: Arc::new(KvModel {
                identity: "model".to_owned(),
                widths: vec![KvWidth { heads: 2, d: 1024 }],
                window: None,
            }),
            prompt_sha256: "prompt".to_owned(),
            metrics: Arc::default(),
            runtime: None,
        }
    }

    fn rows(export: &Export, part: usize) -> Vec<u8> {
        let (layer, range) = &export.parts[part];
        vec![*layer as u8 + 1; range.len() * 2 * 2 * 1024 * 2]
    }

    #[tokio::test]
    async fn frames_are_read_as_they_come_from_any_byte() {
        let handoffs = Handoffs::default();
        let (ticket, mut export) = offer(&handoffs, 1, 1).open((0..200).collect()).unwrap();
        let name = ([1; 32], Uuid::from_u128(1));
        assert!(handoffs.find(&([2; 32], name.1)).is_none(), "another key");
        let handoff = handoffs.find(&name).unwrap();
        assert_eq!((handoff.bytes(), handoffs.bytes()), (ticket.bytes, ticket.bytes));
        let read = tokio::spawn({
            let handoff = Arc::clone(&handoff);
            async move {
                let (mut whole, mut at) = (Vec::new(), 0);
                while let Some(bytes) = handoff.next(at).await.unwrap() {
                    at += bytes.len() as u64;
                    whole.extend_from_slice(&bytes);
                }
                whole
            }
        });
        for part in 0..export.parts.len() {
            let rows = rows(&export, part);
            assert!(export.taker.wants());
            export.taker.take(&rows);
            tokio::task::yield_now().await;
        }
        drop(export);
        let whole = read.await.unwrap();
        assert_eq!(whole.len() as u64, ticket.bytes);
        for at in [1, 47, 48, 5000, whole.len() - 1] {
            let rest = handoff.next(at as u64).await.unwrap().unwrap();
            assert!(whole[at..].starts_with(&rest) && !rest.is_empty());
        }
        assert_eq!(handoff.next(ticket.bytes).await, Ok(None));
        handoffs.forget(&name);
        assert_eq!(handoffs.bytes(), ticket.bytes, "somebody reads it");
        drop(handoff);
        assert_eq!((handoffs.bytes(), handoffs.book().of_tenants.len()), (0, 0));
    }

    #[test]
    fn a_request_that_comes_again_replaces_its_handoff() {
        let handoffs = Handoffs::default();
        let (first, export) = offer(&handoffs, 1, 1).open((0..200).collect()).unwrap();
        drop(export);
        let (again, _export) = offer(&handoffs, 1, 1).open((0..100).collect()).unwrap();
        assert!(first.bytes > again.bytes);
        assert_eq!(handoffs.bytes(), again.bytes, "the room of the first is given back");
    }

    #[tokio::test]
    async fn what_the_engine_gives_up_is_told() {
        let handoffs = Handoffs::default();
        let (ticket, mut export) = offer(&handoffs, 1, 1).open((0..600).collect()).unwrap();
        let handoff = handoffs.find(&([1; 32], Uuid::from_u128(1))).unwrap();
        let first = rows(&export, 0);
        export.taker.take(&first);
        drop(export);
        let at = handoff.next(0).await.unwrap().unwrap().len() as u64;
        assert!(at < ticket.bytes);
        assert_eq!(handoff.next(at).await, Err(Unfinished));
    }

    #[test]
    fn room_is_bounded_in_all_and_for_each_tenant() {
        let handoffs = Handoffs::default();
        // 8 KiB a token.
        let half = (TENANT_BYTES_MAX / 8192 - 100) as usize;
        let first = offer(&handoffs, 1, 1).open((0..half).collect()).unwrap();
        assert!(offer(&handoffs, 2, 1).open((0..200).collect()).is_none(), "the tenant's part");
        let second = offer(&handoffs, 3, 2).open((0..half).collect()).unwrap();
        assert!(offer(&handoffs, 4, 3).open((0..400).collect()).is_none(), "all of it");
        assert!(offer(&handoffs, 5, 3).open(Vec::new()).is_none(), "nothing to offer");
        handoffs.forget(&([1; 32], Uuid::from_u128(1)));
        assert!(!first.1.taker.wants() && second.1.taker.wants(), "nobody can read the first any more");
        drop(first);
        assert!(offer(&handoffs, 6, 3).open((0..400).collect()).is_some());
    }

    #[test]
    fn what_nobody_reads_gives_way_to_a_tenant_with_less() {
        let handoffs = Handoffs::default();
        // An eighth of all, and two tenants that have half each.
        let eighth = (BYTES_MAX / 8 / 8192 - 30) as usize;
        for request in 0..8 {
            let tenant = 1 + request % 2;
            drop(offer(&handoffs, request, tenant).open((0..eighth).collect()).unwrap());
        }
        let is_parked = |request| handoffs.find(&([1; 32], Uuid::from_u128(request))).is_some();
        let read = handoffs.find(&([1; 32], Uuid::from_u128(0))).unwrap();
        assert!(offer(&handoffs, 8, 3).open((0..eighth).collect()).is_some(), "a third tenant");
        assert_eq!([0, 1, 2, 3].map(is_parked), [true, false, true, true], "the oldest that nobody reads");
        assert!(offer(&handoffs, 9, 2).open((0..eighth).collect()).is_none(), "one that has as much");
        assert!(offer(&handoffs, 10, 4).open((0..eighth).collect()).is_some(), "a fourth");
        assert_eq!([0, 2, 8].map(is_parked), [true, false, true]);
        drop(read);
    }
}
