//! Who comes: greeting, paths between members, weights before a part.

use super::*;

#[test]
fn a_device_whose_path_is_known_is_in_after_the_latency_was_checked() {
    let mut home = Home::of(1);
    let echoes =
        home.sent(home.control(1)).into_iter().filter(|frame| matches!(frame, Frame::Echo(_))).count();
    assert_eq!(echoes, 5, "no rates");
    assert!(!home.effects.iter().any(|effect| matches!(effect, Effect::KeepWays)));
    assert_eq!(home.roster.present(), [device(1)]);
    assert_eq!(home.sent(home.control(1)).last(), Some(&&Frame::Heartbeat(Heartbeat::default())), "at once");
    home.leap(HEARTBEAT);
    assert!(home.notes().is_empty() && home.closed(home.control(1)) == 0);
}

#[test]
fn an_unknown_path_is_measured_and_kept() {
    let mut home = unknown();
    home.admit(&[1]);
    assert!(home.roster.ways().knows(device(0), device(1)));
    let keeps = home.effects.iter().filter(|effect| matches!(effect, Effect::KeepWays)).count();
    assert_eq!(keeps, 1);
    assert_eq!(home.roster.plan_for().network.edges.len(), 2);
}

#[test]
fn a_device_that_answers_no_echoes_is_greeted_once_more_without_them() {
    let mut home = unknown();
    home.echoes = false;
    home.greet(1, true);
    let first = home.control(1);
    home.open(1);
    home.say(1, Frame::Hello(hello(1)));
    assert!(matches!(home.sent(first)[..], [Frame::Echo(_)]));
    assert_eq!(home.roster.wake_at(), Some(home.now + SECOND * 3));
    home.leap(SECOND * 3);
    let second = home.control(1);
    assert!(second != first && home.closed(first) == 1 && !home.roster.owns(first));
    assert!(matches!(&home.notes()[..], [Note::NotMeasured { device, .. }] if *device == "address 1"));
    home.open(1);
    home.say(1, Frame::Hello(hello(1)));
    assert_eq!(home.admitted(), Ok(vec![device(1)]));
    assert!(!home.sent(second).iter().any(|frame| matches!(frame, Frame::Echo(_))));
    assert!(!home.roster.ways().knows(device(0), device(1)));
}

#[test]
fn a_wrong_answer_and_a_channel_that_ends_while_measuring_count_as_no_answer() {
    let wrong = Frame::Echoed(EchoData { number: 9, reply: 0, bytes: Vec::new() });
    for frame in [Some(wrong), Some(Frame::FetchManifest), None] {
        let mut home = unknown();
        home.echoes = false;
        home.greet(1, true);
        home.open(1);
        home.say(1, Frame::Hello(hello(1)));
        home.say(1, beat(0, 0, 0));
        let first = home.control(1);
        let closes = usize::from(frame.is_some());
        match frame {
            Some(frame) => home.say(1, frame),
            None => home.hang_up(1, "cut"),
        }
        assert_eq!((home.controls(1), home.closed(first)), (2, closes), "a channel that ended is not closed");
        assert_eq!(home.admitted_later(1), Ok(vec![device(1)]));
    }
}

impl Home {
    fn admitted_later(&mut self, number: u8) -> Result<Vec<DeviceId>, String> {
        self.open(number);
        self.say(number, Frame::Hello(hello(number)));
        self.admitted()
    }
}

#[test]
fn devices_that_do_not_introduce_themselves_are_left_out() {
    let failed = Failure { epoch: Epoch(0), code: FailureCode::Busy, words: "it serves another".to_owned() };
    let cases: [(Script<'_>, &str, usize); 5] = [
        (
            &|home| {
                let link = home.control(1);
                home.roster.opened(link, Err("no route".to_owned()), home.now, &mut home.fx);
            },
            "no route",
            0,
        ),
        (
            &|home| {
                home.open(1);
                home.leap(PATIENCE)
            },
            "nothing within the time limit",
            1,
        ),
        (
            &|home| {
                home.open(1);
                home.say(1, Frame::Failed(failed.clone()))
            },
            "a device refuses: it serves another",
            1,
        ),
        (
            &|home| {
                home.open(1);
                home.say(1, Frame::Provided)
            },
            "the other device refuses",
            1,
        ),
        (
            &|home| {
                home.open(1);
                home.hang_up(1, "cut")
            },
            "cut",
            0,
        ),
    ];
    for (at, (script, words, closed)) in cases.into_iter().enumerate() {
        let mut home = Home::new();
        home.greet(1, true);
        script(&mut home);
        home.settle();
        assert_eq!(home.admitted(), Ok(vec![]), "case {at}");
        let note = Note::NotIn { address: "address 1".to_owned(), words: words.to_owned() };
        assert_eq!(home.notes(), [&note], "case {at}");
        assert_eq!(home.closed(home.control(1)), closed, "case {at}");
        assert!(home.roster.present().is_empty() && home.roster.lost().next().is_none());
    }
}

#[test]
fn heartbeats_before_the_introduction_mean_nothing() {
    let mut home = Home::new();
    home.greet(1, true);
    home.open(1);
    (0..20).for_each(|_| home.say(1, beat(3, 1, 1)));
    home.say(1, Frame::Hello(hello(1)));
    assert_eq!(home.admitted(), Ok(vec![device(1)]));
    assert_eq!(home.roster.beat(device(1)), Some(&Heartbeat::default()));
}

#[test]
fn devices_are_greeted_one_after_the_other_and_all_may_open_links() {
    let mut home = Home::new();
    home.roster.begin_admit(vec![node(1), node(2)], true);
    for number in [1, 2] {
        assert_eq!(home.roster.admit(&mut home.fx), Progress::Waiting);
        assert_eq!(home.roster.admit(&mut home.fx), Progress::Waiting, "the same one");
        home.settle();
        assert_eq!((home.controls(1), home.controls(2)), (1, usize::from(number - 1)));
        home.open(number);
        home.say(number, Frame::Hello(hello(number)));
    }
    assert_eq!(home.admitted(), Ok(vec![device(1), device(2)]));
    let allowed: Vec<&Vec<DeviceId>> = home
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Link(LinkEffect::Allow(devices)) => Some(devices),
            _ => None,
        })
        .collect();
    assert_eq!(allowed, [&vec![device(1)], &vec![device(1), device(2)]]);
}

#[test]
fn a_name_that_two_devices_have_ends_the_first_admission_and_is_later_a_note() {
    for (taken, strict) in [(name(0), true), (name(1), true), (name(1), false)] {
        let mut home = Home::of(1);
        home.roster.begin_admit(vec![node(2), node(3)], strict);
        assert_eq!(home.roster.admit(&mut home.fx), Progress::Waiting);
        home.settle();
        home.open(2);
        home.say(2, Frame::Hello(Hello { name: taken.clone(), device: None }));
        assert_eq!(home.closed(home.control(2)), 1);
        if strict {
            assert_eq!(home.admitted(), Err(taken));
            assert_eq!(home.admitted(), Ok(vec![]), "nobody is greeted after that");
        } else {
            assert_eq!(home.roster.admit(&mut home.fx), Progress::Waiting);
            home.settle();
            assert!(matches!(&home.notes()[..], [Note::NotIn { words, .. }] if words.contains("`d1`")));
            assert_eq!(home.admitted_later(3), Ok(vec![device(3)]));
        }
        assert!(!home.roster.present().contains(&device(2)));
    }
}

#[test]
fn barred_devices_and_those_that_are_there_are_not_greeted() {
    let mut home = Home::of(2);
    let failure = Failure { epoch: Epoch(4), code: FailureCode::Engine, words: "wrong".to_owned() };
    home.roster.distrust(device(2), failure.clone(), &mut home.fx);
    home.roster.blame(
        &Fault::Wrong { place: 2, words: "wrong".into() },
        &[device(1), device(2)],
        &mut home.fx,
    );
    home.settle();
    assert_eq!(home.told(2), [&Frame::Failed(failure)]);
    assert_eq!((home.roster.present(), home.closed(home.control(2))), (vec![device(1)], 1));
    home.roster.begin_admit(vec![node(1), node(2)], true);
    assert_eq!(home.admitted(), Ok(vec![]));
    home.settle();
    assert_eq!((home.controls(1), home.controls(2)), (1, 1));
    assert_eq!(home.notes().last(), Some(&&Note::Barred { address: "address 2".to_owned() }));
}

#[test]
fn a_lost_device_that_comes_back_takes_its_own_place() {
    let mut home = Home::of(2);
    home.hang_up(1, "cut");
    home.admit(&[1]);
    assert_eq!(home.roster.present(), [device(2), device(1)]);
    assert!(home.roster.trouble(&[device(1), device(2)], Epoch(1)).is_none());
    assert_eq!(home.closed(home.control(1)), 0);
}

// Pairs.

#[test]
fn unknown_paths_between_members_are_measured_one_after_the_other_and_once() {
    let mut home = unknown();
    home.admit(&[1, 2, 3]);
    for (a, b) in [(1, 2), (1, 3), (2, 3)] {
        assert_eq!(home.roster.pairs(home.now, &mut home.fx), Progress::Waiting);
        home.settle();
        assert_eq!(home.told(b).last(), Some(&&Frame::AwaitEdge { from: device(a) }));
        assert_eq!(home.told(a).last(), Some(&&Frame::MeasureEdge(node(b))));
        assert_eq!(home.roster.pairs(home.now, &mut home.fx), Progress::Waiting);
        let other = MeasuredLink { to: device(9), speed: Some(speed(1e6)) };
        home.say(a, Frame::Edge(other));
        assert_eq!(home.roster.pairs(home.now, &mut home.fx), Progress::Waiting, "another path");
        home.say(a, Frame::Edge(MeasuredLink { to: device(b), speed: Some(speed(1e6)) }));
    }
    assert_eq!(home.roster.pairs(home.now, &mut home.fx), Progress::Done(()));
    assert!(home.roster.ways().knows(device(2), device(3)) && home.notes().is_empty());
    assert_eq!(home.roster.plan_for().network.edges.len(), 12);
}

#[test]
fn a_pair_that_cannot_measure_is_not_asked_again() {
    let cases: [Script<'_>; 4] = [
        &|home| home.say(1, Frame::Edge(MeasuredLink { to: device(2), speed: None })),
        &|home| home.now += SECOND * 6,
        &|home| home.hang_up(1, "cut"),
        &|home| home.hang_up(2, "cut"),
    ];
    for (at, script) in cases.into_iter().enumerate() {
        let mut home = unknown();
        home.admit(&[1, 2]);
        assert_eq!(home.roster.pairs(home.now, &mut home.fx), Progress::Waiting);
        script(&mut home);
        assert_eq!(home.roster.pairs(home.now, &mut home.fx), Progress::Done(()), "case {at}");
        home.settle();
        let note = Note::PairNotMeasured { from: name(1), to: name(2) };
        assert_eq!(home.notes(), [&note], "case {at}");
        assert!(!home.roster.ways().knows(device(1), device(2)));
        assert_eq!(home.roster.pairs(home.now, &mut home.fx), Progress::Done(()));
    }
}

#[test]
fn paths_are_measured_among_the_first_eight_members() {
    let mut home = unknown();
    home.admit(&(1..=10).collect::<Vec<_>>());
    let mut asked = 0;
    while home.roster.pairs(home.now, &mut home.fx) == Progress::Waiting {
        asked += 1;
        home.now += SECOND * 6;
    }
    assert_eq!(asked, 28);
}

// Devices that join.

#[test]
fn of_one_device_the_latest_address_counts() {
    let mut home = Home::new();
    home.roster.join(node(1));
    home.roster.join(node(2));
    let moved = Node { address: "elsewhere".to_owned(), ..node(1) };
    home.roster.join(moved.clone());
    assert_eq!(home.roster.joining(), [device(2), device(1)]);
    assert_eq!(home.roster.take_newcomers(), [node(2), moved]);
    assert!(home.roster.joining().is_empty());
}

#[test]
fn with_an_adapter_the_head_stays_alone() {
    let mut home = Home::of(1);
    assert_eq!(home.roster.plan_for().workers, [hello(1)]);
    home.roster.adapter_came();
    home.roster.join(node(2));
    assert!(home.roster.take_newcomers().is_empty());
    assert_eq!(home.roster.joining(), [device(2)], "it waits");
    assert!(home.roster.plan_for().workers.is_empty());
}

/// Devices 1 and 2 are members; 3 and 4 fetch their weights.
fn fetching() -> Home {
    let mut home = Home::of(4);
    let layout = Layout::of_plan(&plan(&[(0, 1), (3, 2), (1, 1), (4, 2)]).plan, &name(0), 6).unwrap();
    home.roster.provide(&[device(3), device(4)], &layout, home.now, &mut home.fx);
    home.settle();
    home
}

#[test]
fn devices_that_come_are_told_what_to_fetch_and_members_to_let_them() {
    let mut home = fetching();
    let others = vec![node(1), node(2)];
    for (number, layers) in [(3, vec![1, 2]), (4, vec![4, 5])] {
        let provide = Provide { model: [7; 32], layers, others: others.clone() };
        assert_eq!(home.told(number), [&Frame::Provide(Box::new(provide))]);
    }
    for number in [1, 2] {
        let await_edges = [3, 4].map(|from| Frame::AwaitEdge { from: device(from) });
        assert_eq!(home.told(number), await_edges.iter().collect::<Vec<_>>());
    }
    assert_eq!(home.roster.fetching(), [name(3), name(4)]);
    assert_eq!((home.roster.members(), home.roster.plan_for().workers.len()), (2, 2));
    assert_eq!(home.roster.present().len(), 4);
    home.roster.join(node(5));
    assert!(home.roster.take_newcomers().is_empty(), "one plan for all that fetch");
}

#[test]
fn devices_become_members_when_all_of_them_have_their_weights() {
    let mut home = fetching();
    assert!(home.roster.welcome(home.now, &mut home.fx).is_empty());
    home.say(3, Frame::Provided);
    assert!(home.roster.welcome(home.now, &mut home.fx).is_empty(), "one still fetches");
    home.say(4, Frame::Provided);
    home.now += SECOND * 1000;
    assert_eq!(home.roster.welcome(home.now, &mut home.fx), [device(3), device(4)]);
    assert_eq!((home.roster.members(), home.roster.fetching().len()), (4, 0));
    assert!(home.roster.welcome(home.now, &mut home.fx).is_empty(), "once");
    assert!(home.lost().is_empty());
}

#[test]
fn a_device_that_does_not_get_its_weights_leaves() {
    let quiet = |home: &mut Home| home.now += SECOND * 121;
    let fed = |home: &mut Home| {
        // 4 of 6 layers and the header, moved twice at 256 kB/s, and 120 s: 33 s more.
        for _ in 0..16 {
            home.now += SECOND * 10;
            home.say(3, Frame::FetchProgress);
        }
    };
    let cases: [(Script<'_>, &str, bool); 4] = [
        (&|home| home.hang_up(3, "cut"), "cut", false),
        (&|home| home.fail(3, 0, FailureCode::Weights), "Weights", true),
        (&quiet, "got no weights for 120 s", true),
        (&fed, "it took too long to get its weights", true),
    ];
    for (script, words, closed) in cases {
        let mut home = fetching();
        home.say(4, Frame::Provided);
        script(&mut home);
        assert_eq!(home.roster.welcome(home.now, &mut home.fx), [device(4)], "{words}");
        home.settle();
        assert_eq!(home.lost(), [format!("d3: {words}")]);
        assert_eq!(home.closed(home.control(3)), usize::from(closed));
        assert!(matches!(home.notes().last(), Some(Note::LeftBefore { .. })));
    }
}

#[test]
fn a_device_that_is_fed_has_its_time() {
    let mut home = fetching();
    for _ in 0..15 {
        home.now += SECOND * 10;
        home.say(3, Frame::FetchProgress);
        home.say(4, Frame::FetchProgress);
        assert!(home.roster.welcome(home.now, &mut home.fx).is_empty() && home.lost().is_empty());
    }
}
