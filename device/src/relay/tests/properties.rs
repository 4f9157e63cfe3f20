//! Tests that every answer ends, whatever the cloud sends in whatever order. Its text is a prefix of the
//! cloud's and the device's rest.

use super::*;
use proptest::prelude::*;

/// Generates clouds that drop, repeat, reorder and delay their events, and may die.
fn hostile_cloud() -> impl Strategy<Value = Vec<(f64, RelayEvent)>> {
    let one = (0usize..30, 0.0f64..4_000.0, 0u8..12);
    (1usize..26, proptest::collection::vec(one, 0..60), any::<bool>(), 0.0f64..2_500.0).prop_map(
        |(l, odd, good, start)| {
            let mut script = Vec::new();
            if good {
                script.extend(good_cloud(l).into_iter().map(|(at, event)| (at + start - 300.0, event)));
            }
            for (i, at, kind) in odd {
                let event = match kind {
                    0 => mask_event(),
                    1 => first_event(l as u32),
                    2 if i == 0 => RelayEvent::CloudLost(CloudFault::Disconnected),
                    3 if i < 3 => end_event(EndReason::Cap, i),
                    4 if i < 3 => end_event(EndReason::Cancelled, i),
                    5 => RelayEvent::Timer,
                    _ => token_event(i),
                };
                script.push((at, event));
            }
            script
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_answer_ends_as_a_cloud_prefix_and_the_devices_rest(
        script in hostile_cloud(),
        refine in any::<bool>(),
        instant in any::<bool>(),
    ) {
        let pace = if instant { PaceMode::Instant } else { PaceMode::Paced };
        let mut sim = Sim::new(core(RelayConfig { refine, pace, ..config() }, 80), engine(50), script);
        let outcome = sim.run();
        prop_assert_eq!(&outcome.ending, &Ending::Stop);
        let cloud = outcome.timeline.tokens_from(Source::Cloud);
        prop_assert_eq!(outcome.answer, expected(cloud, 50));
        prop_assert!(sim.notes().len() <= 6, "{:?}", sim.notes());
        let sources: Vec<Source> = outcome.timeline.shown.iter().map(|s| s.source).collect();
        prop_assert!(sources.is_sorted_by_key(|s| *s == Source::Device), "cloud first, then device");
    }

    #[test]
    fn a_death_at_any_time_costs_nothing(at in 0.0f64..4_000.0, refine in any::<bool>()) {
        let mut script = good_cloud(26);
        script.push((at, RelayEvent::CloudLost(CloudFault::Disconnected)));
        let mut sim = Sim::new(core(RelayConfig { refine, ..config() }, 80), engine(50), script);
        let outcome = sim.run();
        let cloud = outcome.timeline.tokens_from(Source::Cloud);
        prop_assert_eq!(outcome.answer, expected(cloud, 50));
    }
}
