//! Tests of the frames: any pieces, any cut, and any flipped bit.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn layout(tokens: usize, request: u128) -> KvLayout {
    let layers = [(3, 40), (3, 40), (1, 700_000)].map(|(heads, token_bytes)| KvLayer { heads, token_bytes });
    KvLayout::new(KvEncoding::Q8, tokens, layers.to_vec(), (Uuid::from_u128(request), "prompt"))
}

/// A layout of small frames.
fn small(tokens: usize) -> KvLayout {
    let layers = vec![KvLayer { heads: 2, token_bytes: 12 }; 2];
    KvLayout::new(KvEncoding::F16, tokens, layers, (Uuid::from_u128(7), "prompt"))
}

fn rows(place: KvPlace) -> Vec<u8> {
    (0..place.bytes).map(|at| (at * 31 + place.index * 7) as u8).collect()
}

fn blob(layout: &KvLayout) -> Vec<u8> {
    layout.places().flat_map(|place| layout.frame(place, &rows(place))).collect()
}

/// Reads a blob in pieces; returns the frames.
fn read(layout: &KvLayout, blob: &[u8], piece: usize) -> Result<Vec<(KvPlace, Vec<u8>)>, KvFrameError> {
    let (mut frames, mut got) = (KvFrames::new(layout.clone()), Vec::new());
    for part in blob.chunks(piece) {
        frames.push(part, |place, rows| got.push((place, rows.to_vec())))?;
    }
    Ok(got)
}

#[test]
fn frames_cover_every_token_of_every_layer() {
    let layout = layout(600, 1);
    for layer in 0..3 {
        let mut at = 0;
        for place in layout.places().filter(|place| place.layer == layer) {
            assert_eq!((place.first, place.heads), (at, layout.layers()[layer].heads));
            assert!(place.tokens <= FRAME_TOKENS_MAX && (place.bytes <= FRAME_BYTES || place.tokens == 1));
            at += place.tokens;
        }
        assert_eq!(at, 600);
    }
    assert!(layout.places().enumerate().all(|(index, place)| place.index == index));
    let ticket = |bytes| KvTicket {
        bytes,
        format: KvEncoding::Q8,
        tokens: 600,
        prompt_sha256: String::new(),
        model: String::new(),
    };
    assert_eq!(layout.check(&ticket(layout.bytes())), Ok(()));
    assert!(layout.check(&ticket(layout.bytes() + 1)).is_err());
    assert!(ticket(0).check().is_err() && ticket(1 << 40).check().is_err());
    assert!(KvTicket { tokens: 0, ..ticket(9) }.check().is_err());
}

#[test]
fn encodings_have_names() {
    for (encoding, name) in KvEncoding::ALL.into_iter().zip(KvEncoding::NAMES) {
        assert_eq!(serde_json::to_value(encoding).unwrap(), name);
    }
}

#[test]
fn frames_of_another_handoff_are_refused() {
    let blob = blob(&layout(1, 1));
    assert!(read(&layout(1, 1), &blob, 1000).is_ok());
    assert_eq!(read(&layout(1, 2), &blob, 1000), Err(KvFrameError::Hash { index: 0 }));
    assert_eq!(read(&layout(2, 1), &blob, 1000), Err(KvFrameError::Head { index: 0 }));
    let other = KvLayout { format: KvEncoding::Q4, ..layout(1, 1) };
    assert_eq!(read(&other, &blob, 1000), Err(KvFrameError::Head { index: 0 }));
    let longer = [blob, vec![0]].concat();
    assert_eq!(read(&layout(1, 1), &longer, 1000), Err(KvFrameError::Trailing));
}

proptest! {
    #[test]
    fn any_pieces_give_the_same_frames(tokens in 1usize..40, piece in 1usize..400) {
        let layout = small(tokens);
        let want: Vec<_> = layout.places().map(|place| (place, rows(place))).collect();
        let bytes = blob(&layout);
        prop_assert_eq!(bytes.len() as u64, layout.bytes());
        prop_assert_eq!(read(&layout, &bytes, piece).unwrap(), want);
    }

    #[test]
    fn a_fetch_goes_on_behind_any_cut(tokens in 1usize..300, cuts in prop::collection::vec(0usize..9000, 0..5)) {
        let layout = small(tokens);
        let bytes = blob(&layout);
        let (mut frames, mut got) = (KvFrames::new(layout.clone()), Vec::new());
        for cut in cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([bytes.len()]) {
            let from = frames.whole_bytes() as usize;
            if from < cut {
                frames.push(&bytes[from..cut], |place, rows| got.push((place, rows.to_vec()))).unwrap();
            }
            frames.cut();
        }
        prop_assert!(frames.is_complete());
        let want: Vec<_> = layout.places().map(|place| (place, rows(place))).collect();
        prop_assert_eq!(got, want);
    }

    #[test]
    fn a_flipped_bit_is_found_and_nothing_of_its_frame_is_given_out(
        tokens in 1usize..300,
        at in 0.0f64..1.0,
        bit in 0u8..8,
        piece in 1usize..5000,
    ) {
        let layout = small(tokens);
        let mut bytes = blob(&layout);
        let at = (at * bytes.len() as f64) as usize;
        bytes[at] ^= 1 << bit;
        let (mut frames, mut got) = (KvFrames::new(layout.clone()), Vec::new());
        let found = bytes.chunks(piece).find_map(|part| {
            frames.push(part, |place, rows| got.push((place, rows.to_vec()))).err()
        });
        let is_named = matches!(found, Some(KvFrameError::Head { .. } | KvFrameError::Hash { .. }));
        prop_assert!(is_named, "{found:?}");
        prop_assert!(got.iter().all(|(place, got)| *got == rows(*place)));
        prop_assert!(frames.whole_bytes() as usize <= at);
    }

    #[test]
    fn any_bytes_are_refused_or_waited_for(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut frames = KvFrames::new(small(9));
        let refused = frames.push(&bytes, |_, _| panic!("no frame")).is_err();
        prop_assert!(refused || bytes.len() < HEAD_BYTES);
    }
}
