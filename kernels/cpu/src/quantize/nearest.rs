//! Codes for vectors that have none of their own.

use std::collections::VecDeque;

/// Returns, for each vector of `M` members, the code of a vector of `book` that is nearest to it. The
/// distance is the sum of how many places the members are apart in `values`.
///
/// A vector is numbered `Σ place[i] V^i` with `V` values, as in [`number`].
pub(super) fn nearest_codes<const M: usize>(values: &[u8], book: &[[u8; M]]) -> Vec<u16> {
    let count = values.len().pow(M as u32);
    let place = |member: u8| values.iter().take_while(|value| **value < member).count();
    let mut nearest = vec![u16::MAX; count];
    let mut queue = VecDeque::new();
    for (code, vector) in book.iter().enumerate() {
        let number = number(values.len(), vector.map(place));
        nearest[number] = code as u16;
        queue.push_back(number);
    }
    // A breadth-first search from the coded vectors, changing one member by one place per step.
    while let Some(number) = queue.pop_front() {
        let units = std::iter::successors(Some(1), |unit| Some(unit * values.len())).take(M);
        for unit in units {
            let place = number / unit % values.len();
            let below = (place > 0).then(|| number - unit);
            let above = (place + 1 < values.len()).then(|| number + unit);
            for next in below.into_iter().chain(above) {
                if nearest[next] == u16::MAX {
                    nearest[next] = nearest[number];
                    queue.push_back(next);
                }
            }
        }
    }
    nearest
}

/// Returns the number of the vector whose members have these places among `values` values.
pub(super) fn number<const M: usize>(values: usize, places: [usize; M]) -> usize {
    places.into_iter().rev().fold(0, |number, place| values * number + place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{
        IQ2_S_GRID, IQ2_VALUES, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_S_VALUES, TERNARY_GRID, TERNARY_VALUES,
    };

    #[track_caller]
    fn check<const M: usize>(values: &[u8], book: &[[u8; M]], distance_max: usize) {
        let place = |member: u8| values.iter().position(|value| *value == member).unwrap();
        let places: Vec<[usize; M]> = book.iter().map(|vector| vector.map(place)).collect();
        let nearest = nearest_codes(values, book);
        let mut farthest = 0;
        for (n, &code) in nearest.iter().enumerate() {
            let own: [usize; M] = std::array::from_fn(|i| n / values.len().pow(i as u32) % values.len());
            assert_eq!(number(values.len(), own), n);
            let distance = |to: &[usize; M]| own.iter().zip(to).map(|(a, b)| a.abs_diff(*b)).sum::<usize>();
            let least = places.iter().map(distance).min();
            assert_eq!(Some(distance(&places[usize::from(code)])), least, "vector {n}, code {code}");
            farthest = farthest.max(distance(&places[usize::from(code)]));
        }
        assert_eq!(farthest, distance_max);
    }

    #[test]
    fn every_vector_finds_the_nearest_code() {
        check(&TERNARY_VALUES, &TERNARY_GRID, 2);
        check(&IQ2_VALUES, &IQ2_XXS_GRID, 8);
        check(&IQ2_VALUES, &IQ2_S_GRID, 3);
        check(&IQ3_S_VALUES, &IQ3_S_GRID, 9);
    }
}
