//! Random prompts in which each letter is one token.

/// A generator of random prompts. Each letter is one token in the vocabulary of synthetic models.
#[derive(Debug)]
pub(crate) struct Letters(u64);

impl Letters {
    /// Makes a generator; the same seed gives the same prompts.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a prompt of `letters` letters.
    pub(crate) fn prompt(&mut self, letters: usize) -> String {
        // Without `h`, because `he` is one token, and without a blank.
        const ALPHABET: &[u8] = b"abcdfgijklmnopqrstuvwxyz";
        let mut letter = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(ALPHABET[(self.0 >> 33) as usize % ALPHABET.len()])
        };
        (0..letters).map(|_| letter()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_and_have_their_length() {
        let mut letters = Letters::new(1);
        let (first, second) = (letters.prompt(512), letters.prompt(512));
        assert_eq!(first.len(), 512);
        assert_ne!(first[..16], second[..16]);
        assert!(!first.contains('h'));
    }
}
