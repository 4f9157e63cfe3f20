//! Tests the speed controller on a virtual clock: its invariants for any order of events, and its pace.

use baton_pacing::{GapStats, Millis, PaceEvent, PaceMode, Pacer, PacerConfig, best_gap_in_hindsight};
use proptest::prelude::*;

const TAU_MS: f64 = 100.0;

fn pacer(mode: PaceMode) -> Pacer {
    Pacer::new(PacerConfig { tau_ms: TAU_MS, mode, decode_ms: 45.0 })
}

/// One answer with a device of constant speed: cloud tokens at `arrivals`, device tokens from `ready_at` on.
struct Answer {
    arrivals: Vec<f64>,
    planned: usize,
    /// The device's estimates of the takeover, as (time of the estimate, estimated takeover).
    estimates: Vec<(f64, f64)>,
    ready_at: f64,
    decode_ms: f64,
    own: usize,
}

impl Answer {
    fn steady(planned: usize, ready_at: f64) -> Self {
        Self {
            arrivals: (0..planned).map(|i| 500.0 + 25.0 * i as f64).collect(),
            planned,
            estimates: vec![(500.0, ready_at)],
            ready_at,
            decode_ms: 45.0,
            own: 100,
        }
    }

    fn available_at(&self) -> Vec<Millis> {
        let own = (0..self.own).map(|i| self.ready_at + self.decode_ms * i as f64);
        self.arrivals.iter().copied().chain(own).map(Millis::new).collect()
    }

    /// Returns the time at which each token was shown.
    fn play(&self) -> Vec<Millis> {
        let available_at = self.available_at();
        let total = available_at.len();
        let mut events: Vec<(Millis, PaceEvent)> =
            vec![(available_at[0], PaceEvent::CloudEnds { count: self.planned })];
        events.extend(
            self.estimates
                .iter()
                .map(|&(at, ready)| (Millis::new(at), PaceEvent::Handover { ready_at: Millis::new(ready) })),
        );
        for (i, &at) in available_at.iter().enumerate() {
            if i == self.arrivals.len() && i < self.planned {
                events.push((at, PaceEvent::CloudEnds { count: i }));
            }
            events.push((at, PaceEvent::Available { count: i + 1 }));
        }
        events.push((available_at[total - 1], PaceEvent::Finished { count: total }));
        events.sort_by(|a, b| a.0.as_f64().total_cmp(&b.0.as_f64()));
        drive(&mut pacer(PaceMode::Paced), &events, total)
    }
}

/// Feeds sorted events to the controller, and wakes it whenever it asks for it.
fn drive(pacer: &mut Pacer, events: &[(Millis, PaceEvent)], total: usize) -> Vec<Millis> {
    let mut shown_at = Vec::new();
    let mut available = 0;
    let mut wake_at = None;
    let mut take = |event, now: Millis, shown_at: &mut Vec<Millis>| {
        if let PaceEvent::Available { count } = event {
            available = available.max(count);
        }
        let step = pacer.step(event, now);
        assert!(step.show >= shown_at.len(), "took text back");
        assert!(step.show <= available, "shows {} of {available}", step.show);
        assert!(step.wake_at.is_none_or(|at| at > now), "wakes in the past");
        shown_at.resize(step.show, now);
        step.wake_at
    };
    for &(at, event) in events {
        while let Some(due) = wake_at.filter(|&due| due < at) {
            wake_at = take(PaceEvent::Tick, due, &mut shown_at);
        }
        wake_at = take(event, at, &mut shown_at);
    }
    let mut steps = 0;
    while let Some(due) = wake_at {
        steps += 1;
        assert!(steps <= 4 * total + 10, "wakes without end");
        wake_at = take(PaceEvent::Tick, due, &mut shown_at);
    }
    shown_at
}

fn gaps(shown_at: &[Millis]) -> Vec<f64> {
    shown_at.windows(2).map(|pair| (pair[1] - pair[0]).as_f64()).collect()
}

#[test]
fn first_token_at_once_and_even_to_the_takeover() {
    let answer = Answer::steady(34, 3_100.0);
    let shown_at = answer.play();
    assert_eq!(shown_at[0], Millis::new(500.0));
    let gaps = gaps(&shown_at);
    let best = best_gap_in_hindsight(&answer.available_at()).as_f64();
    assert!((best - 2_600.0 / 34.0).abs() < 1e-9);
    assert!(gaps.iter().all(|&gap| gap <= TAU_MS), "{gaps:?}");
    // No gap differs from the one before by more than the stated factors.
    for pair in gaps.windows(2) {
        assert!(pair[1] <= 1.301 * pair[0] && pair[1] >= 0.849 * pair[0], "{pair:?} in {gaps:?}");
    }
    // Once the device writes, the gaps are those of the device.
    let late = &gaps[gaps.len() - 40..];
    assert!(late.iter().all(|&gap| (gap - 45.0).abs() < 6.0), "{late:?}");
}

#[test]
fn early_device_speeds_up_smoothly_to_its_own_pace() {
    let mut answer = Answer::steady(34, 1_500.0);
    // The estimate is 3,100 until half of the real time has passed.
    answer.estimates = vec![(500.0, 3_100.0), (1_000.0, 1_500.0)];
    let gaps = gaps(&answer.play());
    let settled = gaps.iter().position(|&gap| gap < 47.0).expect("reaches the device's pace");
    assert!(settled < 20, "{gaps:?}");
    assert!(gaps.windows(2).all(|pair| pair[1] >= 0.849 * pair[0]), "{gaps:?}");
    assert!(gaps.iter().all(|&gap| gap <= TAU_MS && gap > 40.0), "{gaps:?}");
}

#[test]
fn late_device_stretches_what_is_left() {
    let mut answer = Answer::steady(34, 4_500.0);
    answer.estimates = vec![(500.0, 3_100.0), (1_000.0, 4_500.0)];
    let stats = GapStats::of(&answer.play());
    let best = best_gap_in_hindsight(&answer.available_at()).as_f64();
    assert!(stats.max_ms <= 1.1 * best, "{} against {best}", stats.max_ms);
}

#[test]
fn cloud_cut_off_stretches_the_buffer_to_the_takeover() {
    let mut answer = Answer::steady(34, 3_100.0);
    answer.arrivals.truncate(20);
    let available_at = answer.available_at();
    let mut events = vec![
        (available_at[0], PaceEvent::CloudEnds { count: 34 }),
        (available_at[0], PaceEvent::Handover { ready_at: Millis::new(3_100.0) }),
    ];
    events.extend(
        available_at[..20].iter().enumerate().map(|(i, &at)| (at, PaceEvent::Available { count: i + 1 })),
    );
    events.push((Millis::new(1_000.0), PaceEvent::CloudEnds { count: 20 }));
    events.extend(
        available_at[20..].iter().enumerate().map(|(i, &at)| (at, PaceEvent::Available { count: i + 21 })),
    );
    events.push((available_at[119], PaceEvent::Finished { count: 120 }));
    let shown_at = drive(&mut pacer(PaceMode::Paced), &events, 120);
    let stats = GapStats::of(&shown_at);
    // At the cut at 1,000 ms, six tokens are shown. The other 14 and the device's first are spread over 2,100
    // ms.
    assert!(stats.max_ms < 1.1 * 2_100.0 / 14.0, "{stats:?}");
    assert_eq!(shown_at.len(), 120);
}

#[test]
fn a_steady_pace_keeps_a_buffer_whatever_is_forecast() {
    let mut pacer = pacer(PaceMode::Paced);
    let at = Millis::new;
    // Forty tokens at once and in bursts, before a takeover that is far away, or near.
    let bursts = (1..5).map(|burst| (at(f64::from(burst) * 800.0), 8 + 8 * burst as usize));
    let mut events = vec![
        (at(500.0), PaceEvent::Steady(90.0)),
        (at(500.0), PaceEvent::CloudEnds { count: 8 }),
        (at(500.0), PaceEvent::Handover { ready_at: at(60_000.0) }),
        (at(500.0), PaceEvent::Available { count: 8 }),
    ];
    events.extend(bursts.map(|(at, count)| (at, PaceEvent::Available { count })));
    events.push((at(3_300.0), PaceEvent::Finished { count: 40 }));
    let gaps = gaps(&drive(&mut pacer, &events, 40));
    assert_eq!(gaps.len(), 39);
    assert!(gaps.iter().all(|&gap| (gap - 90.0).abs() < 1e-6), "{gaps:?}");
}

#[test]
fn instant_mode_shows_all_there_is() {
    let mut pacer = pacer(PaceMode::Instant);
    for count in [1, 5, 5, 3, 9] {
        let step = pacer.step(PaceEvent::Available { count }, Millis::new(10.0));
        assert_eq!(step.wake_at, None);
    }
    assert_eq!(pacer.shown(), 9);
    assert!(!pacer.is_done());
    pacer.step(PaceEvent::Finished { count: 9 }, Millis::new(11.0));
    assert!(pacer.is_done());
}

#[test]
fn end_of_text_within_the_cloud_tokens_is_shown_out() {
    let mut events = vec![
        (Millis::ZERO, PaceEvent::CloudEnds { count: 34 }),
        (Millis::ZERO, PaceEvent::Handover { ready_at: Millis::new(9_000.0) }),
    ];
    events.extend(
        (0..12).map(|i| (Millis::new(20.0 * f64::from(i)), PaceEvent::Available { count: i as usize + 1 })),
    );
    events.push((Millis::new(220.0), PaceEvent::Finished { count: 12 }));
    let shown_at = drive(&mut pacer(PaceMode::Paced), &events, 12);
    assert_eq!(shown_at.len(), 12);
    // The controller does not wait for the takeover, because the answer is complete.
    assert!(shown_at[11] < Millis::new(1_100.0), "{shown_at:?}");
}

#[test]
fn a_driver_that_slept_starts_no_burst() {
    let mut pacer = pacer(PaceMode::Paced);
    pacer.step(PaceEvent::CloudEnds { count: 40 }, Millis::ZERO);
    pacer.step(PaceEvent::Handover { ready_at: Millis::new(3_000.0) }, Millis::ZERO);
    pacer.step(PaceEvent::Available { count: 40 }, Millis::ZERO);
    let before = pacer.shown();
    let step = pacer.step(PaceEvent::Tick, Millis::new(1_500.0));
    assert!(step.show <= before + 2, "{step:?}");
}

#[derive(Debug, Clone)]
enum Odd {
    Available(usize),
    CloudEnds(usize),
    Handover(f64),
    Decode(f64),
    Tick,
}

fn odd_events() -> impl Strategy<Value = Vec<(f64, Odd)>> {
    let time = prop_oneof![0.0..1e4_f64, Just(f64::NAN), Just(f64::INFINITY), Just(-5.0)];
    let kind = prop_oneof![
        4 => (0_usize..80).prop_map(Odd::Available),
        1 => (0_usize..80).prop_map(Odd::CloudEnds),
        2 => prop_oneof![time.clone(), any::<f64>()].prop_map(Odd::Handover),
        1 => any::<f64>().prop_map(Odd::Decode),
        2 => Just(Odd::Tick),
    ];
    proptest::collection::vec((time, kind), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any events in any order, it shows only tokens that have arrived, never takes one back, and shows
    /// all in the end.
    #[test]
    fn any_events_are_survived(
        events in odd_events(),
        config in (any::<f64>(), any::<f64>()),
    ) {
        let mut pacer =
            Pacer::new(PacerConfig { tau_ms: config.0, mode: PaceMode::Paced, decode_ms: config.1 });
        let (mut shown, mut available, mut now) = (0, 0, 0.0_f64);
        for (at, event) in events {
            if at.is_finite() {
                now = now.max(at);
            }
            let event = match event {
                Odd::Available(count) => {
                    available = available.max(count);
                    PaceEvent::Available { count }
                }
                Odd::CloudEnds(count) => PaceEvent::CloudEnds { count },
                Odd::Handover(ready) => PaceEvent::Handover { ready_at: Millis::new(ready) },
                Odd::Decode(ms) => PaceEvent::DecodeMs(ms),
                Odd::Tick => PaceEvent::Tick,
            };
            let step = pacer.step(event, Millis::new(at));
            prop_assert!(step.show >= shown && step.show <= available);
            // If a token is left to show, there is a time to wake up.
            prop_assert_eq!(step.wake_at.is_some(), step.show < available);
            shown = step.show;
        }
        let mut step = pacer.step(PaceEvent::Finished { count: available }, Millis::new(now));
        let mut steps = 0;
        while let Some(at) = step.wake_at {
            prop_assert!(at.is_finite() && at.as_f64() <= now + 30_001.0, "gap from {} to {}", now, at);
            now = at.as_f64();
            step = pacer.step(PaceEvent::Tick, at);
            steps += 1;
            prop_assert!(steps <= 4 * available + 10, "wakes without end");
        }
        prop_assert_eq!(step.show, available);
        prop_assert!(pacer.is_done());
    }

    /// With a true forecast, the largest gap is close to the optimum or within tau, and the display is never
    /// far behind.
    #[test]
    fn a_true_forecast_is_played_evenly(
        planned in 2_usize..80,
        tpot_c in 5.0..60.0_f64,
        work in 200.0..20_000.0_f64,
        decode_ms in 5.0..90.0_f64,
        own in 1_usize..150,
    ) {
        let last = 500.0 + tpot_c * (planned - 1) as f64;
        let ready_at = (500.0 + work).max(last + 1.0);
        let mut answer = Answer::steady(planned, ready_at);
        answer.arrivals = (0..planned).map(|i| 500.0 + tpot_c * i as f64).collect();
        (answer.decode_ms, answer.own) = (decode_ms, own);
        let shown_at = answer.play();
        let best = best_gap_in_hindsight(&answer.available_at()).as_f64();
        let stats = GapStats::of(&shown_at);
        prop_assert_eq!(shown_at.len(), planned + own);
        prop_assert!(stats.max_ms <= TAU_MS.max(1.05 * best), "{} against {}", stats.max_ms, best);
        // The tokens left when the last one arrives are shown without pauses.
        let last_at = answer.available_at()[planned + own - 1];
        let lag = (shown_at[planned + own - 1] - last_at).as_f64();
        prop_assert!(lag <= TAU_MS.max(1.1 * best) * (planned as f64 + 3.0), "lag {}", lag);
    }
}
