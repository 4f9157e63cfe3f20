//! The `mask` event: a mask, and all the values that the device compares before it trusts the mask.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::map::SentenceMap;
use crate::mask::{MASK_OVERHEAD_MAX, MaskError, decode_mask, encode_mask};
use crate::segmenter::SEGMENTER_NAME;

const UNIT_SENTENCE: &str = "sentence";

/// Which sentences of the refinable segments to keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MaskEvent {
    /// The kind of unit that a bit stands for: `sentence`.
    pub unit: String,
    /// Segmenter that found the units.
    pub segmenter: String,
    /// Number of units.
    pub count: u64,
    /// Number of kept units.
    pub kept: u64,
    /// The mask's bytes in base64.
    pub data: String,
    /// Digest of the refinable segments, 64 lower-case hex digits.
    pub content_sha256: String,
    /// Share of the refinable tokens that is kept (r).
    pub ratio: f32,
    /// Share of the whole prompt's tokens that is kept.
    pub prompt_ratio: f32,
}

impl MaskEvent {
    /// Makes the event for a mask over the units of `map`.
    ///
    /// # Panics
    /// If `kept` does not have one flag for each unit of `map`.
    pub fn new(map: &SentenceMap, kept: &[bool], ratio: f32, prompt_ratio: f32) -> Self {
        Self {
            unit: UNIT_SENTENCE.to_owned(),
            segmenter: SEGMENTER_NAME.to_owned(),
            count: kept.len() as u64,
            kept: kept.iter().filter(|&&flag| flag).count() as u64,
            data: STANDARD.encode(encode_mask(map, kept)),
            content_sha256: map.content_sha256().to_owned(),
            ratio,
            prompt_ratio,
        }
    }

    /// Returns the size of the mask before base64, in bytes, computed from the length of the text.
    pub fn mask_bytes(&self) -> usize {
        let padding = self.data.bytes().rev().take_while(|&b| b == b'=').count();
        (self.data.len() / 4 * 3).saturating_sub(padding)
    }

    /// Compares kind of unit, segmenter, count, digest, checksum of the boundaries and number of kept units.
    /// Then returns the flags, one for each unit of `map`.
    ///
    /// # Errors
    /// [`MaskError`] if the mask is damaged or was made for another text. The whole prompt must then be used.
    pub fn open(&self, map: &SentenceMap) -> Result<Vec<bool>, MaskError> {
        if self.unit != UNIT_SENTENCE {
            return Err(MaskError::UnitKind { got: brief(&self.unit), want: UNIT_SENTENCE.to_owned() });
        }
        if self.segmenter != SEGMENTER_NAME {
            return Err(MaskError::Segmenter {
                got: brief(&self.segmenter),
                want: SEGMENTER_NAME.to_owned(),
            });
        }
        if self.count != map.len() as u64 {
            return Err(MaskError::Count { got: self.count, want: map.len() as u64 });
        }
        if self.content_sha256 != map.content_sha256() {
            let got = brief(&self.content_sha256);
            return Err(MaskError::Content { got, want: map.content_sha256().to_owned() });
        }
        // An oversized mask is refused before it is decoded, so that memory is bounded by what the content
        // can need.
        let most = map.len().div_ceil(8) + MASK_OVERHEAD_MAX;
        if self.mask_bytes() > most {
            return Err(MaskError::Trailing { extra: self.mask_bytes() - most });
        }
        let bytes =
            STANDARD.decode(&self.data).map_err(|error| MaskError::Base64 { message: error.to_string() })?;
        let flags = decode_mask(map, &bytes)?;
        let kept = flags.iter().filter(|&&flag| flag).count() as u64;
        if kept != self.kept {
            return Err(MaskError::Kept { got: kept, want: self.kept });
        }
        Ok(flags)
    }
}

/// Returns at most 64 characters of what the peer sent, for an error message.
fn brief(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Role, Segment};

    fn map(text: &str) -> SentenceMap {
        SentenceMap::new(&[Segment::refinable(Role::User, text)])
    }

    const TEXT: &str = "One. Two. Three. Four. Five. Six. Seven. Eight. Nine. Ten.";

    #[test]
    fn a_mask_opens_on_the_same_text_only() {
        let kept = [true, false, false, true, false, false, false, false, false, true];
        let event = MaskEvent::new(&map(TEXT), &kept, 0.3, 0.4);
        assert_eq!((event.count, event.kept), (10, 3));
        assert_eq!(event.mask_bytes(), 2 + 1 + 4 + 2);
        assert_eq!(event.open(&map(TEXT)).unwrap(), kept);
        assert!(matches!(event.open(&map("One. Two.")), Err(MaskError::Count { got: 10, want: 2 })));
        let other = TEXT.replace("One", "Onx");
        assert!(matches!(event.open(&map(&other)), Err(MaskError::Content { .. })));
        assert!(event.open(&map("")).is_err());
    }

    #[test]
    fn every_field_is_compared() {
        let map = map(TEXT);
        let good = MaskEvent::new(&map, &[true; 10], 1.0, 1.0);
        let check = |change: fn(&mut MaskEvent), want: fn(&MaskError) -> bool| {
            let mut event = good.clone();
            change(&mut event);
            let error = event.open(&map).unwrap_err();
            assert!(want(&error), "{error}");
        };
        check(|e| e.unit = "token".into(), |e| matches!(e, MaskError::UnitKind { .. }));
        check(|e| e.segmenter = "s2".into(), |e| matches!(e, MaskError::Segmenter { .. }));
        check(|e| e.count = 11, |e| matches!(e, MaskError::Count { .. }));
        check(|e| e.kept = 9, |e| matches!(e, MaskError::Kept { got: 10, want: 9 }));
        check(|e| e.content_sha256 = String::new(), |e| matches!(e, MaskError::Content { .. }));
        check(|e| e.data = "%%%%".into(), |e| matches!(e, MaskError::Base64 { .. }));
        check(|e| e.data = String::new(), |e| matches!(e, MaskError::Truncated { .. }));
        check(|e| e.data = "A".repeat(4_000_000), |e| matches!(e, MaskError::Trailing { .. }));
        check(|e| e.data = "é".repeat(5), |e| matches!(e, MaskError::Base64 { .. }));
    }

    #[test]
    fn every_flipped_bit_of_the_data_is_refused_or_changes_the_count() {
        let map = map(TEXT);
        let kept = [true, false, false, true, false, false, false, false, false, true];
        let event = MaskEvent::new(&map, &kept, 0.3, 0.4);
        let bytes = STANDARD.decode(&event.data).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let event = MaskEvent { data: STANDARD.encode(bad), ..event.clone() };
            assert!(event.open(&map).is_err(), "bit {bit}");
        }
    }
}
