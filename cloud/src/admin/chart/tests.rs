//! Tests of charts, which read their SVG.

use super::*;

fn chart(points: Vec<(f64, f64)>) -> Chart {
    Chart {
        id: "c",
        title: "TTFT <d> & co".to_owned(),
        description: "It \"rises\".".to_owned(),
        x: Axis::new("r", "", 0.0, 1.0),
        y: Axis::from_zero("TTFT_d", "ms", 1000.0),
        decimals: (2, 0),
        lines: vec![Line::new("phone", points)],
        region: None,
        marks: Vec::new(),
        chosen: None,
    }
}

/// Returns the points of the first `<polyline>`.
fn drawn(svg: &str) -> Vec<(f64, f64)> {
    const MARK: &str = "class=\"line s0\" points=\"";
    let start = svg.find(MARK).expect("a line") + MARK.len();
    let points = &svg[start..start + svg[start..].find('"').expect("an end")];
    let number = |text: &str| text.parse::<f64>().expect("a number");
    points
        .split(' ')
        .map(|point| point.split_once(',').expect("x,y"))
        .map(|(x, y)| (number(x), number(y)))
        .collect()
}

#[test]
fn points_stand_where_the_axes_say() {
    let svg = chart(vec![(0.0, 0.0), (0.5, 500.0), (1.0, 1000.0)]).svg();
    let points = drawn(&svg);
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for ((x, y), (want_x, want_y)) in points.into_iter().zip([
        (LEFT, bottom),
        (f64::midpoint(LEFT, right), f64::midpoint(TOP, bottom)),
        (right, TOP),
    ]) {
        assert!((x - want_x).abs() <= 0.06 && (y - want_y).abs() <= 0.06, "{x},{y} is not {want_x},{want_y}");
    }
}

#[test]
fn texts_are_escaped_and_nothing_is_styled_inline() {
    let mut chart = chart(vec![(0.0, 1.0), (1.0, f64::INFINITY)]);
    chart.marks.push(Mark { across: Across::Y, value: 100.0, text: "<script>".to_owned() });
    chart.chosen = Some((0.25, 300.0, "r 0.25 & L 9".to_owned()));
    chart.region = Some(Region { from: 0.25, to: 9.0, name: "feasible".to_owned() });
    let svg = chart.svg();
    for want in ["TTFT &lt;d&gt; &amp; co", "It &quot;rises&quot;.", "&lt;script&gt;", "r 0.25 &amp; L 9"] {
        assert!(svg.contains(want), "{want}: {svg}");
    }
    for never in ["style=", "<script", "onload", "NaN", "inf"] {
        assert!(!svg.contains(never), "{never}: {svg}");
    }
    // A region that ends outside the axis is cut at the border.
    assert!(svg.contains("class=\"region\""), "{svg}");
}

#[test]
fn the_table_holds_what_is_drawn() {
    let mut chart = chart(vec![(0.25, 300.4), (0.5, 1_600.0)]);
    chart.lines.push(Line::new("tablet", vec![(0.5, 80.0)]));
    assert_eq!(chart.table_head(), ["r", "phone (ms)", "tablet (ms)"]);
    assert_eq!(chart.table_rows(), [["0.25", "300", "–"], ["0.50", "1,600", "80"]]);
    assert!(chart.svg().contains("class=\"dot s1\""), "one point is a dot");
}

#[test]
fn bars_reach_to_their_counts() {
    let bars = Bars {
        id: "b",
        title: "L".to_owned(),
        x_label: "L (tokens)".to_owned(),
        bars: vec![("1".to_owned(), 0), ("2–4".to_owned(), 10)],
    };
    let svg = bars.svg();
    let height = format!("height=\"{:.1}\"", HEIGHT - BOTTOM - TOP);
    assert!(svg.contains("height=\"0.0\"") && svg.contains(&height), "{svg}");
    let nothing = Bars { bars: Vec::new(), ..bars }.svg();
    assert!(nothing.contains("0 values") && !nothing.contains("NaN"), "{nothing}");
}

/// Returns the x and y of a text in a drawing.
fn place(svg: &str, text: &str) -> (f64, f64) {
    let before = &svg[..svg.find(&format!(">{text}</text>")).unwrap_or_else(|| panic!("no {text} in {svg}"))];
    let element = &before[before.rfind("<text").unwrap()..];
    let number = |name: &str| {
        let rest = element.split(&format!(" {name}=\"")).nth(1).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    };
    (number("x"), number("y"))
}

#[test]
fn the_chosen_point_s_text_does_not_lie_on_a_mark_s() {
    let with = |chosen: (f64, f64)| Chart {
        id: "c",
        title: "t".into(),
        description: "d".into(),
        x: Axis::new("r", "", 0.0, 1.0),
        y: Axis::from_zero("TTFT_d", "ms", 105.0),
        decimals: (1, 1),
        lines: vec![Line::new("phone", vec![(0.1, 10.0), (1.0, 100.0)])],
        region: None,
        marks: vec![Mark { across: Across::Y, value: 100.0, text: "whole prompt, from t = 0".into() }],
        chosen: Some((chosen.0, chosen.1, "r 1".into())),
    };
    for chosen in [(1.0, 100.0), (0.9, 98.0), (0.75, 104.0)] {
        let svg = with(chosen).svg();
        let apart = (place(&svg, "r 1").1 - place(&svg, "whole prompt, from t = 0").1).abs();
        assert!(apart >= 11.0, "{chosen:?}: {apart} apart");
    }
    let far = with((0.1, 99.0)).svg();
    assert!(
        place(&far, "r 1").1 < place(&far, "whole prompt, from t = 0").1 + 11.0,
        "above its point: {far}"
    );
}
