//! Whose fault it is, and who leaves.

use super::*;

#[test]
fn what_devices_report_is_blamed_on_the_right_one() {
    use FailureCode::{Before, Busy, Engine, Next, Refused, Weights};
    let link = |place| Fault::Link { place, words: String::new() };
    let wrong = |place| Fault::Wrong { place, words: String::new() };
    let lost = |place| Fault::Lost { place, words: String::new() };
    let cases: [(&[(u8, FailureCode)], Fault); 13] = [
        (&[(1, Before)], link(1)),
        (&[(2, Before)], link(1)),
        (&[(1, Next)], link(2)),
        (&[(3, Next)], link(3)),
        (&[(1, Refused)], wrong(1)),
        (&[(3, Refused)], wrong(2)),
        (&[(2, Engine)], lost(2)),
        (&[(2, Weights)], lost(2)),
        (&[(2, Busy)], lost(2)),
        (&[(1, Next), (2, Engine)], lost(2)),
        (&[(1, Next), (3, Refused)], wrong(2)),
        (&[(1, Refused), (3, Engine)], wrong(1)),
        (&[(2, Before), (3, Before)], link(1)),
    ];
    let places = [device(1), device(2), device(3)];
    for (failures, want) in cases {
        let mut home = Home::of(3);
        assert_eq!(home.roster.trouble(&places, Epoch(5)), None);
        failures.iter().for_each(|(number, code)| home.fail(*number, 5, *code));
        let found = home.roster.trouble(&places, Epoch(5)).unwrap();
        assert_eq!(
            (found.place(), std::mem::discriminant(&found)),
            (want.place(), std::mem::discriminant(&want)),
            "{failures:?}: {found:?}"
        );
        home.hang_up(3, "cut");
        let gone = Fault::Lost { place: 3, words: "cut".to_owned() };
        assert_eq!(home.roster.trouble(&places, Epoch(5)), Some(gone), "a loss comes first");
    }
}

#[test]
fn a_place_whose_device_has_left_is_lost() {
    let home = Home::of(1);
    assert!(matches!(
        home.roster.trouble(&[device(1), device(2)], Epoch(1)),
        Some(Fault::Lost { place: 2, .. })
    ));
}

#[test]
fn a_stall_is_blamed_by_the_counts_of_frames() {
    let lost =
        |place: usize| Fault::Lost { place, words: format!("`d{place}` passed no frame on within 700 ms") };
    let link = |place: usize| Fault::Link { place, words: format!("a frame to or from `d{place}` was lost") };
    // Epoch, received, sent.
    type Counts = (u64, u64, u64);
    let cases: [([Counts; 3], Fault); 8] = [
        ([(5, 2, 1), (5, 1, 1), (5, 1, 1)], lost(1)),
        ([(5, 2, 2), (5, 2, 1), (5, 1, 1)], lost(2)),
        ([(5, 2, 2), (4, 9, 9), (5, 2, 2)], lost(2)),
        ([(5, 2, 2), (5, 1, 1), (5, 1, 1)], link(2)),
        ([(5, 2, 2), (5, 2, 2), (5, 1, 1)], link(3)),
        ([(5, 2, 2), (5, 2, 2), (5, 2, 2)], link(3)),
        ([(5, 0, 0), (5, 0, 0), (5, 0, 0)], link(1)),
        ([(0, 0, 0), (5, 0, 0), (5, 0, 0)], lost(1)),
    ];
    for (counts, want) in cases {
        let mut home = Home::of(3);
        for (number, (epoch, received, sent)) in (1..).zip(counts) {
            home.say(number, beat(epoch, received, sent));
        }
        let layout = Layout::of_plan(&plan(&[(0, 3), (1, 1), (2, 1), (3, 1)]).plan, &name(0), 6).unwrap();
        let places = vec![device(1), device(2), device(3)];
        let formed = Formed { epoch: Epoch(5), layout, places, out: None, back: None };
        assert_eq!(home.roster.stalled(&formed, Duration::from_millis(700)), want, "{counts:?}");
    }
}

#[test]
fn a_broken_link_is_forgiven_once_until_a_step_is_done() {
    let places = [device(1), device(2)];
    let link = Fault::Link { place: 2, words: "cut".to_owned() };
    for (planted, stays) in [(Planted::default(), true), (Planted::bug(Bug::StrikesKept), false)] {
        let mut home = Home::with(&setup(), planted);
        home.admit(&[1, 2]);
        home.roster.blame(&link, &places, &mut home.fx);
        home.roster.step_done();
        home.roster.blame(&link, &places, &mut home.fx);
        assert_eq!(home.roster.present().contains(&device(2)), stays);
    }
    let mut home = Home::of(2);
    home.roster.blame(&link, &places, &mut home.fx);
    home.roster.blame(&Fault::Link { place: 1, words: "cut".to_owned() }, &places, &mut home.fx);
    assert_eq!(home.roster.members(), 2, "one strike each");
    home.roster.blame(&link, &places, &mut home.fx);
    home.settle();
    assert_eq!(home.roster.present(), [device(1)]);
    assert_eq!((home.lost(), home.closed(home.control(2))), (vec!["d2: cut".to_owned()], 1));
    assert!(matches!(home.notes()[..], [Note::LinkBroke { .. }, Note::LinkBroke { .. }, Note::Left { .. }]));
    home.admit(&[2]);
    home.roster.blame(&link, &places, &mut home.fx);
    assert_eq!(home.roster.members(), 2, "who comes back begins anew");
}

#[test]
fn certain_faults_are_blamed_at_once_and_never_on_the_head() {
    let places = [device(1), device(2)];
    let mut home = Home::of(2);
    home.roster.blame(&Fault::Wrong { place: 0, words: String::new() }, &places, &mut home.fx);
    home.roster.blame(&Fault::Lost { place: 7, words: String::new() }, &places, &mut home.fx);
    assert_eq!(home.roster.members(), 2);
    home.roster.blame(&Fault::Wrong { place: 1, words: "NaN".into() }, &places, &mut home.fx);
    assert_eq!(home.roster.present(), [device(2)]);
    home.hang_up(2, "cut");
    home.roster.blame(&Fault::Lost { place: 2, words: "cut".into() }, &places, &mut home.fx);
    home.settle();
    assert_eq!(home.closed(home.control(2)), 0, "its channel had ended");
    assert_eq!(home.lost(), ["d1: NaN", "d2: cut"]);
    assert_eq!(home.roster.missing().as_deref(), Some("`d1` (NaN), `d2` (cut)"));
    home.admit(&[1]);
    assert_eq!(home.roster.missing().as_deref(), Some("`d2` (cut)"));
}

#[test]
fn devices_that_leave_again_are_no_loss() {
    let mut home = Home::of(3);
    assert!(home.roster.leave(&[device(2), device(9)], &mut home.fx));
    assert!(!home.roster.leave(&[device(2)], &mut home.fx));
    home.settle();
    assert_eq!((home.closed(home.control(2)), home.lost().len()), (1, 0));
    assert_eq!((home.roster.missing(), home.roster.members()), (None, 2));
}

#[test]
fn of_many_losses_the_latest_are_kept() {
    let mut home = Home::new();
    for at in 0..100 {
        home.roster.record(format!("d{at}"), String::new());
    }
    assert_eq!((home.lost().len(), home.lost()[0].as_str()), (LOST_MAX, "d36: "));
}
