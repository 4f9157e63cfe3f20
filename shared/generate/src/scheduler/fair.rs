//! Chooses the next request: weighted fair queueing between tenants, in order of arrival within each.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996). A request's work is its tokens: prompt and cap
//! together. The head of each tenant's lane has a start tag, `max(v, finish of the tenant's last request)`.
//! The lane with the least tag goes next: `v` becomes its tag, and the tenant's finish becomes its tag plus
//! work over weight. Pure: whole numbers, no clock. Always: while two tenants wait, the work that each got,
//! divided by its weight, differs by at most one request of each (theorem 1 of the paper). A tenant alone
//! gets every slot. A request goes before any later one of its tenant. A preempted request goes before all
//! others.

use std::collections::{BTreeMap, VecDeque};

use super::request::Request;
use super::{JobId, Share};

/// Work of one token at weight 1. It is large, so that division by a weight loses little.
const UNIT: u128 = 1 << 20;

/// Requests that wait.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    /// Preempted requests. They were the latest of the running ones, and hold no slot that others could take.
    resumed: VecDeque<Request>,
    lanes: BTreeMap<u64, Lane>,
    /// Virtual time: the start tag of the request that was taken last.
    now: u128,
    /// Finish tags of tenants that no longer wait, if these are after `now`.
    finished: BTreeMap<u64, u128>,
    len: usize,
}

/// A tenant's standing among the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Whether one more of its requests may wait, by number.
    pub(super) has_room: bool,
    /// Whether it has nothing waiting and nothing running.
    pub(super) newcomer: bool,
    /// Its weight divided by the weights of all tenants that wait or run, including itself.
    pub(super) of_all: f64,
    /// Tokens of its waiting requests.
    pub(super) tokens: usize,
}

#[derive(Debug)]
struct Lane {
    requests: VecDeque<Request>,
    /// Start tag of the first request.
    start: u128,
}

impl FairQueue {
    /// Adds a request after the others of its tenant.
    pub(super) fn push_back(&mut self, request: Request) {
        let tenant = request.spec.share.tenant;
        let (now, finished) = (self.now, &mut self.finished);
        let lane = self.lanes.entry(tenant).or_insert_with(|| {
            let start = finished.remove(&tenant).map_or(now, |finish| finish.max(now));
            Lane { requests: VecDeque::new(), start }
        });
        lane.requests.push_back(request);
        self.len += 1;
    }

    /// Adds a preempted request before all others.
    pub(super) fn push_front(&mut self, request: Request) {
        self.resumed.push_front(request);
        self.len += 1;
    }

    /// Removes a preempted request.
    pub(super) fn take_resumed(&mut self, id: JobId) -> Option<Request> {
        let at = self.resumed.iter().position(|request| request.spec.id == id)?;
        self.len -= 1;
        self.resumed.remove(at)
    }

    /// Returns a request, wherever it is.
    pub(super) fn get_mut(&mut self, id: JobId) -> Option<&mut Request> {
        let lanes = self.lanes.values_mut().flat_map(|lane| &mut lane.requests);
        self.resumed.iter_mut().chain(lanes).find(|request| request.spec.id == id)
    }

    /// Returns the request that goes next.
    pub(super) fn front(&self) -> Option<&Request> {
        self.resumed.front().or_else(|| self.next_lane().and_then(|(_, lane)| lane.requests.front()))
    }

    /// Removes and returns the request that goes next.
    pub(super) fn pop_front(&mut self) -> Option<Request> {
        if let Some(request) = self.resumed.pop_front() {
            self.len -= 1;
            return Some(request);
        }
        let (&tenant, lane) = self.next_lane()?;
        let start = lane.start;
        let lane = self.lanes.get_mut(&tenant)?;
        let request = lane.requests.pop_front()?;
        let finish = start + work(&request);
        self.now = self.now.max(start);
        lane.start = finish;
        self.end_lane_if_empty(tenant);
        self.len -= 1;
        Some(request)
    }

    /// Removes a request, wherever it is.
    pub(super) fn take(&mut self, id: JobId) -> Option<Request> {
        if let Some(request) = self.take_resumed(id) {
            return Some(request);
        }
        let of = |request: &Request| request.spec.id == id;
        let found = self
            .lanes
            .iter()
            .find_map(|(&tenant, lane)| lane.requests.iter().position(of).map(|at| (tenant, at)));
        let (tenant, at) = found?;
        let request = self.lanes.get_mut(&tenant)?.requests.remove(at)?;
        self.end_lane_if_empty(tenant);
        self.len -= 1;
        Some(request)
    }

    /// Returns the standing of a tenant that wants to add a request. `room` is the number of requests that
    /// may wait in all, and `running` has one share for each running request.
    ///
    /// Alone, a tenant may fill the room. Beside others, its waiting requests are bounded by its share of the
    /// room. A tenant with nothing waiting and nothing running is always admitted, so that others who fill
    /// the queue do not shut it out. There is at most one such request per tenant, and at most `extra` above
    /// the room in all.
    pub(super) fn standing(&self, share: Share, room: usize, extra: usize, running: &[Share]) -> Standing {
        let of_tenant = |request: &&Request| request.spec.share.tenant == share.tenant;
        let waiting = self.iter().filter(of_tenant).count();
        let tokens = self.iter().filter(of_tenant).map(Request::target_tokens).sum();
        let mut weights: BTreeMap<u64, u32> = BTreeMap::new();
        for share in self.iter().map(|request| &request.spec.share).chain(running) {
            weights.insert(share.tenant, share.weight);
        }
        let newcomer = weights.insert(share.tenant, share.weight).is_none();
        let all: u64 = weights.values().map(|&weight| u64::from(weight)).sum();
        let of_all = f64::from(share.weight) / all.max(1) as f64;
        let own = ((room as f64 * of_all).ceil() as usize).max(1);
        let has_room =
            if newcomer { self.len < room.saturating_add(extra) } else { self.len < room && waiting < own };
        Standing { has_room, newcomer, of_all, tokens }
    }

    /// Iterates over all requests, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.resumed.iter().chain(self.lanes.values().flat_map(|lane| &lane.requests))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the lane with the least start tag; among equal ones, that with the earliest request.
    fn next_lane(&self) -> Option<(&u64, &Lane)> {
        let arrival = |lane: &Lane| lane.requests.front().map(|request| request.arrival);
        self.lanes.iter().min_by_key(|(_, lane)| (lane.start, arrival(lane)))
    }

    fn end_lane_if_empty(&mut self, tenant: u64) {
        if self.lanes.get(&tenant).is_some_and(|lane| lane.requests.is_empty())
            && let Some(lane) = self.lanes.remove(&tenant)
        {
            self.finished.insert(tenant, lane.start);
        }
        if self.lanes.is_empty() {
            // No tenant waits, so no tenant is owed anything, and nothing needs to be remembered.
            self.now = self.finished.values().copied().fold(self.now, u128::max);
        }
        let now = self.now;
        self.finished.retain(|_, finish| *finish > now);
    }
}

fn work(request: &Request) -> u128 {
    let tokens = request.spec.prompt_tokens + request.spec.max_tokens;
    tokens as u128 * UNIT / u128::from(request.spec.share.weight.max(1))
}

#[cfg(test)]
mod tests;
