//! Seeded properties of the fair queue: shares within their bound, no starvation, no idle slot.

use std::time::Duration;

use baton_random::SplitMix64;

use super::*;
use crate::scheduler::{Goal, JobSpec};

fn request(id: u64, tenant: u64, weight: u32, tokens: usize) -> Request {
    let share = Share { tenant, weight };
    let spec = JobSpec {
        id: JobId(id),
        prompt_tokens: tokens - 1,
        max_tokens: 1,
        floor_tokens: 1,
        tail_tokens: 1,
        pass_tokens: usize::MAX,
        bytes: 0,
        deadline: None,
        share,
        goal: Goal::Write,
    };
    Request::new(spec, id, Duration::ZERO)
}

fn ids(queue: &mut FairQueue) -> Vec<u64> {
    std::iter::from_fn(|| queue.pop_front()).map(|request| request.spec.id.0).collect()
}

#[test]
fn one_tenant_is_served_in_order_of_arrival() {
    let mut queue = FairQueue::default();
    for id in 0..5 {
        queue.push_back(request(id, 7, 10, 100 - 10 * id as usize));
    }
    assert_eq!((queue.len(), queue.front().unwrap().spec.id), (5, JobId(0)));
    assert_eq!(ids(&mut queue), [0, 1, 2, 3, 4]);
    assert!(queue.is_empty() && queue.finished.is_empty(), "nothing is remembered of an empty queue");
}

#[test]
fn a_flood_does_not_keep_a_newcomer_waiting() {
    let mut queue = FairQueue::default();
    for id in 0..100 {
        queue.push_back(request(id, 1, 10, 1000));
    }
    for _ in 0..10 {
        queue.pop_front();
    }
    queue.push_back(request(200, 2, 10, 1000));
    let order = ids(&mut queue);
    assert!(order.iter().position(|&id| id == 200).unwrap() <= 1, "{:?}", &order[..4]);
}

#[test]
fn a_preempted_request_goes_first_and_is_not_charged_again() {
    let mut queue = FairQueue::default();
    queue.push_back(request(1, 1, 10, 100));
    queue.push_back(request(2, 2, 10, 100));
    let first = queue.pop_front().unwrap();
    queue.push_front(first);
    assert_eq!(queue.front().unwrap().spec.id, JobId(1));
    assert_eq!(ids(&mut queue), [1, 2]);
}

#[test]
fn requests_are_taken_out_anywhere() {
    let mut queue = FairQueue::default();
    for id in 0..4 {
        queue.push_back(request(id, id % 2, 10, 100));
    }
    let resumed = queue.pop_front().unwrap();
    queue.push_front(resumed);
    assert_eq!(queue.take(JobId(0)).unwrap().spec.id, JobId(0));
    assert_eq!(queue.take(JobId(3)).unwrap().spec.id, JobId(3));
    assert!(queue.take(JobId(3)).is_none());
    assert_eq!((queue.len(), queue.iter().count()), (2, 2));
    assert_eq!(ids(&mut queue), [1, 2]);
}

/// While two tenants both wait without a break, `|W_i / w_i - W_j / w_j| <= l_i / w_i + l_j / w_j`.
#[test]
fn shares_stay_within_one_request_of_their_weights() {
    for seed in 0..300 {
        let mut rng = SplitMix64::new(seed);
        let tenants = 2 + rng.remainder(4);
        let weights: Vec<u32> = (0..tenants).map(|_| 1 + rng.remainder(1000) as u32).collect();
        let longest = 2 + rng.remainder(4000);
        let mut queue = FairQueue::default();
        let mut next_id = 0;
        let mut add = |queue: &mut FairQueue, rng: &mut SplitMix64, tenant: u64| {
            let tokens = 2 + rng.remainder(longest);
            queue.push_back(request(next_id, tenant, weights[tenant as usize], tokens));
            next_id += 1;
        };
        // Every tenant always has something waiting: a request that is taken is replaced.
        for tenant in 0..tenants as u64 {
            for _ in 0..1 + rng.remainder(5) {
                add(&mut queue, &mut rng, tenant);
            }
        }
        let mut given = vec![0.0_f64; tenants];
        let bound = |i: usize| (longest + 2) as f64 / f64::from(weights[i]);
        for _ in 0..400 {
            let taken = queue.pop_front().unwrap();
            let tenant = taken.spec.share.tenant;
            let tokens = (taken.spec.prompt_tokens + taken.spec.max_tokens) as f64;
            given[tenant as usize] += tokens / f64::from(weights[tenant as usize]);
            add(&mut queue, &mut rng, tenant);
            for i in 0..given.len() {
                for j in 0..i {
                    let apart = (given[i] - given[j]).abs();
                    assert!(
                        apart <= bound(i) + bound(j) + 1e-6,
                        "seed {seed}: {i} and {j} are {apart} apart"
                    );
                }
            }
        }
    }
}

#[test]
fn nobody_starves_and_work_is_conserved() {
    for seed in 0..300 {
        let mut rng = SplitMix64::new(seed);
        let weights: Vec<u32> = (0..5).map(|_| 1 + rng.remainder(1000) as u32).collect();
        let mut queue = FairQueue::default();
        let (mut added, mut taken) = (0_u64, 0_u64);
        let mut waited_since = std::collections::HashMap::new();
        for step in 0..2000_u64 {
            let tenant = rng.remainder(5) as u64;
            // Tenant 0 floods the queue: two of three requests.
            let tenant = if rng.remainder(3) < 2 { 0 } else { tenant };
            if rng.remainder(20) < 11 && added < 700 {
                let tokens = 2 + rng.remainder(500);
                queue.push_back(request(added, tenant, weights[tenant as usize], tokens));
                waited_since.insert(added, step);
                added += 1;
            } else if let Some(request) = queue.pop_front() {
                taken += 1;
                waited_since.remove(&request.spec.id.0);
            } else {
                assert!(queue.is_empty(), "seed {seed}: a queue that is not empty gives a request");
            }
            assert_eq!(queue.len() as u64, added - taken, "seed {seed}");
        }
        while queue.pop_front().is_some() {
            taken += 1;
        }
        assert_eq!(taken, added, "seed {seed}: everybody was served once");
    }
}

#[test]
fn a_tenant_may_fill_the_room_alone_and_its_share_beside_others() {
    let share = |tenant| Share { tenant, weight: 10 };
    let mut queue = FairQueue::default();
    let mut next_id = 0;
    let mut fill = |queue: &mut FairQueue, tenant: u64, running: &[Share]| {
        let mut count = 0;
        while queue.standing(share(tenant), 8, 8, running).has_room {
            queue.push_back(request(next_id, tenant, 10, 10));
            next_id += 1;
            count += 1;
            assert!(count < 100, "the queue is bounded");
        }
        count
    };
    let mut one = FairQueue::default();
    assert_eq!(fill(&mut one, 1, &[share(1)]), 8, "alone: the whole room");
    assert_eq!(fill(&mut one, 2, &[share(1)]), 1, "the room is full, but nobody is shut out");
    assert_eq!(fill(&mut one, 2, &[share(1)]), 0);
    assert_eq!(fill(&mut queue, 1, &[share(1), share(2)]), 4, "beside one that runs: half");
    assert_eq!(fill(&mut queue, 2, &[share(1), share(2)]), 4);
    assert!(!FairQueue::default().standing(share(1), 0, 0, &[]).has_room, "no queue at all");
    // However many tenants come, the queue is bounded.
    let mut many = FairQueue::default();
    let all: usize = (0..50).map(|tenant| fill(&mut many, tenant, &[])).sum();
    assert_eq!(all, 16);
}
