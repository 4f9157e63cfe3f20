//! A head that is suspended or starved for a while.

use baton_engine::Wanted;

use super::home::{Home, node};
use super::*;

/// The head stops for a minute; time is the first that it notices.
fn stop(home: &mut Home) {
    home.now += Duration::from_secs(60);
    home.step(Event::Tick);
}

#[test]
fn a_head_that_stops_within_a_step_blames_nobody() {
    for at in 0..40 {
        let mut home = Home::connected(2, 7, 1, at);
        let seq = home.create();
        home.then = Some((at as usize, Box::new(stop)));
        let logits = home.batch(&[(seq, (0..70).collect(), Wanted::All)]);
        assert_eq!(logits.map(|logits| logits.len()), Ok(70));
        assert_eq!((home.core.present().len(), home.core.stats().recoveries), (2, 0), "after {at} events");
        assert!(home.core.stats().lost.is_empty());
    }
}

#[test]
fn a_head_that_stops_while_devices_enter_blames_nobody() {
    for at in 0..40 {
        let mut home = Home::new(2, 7, 1, at);
        home.then = Some((at as usize, Box::new(stop)));
        assert_eq!(home.run(Event::Connect(vec![node(1), node(2)])), Ok(Outputs::None));
        assert!(home.core.stats().lost.is_empty(), "after {at} events");
    }
}
