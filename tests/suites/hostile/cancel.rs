//! Devices that end in the middle of an answer: nothing of it is left in the cloud, in whatever phase it was.
//!
//! No test checks a time: without an end of the answer, the cloud would be busy longer than the guard against
//! hangs waits.

use baton_e2e::hostile::cancel::{Phase, Stage, points};

/// Points of a run of all suites; each phase and each way out is among them.
const POINTS: usize = 7;
/// Points if this suite is named.
const POINTS_ALL: usize = 50;

#[tokio::test]
async fn a_device_that_ends_leaves_its_cloud_free() {
    let all = std::env::var_os("BATON_TEST_ALL").is_some_and(|value| !value.is_empty());
    let points = points(1, if all { POINTS_ALL } else { POINTS });
    for phase in Phase::ALL {
        let stage = Stage::start(phase).await.expect("the cloud starts");
        for point in points.iter().filter(|point| point.phase == phase) {
            let left = stage.run(*point).await.expect("the cloud is free again");
            println!("{point:?}: {left:?}");
            assert_eq!(left.was_told, point.exit.is_told(), "{point:?}");
            assert_eq!(left.is_forgotten, point.exit.is_told(), "{point:?}");
        }
    }
}
