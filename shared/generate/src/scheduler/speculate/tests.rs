//! The numbers of the controller of one answer, and properties of many answers.

use baton_random::SplitMix64;

use super::*;

const ALL: Spare = Spare { blocks: 1000, block: 32 };

fn limits(policy: Policy, slope: f64) -> SpeculationLimits {
    SpeculationLimits { slope, ..SpeculationLimits::lookup(policy) }
}

fn candidate(acceptance: &Acceptance, arrival: u64) -> Candidate<'_> {
    Candidate { acceptance, arrival, most: K_MAX, in_block: 1000 }
}

/// Returns a number in `0.0..1.0`.
fn unit(rng: &mut SplitMix64) -> f64 {
    rng.remainder(1 << 20) as f64 / f64::from(1 << 20)
}

/// Plans for answers of equal room.
fn plan(proposing: &mut Proposing, owns: &[Acceptance], tries: bool) -> Vec<usize> {
    let answers: Vec<Candidate<'_>> =
        owns.iter().enumerate().map(|(at, own)| candidate(own, at as u64)).collect();
    proposing.plan(&answers, ALL, tries)
}

/// Observes a pass in which every answer got `numbers`, of which `accepted` were right.
fn observe(
    proposing: &mut Proposing,
    owns: &mut [Acceptance],
    numbers: &[usize],
    accepted: &[usize],
    ms: f64,
) {
    let (batch, sum) = (owns.len(), numbers.iter().sum());
    proposing.begin_pass(batch, sum);
    for (own, (&number, &right)) in owns.iter_mut().zip(numbers.iter().zip(accepted)) {
        proposing.observe(batch, own, number, right);
    }
    proposing.took(batch, sum, ms);
}

/// How often a controller that knew only one answer at a time proposed 0 to 8 tokens in all.
const RECORDED: [usize; K_MAX + 1] = [96_914, 25_128, 76_052, 16_287, 6_757, 4_952, 3_138, 1_620, 3_512];

#[test]
fn answers_one_after_another_get_the_numbers_of_the_controller_of_one() {
    let mut numbers = [0; K_MAX + 1];
    for seed in 0..200 {
        let mut rng = SplitMix64::new(seed);
        let policy = if seed % 4 == 0 { Policy::Always } else { Policy::WhenItPays };
        let slope = 0.05 + 0.4 * unit(&mut rng);
        let mut new = Proposing::new(limits(policy, slope));
        let machine = 2.0 * unit(&mut rng) * unit(&mut rng);
        for _ in 0..8 {
            let mut own = [new.begin()];
            let share = unit(&mut rng);
            let found = unit(&mut rng) < 0.7;
            for _ in 0..1 + rng.remainder(300) {
                let k = plan(&mut new, &own, true)[0];
                numbers[k] += 1;
                let proposed = if found { k } else { rng.remainder(k + 1) };
                let accepted = (0..proposed).take_while(|_| unit(&mut rng) < share).count();
                let ms = 10.0 * (1.0 + machine * proposed as f64) * (0.8 + 0.4 * unit(&mut rng));
                observe(&mut new, &mut own, &[proposed], &[accepted], ms);
            }
        }
    }
    assert_eq!(numbers, RECORDED);
}

/// Returns the gain of these numbers, by definition.
fn gain(proposing: &Proposing, shares: &[f64], numbers: &[usize]) -> f64 {
    let tokens = |(a, k): (&f64, &usize)| (0..=*k).map(|i| a.powi(i as i32)).sum::<f64>();
    let written: f64 = shares.iter().zip(numbers).map(tokens).sum();
    written / (shares.len() as f64 * proposing.cost(shares.len(), numbers.iter().sum()))
}

/// Returns all numbers up to `most` for each answer.
fn all_numbers(answers: usize, most: usize) -> Vec<Vec<usize>> {
    (0..answers).fold(vec![vec![]], |heads, _| {
        let longer = |head: Vec<usize>| (0..=most).map(move |k| [&head[..], &[k]].concat());
        heads.into_iter().flat_map(longer).collect()
    })
}

#[test]
fn the_best_numbers_are_found_without_looking_at_all() {
    for seed in 0..400 {
        let mut rng = SplitMix64::new(seed);
        let (batch, most) = (1 + rng.remainder(3), 1 + rng.remainder(4));
        let proposed_max = 1 + rng.remainder(9);
        let limits = SpeculationLimits { proposed_max, ..limits(Policy::WhenItPays, 0.05) };
        let mut proposing = Proposing::new(limits);
        for sum in 0..=proposed_max {
            if rng.remainder(2) == 0 {
                proposing.took(batch, sum, 10.0 + sum as f64 * 4.0 * unit(&mut rng));
            }
        }
        let owns: Vec<Acceptance> = (0..batch)
            .map(|_| Acceptance { tried: 30.0, right: 30.0 * unit(&mut rng), ..Acceptance::new() })
            .collect();
        let answers: Vec<Candidate<'_>> = owns
            .iter()
            .map(|own| Candidate { acceptance: own, arrival: 0, most, in_block: rng.remainder(4) })
            .collect();
        let shares: Vec<f64> = owns.iter().map(Acceptance::share).collect();
        let (numbers, found) = proposing.allot(&answers, ALL);
        let allowed = |numbers: &Vec<usize>| {
            let sum = numbers.iter().sum::<usize>();
            (1..=proposed_max).contains(&sum) && (batch == 1 || proposing.cost(batch, sum) <= STALL_MAX)
        };
        let all = all_numbers(batch, most);
        let best = all
            .iter()
            .filter(|numbers| allowed(numbers))
            .map(|numbers| gain(&proposing, &shares, numbers))
            .fold(0.0, f64::max);
        assert!((found - best).abs() < 1e-9, "seed {seed}: {found} of {best} by {numbers:?}");
        if found > 0.0 {
            assert!((gain(&proposing, &shares, &numbers) - best).abs() < 1e-9, "seed {seed}: {numbers:?}");
        }
        let spare = Spare { blocks: rng.remainder(3), block: 2 };
        let (numbers, _) = proposing.allot(&answers, spare);
        assert!(spare.holds(&answers, &numbers), "seed {seed}: {numbers:?} in {spare:?}");
    }
}

/// Runs passes of answers whose proposals are right with these shares. A row costs `slope` plain passes of
/// one answer. Returns the time in plain passes, and the tokens of each answer.
fn run(
    proposing: &mut Proposing,
    owns: &mut [Acceptance],
    shares: &[f64],
    slope: f64,
    passes: usize,
) -> (f64, Vec<usize>, usize) {
    let mut rng = SplitMix64::new(7);
    let (mut time, mut tokens, mut tries) = (0.0, vec![0; owns.len()], 0);
    let plain = 1.0 + slope * owns.len() as f64;
    for _ in 0..passes {
        let numbers = plan(proposing, owns, true);
        let sum: usize = numbers.iter().sum();
        assert!(sum <= proposing.limits.proposed_max, "{numbers:?}");
        let accepted: Vec<usize> = numbers
            .iter()
            .zip(shares)
            .map(|(&k, &share)| (0..k).take_while(|_| unit(&mut rng) < share).count())
            .collect();
        for (tokens, accepted) in tokens.iter_mut().zip(&accepted) {
            *tokens += accepted + 1;
        }
        tries += usize::from(sum > 0);
        let took = plain + slope * sum as f64;
        time += took / plain;
        observe(proposing, owns, &numbers, &accepted, 10.0 * took);
    }
    (time, tokens, tries)
}

#[test]
fn worthless_proposals_cost_little_however_many_answers_there_are() {
    for batch in [1, 2, 8] {
        let mut proposing = Proposing::new(limits(Policy::WhenItPays, 0.1));
        let mut owns = vec![proposing.begin(); batch];
        let shares = vec![0.0; batch];
        run(&mut proposing, &mut owns, &shares, 0.1, 100);
        let (time, _, tries) = run(&mut proposing, &mut owns, &shares, 0.1, 2000);
        assert!(time <= 2000.0 * 1.03, "{batch} answers: {time}");
        assert!(tries <= 2000 / 16, "{batch} answers: {tries} passes with proposals");
    }
}

#[test]
fn one_answer_tries_at_a_time_and_each_in_its_turn() {
    let mut proposing = Proposing::new(limits(Policy::WhenItPays, 0.1));
    // Hardly anything was right so far.
    let mut owns = vec![Acceptance { tried: 30.0, ..proposing.begin() }; 3];
    let mut tried: Vec<usize> = Vec::new();
    for _ in 0..60 {
        let numbers = plan(&mut proposing, &owns, true);
        let trying: Vec<usize> = (0..3).filter(|&at| numbers[at] > 0).collect();
        assert!(trying.len() <= 1, "{numbers:?}");
        tried.extend(&trying);
        let sum = numbers.iter().sum::<usize>();
        assert_eq!(plan(&mut proposing, &owns, false), [0, 0, 0], "no tries while somebody waits");
        let ms = 10.0 * (1.0 + 0.45 * sum as f64);
        observe(&mut proposing, &mut owns, &numbers, &[0, 0, 0], ms);
    }
    assert!(tried.len() >= 3 && tried[..3] == [0, 1, 2], "{tried:?}");
}

#[test]
fn what_is_right_is_proposed_and_the_rest_is_not() {
    let mut proposing = Proposing::new(limits(Policy::WhenItPays, 0.1));
    let mut owns = vec![proposing.begin(); 4];
    let shares = [0.9, 0.02, 0.02, 0.9];
    run(&mut proposing, &mut owns, &shares, 0.05, 400);
    let (time, tokens, _) = run(&mut proposing, &mut owns, &shares, 0.05, 1000);
    assert!(tokens[0] > 2500 && tokens[3] > 2500, "{tokens:?}");
    assert!(tokens[1] < 1100 && tokens[2] < 1100, "{tokens:?}");
    let rate = tokens.iter().sum::<usize>() as f64 / (4.0 * time);
    assert!(rate > 1.5, "{rate} of plain decoding");
}

#[test]
fn nobody_waits_twice_as_long_for_others_proposals() {
    let mut proposing = Proposing::new(limits(Policy::WhenItPays, 0.1));
    let owns = vec![Acceptance { tried: 30.0, right: 30.0, ..Acceptance::new() }; 2];
    for (sum, ms) in [(0, 10.0), (0, 10.0), (4, 19.0), (8, 40.0)] {
        proposing.begin_pass(2, sum);
        proposing.took(2, sum, ms);
    }
    let sum: usize = plan(&mut proposing, &owns, true).iter().sum();
    assert_eq!(sum, 4, "the cost of 5 is 2.4");
}

#[test]
fn the_other_policy_proposes_to_everybody() {
    for batch in 1..=limits(Policy::Always, 0.35).batch_max {
        let mut proposing = Proposing::new(limits(Policy::Always, 0.35));
        let mut owns = vec![proposing.begin(); batch];
        let (_, tokens, tries) = run(&mut proposing, &mut owns, &vec![0.0; batch], 2.0, 200);
        assert_eq!((tokens, tries), (vec![200; batch], 200));
        let numbers = plan(&mut proposing, &owns, false);
        assert!(numbers.iter().all(|&k| k >= TRY_K), "{numbers:?}");
    }
    let mut proposing = Proposing::new(limits(Policy::Always, 0.35));
    let more = proposing.limits.batch_max + 1;
    let owns = vec![proposing.begin(); more];
    assert_eq!(plan(&mut proposing, &owns, true), vec![0; more], "more answers fill the machine");
    assert!(proposing.plan(&[], ALL, true).is_empty());
    let full = Candidate { in_block: 1, ..candidate(&owns[0], 0) };
    let numbers = proposing.plan(&[full], Spare { blocks: 0, block: 32 }, true);
    assert_eq!(numbers, [1], "as far as there is room");
}

#[test]
fn measured_costs_are_believed_and_lines_drawn_between_them() {
    let mut proposing = Proposing::new(limits(Policy::WhenItPays, 0.1));
    assert_eq!((proposing.cost(1, 0), proposing.cost(1, 4), proposing.cost(3, 4)), (1.0, 1.4, 1.4));
    proposing.took(2, 0, 20.0);
    assert!((proposing.cost(2, 3) - 1.3).abs() < 1e-9, "a pass of one answer is not known");
    for (sum, ms) in [(0, 10.0), (2, 20.0), (6, 40.0)] {
        proposing.took(1, sum, ms);
    }
    for (sum, want) in [(0, 1.0), (1, 1.5), (2, 2.0), (4, 3.0), (6, 4.0), (8, 4.2)] {
        assert!((proposing.cost(1, sum) - want).abs() < 1e-9, "{sum}: {}", proposing.cost(1, sum));
    }
    assert!((proposing.cost(2, 3) - 1.15).abs() < 1e-9, "a token costs 1 ms, a pass of two 20");
    assert_eq!(proposing.took(1, 2, f64::NAN), None);
    assert_eq!(proposing.took(1, 2, 0.0), None);
    assert_eq!((proposing.cost(1, 2), proposing.took(9, 0, 5.0)), (2.0, None));
}
