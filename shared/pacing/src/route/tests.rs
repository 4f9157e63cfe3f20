//! Checks choices against what the forecasts say, for many turns.

use super::*;
use crate::cost::{CloudCost, DeviceCost};
use crate::optimizer::{PromptShape, ScenePolicy, SlowDevice};
use proptest::prelude::*;

/// A turn about a document, asked on a phone of the demo's speed.
fn turn(content_tokens: u32) -> Turn {
    Turn {
        input: OptimizerInput {
            prompt: PromptShape { fixed_tokens: 60, content_tokens, prefix_tokens: 30, cached_tokens: 0 },
            device: DeviceCost {
                prefill_ms_per_token: 2.5,
                prefill_ms_per_token2: 0.0,
                decode_ms: 45.0,
                decompress_ms: 0.0,
            },
            cloud: CloudCost {
                ttft_base_ms: 60.0,
                prefill_ms_per_token: 0.1,
                decode_ms: 20.0,
                rtt_ms: 40.0,
                queue_ms: 0.0,
                compress_ms: 0.0,
            },
            scene: ScenePolicy {
                xi: 0.25,
                ratio: None,
                assist_tokens: None,
                assist_floor: 4,
                tau_ms: 100.0,
                answer_tokens_max: 512,
                slow_device: SlowDevice::AcceptGap,
            },
            load: 0.0,
        },
        is_cloud_known: true,
        device_room: 32_768.0,
        answer_tokens: 200.0,
        is_paced: true,
        request_bytes: 4.0 * f64::from(content_tokens),
        device_watts: None,
    }
}

fn chosen(turn: &Turn) -> Choice {
    choose(turn, &Weights::default()).unwrap()
}

fn of(choice: &Choice, route: Route) -> Forecast {
    *choice.forecasts.iter().find(|forecast| forecast.route == route).unwrap()
}

#[test]
fn long_documents_go_by_the_relay_and_short_questions_stay() {
    for (tokens, want) in [(20, Route::Device), (4_000, Route::Relay), (20_000, Route::Relay)] {
        let choice = chosen(&turn(tokens));
        assert_eq!((choice.route, choice.why), (want, Why::Least), "{tokens}: {choice:?}");
    }
    let relay = of(&chosen(&turn(4_000)), Route::Relay).outlook;
    let cloud = of(&chosen(&turn(4_000)), Route::Cloud).outlook;
    // 60 + 40 ms, and 0.1 ms for each of 4,060 tokens.
    assert!((relay.first_ms - 506.0).abs() < 1e-6, "{relay:?}");
    assert!((cloud.first_ms - 506.0).abs() < 1e-6, "{cloud:?}");
    assert!(relay.cloud_ms < 0.5 * cloud.cloud_ms && relay.gap_ms <= 100.0, "{relay:?} {cloud:?}");
}

#[test]
fn a_warm_turn_stays_on_the_device() {
    let mut warm = turn(4_000);
    warm.input.prompt.cached_tokens = 4_000;
    let choice = chosen(&warm);
    assert_eq!(choice.route, Route::Device);
    assert!((of(&choice, Route::Device).outlook.first_ms - 60.0 * 2.5).abs() < 1e-6);
}

#[test]
fn a_program_takes_the_route_that_ends_first_for_its_weight() {
    // Nobody reads along, and the device is slow at writing.
    let mut program = Turn { is_paced: false, ..turn(4_000) };
    program.input.device.decode_ms = 400.0;
    assert_eq!(chosen(&program).route, Route::Cloud);
}

#[test]
fn what_is_not_possible_is_not_chosen() {
    let unmeasured = Turn { is_cloud_known: false, ..turn(20) };
    let choice = chosen(&unmeasured);
    assert_eq!((choice.route, choice.why, choice.forecasts.len()), (Route::Relay, Why::Unmeasured, 1));
    // The refined prompt of 1,060 tokens fits, the whole one does not.
    let small = Turn { device_room: 2_000.0, ..turn(4_000) };
    assert_eq!(chosen(&small).forecasts.len(), 2);
    let smaller = Turn { device_room: 500.0, ..turn(4_000) };
    let choice = chosen(&smaller);
    assert_eq!((choice.route, choice.why), (Route::Cloud, Why::Only));
    // Of a prompt that does not fit whole, an unmeasured cloud is asked by the relay.
    let unmeasured = Turn { is_cloud_known: false, ..small };
    assert_eq!((chosen(&unmeasured).route, chosen(&unmeasured).why), (Route::Relay, Why::Unmeasured));
}

#[test]
fn a_metered_network_and_a_tired_device_change_the_choice() {
    // Of the shortest document that goes by the relay, it is only just worth it.
    let edge = (1..4_000).find(|tokens| chosen(&turn(*tokens)).route == Route::Relay).unwrap();
    let metered = Weights { kilobyte: 200.0, ..Weights::default() };
    assert_eq!(choose(&turn(edge), &metered).unwrap().route, Route::Device);
    let tired = Weights { device_wait: 2.0, ..Weights::default() };
    assert_ne!(choose(&turn(edge / 2 + 50), &tired).unwrap().route, Route::Device);
    // On a battery the cloud may write the rest, too.
    let battery = Turn { device_watts: Some(4.0), ..turn(4_000) };
    let saving = Weights { joule: 1_000.0, ..Weights::default() };
    assert_eq!(choose(&battery, &saving).unwrap().route, Route::Cloud);
}

proptest! {
    #[test]
    fn the_choice_has_the_least_weight_and_the_relay_shortens_the_wait(
        content in 0_u32..40_000, cached in 0_u32..40_000, prefill in 0.05_f64..5.0, square in 0.0_f64..1e-4,
        decode in 1.0_f64..90.0, cloud in 0.01_f64..1.0, cloud_decode in 1.0_f64..90.0, rtt in 0.0_f64..900.0,
        answer in 1.0_f64..600.0, is_paced: bool,
    ) {
        let mut turn = Turn { answer_tokens: answer, is_paced, ..turn(content) };
        turn.input.prompt.cached_tokens = cached.min(content + 60);
        turn.input.device = DeviceCost {
            prefill_ms_per_token: prefill, prefill_ms_per_token2: square, decode_ms: decode, decompress_ms: 1.0,
        };
        turn.input.cloud = CloudCost {
            prefill_ms_per_token: cloud, decode_ms: cloud_decode, rtt_ms: rtt, ..turn.input.cloud
        };
        turn.device_room = f64::INFINITY;
        let choice = chosen(&turn);
        prop_assert_eq!(choice.forecasts.len(), 3);
        let best = of(&choice, choice.route);
        for forecast in &choice.forecasts {
            let outlook = forecast.outlook;
            prop_assert!(best.weighted_ms <= forecast.weighted_ms);
            prop_assert!(forecast.weighted_ms.is_finite() && outlook.first_ms >= 0.0);
            prop_assert!(outlook.total_ms >= outlook.first_ms - 1e-6, "{:?}", forecast);
        }
        if is_paced && choice.route != Route::Device {
            let device = of(&choice, Route::Device);
            // A device that keeps tau makes nobody wait but for its first token.
            if decode <= 100.0 {
                prop_assert!(3.4 * best.outlook.first_ms <= device.outlook.first_ms + 1e-6);
            }
        }
    }
}
