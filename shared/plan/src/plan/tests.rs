//! Windows cover every layer once, whatever the shares.

use super::*;
use crate::sample::Draw;

fn plan(rounds: usize, layers: &[usize]) -> Plan {
    let share = |(at, layers): (usize, &usize)| Share {
        device: format!("d{at}"),
        layers: *layers,
        gpu_layers: layers / 2,
        prefetch_bytes: 0.0,
        relays: Vec::new(),
    };
    Plan { layers: layers.iter().sum(), rounds, shares: layers.iter().enumerate().map(share).collect() }
}

#[test]
fn windows_of_a_small_plan() {
    let windows: Vec<_> =
        plan(2, &[3, 2]).windows().iter().map(|w| (w.round, w.place, w.begin, w.end)).collect();
    assert_eq!(windows, [(0, 0, 0, 1), (0, 1, 1, 2), (1, 0, 2, 4), (1, 1, 4, 5)]);
}

#[test]
fn windows_cover_each_layer_once_and_are_even() {
    let mut draw = Draw::new(1);
    for _ in 0..500 {
        let rounds = draw.count(1, 9);
        let layers: Vec<usize> = (0..draw.count(1, 6))
            .map(|at| if at == 0 { draw.count(0, 30) } else { draw.count(rounds, 40) })
            .collect();
        let plan = plan(rounds, &layers);
        if plan.layers == 0 {
            continue;
        }
        assert!(plan.is_whole(), "{plan:?}");
        let windows = plan.windows();
        for (place, share) in plan.shares.iter().enumerate() {
            let own: Vec<_> = windows.iter().filter(|window| window.place == place).collect();
            let widths: Vec<usize> = own.iter().map(|window| window.end - window.begin).collect();
            assert_eq!(widths.iter().sum::<usize>(), share.layers);
            assert_eq!(own.iter().map(|window| window.gpu).sum::<usize>(), share.gpu_layers);
            if let (Some(least), Some(most)) = (widths.iter().min(), widths.iter().max()) {
                assert!(most - least <= 1 && *most == plan.widest(place), "{plan:?}");
            }
        }
    }
}
