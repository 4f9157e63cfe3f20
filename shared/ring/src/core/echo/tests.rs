//! Paths of known latency and rates are measured in simulated time.

use super::*;

/// A path: seconds of latency each way, bytes per second there and back.
#[derive(Clone, Copy)]
struct Path {
    latency_s: f64,
    there: f64,
    back: f64,
}

/// Returns the answer to an echo and when it arrives.
fn over(path: Path, frame: &Frame, now: Duration) -> (EchoData, Duration) {
    let Frame::Echo(echo) = frame else { panic!("only echoes are sent") };
    let Frame::Echoed(echoed) = answer(echo) else { panic!("an echo is answered by an echo") };
    let took =
        2.0 * path.latency_s + echo.bytes.len() as f64 / path.there + echoed.bytes.len() as f64 / path.back;
    (echoed, now + Duration::from_secs_f64(took))
}

/// Returns what is measured, how long it took, and the bytes that moved there and back.
fn measured(path: Path) -> (LinkSpeed, Duration, (usize, usize)) {
    let mut now = Duration::from_secs(7);
    let (mut echoes, mut frame) = Echoes::latency(now, MEASURE);
    let mut moved = (0, 0);
    loop {
        let (echoed, at) = over(path, &frame, now);
        let Frame::Echo(echo) = &frame else { panic!("only echoes are sent") };
        moved = (moved.0 + echo.bytes.len(), moved.1 + echoed.bytes.len());
        now = at;
        frame = match echoes.heard(&echoed, now) {
            EchoNews::Next(echo) => Frame::Echo(echo),
            EchoNews::Latency(latency_s) => {
                assert!((latency_s - path.latency_s).abs() < 1e-6, "{latency_s}");
                echoes.go_on(now, MEASURE)
            }
            EchoNews::Speed(speed) => return (speed, now - Duration::from_secs(7), moved),
            EchoNews::Wrong => panic!("the answer fits"),
        };
    }
}

#[test]
fn both_directions_are_measured_as_they_are() {
    for path in [
        Path { latency_s: 0.003, there: 2e6, back: 8e6 },
        Path { latency_s: 0.0001, there: 1e9, back: 2e7 },
        Path { latency_s: 0.05, there: 5e5, back: 1e8 },
    ] {
        let (speed, took, moved) = measured(path);
        let near = |found: f64, real: f64| (found - real).abs() < real * 0.01;
        assert!(near(speed.there_bytes_per_s, path.there), "{speed:?}");
        assert!(near(speed.back_bytes_per_s, path.back), "{speed:?}");
        assert!(took < MEASURE, "{took:?}");
        assert!(moved.0 < 7_000_000 && moved.1 < 7_000_000, "{moved:?}");
    }
}

#[test]
fn an_answer_that_was_not_asked_for_is_wrong() {
    let now = Duration::ZERO;
    let (mut echoes, first) = Echoes::latency(now, MEASURE);
    let path = Path { latency_s: 0.001, there: 1e6, back: 1e6 };
    let (echoed, at) = over(path, &first, now);
    let other = EchoData { number: echoed.number + 1, ..echoed.clone() };
    assert_eq!(echoes.clone().heard(&other, at), EchoNews::Wrong);
    let longer = EchoData { bytes: vec![0], ..echoed.clone() };
    assert_eq!(echoes.clone().heard(&longer, at), EchoNews::Wrong);
    assert!(matches!(echoes.heard(&echoed, at), EchoNews::Next(_)));
    assert_eq!(echoes.heard(&echoed, at), EchoNews::Wrong, "each echo is answered once");
    assert_eq!(echoes.ends_at(), MEASURE);
}

#[test]
fn the_fastest_of_five_counts() {
    let mut now = Duration::ZERO;
    let (mut echoes, mut frame) = Echoes::latency(now, MEASURE);
    for ms in [30, 8, 4, 9, 50] {
        let path = Path { latency_s: f64::from(ms) / 2e3, there: 1e9, back: 1e9 };
        let (echoed, at) = over(path, &frame, now);
        now = at;
        match echoes.heard(&echoed, now) {
            EchoNews::Next(next) => frame = Frame::Echo(next),
            EchoNews::Latency(latency_s) => {
                assert_eq!(ms, 50, "after the fifth");
                assert!((latency_s - 0.002).abs() < 1e-9);
                return;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("five echoes give the latency");
}
