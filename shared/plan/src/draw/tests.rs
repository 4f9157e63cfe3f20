//! Drawings show every window, and no name breaks out of the markup.

use super::*;
use crate::sample::{cluster, device, model};
use crate::{Costs, SearchOptions, Workload, search};

fn planned() -> (Plan, Prediction) {
    let described = cluster(vec![device("a <b> & \"c\"", 5.0), device("second", 5.0)]);
    let shape = model(8);
    let workload = Workload { context: 64, sequences: 1 };
    let options = SearchOptions { rounds: Some(2), ..SearchOptions::default() };
    let plan = search(&described, &shape, workload, &options).unwrap();
    let prediction = Costs::new(&described, &shape, workload).unwrap().predict(&plan).unwrap();
    (plan, prediction)
}

#[test]
fn spans_follow_each_other_and_end_with_the_token() {
    let (plan, prediction) = planned();
    let spans = spans(&plan, &prediction);
    assert_eq!(spans.len(), 4);
    assert!(spans.windows(2).all(|pair| pair[0].end_s <= pair[1].begin_s));
    assert!((spans[3].end_s + prediction.devices[1].network_s / 2.0 - prediction.token_s).abs() < 1e-9);
}

#[test]
fn the_terminal_shows_a_row_for_each_device() {
    let (plan, prediction) = planned();
    let drawn = text(&plan, &prediction, 80);
    let lines: Vec<&str> = drawn.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.chars().count() <= 84), "{drawn}");
    assert!(lines[0].starts_with("a <b> & \"c\" |") && lines[1].contains('='), "{drawn}");
    assert!(lines[2].ends_with(" ms"), "{drawn}");
}

#[test]
fn the_picture_escapes_names_and_closes_what_it_opens() {
    let (plan, prediction) = planned();
    let drawn = svg(&plan, &prediction);
    assert!(drawn.contains("a &lt;b&gt; &amp; &quot;c&quot;") && !drawn.contains("<b>"));
    for tag in ["svg", "g", "title", "text"] {
        let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
        let opened = drawn.matches(&open).filter(|_| true).count();
        assert!(opened >= drawn.matches(&close).count() && drawn.contains(&close), "{tag}");
    }
    assert_eq!(drawn.matches("<g>").count(), plan.windows().len());
}
