//! Which units stay in the GPU's memory.

/// Chooses the units that stay, of units with these sizes in the order of a pass, within `room` bytes.
///
/// Units that stay are spread over the pass, so that loads have something to run beside all the time. What
/// remains of the room takes the largest units that fit.
pub(super) fn choose(sizes: &[u64], room: u64) -> Vec<bool> {
    let all: u64 = sizes.iter().sum();
    if all <= room {
        return vec![true; sizes.len()];
    }
    let mut stays = vec![false; sizes.len()];
    let (mut passed, mut kept) = (0u128, 0u64);
    for (at, &size) in sizes.iter().enumerate() {
        passed += u128::from(size);
        // The share of the room that belongs to what was passed.
        let due = passed * u128::from(room) / u128::from(all);
        if u128::from(kept + size) <= due {
            stays[at] = true;
            kept += size;
        }
    }
    let mut others: Vec<usize> = (0..sizes.len()).filter(|at| !stays[*at]).collect();
    others.sort_by_key(|at| std::cmp::Reverse(sizes[*at]));
    for at in others {
        if kept + sizes[at] <= room {
            stays[at] = true;
            kept += sizes[at];
        }
    }
    stays
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    #[test]
    fn what_stays_is_spread() {
        assert_eq!(choose(&[10; 6], 30), [false, true, false, true, false, true]);
        assert_eq!(choose(&[10; 6], 60), [true; 6]);
        assert_eq!(choose(&[10; 3], 9), [false; 3]);
        assert!(choose(&[], 9).is_empty());
    }

    proptest! {
        #[test]
        fn the_room_is_used_and_not_exceeded(
            sizes in prop::collection::vec(1u64..1000, 1..80),
            room in 0u64..40_000,
        ) {
            let stays = choose(&sizes, room);
            let kept: u64 = sizes.iter().zip(&stays).filter(|(_, stays)| **stays).map(|(size, _)| size).sum();
            prop_assert!(kept <= room);
            let least = sizes.iter().zip(&stays).filter(|(_, stays)| !**stays).map(|(size, _)| *size).min();
            prop_assert!(least.is_none_or(|least| kept + least > room), "a unit of {least:?} would fit");
        }
    }
}
